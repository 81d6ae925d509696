"""Quotations of answers: are true, altered, moved and invented ones told apart, and in what time of
a processor?

    python benchmarks/cpu/quotes.py ../data/cuad-long ../data/qmsum-long --json
    benchmarks/results/quotes.json

Sentences of the corpora's documents are quoted as they are, with one change (a number, a negation,
the order of two words, another word), under the mark of another hit, or are sentences of another
corpus, which no document here holds.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import Retriever, build_index

if TYPE_CHECKING:
    from collections.abc import Iterator

_SENTENCE = re.compile(
    r"(?<![A-Za-z])[A-Z][^.!?\n\u201c\u201d\"\u2018\u2019`>\[\]]{40,220}[.!?](?!\S)"
)
_NUMBER = re.compile(r"\d+")
EXPECTED = {
    "true": "found",
    "number": "altered",
    "negation": "altered",
    "order": "altered",
    "word": "altered",
    "moved": "elsewhere",
    "invented": "absent",
}


def texts_of(folder: Path, most: int) -> list[tuple[str, str]]:
    """Return ids and texts of the first documents of a BEIR folder."""
    rows = []
    with (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            rows.append((str(row["_id"]), row["text"]))
            if len(rows) == most:
                break
    return rows


def changed(sentence: str, kind: str, rng: random.Random) -> str | None:
    """Return a sentence with one change; None where it has nothing to change."""
    words = sentence.split()
    if kind == "number":
        numbers = list(_NUMBER.finditer(sentence))
        if not numbers:
            return None
        match = rng.choice(numbers)
        return (
            sentence[: match.start()]
            + str(int(match[0]) + rng.randint(1, 9))
            + sentence[match.end() :]
        )
    if kind == "negation":
        for verb in ("shall", "may", "will", "is", "are", "can", "should"):
            if verb in words:
                place = words.index(verb)
                return " ".join([*words[: place + 1], "not", *words[place + 1 :]])
        return None
    place = rng.randrange(1, len(words) - 2)
    if kind == "order":
        two = words[place].casefold(), words[place + 1].casefold()
        if two[0] == two[1] or not all(any(map(str.isalnum, word)) for word in two):
            return None
        words[place], words[place + 1] = words[place + 1], words[place]
    elif any(map(str.isalnum, words[place])):
        words[place] = "marmalade"
    return " ".join(words)


def cases(
    corpus: list[tuple[str, str]], other: list[tuple[str, str]], count: int, seed: int
) -> Iterator[tuple[str, str, str]]:
    """Yield kind, quotation and the id of its document ("" where no document has it)."""
    rng = random.Random(seed)
    whole = " ".join(" ".join(text.split()) for _, text in corpus).casefold()
    own, others = (
        [(n, s) for n, text in texts for s in _SENTENCE.findall(text)] for texts in (corpus, other)
    )
    pools = {}
    for kind in EXPECTED:
        pool = (
            others
            if kind == "invented"
            else [each for each in own if kind != "number" or _NUMBER.search(each[1])]
        )
        pools[kind] = iter(rng.sample(pool, len(pool)))
    made = 0
    while pools and made < count:
        kind = list(pools)[made % len(pools)]
        for name, found in pools[kind]:
            sentence = " ".join(found.split())
            quote = sentence if EXPECTED[kind] != "altered" else changed(sentence, kind, rng)
            if quote is None or len(quote.split()) < 8:
                continue
            if EXPECTED[kind] in ("altered", "absent") and quote.casefold() in whole:
                continue
            made += 1
            yield kind, quote, "" if kind == "invented" else name
            break
        else:
            del pools[kind]  # the corpus has no more of them


def measure(
    folder: Path, other: list[tuple[str, str]], documents: int, count: int, seed: int
) -> dict[str, Any]:
    """Check generated quotations over one corpus; returns verdicts by kind and milliseconds of
    processor time each.
    """
    corpus = texts_of(folder, documents)
    with tempfile.TemporaryDirectory() as top:
        root = Path(top) / "ix"
        build_index(
            [{"_id": name, "text": text} for name, text in corpus], root, granularity="passage"
        )
        with Retriever.load(root) as retriever:
            everything = {
                hit.id: hit for hit in retriever.search("agreement", k=documents, mode="dense")
            }
            told: Counter[tuple[str, str]] = Counter()
            wrong: list[tuple[str, str, str]] = []
            seconds = 0.0
            for kind, quote, name in cases(corpus, other, count, seed):
                hits = [
                    hit for each, hit in everything.items() if (each == name) != (kind == "moved")
                ][:1]
                given = hits if hits and kind in ("true", "moved") else None
                started = time.process_time()
                (check,) = retriever.check_quotes(f"It says \u201c{quote}\u201d [1].", given)
                seconds += time.process_time() - started
                told[kind, check.verdict] += 1
                if check.verdict != EXPECTED[kind]:
                    wrong.append((kind, check.verdict, quote))
    table = {
        kind: {v: told[kind, v] for v in ("found", "altered", "elsewhere", "absent")}
        for kind in EXPECTED
    }
    right = sum(told[kind, verdict] for kind, verdict in EXPECTED.items())
    return {
        "corpus": folder.name,
        "documents": len(corpus),
        "characters": sum(len(text) for _, text in corpus),
        "quotations": told.total(),
        "right": right,
        "verdicts": table,
        "ms": round(1000 * seconds / told.total(), 1),
        "wrong": wrong[:20],
    }


def main() -> None:
    """Measure every corpus; invented sentences are those of the next one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, help="BEIR folders, at least two")
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--quotations", type=int, default=500, help="of each corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if len(args.folders) < 2:
        parser.error("give at least two folders: invented quotations are sentences of another one")
    rows = []
    for folder, other in zip(args.folders, [*args.folders[1:], args.folders[0]], strict=True):
        row = measure(
            folder, texts_of(other, args.documents), args.documents, args.quotations, args.seed
        )
        rows.append(row)
        sys.stdout.write(
            f"{row['corpus']}: {row['right']} of {row['quotations']} right, {row['ms']:.1f} ms"
            " each\n"
        )
        for kind, found in row["verdicts"].items():
            sys.stdout.write(f"  {kind:9} {found}\n")
        for kind, verdict, quote in row["wrong"]:
            sys.stdout.write(f"    {kind} -> {verdict}: {quote[:150]}\n")
        sys.stdout.flush()
    if args.json:
        args.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
