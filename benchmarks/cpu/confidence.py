"""Fit `Hit.confidence`, and compare it with the share of right answers, by the size of the
collection.

    python benchmarks/cpu/confidence.py --data ../shared/data --cache
    ~/.cache/aveyb-retrieval/confidence

Questions of five development sets are asked of 3 to 100,000 of their documents, drawn anew each
time: texts of a sentence (nqg, with sentences of Wikipedia among them), of a paragraph (nq-gold),
of some (medquad), articles (wikiqa, squad). A fourth as many questions of the other sets and of
`off_topic_queries.txt` are asked, too, and have no answer. The best passage is right where it is of
the document, or, where the answer's characters are known, shares half of them or of its own. Every
other row fits the constants of `aveyb_retrieval/indexes/search/confidence.py` by maximum
likelihood, each set and size weighing the same; the others measure them, and those of today: the
mean difference of confidence and share by tenths of the scale (calibration error).

Indexes are kept in --cache. Writes confidence.json into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize

from aveyb_retrieval import Embedder, Retriever, build_index
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.indexes.search.confidence import (
    CHANCE,
    MARGIN,
    NEAR,
    OFFSET,
    find_best_passage,
)
from aveyb_retrieval.indexes.search.passage_scores import WordScores, score_hybrid
from aveyb_retrieval.indexes.types import PASSAGE_BITS
from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
SIZES = (3, 10, 60, 300, 1000, None)  # documents; None: all
DRAWS = {3: 60, 10: 25, 60: 6, 300: 2, 1000: 1, None: 1}
MOST = 100_000  # sentences
QUESTIONS = 200  # of a set and a size
NAMES = ("near", "margin", "chance", "offset")


@dataclass(frozen=True)
class Set:
    """Documents, and questions as (text, id of the document, characters of the answer if they are
    known).
    """

    documents: list[dict[str, Any]]
    questions: list[tuple[str, str, list[list[int]] | None]]

    def of(self, count: int) -> Set:
        """Some of its documents, with their questions."""
        kept = random.Random(0).sample(self.documents, min(count, len(self.documents)))
        ids = {document["_id"] for document in kept}
        return Set(kept, [question for question in self.questions if question[1] in ids])


@dataclass(frozen=True)
class Row:
    """The best passage for a question: the terms of its confidence, and whether it is right."""

    name: str
    size: int
    asked: bool
    terms: tuple[float, ...]
    right: bool


def sets(data: Path) -> Iterator[tuple[str, Set]]:
    """Read the sets."""
    for name, count in (("nq-gold", 1000), ("medquad", 1000)):
        dataset = load_dataset(str(data / name))
        documents = [record for _, record in read_records(data / name / "corpus.jsonl")]
        split, qrels = dataset.split()
        asked_of = dataset.queries[split]
        judged = [
            (query, key, grade)
            for query, grades in qrels.judgements.items()
            for key, grade in grades.items()
        ]
        questions = [(asked_of[query], key, None) for query, key, grade in judged if grade > 0]
        yield name, Set(documents, questions).of(count)
    for name, count in (("wikiqa", 16), ("squad", 24)):
        documents = [
            record for _, record in read_records(data / "train" / f"{name}.docs.jsonl.zst")
        ]
        asked = (
            record for _, record in read_records(data / "train" / f"{name}.questions.jsonl.zst")
        )
        questions = [
            (
                each["query"],
                each["document_id"],
                [each["answer_span"]] if "answer_span" in each else each["spans"],
            )
            for each in asked
            if name != "squad" or "answer_span" in each
        ]
        yield name, Set(documents, questions).of(count)
    pairs = [
        record
        for _, record in read_records(data / "train" / "qa.pairs.jsonl.zst")
        if record["set"] == "nqg"
    ]
    texts = {
        text: str(i) for i, text in enumerate(dict.fromkeys(pair["positive"] for pair in pairs))
    }
    documents = [{"_id": key, "text": text} for text, key in texts.items()]
    others = _sentences(data / "train" / "wikipedia_articles.texts.0.jsonl.zst")
    documents += [
        {"_id": f"w{i}", "text": text}
        for i, text in enumerate(islice(others, MOST - len(documents)))
    ]
    yield "nqg", Set(documents, [(pair["query"], texts[pair["positive"]], None) for pair in pairs])


def _sentences(path: Path) -> Iterator[str]:
    """The sentences of texts of which a question might be asked."""
    for _, record in read_records(path):
        for sentence in re.split(r"(?<=[.!?])\s+", record["text"]):
            if 40 <= len(sentence) <= 300 and not sentence.startswith("#"):
                yield sentence


@dataclass
class Corpus:
    """An index of a set, as arrays."""

    name: str
    questions: list[tuple[str, str, list[list[int]] | None]]
    retriever: Retriever
    vectors: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        snapshot = self.retriever._engine.snapshot  # type: ignore[attr-defined]  # of an index directory
        self.language, tables = snapshot.language, snapshot.tables
        self.docs, self.passages = tables.numbers("document"), tables.numbers("passage")
        self.of = np.searchsorted(self.docs, self.passages >> PASSAGE_BITS)
        self.passage_vectors = snapshot.vectors("passage", self.passages)
        self.document_vectors = snapshot.vectors("document", self.docs)
        stored = tables.passages.take(self.passages, ["start", "stop", "words"])
        self.spans = np.stack([stored["start"].to_numpy(), stored["stop"].to_numpy()], axis=1)
        self.words = stored["words"].to_pylist()
        found = tables.read_documents(self.docs.tolist(), ())
        self.places = {found[doc].id: place for place, doc in enumerate(self.docs.tolist())}

    def rows(self, size: int | None, strange: Sequence[str], draw: random.Random) -> Iterator[Row]:
        """Ask questions of some of the documents, drawn anew each time."""
        by_document: dict[int, list[Any]] = {}
        for question in self.questions:
            by_document.setdefault(self.places[question[1]], []).append(question)
        count = len(self.docs) if size is None else min(size, len(self.docs))
        each = max(1, QUESTIONS // DRAWS[size])
        for _ in range(DRAWS[size]):
            first = draw.choice(sorted(by_document))
            others = draw.sample(
                [place for place in range(len(self.docs)) if place != first], count - 1
            )
            chosen = np.array(sorted([first, *others]))
            answered = [
                question for place in chosen.tolist() for question in by_document.get(place, ())
            ]
            asked = draw.sample(answered, min(each, len(answered)))
            unknown = [(text, None, None) for text in draw.sample(strange, max(1, each // 4))]
            for question in (*asked, *unknown):
                if words := self.language.words(question[0]):
                    yield self._row(chosen, question, words)

    def _row(
        self, chosen: np.ndarray, question: tuple[str, str | None, Any], words: list[str]
    ) -> Row:
        text, document, spans = question
        if text not in self.vectors:
            self.vectors[text] = self.retriever.model.encode_queries([text])[0]
        query, rows = self.vectors[text], np.flatnonzero(np.isin(self.of, chosen))
        held = np.array([[f" {word} " in self.words[row] for word in words] for row in rows])
        holding = held.sum(axis=0)
        weights = np.log(1 + (len(rows) - holding + 0.5) / (holding + 0.5)).astype(np.float32)
        lengths = np.diff(self.spans[rows], axis=1)[:, 0]
        found = WordScores(held @ weights, float(weights.sum()), lengths, float(lengths.mean()))
        cosine = self.passage_vectors[rows] @ query
        background = float(self.document_vectors[chosen].mean(axis=0) @ query)
        ids = self.passages[rows]
        scored = score_hybrid(ids, cosine, found, background)
        first = find_best_passage(scored)
        assert first is not None  # there are passages
        best = int(np.argmax(scored.score))
        terms = (first.cosine, first.score - first.rival_score, float(np.log(len(rows))), 1.0)
        right = document is not None and self.places[document] == self.of[rows[best]]
        if right and spans is not None:
            start, stop = self.spans[rows[best]].tolist()
            common = sum(max(0, min(stop, b) - max(start, a)) for a, b in spans)
            right = 2 * common >= min(stop - start, sum(b - a for a, b in spans))
        return Row(self.name, len(chosen), document is not None, terms, bool(right))


def fitted(rows: Sequence[Row]) -> np.ndarray:
    """Fit the constants to rows; each set and size weighs the same, those without an answer a sixth
    of the others.
    """
    kinds = [(row.name, row.size, row.asked) for row in rows]
    weight = np.array([(0.85 if kind[2] else 0.15) / kinds.count(kind) for kind in kinds])
    terms, right = (
        np.array([row.terms for row in rows]),
        np.array([row.right for row in rows], np.float64),
    )

    def loss(constants: np.ndarray) -> float:
        z = terms @ constants
        return float((weight * (np.logaddexp(0, z) - right * z)).sum())

    found: np.ndarray = minimize(loss, np.zeros(len(NAMES))).x
    return found


def confidence(rows: Sequence[Row], constants: np.ndarray) -> np.ndarray:
    """The confidence of rows `[n]`."""
    found: np.ndarray = 1 / (1 + np.exp(-(np.array([row.terms for row in rows]) @ constants)))
    return found


def calibration(rows: Sequence[Row], constants: np.ndarray) -> dict[str, float]:
    """Compare the confidence with what is right, of questions that have an answer; and of those
    that have none.
    """
    asked, strange = [row for row in rows if row.asked], [row for row in rows if not row.asked]
    given, right = confidence(asked, constants), np.array([row.right for row in asked])
    tenths = np.minimum((10 * given).astype(int), 9)
    errors = [
        (tenths == t).sum() * abs(given[tenths == t].mean() - right[tenths == t].mean())
        for t in set(tenths)
    ]
    return {
        "questions": len(asked),
        "confidence": round(float(given.mean()), 3),
        "right": round(float(right.mean()), 3),
        "calibration_error": round(float(sum(errors)) / len(asked), 3),
        "no_answer": round(float(confidence(strange, constants).mean()), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--cache", type=Path, required=True, help="folder for the indexes")
    parser.add_argument("--model", help="folder of the model; default: the embedded one")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "confidence.json")
    args = parser.parse_args()
    model, corpora, draw = Embedder.load(args.model), [], random.Random(0)
    for name, each in sets(args.data):
        path = args.cache / f"{name}-{model.fingerprint[:12]}"
        if not path.exists():
            build_index(each.documents, path, model=model)
        corpora.append(Corpus(name, each.questions, Retriever.load(path, model=model)))
    off_topic = (ROOT / "off_topic_queries.txt").read_text(encoding="utf-8").splitlines()
    rows: list[Row] = []
    for corpus in corpora:
        others = [
            draw.sample(other.questions, min(60, len(other.questions)))
            for other in corpora
            if other is not corpus
        ]
        strange = [*off_topic, *(question[0] for some in others for question in some)]
        for size in SIZES:
            if size is None or size < len(corpus.docs):
                rows += corpus.rows(size, strange, draw)
    constants, test = fitted(rows[::2]), rows[1::2]
    today = np.array([NEAR, MARGIN, CHANCE, OFFSET])
    tenths = (10 * confidence(test, constants)).astype(int).clip(0, 9)
    sizes = sorted({row.size for row in test})
    result = {
        "model": model.model_name,
        "constants": dict(zip(NAMES, constants.round(2).tolist(), strict=True)),
        "by_size": {
            size: calibration([row for row in test if row.size == size], constants)
            for size in sizes
        },
        "by_size_today": {
            size: calibration([row for row in test if row.size == size], today) for size in sizes
        },
        "by_set": {
            c.name: calibration([row for row in test if row.name == c.name], constants)
            for c in corpora
        },
        "by_confidence": {
            f"{t / 10:.1f}": {"hits": len(some), "right": round(sum(some) / len(some), 3)}
            for t in range(10)
            if (
                some := [
                    row.right
                    for row, tenth in zip(test, tenths, strict=True)
                    if row.asked and tenth == t
                ]
            )
        },
    }
    print(json.dumps(result, indent=1))
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
