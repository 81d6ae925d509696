"""Where a distilled model loses retrieval quality: by side, by layer, by length.

    python benchmarks/cpu/diagnosis.py --data ../shared/data --cache ~/.cache/aveyb-retrieval/diagnosis

On pools (all of nq-gold and cranfield; of scifact and medquad what BM25 finds for 100 test questions, and what is
relevant), by document vectors: NDCG@10 of teacher and student, and of either one's questions over the other's
documents. For that, the student's vectors are mapped to the teacher's by ridge regression on the pool itself, so these
columns say which side loses, not how good the model is. Then the student with none and some of its layers, and the
cosine of its mapped vectors to the teacher's by length of the text (mapped by one half of the pool, measured on the
other). Teacher: all-MiniLM-L6-v2, 256 tokens, float32.
Writes diagnosis.json and diagnosis.md into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from quality import RESULTS, minilm_folder

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes" / "aveyb-small-en"))
from heads import fit_head

from aveyb_retrieval import Embedder
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.encoders import EmbedderEncoder, load_peer
from aveyb_retrieval.eval.metrics import evaluate
from aveyb_retrieval.eval.report import write_text
from aveyb_retrieval.eval.systems import BM25System, VectorCache
from aveyb_retrieval.eval.tasks import Task, make_task
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.eval.encoders import CorpusEncoder

POOLS: dict[str, tuple[int, int]] = {  # questions, and documents that BM25 finds for each; 0: the whole corpus
    "nq-gold": (300, 0),
    "cranfield": (60, 0),
    "scifact": (100, 8),
    "medquad": (100, 8),
}
LENGTHS = (60, 120, 180, 240)  # words: the borders of the columns


@dataclass(frozen=True)
class Vectors:
    """Unit rows float32 of a model on a pool: questions `[q, d]`, documents `[n, d]`."""

    queries: np.ndarray
    documents: np.ndarray

    def ndcg(self, task: Task, other: Vectors | None = None) -> float:
        """Return NDCG@10 of these questions over the documents, or over another model's."""
        documents = (other or self).documents
        best = np.argsort(-(self.queries @ documents.T), axis=1, kind="stable")[:, :100]
        ids = task.corpus.ids
        run = {
            query: {ids[d]: -float(r) for r, d in enumerate(row)} for query, row in zip(task.queries, best, strict=True)
        }
        return evaluate(task.judgements, run, ["ndcg@10"]).mean["ndcg@10"]


def pool_of(data: Path, name: str) -> Task:
    """Return the task on the pool."""
    questions, found = POOLS[name]
    task = make_task(load_dataset(str(data / name)), max_queries=questions)
    if not found:
        return task
    ranked = BM25System(task.corpus).search(task.queries, found)
    kept = {doc for run in ranked.values() for doc in run} | {doc for docs in task.judgements.values() for doc in docs}
    return replace(task, corpus=task.corpus.subset(kept))


def vectors_of(encoder: CorpusEncoder, task: Task, cache: VectorCache) -> Vectors:
    """Encode a pool, or read what the cache has."""
    documents = cache.encoded(encoder, task.corpus).documents
    assert documents is not None  # both encoders have document vectors
    return Vectors(encoder.encode_queries(list(task.queries.values())), np.asarray(documents))


def by_side(student: Vectors, teacher: Vectors, task: Task) -> dict[str, float]:
    """Return NDCG@10 of teacher, student, and both mixed after a ridge map on the pool."""
    both = [torch.from_numpy(np.concatenate([side.queries, side.documents])) for side in (student, teacher)]
    head = fit_head(*both).numpy()
    mapped = Vectors(*(_unit(rows @ head.T) for rows in (student.queries, student.documents)))
    return {
        "teacher": teacher.ndcg(task),
        "student": student.ndcg(task),
        "mapped student": mapped.ndcg(task),
        "student's questions, teacher's documents": mapped.ndcg(task, teacher),
        "teacher's questions, student's documents": teacher.ndcg(task, mapped),
    }


def by_length(student: Vectors, teacher: Vectors, task: Task) -> dict[str, float]:
    """Return the mean cosine of mapped vectors to the teacher's: of questions, and of documents by their words."""
    half = np.arange(len(student.documents)) % 2 == 0
    head = fit_head(torch.from_numpy(student.documents[half]), torch.from_numpy(teacher.documents[half])).numpy()
    words = np.array([len(task.corpus.get(doc).text.split()) for doc in task.corpus.ids])
    groups = np.searchsorted(LENGTHS, words, "right")
    cosines = (_unit(student.documents @ head.T) * teacher.documents).sum(1)
    found = {"questions": float((_unit(student.queries @ head.T) * teacher.queries).sum(1).mean())}
    for group, low in enumerate((0, *LENGTHS)):
        rows = ~half & (groups == group)
        if rows.sum() >= 20:
            high = f" to {LENGTHS[group] - 1}" if group < len(LENGTHS) else " and more"
            found[f"documents, {low}{high} words"] = float(cosines[rows].mean())
    return found


def load(model: str | None) -> Embedder:
    """Load the student in torch, whose layers can be left out."""
    return Embedder.load(model, precision="float32")


def with_layers(embedder: Embedder, count: int) -> Embedder:
    """Return an embedder that stops behind `count` layers."""
    embedder.model.layers = embedder.model.layers[:count]
    embedder.fingerprint = f"{embedder.fingerprint} {count} layers"
    return embedder


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)  # an empty document has no vector


def table(rows: dict[str, dict[str, float]]) -> list[str]:
    """Return a Markdown table of sets by columns, with their mean where every set has the column."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = [["set", *columns], ["---"] * (len(columns) + 1)]
    for name, row in rows.items():
        lines.append([name, *(f"{row[c]:.3f}" if c in row else "-" for c in columns)])
    means: Sequence[float | None] = [
        float(np.mean([row[c] for row in rows.values()])) if all(c in row for row in rows.values()) else None
        for c in columns
    ]
    lines.append(["mean", *("-" if mean is None else f"{mean:.3f}" for mean in means)])
    return ["| " + " | ".join(line) + " |" for line in lines]


def main() -> None:
    """Parse the arguments, measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="+", choices=POOLS, default=list(POOLS))
    parser.add_argument("--model", default=None, help="our model  [default: the embedded one]")
    parser.add_argument("--step", type=int, default=2, help="layers from one depth to the next (a static, a dynamic)")
    parser.add_argument("--cache", type=Path, help="folder for vectors, used again when it is there")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    cache = VectorCache(args.cache)
    teacher = load_peer(minilm_folder())
    student = load(args.model)
    layers, label = len(student.model.layers), Path(student.model_name).name
    sides: dict[str, dict[str, float]] = {}
    lengths: dict[str, dict[str, float]] = {}
    depths: dict[str, dict[str, float]] = {}
    for name in args.sets:
        task = pool_of(args.data, name)
        theirs = vectors_of(teacher, task, cache)
        ours = vectors_of(EmbedderEncoder(student), task, cache)
        sides[name], lengths[name] = by_side(ours, theirs, task), by_length(ours, theirs, task)
        some = {n: EmbedderEncoder(with_layers(load(args.model), n)) for n in range(0, layers, args.step)}
        depths[name] = {plural(n, "layer"): vectors_of(encoder, task, cache).ndcg(task) for n, encoder in some.items()}
        depths[name][plural(layers, "layer")] = sides[name]["student"]
        print(name, sides[name], depths[name], lengths[name], flush=True)
    parts = {"NDCG@10 by side": sides, "NDCG@10 by layers": depths, "Cosine to the teacher": lengths}
    document = {"model": label, "by_side": sides, "by_layers": depths, "by_length": lengths}
    write_text(args.out / "diagnosis.json", json.dumps(document, indent=1) + "\n")
    text = [f"# Where {label} loses to its teacher, on pools", "", "`python benchmarks/cpu/diagnosis.py`"]
    for title, rows in parts.items():
        text += ["", f"## {title}", "", *table(rows)]
    write_text(args.out / "diagnosis.md", "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
