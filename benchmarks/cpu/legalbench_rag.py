"""LegalBench-RAG: characters of the answer among the first passages, ours beside BM25 and MiniLM.

    python benchmarks/cpu/legalbench_rag.py FOLDER [--questions 194] [--cache CACHE]

FOLDER is the benchmark as its authors give it (`corpus/` and `benchmarks/*.json`; line ends are
read as Python's text mode reads them, for the spans count so), or holds `corpus.jsonl` and
`questions.jsonl`: `_id`, `subset`, `text`, and `spans` of (document, start, end). All subsets are
one pool of documents, those that the questions are of. Of the authors' questions 194 of each subset
are taken, in the order that their code puts them in ("mini"); 0 takes all.

Each question names its document before a semicolon, and is also asked without that ("stripped").
Precision at k is the share of the first k passages' characters that lie in spans, recall the share
of the spans' characters that lie in these passages: means over questions, then over subsets. "wrong
first" is the share of questions whose first passage is of a document without a span. Peers read
chunks of 500 characters: bm25s, all-MiniLM-L6-v2, and both fused by reciprocal ranks. Writes
legalbench_rag.json and legalbench_rag.md into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passage_peers import ExactPassages, FusedPassages, VectorScorer, WordScorer
from quality import RESULTS, minilm_folder

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.eval.data import Corpus, Document
from aveyb_retrieval.eval.encoders import ChunkedModel, load_peer
from aveyb_retrieval.eval.runner import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from aveyb_retrieval.eval.systems import Passage

    Search: TypeAlias = Callable[[Sequence[str]], list[list[Passage]]]

KS = (1, 2, 4, 8, 16, 32, 64)
MINI = 194  # questions of each subset in the authors' small form
CHUNK = 500  # characters of the peers' chunks
SIZES = (256, 128)  # tokens of our passages
FORMS = ("named", "stripped")
WRONG = "wrong first"

Span = tuple[str, int, int]


@dataclass(frozen=True)
class Question:
    """A question, its subset, and the characters that answer it."""

    subset: str
    text: str
    spans: tuple[Span, ...]

    def asked(self, form: str) -> str:
        """The question as it is, or without the clause that names its document."""
        rest = self.text.partition(";")[2].strip()
        return rest if form == "stripped" and rest else self.text


def read_benchmark(folder: Path, most: int) -> tuple[list[dict[str, str]], list[Question]]:
    """Read documents and at most so many questions of each subset; 0 for all."""
    if (folder / "corpus.jsonl").is_file():
        documents = read_rows(folder / "corpus.jsonl")
        questions = [
            Question(row["subset"], row["text"], tuple((d, a, b) for d, a, b in row["spans"]))
            for row in read_rows(folder / "questions.jsonl")
        ]
        return documents, questions
    questions = []
    for path in sorted((folder / "benchmarks").glob("*.json")):
        questions += read_subset(path, most)
    if not questions:
        sys.exit(f"{folder}: neither corpus.jsonl nor benchmarks/*.json")
    names = sorted({name for question in questions for name, _, _ in question.spans})
    documents = [
        {
            "_id": name,
            "title": Path(name).stem.replace("_", " "),
            "text": (folder / "corpus" / name).read_text(encoding="utf-8"),
        }
        for name in names
    ]
    return documents, questions


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_subset(path: Path, most: int) -> list[Question]:
    """Read a file of the authors; some of its questions in an order by their documents."""
    tests = json.loads(path.read_text(encoding="utf-8"))["tests"]
    if most and len(tests) > most:
        tests = sorted(tests, key=lambda test: drawn(test["snippets"][0]["file_path"]))[:most]
    return [
        Question(
            path.stem,
            test["query"],
            tuple((each["file_path"], *each["span"]) for each in test["snippets"]),
        )
        for test in tests
    ]


def drawn(name: str) -> float:
    return random.Random(name).random()


def chunks(text: str) -> list[tuple[int, int]]:
    """Cut a text into chunks of 500 characters."""
    return [(start, min(start + CHUNK, len(text))) for start in range(0, len(text), CHUNK)]


def measures(question: Question, passages: Sequence[Passage]) -> dict[str, float]:
    """Precision and recall of one question at each k."""
    total = sum(stop - start for _, start, stop in question.spans)
    found = {WRONG: float(not passages or passages[0][0] not in {s[0] for s in question.spans})}
    for k in KS:
        first = passages[:k]
        shown = sum(stop - start for _, start, stop in first)
        right = sum(covered(span, first) for span in question.spans)
        found[f"P@{k}"] = right / shown if shown else 0.0
        found[f"R@{k}"] = right / total
    return found


def covered(span: Span, passages: Sequence[Passage]) -> int:
    """How many characters of a span lie in some passages."""
    doc, start, stop = span
    parts = sorted(
        (max(start, first), min(stop, last))
        for other, first, last in passages
        if other == doc and first < stop and last > start
    )
    count, end = 0, start
    for first, last in parts:
        count += max(0, last - max(first, end))
        end = max(end, last)
    return count


def systems(
    documents: list[dict[str, str]], cache: Path, minilm: str
) -> Iterator[tuple[str, Search]]:
    """Yield what is compared: a name, and what finds passages for questions."""
    for tokens in SIZES:
        place = cache / f"ours-{tokens}"
        if not place.exists():
            build_index(documents, place, passage_tokens=tokens)
        yield f"ours, passages of {tokens} tokens", ours(place)
    corpus = Corpus([Document(d["_id"], d["title"], d["text"]) for d in documents], "legal")
    what = f"{CHUNK} characters"
    words = WordScorer(corpus, chunks, what)
    yield f"BM25 (bm25s), {what}", peer(ExactPassages(words))
    model = ChunkedModel(load_peer(minilm), chunks, what)
    vectors = VectorScorer(model, corpus, cache)
    yield f"all-MiniLM-L6-v2, {what}", peer(ExactPassages(vectors))
    yield f"both fused (RRF), {what}", peer(FusedPassages(words, vectors))


def ours(place: Path) -> Search:
    def search(questions: Sequence[str]) -> list[list[Passage]]:
        with Retriever.load(place) as retriever:
            found = (retriever.search(text, k=max(KS), unit="passage") for text in questions)
            return [[(hit.id, *(hit.span or (0, 0))) for hit in hits] for hits in found]

    return search


def peer(system: ExactPassages | FusedPassages) -> Search:
    def search(questions: Sequence[str]) -> list[list[Passage]]:
        asked = {str(number): text for number, text in enumerate(questions)}
        found = system.search(asked, max(KS))
        return [found[number] for number in asked]

    return search


def means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.fmean(row[name] for row in rows), 4) for name in rows[0]}


def measure(
    questions: Sequence[Question], form: str, search: Search
) -> dict[str, dict[str, float]]:
    """Means of each subset, and of these."""
    passages = search([question.asked(form) for question in questions])
    rows: dict[str, list[dict[str, float]]] = {}
    for question, found in zip(questions, passages, strict=True):
        rows.setdefault(question.subset, []).append(measures(question, found))
    of_subsets = {subset: means(each) for subset, each in rows.items()}
    return {**of_subsets, "mean": means(list(of_subsets.values()))}


def markdown(document: dict[str, Any]) -> str:
    """Tables: for each form of the questions and each subset a row per system."""
    columns = [WRONG, *(f"R@{k}" for k in KS), *(f"P@{k}" for k in KS)]
    facts = ", ".join(f"{key} {value}" for key, value in document["machine"].items())
    lines = ["# LegalBench-RAG", "", f"`{document['command']}`", "", facts, ""]
    lines += [f"{document['documents']} documents, {document['questions']} questions", ""]
    for form in FORMS:
        rows = [row for row in document["rows"] if row["form"] == form]
        for subset in rows[0]["measures"]:
            lines += [
                f"## {subset}, {form}",
                "",
                "| | " + " | ".join(columns) + " |",
                "|---" * (len(columns) + 1) + "|",
            ]
            for row in rows:
                values = " | ".join(f"{row['measures'][subset][name]:.3f}" for name in columns)
                lines.append(f"| {row['system']} | {values} |")
            lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the benchmark, in one of its two layouts")
    parser.add_argument(
        "--questions", type=int, default=MINI, help="of each subset of the authors' layout"
    )
    parser.add_argument("--minilm", help="folder of all-MiniLM-L6-v2; default: the PyPI package's")
    parser.add_argument("--cache", type=Path, help="where indexes and vectors stay")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the tables go")
    args = parser.parse_args()
    documents, questions = read_benchmark(args.folder, args.questions)
    rows = []
    with tempfile.TemporaryDirectory() as top:
        for name, search in systems(
            documents, args.cache or Path(top), args.minilm or minilm_folder()
        ):
            for form in FORMS:
                found = measure(questions, form, search)
                rows.append({"system": name, "form": form, "measures": found})
                shown = ", ".join(
                    f"{key} {found['mean'][key]:.3f}" for key in ("R@1", "R@8", WRONG)
                )
                print(f"{name:<32} {form:<9} {shown}", flush=True)
    document = {
        "command": "python benchmarks/cpu/legalbench_rag.py FOLDER",
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            **{package: version(package) for package in ("sentence-transformers", "bm25s")},
        },
        "documents": len(documents),
        "questions": len(questions),
        "rows": rows,
    }
    write_text(args.out / "legalbench_rag.json", json.dumps(document, indent=1) + "\n")
    write_text(args.out / "legalbench_rag.md", markdown(document))


if __name__ == "__main__":
    main()
