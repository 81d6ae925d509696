"""Lay out the development queries as BEIR folders, so that the usual tools measure settings on them.

    python development.py --data ../../../shared/data --out /tmp/aveyb-mini-en/development
    python ../../benchmarks/cpu/quality.py --data /tmp/aveyb-mini-en/development --sets scifact medquad ... \\
        --model /tmp/aveyb-mini-en/model/model --out /tmp/aveyb-mini-en

The queries are the training queries that `sources.py` keeps aside and, where a set has one, its dev split. A set that
lists the spans that answer also gets questions.jsonl, {"query", "document_id", "spans"}, as
`benchmarks/cpu/confidence.py` reads it.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

from sources import TRAIN_SETS, load_set

from aveyb_retrieval.training.texts import read_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    for name in TRAIN_SETS:
        collection = load_set(args.data / name)
        rels = {q: collection.qrels["train"][q] for q in collection.development_queries()}
        rels |= collection.qrels.get("dev", {})
        folder = args.out / name
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        for file in ("corpus.jsonl", "queries.jsonl"):
            link = folder / file
            link.unlink(missing_ok=True)
            link.symlink_to((args.data / name / file).resolve())
        with (folder / "qrels" / "test.tsv").open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out, delimiter="\t", lineterminator="\n")
            writer.writerow(["query-id", "corpus-id", "score"])
            writer.writerows([q, d, 1] for q in sorted(rels) for d in rels[q])
        if (args.data / name / "spans.jsonl").exists():
            with (folder / "questions.jsonl").open("w", encoding="utf-8") as out:
                for _, record in read_records(args.data / name / "spans.jsonl"):
                    if record["query-id"] in rels and record["spans"]:
                        text = collection.queries[record["query-id"]]
                        question = {"query": text, "document_id": record["corpus-id"], "spans": record["spans"]}
                        out.write(json.dumps(question, ensure_ascii=False) + "\n")
        print(f"{name}: {len(rels)} queries")


if __name__ == "__main__":
    main()
