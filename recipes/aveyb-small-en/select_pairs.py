"""Select the pairs of some kinds, such as questions and the passages that answer them, to label them first.

texts.jsonl  {"text", "kind", "source"}, as in the folder they come from, in the same order
pairs.jsonl  {"anchor", "positive"}: line numbers (from 0) of texts that belong together
"""

from __future__ import annotations

import argparse
from pathlib import Path

from make_texts import write_texts

from aveyb_retrieval.training.texts import read_records

KINDS = ("question", "heading", "definition")
KEPT_ASIDE = 4_096  # texts at the end, which no stage trains on: what a run is judged by


def main() -> None:
    """Parse the arguments and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="output folder of make_texts.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["question"], help="of the pairs' first texts")
    args = parser.parse_args()
    rows = [record for _, record in read_records(args.texts / "texts.jsonl")]
    last = len(rows) - KEPT_ASIDE
    pairs = [
        (record["anchor"], record["positive"])
        for _, record in read_records(args.texts / "pairs.jsonl")
        if rows[record["anchor"]]["kind"] in args.kinds and max(record["anchor"], record["positive"]) < last
    ]
    if not pairs:
        raise SystemExit(
            f"{args.texts} has no {' or '.join(args.kinds)} before its last {KEPT_ASIDE:,} texts: take a larger share"
        )
    kept = sorted({number for pair in pairs for number in pair})
    write_texts(args.out, rows, pairs, kept)
    print(f"{len(pairs):,} pairs of {len(kept):,} texts")


if __name__ == "__main__":
    main()
