"""FinanceBench from its PDFs: the filing and the page that answer a question, among all filings.

    python benchmarks/cpu/financebench.py FOLDER [--index INDEX]

FOLDER is the public repository patronus-ai/financebench: `pdfs/` and
`data/financebench_open_source.jsonl`. The filings that the questions are of are read and indexed as
they come, with the default model and settings; a question whose filing is not in the folder is left
out, and is counted. Files are named by company, year and form, as the repository names them, and
nothing else of the benchmark's data is given to the index.

A page is in the first k if one of the k best passages lies on it, whole or in part; a passage may
end on the next page. "cited page" is the share of questions whose first hit names a page of the
evidence (`Hit.page`). "filing first" is the share of questions whose first passage, or first
document, is of the right filing. With --index, the index stays there and is used again, with the
seconds that it took in a file beside it. Writes financebench.json into benchmarks/results/.
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
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import plural
from aveyb_retrieval.eval.runner import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval import Hit

RESULTS = Path(__file__).parents[1] / "results"
DEPTHS = (1, 3, 10)  # passages that are looked through for a page

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


def pages_of(hit: Hit) -> set[Page]:
    """Return the pages that a hit's passage lies on."""
    first, last = hit.pages or (0, -1)
    return {(Path(hit.id).stem, page) for page in range(first, last + 1)}


def measure(retriever: Retriever, questions: Sequence[Question]) -> dict[str, float]:
    """Ask all questions, of all filings and of the right one alone."""
    figures = defaultdict[str, list[float]](list)
    for question in questions:
        for where in ("all", "right filing"):
            options = {} if where == "all" else {"ids": [f"{question.filing}.pdf"]}
            hits = retriever.search(question.text, k=max(DEPTHS), unit="passage", **options)
            is_right = [not question.pages.isdisjoint(pages_of(hit)) for hit in hits]
            for depth in DEPTHS:
                figures[f"page in the first {depth}, {where}"].append(any(is_right[:depth]))
            cited = [(Path(hit.id).stem, hit.page) for hit in hits[:1]]
            figures[f"cited page, {where}"].append(not question.pages.isdisjoint(cited))
            if where == "all":
                first = [Path(hit.id).stem == question.filing for hit in hits[:1]]
                figures["filing first, by passages"].append(any(first))
        hits = retriever.search(question.text, k=1)
        first = [Path(hit.id).stem == question.filing for hit in hits[:1]]
        figures["filing first, by documents"].append(any(first))
    return {name: round(statistics.fmean(values), 4) for name, values in figures.items()}


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
        taken = place.with_name(f"{place.name}.seconds")
        if not place.exists():
            taken.write_text(f"{build(args.folder, filings, place):.1f}\n", encoding="utf-8")
        seconds = float(taken.read_text(encoding="utf-8")) if taken.exists() else None
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
