"""Each thing once in a search: what an engine is asked for, and when a model is."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.engine import register_engine
from aveyb_retrieval.indexes.search.local import LocalEngine
from aveyb_retrieval.indexes.store.tables import PARTS
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

QUERY = "word1 word2 word3"
ROWS = make_documents(80)


class Reranker:
    """Prefers short texts."""

    def predict(self, sentences: Any) -> Any:
        return np.array([-float(len(text)) for _, text in sentences])


class Asked:
    """What passes on to something else, and counts what is asked for."""

    def __init__(self, inner: Any, counts: Counter[Any]) -> None:
        self._inner = inner
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Language(Asked):
    def words(self, query: str) -> Any:
        self._counts["words"] += 1
        return self._inner.words(query)


class View(Asked):
    """One state of an index directory."""

    @property
    def language(self) -> Language:
        return Language(self._inner.language, self._counts)

    def passages(self, numbers: Any, words: Sequence[str] = ()) -> Any:
        self._counts.update(("passage", number) for number in numbers.tolist())
        return self._inner.passages(numbers, words)

    def shown_passages(self, numbers: Sequence[int]) -> Any:
        self._counts.update(("shown passage", number) for number in numbers)
        return self._inner.shown_passages(numbers)

    def documents(self, docs: Sequence[int], parts: Sequence[str] = PARTS) -> Any:
        self._counts.update((part, number) for number in docs for part in parts)
        return self._inner.documents(docs, parts)

    def vectors(self, kind: str, numbers: Any) -> Any:
        self._counts.update((f"vector of {kind}", number) for number in numbers.tolist())
        return self._inner.vectors(kind, numbers)

    def holding(self, words: Sequence[str]) -> Any:
        self._counts.update(("holding", word) for word in words)
        return self._inner.holding(words)


class CountingEngine(Asked):
    """An index directory behind an address."""

    @contextmanager
    def view(self) -> Iterator[View]:
        with self._inner.view() as view:
            yield View(view, self._counts)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("once") / "ix"
    build_index(
        [*ROWS, *({**row, "_id": f"copy of {row['_id']}"} for row in ROWS[:20])],
        path,
        model=FakeEmbedder(),
    )
    return path


@pytest.mark.parametrize("unit", ["document", "passage"])
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"passages": 3},
        {"context": 1},
        {"rerank": Reranker()},
        {"min_score": 0.1},
        {"fusion": "rrf", "passages": 2},
        {"fusion": "rrf", "min_score": 0.1, "context": 2},
        {"fusion": "rrf", "rerank": Reranker(), "passages": 2},
        {"granularity": "document", "min_score": 0.1},
        {"filter": {"year": {"$gte": 2010}}},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_words_passages_documents_and_vectors_are_asked_for_once(
    root: Path, unit: Any, mode: Any, options: dict[str, Any]
) -> None:
    if unit == "passage":
        options = {
            name: value for name, value in options.items() if name not in ("fusion", "granularity")
        }
    counts: Counter[Any] = Counter()

    class Opening:
        @staticmethod
        def open_engine(address: str) -> CountingEngine:
            return CountingEngine(LocalEngine(address.removeprefix("counting://")), counts)

    register_engine("counting", Opening)
    asked = {"unit": unit, "mode": mode, **options}
    with Retriever.load(f"counting://{root}", model=FakeEmbedder()) as retriever:
        found = retriever.search(QUERY, **asked)
        once = dict(counts)
        with Retriever.load(root, model=FakeEmbedder()) as plain:
            assert found
            assert found == plain.search(QUERY, **asked)
    assert once["words"] == 1
    assert {key for key, count in once.items() if count > 1} == set()


@pytest.mark.parametrize(
    "nothing", [{"ids": []}, {"ids": ["nobody"]}, {"filter": {"year": 1}}], ids=str
)
@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_where_nothing_can_be_found_no_model_is_asked_for(
    tmp_path: Path, mode: Any, nothing: dict[str, Any]
) -> None:
    np.save(
        tmp_path / "vectors.npy",
        np.random.default_rng(0).normal(size=(len(ROWS), 16)).astype(np.float32),
    )
    build_index(ROWS, tmp_path / "ix", vectors=tmp_path / "vectors.npy", granularity="document")
    with Retriever.load(tmp_path / "ix") as retriever:  # nobody has named its model
        assert retriever.search(QUERY, mode=mode, **nothing) == []
        assert retriever.search([QUERY, "word5"], mode=mode, rerank="maxsim", **nothing) == [[], []]
        assert retriever.rank([QUERY], mode=mode, **nothing) == [[]]
        with pytest.raises(ConfigError, match="an unnamed model"):
            retriever.search(QUERY, mode=mode)


@pytest.mark.parametrize("unit", ["document", "passage"])
def test_words_that_are_nowhere_need_no_model_for_reranking(root: Path, unit: Any) -> None:
    class Broken(FakeEmbedder):
        def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[np.ndarray]:
            raise AssertionError(prompt)

    with Retriever.load(root, model=Broken()) as retriever:
        assert retriever.search("nosuchword", unit=unit, mode="lexical", rerank="maxsim") == []
