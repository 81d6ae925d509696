"""Judge models on development data: what every choice of this recipe was made by.

    python judge.py --data ../../../shared/data --texts $WORK/texts --windows $WORK/windows MODEL [MODEL ...]

Prints a line of JSON for each model:

    scifact, medquad        NDCG@10 of 160 training questions kept aside, among BM25's ten best and 900 documents
    headings                MRR of the pairs among the last texts, which no stage trains on, each among all their texts
    question, heading       MRR of the passage that it is about among those of its window (the last 250, kept aside)
    all windows             MRR of both among the passages of all these windows
    meetings                share of the annotated characters in the five best passages (30 of the development split)

The last four are given twice: with passages in their document, and "alone".
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "aveyb-mini-en"))
from select_pairs import KEPT_ASIDE
from sources import load_set

from aveyb_retrieval import Embedder
from aveyb_retrieval.documents.records import prefix_of
from aveyb_retrieval.encoder.embedders.sentence_embedder import SentenceEmbedder
from aveyb_retrieval.encoder.text.passages import PassageSize
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.metrics import evaluate
from aveyb_retrieval.eval.systems import BM25System
from aveyb_retrieval.eval.tasks import make_task
from aveyb_retrieval.training.texts import read_records

Encoder = Embedder | SentenceEmbedder
QUESTIONS, FOUND_BY_WORDS, DOCUMENTS, WINDOWS, MEETINGS = 160, 10, 900, 250, 30


def encode(model: Encoder, documents: list[tuple[str, str]]) -> np.ndarray:
    """Return the vectors `[n, d]` of (title, text) pairs."""
    return np.stack([found.vector for found in model.encode_documents(map(prefixed, documents))])


def prefixed(document: tuple[str, str]) -> tuple[str, str]:
    """Return a title as the prefix that an index reads."""
    title, text = document
    return prefix_of(title), text


def reciprocal_rank(scores: np.ndarray, first: int, end: int) -> float:
    """Return 1 / rank of the best of `scores[first:end]`."""
    return float(1 / (1 + (scores > scores[first:end].max()).sum()))


@dataclass(frozen=True)
class Pool:
    """Development questions of a set, the documents that are relevant to each, and those among which they are found."""

    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]
    documents: dict[str, tuple[str, str]]


@cache
def make_pool(data: Path, name: str, questions: int, found_by_words: int, others: int) -> Pool:
    """Choose so many questions, what BM25 finds for each of them, and so many other documents."""
    collection = load_set(data / name)
    names = sorted(collection.development_queries())
    random.Random(0).shuffle(names)
    queries = {query: collection.queries[query] for query in names[:questions]}
    relevant = {query: {doc: 1 for doc in collection.qrels["train"][query]} for query in queries}
    task = make_task(load_dataset(str(data / name)))
    found = BM25System(task.corpus).search(queries, found_by_words)
    rest = sorted(collection.documents)
    random.Random(1).shuffle(rest)
    kept = sorted({doc for docs in [*found.values(), *relevant.values()] for doc in docs} | set(rest[:others]))
    return Pool(queries, relevant, {doc: collection.documents[doc] for doc in kept})


def score_pool(model: Encoder, pool: Pool) -> float:
    """Return NDCG@10 of a pool's questions."""
    documents = encode(model, list(pool.documents.values()))
    cosines = model.encode_queries(list(pool.queries.values())) @ documents.T
    run = {
        query: dict(zip(pool.documents, row.tolist(), strict=True))
        for query, row in zip(pool.queries, cosines, strict=True)
    }
    return evaluate(pool.relevant, run, ["ndcg@10"]).mean["ndcg@10"]


def headings(model: Embedder, texts: Path) -> float:
    """Return the MRR of the pairs that are kept aside."""
    rows = [record["text"] for _, record in read_records(texts / "texts.jsonl")]
    pairs = [(pair["anchor"], pair["positive"]) for _, pair in read_records(texts / "pairs.jsonl")]
    pairs = [pair for pair in pairs if min(pair) >= len(rows) - KEPT_ASIDE]
    positives = sorted({positive for _, positive in pairs})
    cosines = model.encode_queries([rows[anchor] for anchor, _ in pairs])
    cosines = cosines @ encode(model, [("", rows[positive]) for positive in positives]).T
    places = [positives.index(positive) for _, positive in pairs]
    return float(np.mean([reciprocal_rank(row, at, at + 1) for row, at in zip(cosines, places, strict=True)]))


def passages(model: Embedder, title: str, text: str, size: int, *, alone: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors `[n, d]` and spans `[n, 2]` of a document's passages."""
    (found,) = model.with_passage_size(PassageSize(size)).encode_documents([prefixed((title, text))])
    vectors = encode(model, [("", text[start:end]) for start, end in found.spans]) if alone else found.passages
    return vectors, found.spans


def windows(model: Embedder, folder: Path, *, alone: bool) -> dict[str, float]:
    """Return the MRR of passages in their window and among all windows."""
    rows = [record for _, record in read_records(folder / "texts.jsonl")]
    chosen = [record for _, record in read_records(folder / "windows.jsonl")][-WINDOWS:]
    inside: dict[str, list[float]] = defaultdict(list)
    vectors, asked, places, count = [], [], [], 0
    for window in chosen:
        found, _ = passages(model, window["title"], window["text"], window["passage_tokens"], alone=alone)
        queries = model.encode_queries([rows[line]["text"] for line, _, _ in window["queries"]])
        for row, (line, first, end) in zip(queries @ found.T, window["queries"], strict=True):
            places.append((count + first, count + end))
            if end - first <= max(1, len(found) // 2):  # a whole window is found by any passage
                inside[rows[line]["kind"]].append(reciprocal_rank(row, first, end))
        vectors.append(found)
        asked.append(queries)
        count += len(found)
    cosines = np.concatenate(asked) @ np.concatenate(vectors).T
    everywhere = [reciprocal_rank(row, *place) for row, place in zip(cosines, places, strict=True)]
    return {kind: float(np.mean(values)) for kind, values in sorted(inside.items())} | {
        "all windows": float(np.mean(everywhere))
    }


def meetings(model: Embedder, data: Path, *, alone: bool) -> float:
    """Return the share of the annotated characters that the five best passages hold."""
    collection = load_set(data / "qmsum-long")
    questions: dict[str, list[tuple[str, list[list[int]]]]] = defaultdict(list)
    for _, record in read_records(data / "qmsum-long" / "spans.jsonl"):
        if record["query-id"] in collection.qrels["dev"] and record["spans"]:
            questions[record["corpus-id"]].append((collection.queries[record["query-id"]], record["spans"]))
    shares = []
    for name, asked in sorted(questions.items())[:MEETINGS]:
        vectors, spans = passages(model, *collection.documents[name], 256, alone=alone)
        for row, (_, wanted) in zip(model.encode_queries([q for q, _ in asked]) @ vectors.T, asked, strict=True):
            best = spans[np.argsort(-row, kind="stable")[:5]].tolist()
            held = sum(max(0, min(b, d) - max(a, c)) for a, b in wanted for c, d in best)
            shares.append(held / sum(b - a for a, b in wanted))
    return float(np.mean(shares))


def judge(model: Embedder, data: Path, texts: Path, folder: Path) -> dict[str, Any]:
    """Return all figures of a model."""
    found: dict[str, Any] = {
        name: score_pool(model, make_pool(data, name, QUESTIONS, FOUND_BY_WORDS, DOCUMENTS))
        for name in ("scifact", "medquad")
    }
    found["headings"] = headings(model, texts)
    for name, alone in (("in their document", False), ("alone", True)):
        found[name] = windows(model, folder, alone=alone) | {"meetings": meetings(model, data, alone=alone)}
    return found


def main() -> None:
    """Parse the arguments and print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--texts", type=Path, required=True, help="output folder of make_texts.py")
    parser.add_argument("--windows", type=Path, required=True, help="output folder of make_windows.py")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for folder in args.models:
        found = judge(Embedder.load(folder, precision=args.precision), args.data, args.texts, args.windows)
        rounded = json.loads(json.dumps(found), parse_float=lambda value: round(float(value), 4))
        print(json.dumps({"model": str(folder), **rounded}), flush=True)


if __name__ == "__main__":
    main()
