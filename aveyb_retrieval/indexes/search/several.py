"""Several indexes searched as one: one ranking of all their documents, by the statistics of all of
them together.

Their candidates are fused, scored and reranked side by side: the best cosine and BM25, the mean
vector, the rarity of words among passages are those of all. One thing is estimated: each index
knows its own BM25 alone, which is multiplied by the weight that the query's words have among all
passages, over what they have among those of the index.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.encoding import KEPT
from aveyb_retrieval.indexes.search.passage_scores import weigh
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.store.languages import rules_of
from aveyb_retrieval.indexes.store.tables import PARTS, StoredPassages
from aveyb_retrieval.indexes.store.vocabulary import IndexVocabulary
from aveyb_retrieval.indexes.types import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aveyb_retrieval.indexes.engine import EngineInfo, EngineView, Selection, VectorEngine
    from aveyb_retrieval.indexes.search.operators import Sought
    from aveyb_retrieval.indexes.store.called import CalledBy
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.store.tables import Part, ShownPassage, StoredDocument
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

# the bits above say which index a number is of
SHIFT = {"document": 36, "passage": 36 + PASSAGE_BITS}
MAX_INDEXES = 127  # that these bits can tell apart


@dataclass(frozen=True)
class SeveralEngine:
    """Several engines as one `VectorEngine`, by the names of their indexes."""

    engines: Mapping[str, VectorEngine]

    @contextmanager
    def view(self) -> Iterator[SeveralView]:
        with ExitStack() as stack:
            yield SeveralView(
                {name: stack.enter_context(engine.view()) for name, engine in self.engines.items()}
            )

    @property
    def is_stale(self) -> bool:
        return any(engine.is_stale for engine in self.engines.values())

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        for engine in self.engines.values():
            engine.reopen(check)

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()


class SeveralView:
    """One state of each of some indexes, by their names, as one `EngineView`; numbers say which
    index they are of.
    """

    tokens = None  # late interaction encodes candidates again

    def __init__(self, views: Mapping[str, EngineView]) -> None:
        self.names, self.views = list(views), list(views.values())
        self.encoding = self.views[0].encoding
        for name, view in views.items():
            for what, (first, other) in self.encoding.differences(view.encoding, but=KEPT).items():
                raise ConfigError(
                    f"{name}: {what} is {other!r}, but {self.names[0]} has {first!r}; one"
                    " ranking needs indexes that were built alike: build one of them again, or"
                    " search each separately"
                )

    @cached_property
    def language(self) -> Language:
        """The rules of all languages that any of them has."""
        return rules_of(self.encoding, self.languages)

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """The languages of any of them."""
        return tuple(dict.fromkeys(code for view in self.views for code in view.languages))

    @cached_property
    def info(self) -> EngineInfo:
        every = [view.info for view in self.views]
        sums: dict[str, Any] = {
            what: sum(getattr(info, what) for info in every) for what in ("documents", "passages")
        }
        sums |= {
            what: ", ".join(getattr(info, what) for info in every)
            for what in ("name", "version", "remedy")
        }
        return replace(every[0], **sums)

    def _own(
        self, selection: Selection | None
    ) -> Iterator[tuple[int, EngineView, Selection | None]]:
        """Each index: its place, its view, and its part of a selection."""
        return zip(range(len(self.views)), self.views, selection or repeat(None), strict=False)

    def _parts(
        self, kind: Kind, numbers: Any
    ) -> Iterator[tuple[int, EngineView, IntArray, IntArray]]:
        """Each index that numbers `[n]` are of: its place, its view, where its are among them, and
        its own numbers.
        """
        numbers = np.asarray(numbers, dtype=np.int64)
        for i in np.unique(numbers >> SHIFT[kind]).tolist():
            rows = np.flatnonzero(numbers >> SHIFT[kind] == i)
            yield i, self.views[i], rows, numbers[rows] - (i << SHIFT[kind])

    @property
    def mean_vector(self) -> FloatArray:
        """The mean `[d]` of all, as each estimates its own."""
        weights = np.array([view.count(self.encoding.kinds[0]) for view in self.views], np.float32)
        return (
            weights
            @ np.stack([view.mean_vector for view in self.views])
            / max(float(weights.sum()), 1.0)
        )

    @property
    def mean_passage_length(self) -> float:
        lengths = [view.mean_passage_length * view.info.passages for view in self.views]
        return sum(lengths) / max(self.info.passages, 1)

    def select(self, where: Filter | None) -> Selection | None:
        """The documents of each that satisfy a filter; a warning only where none of any does."""
        if where is None:
            return None
        local = [view for view in self.views if isinstance(view, Snapshot)]
        selections = [
            view.select(where, quiet=True) if isinstance(view, Snapshot) else view.select(where)
            for view in self.views
        ]
        if not any(view.count("document", own) for _, view, own in self._own(selections)):
            for view in local:
                view.warn_of(where)
        return selections

    def has_field(self, field: str) -> bool:
        return any(view.has_field(field) for view in self.views)

    def count(self, kind: Kind, selection: Selection | None = None) -> int:
        return sum(view.count(kind, own) for _, view, own in self._own(selection))

    def matching(self, selection: Selection) -> IntArray:
        return np.concatenate(
            [view.matching(own) + (i << SHIFT["document"]) for i, view, own in self._own(selection)]
        )

    def nearest(
        self,
        kind: Kind,
        queries: FloatArray,
        k: int,
        selection: Selection | None = None,
        *,
        exact: bool = False,
    ) -> tuple[FloatArray, IntArray]:
        nearest = [
            (i, *view.nearest(kind, queries, k, own, exact=exact))
            for i, view, own in self._own(selection)
        ]
        scores = np.concatenate([scores for _, scores, _ in nearest], axis=1)
        ids = np.concatenate([ids + (i << SHIFT[kind]) for i, _, ids in nearest], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1)

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        vectors = np.empty((len(numbers), self.encoding.dim), np.float32)
        for _, view, rows, own in self._parts(kind, numbers):
            vectors[rows] = view.vectors(kind, own)
        return vectors

    def vector_weights(self, kind: Kind, numbers: IntArray) -> FloatArray:
        weights = np.empty(len(numbers), np.float32)
        for _, view, rows, own in self._parts(kind, numbers):
            weights[rows] = view.vector_weights(kind, own)
        return weights

    def passage_shares(self, numbers: IntArray) -> FloatArray:
        shares = np.empty(len(numbers), np.float32)
        for _, view, rows, own in self._parts("passage", numbers):
            shares[rows] = view.passage_shares(own)
        return shares

    def by_words(
        self, kind: Kind, words: Sequence[str], k: int, selection: Selection | None = None
    ) -> list[tuple[int, float]]:
        counts = [view.holding(words) for view in self.views]
        among_all = weigh(self.info, _sums(counts))
        ranked = list[tuple[int, float]]()
        for i, view, own in self._own(selection):
            # a word that the index lacks adds nothing to its scores
            is_held = np.array(counts[i]) > 0
            scale = 1.0
            if is_held.any():
                own_weights = weigh(view.info, counts[i])
                scale = float(among_all[is_held].sum() / own_weights[is_held].sum())
            best = view.by_words(kind, words, k, own)
            ranked += [(number + (i << SHIFT[kind]), score * scale) for number, score in best]
        return sorted(ranked, key=lambda match: (-match[1], match[0]))[:k]

    def holding(self, words: Sequence[str]) -> list[int]:
        return _sums([view.holding(words) for view in self.views])

    @cached_property
    def vocabulary(self) -> IndexVocabulary | None:
        lists = [words for view in self.views if (words := view.vocabulary) is not None]
        if len(lists) < len(self.views):
            return None
        fresh = sum((Counter(words.fresh) for words in lists), Counter[str]())
        return IndexVocabulary([part for words in lists for part in words.parts], fresh)

    def narrow(
        self, selection: Selection | None, kind: Kind, conditions: Sequence[Sought]
    ) -> Selection:
        return [view.narrow(own, kind, conditions) for _, view, own in self._own(selection)]

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Refuse to: several may have a document of one id."""
        raise ConfigError(
            f"{self.info.name}: get documents from one of them, as"
            " retriever.indexes[hit.index].get(ids)"
        )

    def documents(
        self, docs: Sequence[int], parts: Sequence[Part] = PARTS
    ) -> dict[int, StoredDocument]:
        documents = {}
        for i, view, _, own in self._parts("document", docs):
            for doc, stored in view.documents(own.tolist(), parts).items():
                number = doc + (i << SHIFT["document"])
                documents[number] = stored._replace(doc=number, of_index=self.names[i])
        return documents

    def called(self, docs: Sequence[int]) -> dict[int, CalledBy]:
        return {
            doc + (i << SHIFT["document"]): words
            for i, view, _, own in self._parts("document", docs)
            for doc, words in view.called(own.tolist()).items()
        }

    def documents_called(
        self, words: Sequence[str], selection: Selection | None = None
    ) -> list[IntArray]:
        lists = [
            [docs + (i << SHIFT["document"]) for docs in view.documents_called(words, own)]
            for i, view, own in self._own(selection)
        ]
        return [np.concatenate(of_word) for of_word in zip(*lists, strict=True)]

    def passages(self, numbers: IntArray, words: Sequence[str] = ()) -> StoredPassages:
        passages = StoredPassages.none(len(words))
        for i, view, _, own in self._parts("passage", numbers):
            stored = view.passages(own, words)
            named = replace(stored, numbers=stored.numbers + (i << SHIFT["passage"]))
            passages = passages.joined(named)
        return passages

    def shown_passages(self, numbers: Sequence[int]) -> dict[int, ShownPassage]:
        return {
            number + (i << SHIFT["passage"]): passage
            for i, view, _, own in self._parts("passage", numbers)
            for number, passage in view.shown_passages(own.tolist()).items()
        }

    def copies(self, kind: Kind, numbers: IntArray) -> IntArray:
        digests = np.empty(len(numbers), np.int64)
        for _, view, rows, own in self._parts(kind, numbers):
            digests[rows] = view.copies(kind, own)
        return digests

    def threads(self, docs: IntArray) -> IntArray:
        digests = np.empty(len(docs), np.int64)
        for _, view, rows, own in self._parts("document", docs):
            digests[rows] = view.threads(own)
        return digests

    def passage_counts(self, docs: IntArray) -> IntArray:
        counts = np.zeros(len(docs), np.int64)
        for _, view, rows, own in self._parts("document", docs):
            counts[rows] = view.passage_counts(own)
        return counts

    def best_passages(
        self, docs: IntArray, query: FloatArray, words: Sequence[str], count: int
    ) -> IntArray:
        best = [np.empty(0, np.int64)]
        for i, view, _, own in self._parts("document", docs):
            best.append(view.best_passages(own, query, words, count) + (i << SHIFT["passage"]))
        return np.concatenate(best)

    @property
    def lasting(self) -> bool:
        return all(view.lasting for view in self.views)


def _sums(counts: Sequence[Sequence[int]]) -> list[int]:
    """The sum of each column."""
    return [sum(column) for column in zip(*counts, strict=True)]
