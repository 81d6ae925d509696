"""What int8 costs: NDCG@10 of the embedded model's ONNX form beside its float32 form in torch.

    python benchmarks/cpu/int8_quality.py --data ../shared/data --sets cranfield scifact

Dense search over the full corpus by the better of document and best passage, queries drawn as in
`quality.py`. Also the cosines of the two forms' vectors, and what a search finds with an index of
one form and queries of the other. Results of other sets stay in
benchmarks/results/int8_quality.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from encode_words import instructions

from aveyb_retrieval import Embedder
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.metrics import evaluate
from aveyb_retrieval.eval.tasks import Task, make_task

RESULTS = Path(__file__).parents[1] / "results" / "int8_quality.json"
FORMS = ("float32", "int8")
MAX_QUERIES = 700
DEPTH = 100


def scores(
    queries: np.ndarray, documents: np.ndarray, passages: np.ndarray, owner: np.ndarray
) -> np.ndarray:
    """The better of document and best passage, for each query and document `[q, n]`."""
    best = np.maximum.reduceat(
        queries @ passages.T, np.flatnonzero(np.diff(owner, prepend=-1)), axis=1
    )
    found: np.ndarray = queries @ documents.T
    present = np.unique(owner)
    found[:, present] = np.maximum(found[:, present], best)
    return found


def ndcg(task: Task, found: np.ndarray) -> float:
    ids, run = np.array(task.corpus.ids), {}
    for query, row in zip(task.queries, found, strict=True):
        order = np.argsort(-row, kind="stable")[:DEPTH]
        run[query] = dict(zip(ids[order].tolist(), row[order].tolist(), strict=True))
    return evaluate(task.judgements, run, ["ndcg@10"]).mean["ndcg@10"]


def encoded(embedder: Embedder, task: Task) -> dict[str, np.ndarray]:
    """Queries, documents, passages and the document of each passage, with the processor seconds
    that it took.
    """
    start = time.process_time()
    rows = (
        (f"{document.title}\n" if document.title else "", document.text) for document in task.corpus
    )
    documents = list(embedder.encode_documents(rows))
    seconds = time.process_time() - start
    return {
        "queries": embedder.encode_queries(list(task.queries.values())),
        "documents": np.stack([document.vector for document in documents]),
        "passages": np.concatenate([document.passages for document in documents]),
        "owner": np.repeat(
            np.arange(len(documents)), [len(document.passages) for document in documents]
        ),
        "seconds": np.array(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder of the BEIR-layout sets"
    )
    parser.add_argument("--sets", nargs="+", default=["scifact", "cranfield", "nq-gold"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()

    report = (
        json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {"sets": {}}
    )
    report["machine"] = {
        "processor": platform.processor() or platform.machine(),
        **{name: version(name) for name in ("onnxruntime", "torch", "numpy")},
    }
    for name in args.sets:
        task = make_task(load_dataset(str(args.data / name)), max_queries=MAX_QUERIES)
        found = {form: encoded(Embedder.load(precision=form), task) for form in FORMS}
        exact, rounded = (found[form] for form in FORMS)
        row = {
            "documents": len(task.corpus),
            "queries": len(task.queries),
            "instructions": instructions(),
            "cosine": {
                kind: {"mean": float(cosines.mean()), "smallest": float(cosines.min())}
                for kind in ("queries", "documents", "passages")
                for cosines in [(exact[kind] * rounded[kind]).sum(1)]
            },
            "ndcg@10": {
                f"index {one}, queries {other}": ndcg(
                    task,
                    scores(
                        found[other]["queries"],
                        *(found[one][k] for k in ("documents", "passages", "owner")),
                    ),
                )
                for one in FORMS
                for other in FORMS
            },
            "processor_seconds": {form: float(found[form]["seconds"]) for form in FORMS},
        }
        report["sets"][name] = row
        print(name, json.dumps(row, indent=1), flush=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
