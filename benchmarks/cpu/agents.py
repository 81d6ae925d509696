"""How many steps and tokens does an agent need to the passage that answers: with grep, with search,
with both?

    python benchmarks/cpu/agents.py ../data/cuad-long --json benchmarks/results/agents.json

No language model is asked: rules stand for the agent. It knows the question and what it was shown
so far.

<<<<<<< HEAD
- grep: the words of the question from the rarest on, 20 lines each; then it reads 500 tokens around
  each line, best first: a line is better that holds more of the question's words.
=======
- grep: the words of the question from the rarest on, 20 lines each; then it reads 500 tokens around
  each, best first: a line is better that holds more of the question's words.
>>>>>>> proof61
- search: five passages a step, page after page.
- both: one page of passages; then grep as above, but in the documents of these passages only.

A step is one call of a tool. It ends where half of an answering span was shown, or after 40 steps.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import Retriever, build_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # of each step: document, characters, what is read
    Shown = Iterator[list[tuple[str, tuple[int, int], str]]]

MOST, PAGE, LINES, AROUND, TOKENS = 40, 5, 20, 800, 500
_WORD = re.compile(r"[^\W\d_]{4,}")


def lines_of(retriever: Retriever, question: str, only: list[str] | None = None) -> Shown:
    """Search by expressions, and read around what matches."""
    words = {word.casefold() for word in _WORD.findall(question)}
    where = None if only is None else {"_id": {"$in": only}}
    found = {
        word: retriever.grep(rf"\b{word}", filter=where, limit=1000, ignore_case=True)
        for word in words
    }
    seen: set[tuple[str, int]] = set()
    for word in sorted(words, key=lambda each: (len(found[each]) or 1 << 30, each)):
        lines = found[word][:LINES]
        yield [(line.id, line.span, line.line) for line in lines]
        held = {
            line: len(words & {each.casefold() for each in _WORD.findall(line.line)})
            for line in lines
        }
        for line in sorted(lines, key=lambda each: -held[each])[:PAGE]:
            start = max(0, line.span[0] - AROUND)
            if (line.id, start // AROUND) not in seen:
                seen.add((line.id, start // AROUND))
                length = len(retriever.get([line.id])[0].text)
                part = retriever.read(line.id, span=(start, length), max_tokens=TOKENS)
                yield [(line.id, part.span, part.text)]


def passages_of(retriever: Retriever, question: str) -> Shown:
    """Search by meaning and words, page after page."""
    for step in range(MOST):
        hits = retriever.search(question, PAGE, unit="passage", offset=step * PAGE)
        yield [(hit.id, hit.span or (0, 0), hit.passage or "") for hit in hits]


def both_of(retriever: Retriever, question: str) -> Shown:
    """Search once, then by expressions in the documents that were found."""
    first = next(passages_of(retriever, question))
    yield first
    yield from lines_of(retriever, question, list(dict.fromkeys(name for name, _, _ in first)))


WAYS: dict[str, Callable[[Retriever, str], Shown]] = {
    "grep": lines_of,
    "search": passages_of,
    "both": both_of,
}


def walk(steps: Shown, name: str, spans: list[list[int]]) -> tuple[bool, int, int]:
    """Whether half of a span was shown, in how many steps, and the characters that were read."""
    read = number = 0
    for number, shown in zip(range(1, MOST + 1), steps, strict=False):
        read += sum(len(text) for _, _, text in shown)
        for document, (first, last), _ in shown:
            if document == name and any(
                2 * (min(last, b) - max(first, a)) >= b - a for a, b in spans
            ):
                return True, number, read
    return False, number, read


def main() -> None:
    """Ask the questions of documents in a BEIR folder with spans."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="BEIR folder with spans.jsonl")
    parser.add_argument("--documents", type=int, default=30)
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in ("corpus", "queries", "spans"):
        with (args.folder / f"{name}.jsonl").open(encoding="utf-8") as lines:
            rows[name] = [json.loads(line) for line in lines]
    corpus = {row["_id"]: row["text"] for row in rows["corpus"][: args.documents]}
    queries = {row["_id"]: row["text"] for row in rows["queries"]}
    known = [row for row in rows["spans"] if row["corpus-id"] in corpus]
    asked = random.Random(0).sample(known, args.questions)
    table = []
    with tempfile.TemporaryDirectory() as top:
        build_index(
            [{"_id": name, "text": text} for name, text in corpus.items()], Path(top) / "ix"
        )
        with Retriever.load(Path(top) / "ix") as retriever:
            for way, steps in WAYS.items():
                found = [
                    walk(steps(retriever, queries[r["query-id"]]), r["corpus-id"], r["spans"])
                    for r in asked
                ]
                done = [each for each in found if each[0]]
                row = {
                    "tools": way,
                    "found": len(done),
                    "steps": round(mean(each[1] for each in found), 1),
                    "median_steps": median(each[1] for each in found),
                    "tokens": round(mean(each[2] for each in found) / 4),
                    "median_tokens": round(median(each[2] for each in found) / 4),
                    "steps_of_each": dict(sorted(Counter(each[1] for each in done).items())),
                }
                table.append(row)
                sys.stdout.write(f"{row}\n")
                sys.stdout.flush()
    if args.json:
        about = {
            "corpus": args.folder.name,
            "documents": len(corpus),
            "questions": len(asked),
            "rows": table,
        }
        args.json.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
