"""Fit what a search weighs, on questions that no page reports: each constant by the values it could
have.

    python benchmarks/cpu/fit.py --data ../shared/data --cache ~/.cache/aveyb-retrieval/quality

Documents, NDCG@10: training questions that were kept aside (one of six, as
`recipes/aveyb-base-en/sources.py` chooses them) of scifact, medquad and openstax-ccby-long,
qmsum-long's split dev, and, in place of short questions to an encyclopedia, the pairs of clapnq,
qed and selqa. Also by the number of a question's words, to see whether a question can tell which
weight it wants. Passages, characters of the answer in the first five: qmsum-long's split dev, and
SQuAD and WikiQA as `confidence.py` reads them. One constant is moved, the others stay.
`confidence.py` fits the confidence, `int8_quality.py` measures the biases that the ONNX form is
rounded with.

Indexes are those of quality.py, where --cache is its. Writes fit.json into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from confidence import sets as sets_of_confidence
from quality import RESULTS, built
from span_scores import IndexPassages, evaluate_passages

from aveyb_retrieval import Retriever
from aveyb_retrieval.eval.data import Corpus, Document, load_dataset
from aveyb_retrieval.eval.metrics import evaluate
from aveyb_retrieval.eval.tasks import STANDARD, Task, make_task
from aveyb_retrieval.indexes.search import passage_scores, ranking
from aveyb_retrieval.indexes.search.options import WEIGHT
from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aveyb_retrieval.eval.base import Judgements
    from aveyb_retrieval.eval.data import Spans

ASIDE = {"scifact": "train", "qmsum-long": "dev", "openstax-ccby-long": "train", "medquad": "train"}
SHORT = ("clapnq", "qed", "selqa")
QUESTIONS = 250  # of a set
WEIGHTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
MOVED = {
    "COSINE_WEIGHT": (0.75, 1.0, 1.5, 2.0, 3.0),
    "NEIGHBOR_WEIGHT": (0.0, 0.15, 0.3, 0.45, 0.6),
    "PASSAGE_MAXSIM_WEIGHT": (0.0, 0.75, 1.5, 3.0),
    "MAXSIM_WEIGHT": (0.0, 1.0, 2.0, 3.0, 4.0, 6.0),
}
# which each constant is read from
MODULES = {
    "COSINE_WEIGHT": passage_scores,
    "NEIGHBOR_WEIGHT": passage_scores,
    "PASSAGE_MAXSIM_WEIGHT": ranking,
    "MAXSIM_WEIGHT": ranking,
}
WORDS = (3, 5, 8)  # a question has at most so many, or more


def task_of(
    name: str, corpus: Corpus, questions: Mapping[str, str], judged: Judgements, spans: Spans
) -> Task:
    """A task of some questions, of which `QUESTIONS` are drawn."""
    drawn = [
        [*questions][i] for i in np.random.default_rng(0).permutation(len(questions))[:QUESTIONS]
    ]
    texts, judged = {q: questions[q] for q in drawn}, {q: judged[q] for q in drawn}
    return Task(name, name, "dev", STANDARD, corpus, texts, judged, len(corpus), spans)


def documents(data: Path) -> Iterator[Task]:
    """Yield tasks of finding documents."""
    pairs = [r for _, r in read_records(data / "train" / "qa.pairs.jsonl.zst") if r["set"] in SHORT]
    ids = {text: str(i) for i, text in enumerate(dict.fromkeys(pair["positive"] for pair in pairs))}
    judged: Judgements = defaultdict(dict)
    for pair in pairs:
        judged[pair["query"]][ids[pair["positive"]]] = 1
    corpus = Corpus([Document(key, "", text) for text, key in ids.items()], "qa.pairs")
    yield task_of("short", corpus, {question: question for question in judged}, judged, {})
    for name, split in ASIDE.items():
        task = make_task(load_dataset(str(data / name), split), split=split)
        aside = {
            q: t
            for q, t in task.queries.items()
            if split == "dev" or zlib.crc32(t.encode()) % 6 == 0
        }
        yield task_of(name, task.corpus, aside, task.judgements, task.spans)


def passages(data: Path) -> Iterator[Task]:
    """Yield tasks of finding passages in a document."""
    whole = make_task(load_dataset(str(data / "qmsum-long"), "dev"), split="dev")
    yield task_of("qmsum-long", whole.corpus, whole.queries, whole.judgements, whole.spans)
    for name, found in sets_of_confidence(data):
        if name in ("squad", "wikiqa"):
            corpus = Corpus(
                [Document(d["_id"], d.get("title") or "", d["text"]) for d in found.documents], name
            )
            asked = {str(i): question for i, question in enumerate(found.questions)}
            spans = {
                q: {document: [(a, b) for a, b in where]}
                for q, (_, document, where) in asked.items()
            }
            texts, judged = (
                {q: text for q, (text, _, _) in asked.items()},
                {q: {d: 1} for q, (_, d, _) in asked.items()},
            )
            yield task_of(name, corpus, texts, judged, spans)


@dataclass(frozen=True)
class Fitted:
    """What each question of a set finds, by the value of a constant."""

    constant: str
    name: str
    of_value: dict[float, dict[str, float]]

    def row(self) -> dict[str, Any]:
        """The means."""
        means = {
            f"{value:g}": round(float(np.mean([*found.values()])), 4)
            for value, found in self.of_value.items()
        }
        return {
            "constant": self.constant,
            "set": self.name,
            "questions": len(next(iter(self.of_value.values()))),
        } | means


def ndcg(retriever: Retriever, task: Task, **options: Any) -> dict[str, float]:
    """NDCG@10 of each question."""
    found = retriever.rank([*task.queries.values()], **options)
    run = {query: dict(ranking) for query, ranking in zip(task.queries, found, strict=True)}
    return evaluate(task.judgements, run, ["ndcg@10"]).per_query["ndcg@10"]


def moved(constant: str, value: float) -> Any:
    """Let a constant of the scores have another value."""
    return mock.patch.object(MODULES[constant], constant, value)


def fit(data: Path, cache: Path, names: set[str]) -> Iterator[Fitted]:
    """Move each constant."""
    for task in documents(data):
        if task.dataset in names:
            with Retriever.load(built(task, cache, token_vectors="int8")) as retriever:
                yield Fitted(
                    "WEIGHT", task.dataset, {w: ndcg(retriever, task, weight=w) for w in WEIGHTS}
                )
                for constant in ("COSINE_WEIGHT", "MAXSIM_WEIGHT"):
                    rerank = "token-vectors" if constant == "MAXSIM_WEIGHT" else None
                    found = {}
                    for value in MOVED[constant]:
                        with moved(constant, value):
                            found[value] = ndcg(retriever, task, rerank=rerank)
                    yield Fitted(f"{constant}, documents", task.dataset, found)
    for task in passages(data):
        if task.dataset in names:
            path = built(task, cache, token_vectors="int8")
            for constant in ("COSINE_WEIGHT", "NEIGHBOR_WEIGHT", "PASSAGE_MAXSIM_WEIGHT"):
                system = IndexPassages(
                    path, rerank="token-vectors" if constant == "PASSAGE_MAXSIM_WEIGHT" else None
                )
                found = {}
                for value in MOVED[constant]:
                    with moved(constant, value):
                        found[value] = evaluate_passages(system, task).per_query["recall@5"]
                yield Fitted(f"{constant}, passages", task.dataset, found)


def by_words(fitted: Fitted, questions: Mapping[str, str]) -> Iterator[Fitted]:
    """Part the questions of a set by how many words they have."""
    for least, most in zip((0, *WORDS), (*WORDS, 1000), strict=True):
        chosen = {q for q, text in questions.items() if least < len(text.split()) <= most}
        if len(chosen) >= 10:
            found = {value: {q: each[q] for q in chosen} for value, each in fitted.of_value.items()}
            yield Fitted(f"{fitted.constant}, {least + 1} to {most} words", fitted.name, found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--cache", type=Path, required=True, help="folder for the indexes")
    parser.add_argument("--sets", nargs="+", default=["short", *ASIDE, "squad", "wikiqa"])
    parser.add_argument("--out", type=Path, default=RESULTS / "fit.json")
    args = parser.parse_args()
    questions = {
        task.dataset: task.queries for task in documents(args.data) if task.dataset in args.sets
    }
    rows = []
    for found in fit(args.data, args.cache, {*args.sets}):
        parts = by_words(found, questions[found.name]) if found.constant == "WEIGHT" else ()
        for each in (found, *parts):
            rows.append(each.row())
            print(" ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    now = {"WEIGHT": WEIGHT} | {
        constant: getattr(MODULES[constant], constant) for constant in MOVED
    }
    args.out.write_text(json.dumps({"now": now, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
