"""Select the questions and the passages that answer them, so that they can be labelled before everything else.

texts.jsonl  {"text", "kind", "source"}, as in the folder they come from, in the same order
pairs.jsonl  {"anchor", "positive"}: line numbers (from 0) of texts that belong together
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from aveyb_retrieval.index.storage.files import atomic_writer
from aveyb_retrieval.training.texts import read_records

KEPT_ASIDE = 4_096  # texts at the end, which no stage trains on: what a run is judged by


def main() -> None:
    """Parse the arguments and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="output folder of make_texts.py")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = [record for _, record in read_records(args.texts / "texts.jsonl")]
    last = len(rows) - KEPT_ASIDE
    pairs = [
        (record["anchor"], record["positive"])
        for _, record in read_records(args.texts / "pairs.jsonl")
        if rows[record["anchor"]]["kind"] == "question" and max(record["anchor"], record["positive"]) < last
    ]
    if not pairs:
        raise SystemExit(f"{args.texts} has no question before its last {KEPT_ASIDE:,} texts: take a larger share")
    kept = sorted({number for pair in pairs for number in pair})
    new = {number: line for line, number in enumerate(kept)}
    args.out.mkdir(parents=True, exist_ok=True)
    with atomic_writer(args.out / "texts.jsonl") as file:
        for number in kept:
            file.write((json.dumps(rows[number], ensure_ascii=False) + "\n").encode())
    with atomic_writer(args.out / "pairs.jsonl") as file:
        for anchor, positive in pairs:
            file.write((json.dumps({"anchor": new[anchor], "positive": new[positive]}) + "\n").encode())
    print(f"{len(pairs):,} pairs of {len(kept):,} texts")


if __name__ == "__main__":
    main()
