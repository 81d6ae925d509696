"""FinanceBench from its PDFs: the filing and the page that answer a question, among all filings.

    python benchmarks/cpu/financebench.py FOLDER [--index INDEX]

FOLDER is the public repository patronus-ai/financebench: `pdfs/` and
`data/financebench_open_source.jsonl`. The filings that the questions are of are read and indexed as
they come, with the default model and settings; a question whose filing is not in the folder is left
out, and is counted. Files are named by company, year and form, as the repository names them, and
nothing else of the benchmark's data is given to the index.

A page is found by a passage that lies on it, whole or in part. Pages are counted from the best
passage on, each once. "filing first" is the share of questions whose first passage, or first
document, is of the right filing. With --index, the index stays there and is used again. Writes
financebench.json into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import plural
from aveyb_retrieval.eval.runner import write_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RESULTS = Path(__file__).parents[1] / "results"
PAGES = (1, 3, 10)
MAX_PASSAGES = 100  # that are looked through for ten pages

Page = tuple[str, int]  # a filing, and its page counted from 1


@dataclass(frozen=True)
class Question:
    """A question, the filing that it is of, and the pages that hold its evidence."""

    text: str
    filing: str
    pages: frozenset[Page]


def read_questions(folder: Path) -> list[Question]:
    """Read the questions of the open sample."""
    path = folder / "data" / "financebench_open_source.jsonl"
    questions = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        # the benchmark counts pages from 0
        pages = {
            (each.get("doc_name", row["doc_name"]), each["evidence_page_num"] + 1)
            for each in row["evidence"]
        }
        questions.append(Question(row["question"], row["doc_name"], frozenset(pages)))
    return questions


def build(folder: Path, filings: Sequence[str], place: Path) -> float:
    """Read and index filings; returns the seconds that it took."""
    with tempfile.TemporaryDirectory() as top:
        for name in filings:
            shutil.copy(folder / "pdfs" / f"{name}.pdf", top)
        start = time.perf_counter()
        build_index(top, place)
        return time.perf_counter() - start


def pages_found(retriever: Retriever, question: str, **options: Any) -> Iterator[Page]:
    """Yield the pages that the best passages lie on, each once, best first."""
    seen = set[Page]()
    for hit in retriever.search(question, k=MAX_PASSAGES, unit="passage", **options):
        first, last = hit.pages or (0, -1)
        for number in range(first, last + 1):
            page = Path(hit.id).stem, number
            if page not in seen:
                seen.add(page)
                yield page


def measure(retriever: Retriever, questions: Sequence[Question]) -> dict[str, float]:
    """Ask all questions, of all filings and of the right one alone."""
    figures: dict[str, list[float]] = {}
    seconds = []
    for question in questions:
        for where in ("all", "right filing"):
            options = {} if where == "all" else {"ids": [f"{question.filing}.pdf"]}
            found = list(pages_found(retriever, question.text, **options))
            for most in PAGES:
                hit = not question.pages.isdisjoint(found[:most])
                figures.setdefault(f"page in the first {most}, {where}", []).append(hit)
            if where == "all":
                first = bool(found) and found[0][0] == question.filing
                figures.setdefault("filing first, by passages", []).append(first)
        start = time.perf_counter()
        hits = retriever.search(question.text, k=10)
        seconds.append(time.perf_counter() - start)
        first = bool(hits) and Path(hits[0].id).stem == question.filing
        figures.setdefault("filing first, by documents", []).append(first)
    means = {name: round(statistics.fmean(values), 4) for name, values in figures.items()}
    return {**means, "search, p50 ms": round(1000 * statistics.median(seconds), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the public repository")
    parser.add_argument("--index", type=Path, help="where the index stays, and is used again")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where financebench.json goes")
    args = parser.parse_args()
    every = read_questions(args.folder)
    there = {path.stem for path in (args.folder / "pdfs").glob("*.pdf")}
    questions = [each for each in every if each.filing in there]
    filings = sorted({each.filing for each in questions})
    if not filings:
        sys.exit(f"{args.folder}: no PDF of the {len(every)} questions' filings in pdfs/")
    with tempfile.TemporaryDirectory() as top:
        place = args.index or Path(top) / "index"
        seconds = None if place.exists() else round(build(args.folder, filings, place), 1)
        with Retriever.load(place) as retriever:
            figures = measure(retriever, questions)
    document = {
        "command": "python benchmarks/cpu/financebench.py FOLDER",
        "machine": {"cores": os.cpu_count(), "processor": platform.machine()},
        "filings": len(filings),
        "questions": len(questions),
        "questions without their filing": len(every) - len(questions),
        "seconds to read and build": seconds,
        **figures,
    }
    print(f"{plural(len(filings), 'filing')}, {plural(len(questions), 'question')}")
    for name, value in figures.items():
        print(f"{name:<40} {value}")
    write_text(args.out / "financebench.json", json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
