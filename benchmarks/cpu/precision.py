"""The cost of lower precision in retrieval quality: float32 and bfloat16 side by side.

    python benchmarks/cpu/precision.py --data ../shared/data --cache
    ~/.cache/aveyb-retrieval/quality

The sets, queries and search of `quality.py` (dense, the better of document and passage). For every
precision: NDCG@10, the cosine between a document's vector and its float32 vector (mean and
smallest), and the share of the ten best documents that float32 also finds. The speed means nothing.
Prints one table; writes precision.json into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from quality import MAX_QUERIES, RESULTS, SETS

from aveyb_retrieval.cli.common import progress_bar
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.encoders import LoadOptions, load_measured
from aveyb_retrieval.eval.named_systems import exact_system, indexed
from aveyb_retrieval.eval.runner import run_system, write_text
from aveyb_retrieval.eval.tasks import make_task
from aveyb_retrieval.indexes.vectors import StoredShards

PRECISIONS = ("float32", "bfloat16")
DEPTH = 10


def cosines(vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of the rows of two `[n, d]`; texts without tokens, whose rows are zero, left out."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(others, axis=1)
    kept = norms > 0
    return (vectors[kept] * others[kept]).sum(1) / norms[kept]


def shared(found: dict[str, dict[str, float]], others: dict[str, dict[str, float]]) -> float:
    """Mean share of the documents of one run's queries that another run holds, too."""
    return float(
        np.mean([len(set(found[q]) & set(others[q])) / max(1, len(others[q])) for q in others])
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder of the BEIR-layout sets"
    )
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--model", default="default")
    parser.add_argument(
        "--cache", type=Path, help="folder for vectors, used again when they are there"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    fingerprint = ""
    with progress_bar(True) as progress:
        folder = args.cache or Path(tempfile.mkdtemp())
        for name in args.sets:
            task = make_task(load_dataset(str(args.data / name)), max_queries=MAX_QUERIES)
            exact: tuple[np.ndarray, dict[str, dict[str, float]]] | None = None
            for precision in PRECISIONS:
                model = load_measured(args.model, options=LoadOptions(precision=precision))
                system = exact_system(model, task.corpus, folder, progress=progress)
                result, _ = run_system(system, task)
                fingerprint = model.fingerprint
                stored = StoredShards(indexed(model, task.corpus, folder / "vectors")).documents()
                vectors = np.stack(
                    [record.encoded.vector for record in stored if record.encoded is not None]
                )
                top = system.search(task.queries, DEPTH)
                exact = exact or (vectors, top)
                similar = cosines(vectors, exact[0])
                row = {
                    "set": name,
                    "precision": precision,
                    "ndcg@10": round(result.score, 4),
                    "mean_cosine": round(float(similar.mean()), 6),
                    "smallest_cosine": round(float(similar.min()), 6),
                    "same_top_10": round(shared(top, exact[1]), 4),
                }
                rows.append(row)
                print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    for precision in PRECISIONS:
        mean = np.mean([row["ndcg@10"] for row in rows if row["precision"] == precision])
        print(f"mean over sets, {precision}: {mean:.4f}")
    document = {"model": args.model, "fingerprint": fingerprint, "rows": rows}
    write_text(args.out / "precision.json", json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
