"""Pages of a search are slices of one ranking, in every mode, whatever the engine finds at which
depth.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.indexes.encoding import Encoding
from aveyb_retrieval.indexes.engine import EngineInfo, register_engine
from aveyb_retrieval.indexes.search.named_documents import read_called
from aveyb_retrieval.indexes.store.copies import copy_digests
from aveyb_retrieval.indexes.store.tables import PARTS, ShownPassage, StoredDocument, StoredPassages
from aveyb_retrieval.indexes.store.words import language
from aveyb_retrieval.indexes.types import PASSAGE_BITS
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

WORDS = ["valve", "pump", "lease", "notice", "budget", "meeting"]
MODEL = FakeEmbedder(dim=6, split_size=4)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"mode": "dense"},
    {"mode": "lexical"},
    {"fusion": "rrf"},
    {"weight": 0.2, "granularity": "passage"},
    {"granularity": "document"},
    {"mode": "dense", "granularity": "passage"},
    {"rerank": "maxsim"},
    {"mode": "lexical", "rerank": "maxsim"},
    {"boost": {"stars": 0.5}},
    {"boost": {"stars": -0.5}, "rerank": "maxsim"},
    {"min_score": 0.08},
    {"mode": "dense", "min_score": 0.1},
    {"unit": "passage"},
    {"unit": "passage", "fold": False},
    {"unit": "passage", "mode": "lexical", "fold": False},
    {"unit": "passage", "mode": "dense", "per_document": 1},
    {"unit": "passage", "diversity": 0.4},
    {"unit": "passage", "rerank": "maxsim", "fold": False},
]


class MemoryView:
    """An engine of a few documents, whose nearest vectors are others at other depths, as those of
    FAISS are.
    """

    encoding = Encoding.__new__(Encoding)
    tokens = None
    lasting = True
    language = language("english")
    mean_passage_length = 20.0

    def __init__(self, texts: Sequence[str]) -> None:
        made = list(MODEL.encode_documents([("", text) for text in texts]))
        self.texts, self.spans = texts, [each.spans for each in made]
        docs = np.arange(len(texts))
        passages = np.concatenate(
            [(doc << PASSAGE_BITS) + np.arange(len(s)) for doc, s in enumerate(self.spans)]
        )
        vectors = np.concatenate([each.passages for each in made])
        self.of = {
            "document": (docs, np.stack([each.vector for each in made])),
            "passage": (passages, vectors),
        }
        self.mean_vector = self.of["document"][1].mean(axis=0)
        self.info = EngineInfo("memory", "1", 6, "both", len(docs), len(passages), None, None, "")

    def select(self, where: Any) -> Any:
        return None if where is None else np.arange(len(self.texts))

    def matching(self, selection: Any) -> Any:
        return selection

    def count(self, kind: str, selection: Any = None) -> int:
        return len(self.of[kind][0])

    def vectors(self, kind: str, numbers: Any) -> Any:
        ids, vectors = self.of[kind]
        return vectors[np.searchsorted(ids, numbers)]

    def nearest(
        self, kind: str, queries: Any, k: int, selection: Any = None, *, exact: bool = False
    ) -> Any:
        ids, vectors = self.of[kind]
        scores = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
        noise = np.random.default_rng(k).normal(size=scores.shape) * 0.1
        found = np.argsort(-(scores + noise), axis=1)[:, :k]
        order = np.lexsort((ids[found], -np.take_along_axis(scores, found, 1)), axis=1)
        found = np.take_along_axis(found, order, 1)
        return np.take_along_axis(scores, found, 1), ids[found]

    @cached_property
    def _stored(self) -> dict[tuple[str, int], str]:
        return {
            (k, i): self.language.stored(self._text(k, i))
            for k, (ids, _) in self.of.items()
            for i in ids.tolist()
        }

    def _text(self, kind: str, number: int) -> str:
        if kind == "document":
            return self.texts[number]
        start, stop = self.spans[number >> PASSAGE_BITS][number & 0xFFFFF]
        return self.texts[number >> PASSAGE_BITS][start:stop]

    def copies(self, kind: str, numbers: Any) -> Any:
        return copy_digests(self._text(kind, number) for number in numbers.tolist())

    def passage_shares(self, numbers: Any) -> Any:
        return np.ones(len(numbers), np.float32)

    def threads(self, docs: Any) -> Any:
        return np.zeros(len(docs), np.int64)

    def by_words(
        self, kind: str, words: Sequence[str], k: int, selection: Any = None
    ) -> list[tuple[int, float]]:
        held = {i: self._held(kind, i, words) for i in self.of[kind][0].tolist()}
        return sorted(
            ((i, float(sum(h))) for i, h in held.items() if any(h)), key=lambda e: (-e[1], e[0])
        )[:k]

    def _held(self, kind: str, number: int, words: Sequence[str]) -> list[bool]:
        return [f" {word} " in self._stored[kind, number] for word in words]

    def vector_weights(self, kind: str, numbers: Any) -> Any:
        return np.ones(len(numbers), np.float32)

    def holding(self, words: Sequence[str]) -> list[int]:
        return [3 for _ in words]

    def documents(self, docs: Sequence[int], parts: Sequence[str] = PARTS) -> Any:
        return {
            doc: StoredDocument(doc, f"d{doc}", "", self.texts[doc], {"stars": doc % 5})
            for doc in docs
        }

    def called(self, docs: Sequence[int]) -> Any:
        return read_called(self, docs)

    def documents_called(self, words: Sequence[str], selection: Any = None) -> Any:
        return [np.empty(0, np.int64) for _ in words]

    def passages(self, numbers: Any, words: Sequence[str] = ()) -> StoredPassages:
        there = numbers[np.isin(numbers, self.of["passage"][0])]
        spans = np.array(
            [self.spans[i >> PASSAGE_BITS][i & 0xFFFFF] for i in there.tolist()], np.int64
        ).reshape(-1, 2)
        held = [self._held("passage", i, words) for i in there.tolist()]
        return StoredPassages.of(
            there, spans[:, 0], spans[:, 1], np.array(held, bool).reshape(len(there), len(words))
        )

    def shown_passages(self, numbers: Sequence[int]) -> Any:
        spans = {
            number: tuple(self.spans[number >> PASSAGE_BITS][number & 0xFFFFF])
            for number in numbers
        }
        return {
            number: ShownPassage(self._text("passage", number), str, span)
            for number, span in spans.items()
        }

    def passage_counts(self, docs: Any) -> Any:
        return np.array([len(self.spans[doc]) for doc in docs.tolist()], np.int64)

    def best_passages(self, docs: Any, query: Any, words: Sequence[str], each: int) -> Any:
        return np.concatenate(
            [(doc << PASSAGE_BITS) + np.arange(len(self.spans[doc])) for doc in docs.tolist()]
        )


class MemoryEngine:
    """The same, opened by an address."""

    views: dict[str, MemoryView]
    is_stale = False

    def __init__(self, address: str) -> None:
        self._view = self.views[address]

    @contextmanager
    def view(self) -> Iterator[MemoryView]:
        yield self._view

    def close(self) -> None:
        pass


class Opening:
    open_engine = MemoryEngine


def key(hit: Any, unit: str) -> tuple[str, Any]:
    return hit.id, (hit.span if unit == "passage" else None)


@pytest.mark.parametrize("corpora", [5, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_pages_are_slices_of_one_ranking(options: dict[str, Any], corpora: int) -> None:
    register_engine("memory", Opening)
    draw = random.Random(str(options))
    for number in range(corpora):
        texts = [
            " ".join(draw.choices(WORDS, k=draw.randint(1, 80 if draw.random() < 0.1 else 6)))
            for _ in range(30)
        ]
        texts += texts[:15]  # of equal scores
        MemoryEngine.views = {"memory://a": MemoryView(texts)}
        retriever = Retriever.load("memory://a", model=MODEL)
        query, unit = " ".join(draw.sample(WORDS, 2)), options.get("unit", "document")
        asked = {"candidates": draw.choice([2, 6, 20]), **options}
        step = draw.choice([9, 25, 40])
        whole = retriever.search(query, k=1000, **asked)
        paged: list[Any] = []
        while page := retriever.search(query, k=step, offset=len(paged), **asked):
            paged += page
        found = [(key(hit, unit), hit.score, hit.passage) for hit in paged]
        assert found == [(key(hit, unit), hit.score, hit.passage) for hit in whole], number
        assert (
            len({each for each, *_ in found}) == len(found) >= (1 if "min_score" in options else 10)
        ), number
        scores = [hit.score for hit in paged]
        assert scores == sorted(scores, reverse=True), number


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw, path = random.Random(3), tmp_path_factory.mktemp("paging") / "ix"
    texts = [
        " ".join(draw.choices(WORDS, k=draw.randint(2, 120 if draw.random() < 0.1 else 12)))
        for _ in range(60)
    ]
    rows = [
        {"_id": f"d{i:03}", "text": text, "stars": i % 7}
        for i, text in enumerate([*texts, *["pump is open"] * 130])
    ]
    build_index(rows, path, model=MODEL)
    return path


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_pages_of_an_index_are_slices_of_one_ranking(root: Path, options: dict[str, Any]) -> None:
    unit = options.get("unit", "document")
    with Retriever.load(root, model=MODEL) as retriever:
        whole = [key(hit, unit) for hit in retriever.search("pump lease", k=1000, **options)]
        paged: list[Any] = []
        while page := retriever.search("pump lease", k=60, offset=len(paged), **options):
            paged += [key(hit, unit) for hit in page]
    assert paged == whole
    assert len(set(whole)) == len(whole)


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_equal_texts_have_one_score_and_come_in_the_order_of_documents(
    root: Path, mode: Any
) -> None:
    with Retriever.load(root, model=MODEL) as retriever:
        hits = retriever.search("pump open", k=280, mode=mode, candidates=500, fold=False)
        alike = [hit for hit in hits if hit.text == "pump is open"]
        assert (len(alike), len({hit.score for hit in alike})) == (130, 1)
        assert [hit.id for hit in alike] == sorted(hit.id for hit in alike)
        for k in (5, 20, 60):
            first = retriever.search("pump open", k=k, mode=mode, candidates=500, fold=False)
            assert [hit.id for hit in first] == [hit.id for hit in hits[:k]]
