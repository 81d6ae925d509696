"""One search of one version of an index: candidates, fusion, reranking, hits; the part that all units share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.index.search import fusion, rerank
from aveyb_retrieval.index.search.hits import Hit
from aveyb_retrieval.index.search.options import Options
from aveyb_retrieval.index.search.snapshot import Match, Snapshot
from aveyb_retrieval.index.storage.store import StoredDocument
from aveyb_retrieval.index.types import EmbedderLike, FloatArray


@dataclass(frozen=True)
class Query:
    """A query: its text (None where only a vector was given) and its unit vector `[d]` (None where none was needed)."""

    text: str | None
    vector: FloatArray | None


@dataclass(frozen=True)
class Ranked:
    """What was found for a query, best first, and every score that was computed: name, key, value.

    Keys are numbers of documents or, in a search for passages, of passages. `duplicates` has the ids of documents that
    near copies of a passage were found in.
    """

    query: Query
    matches: list[Match]
    scores: dict[str, dict[int, float]]
    duplicates: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def scores_of(self, key: int) -> dict[str, float]:
        """The scores of one document or passage, by name."""
        return {name: found[key] for name, found in self.scores.items() if key in found}


class Search(ABC):
    """One search: what is asked of which version of an index, and where the model comes from if it is needed."""

    def __init__(self, snapshot: Snapshot, options: Options, model: Callable[[], EmbedderLike]) -> None:
        self._snapshot = snapshot
        self._options = options
        self._model = model
        self._allowed = snapshot.allowed(options.filter)

    @property
    def needs_text(self) -> bool:
        """Whether vectors alone cannot be searched for."""
        return self._options.mode != "dense" or self._options.rerank is not None

    def rank_texts(self, texts: Sequence[str]) -> list[Ranked]:
        """Rank documents or passages for each text."""
        if self._options.mode == "lexical":
            return [self._rank(Query(text, None), []) for text in texts]
        vectors = self._snapshot.unit_vectors(self._model().encode_queries(texts))
        found = self._nearest(vectors)
        return [self._rank(Query(t, v), near) for t, v, near in zip(texts, vectors, found, strict=True)]

    def rank_vectors(self, vectors: FloatArray) -> list[Ranked]:
        """Rank documents or passages for each unit vector `[n, d]`; the options ask for nothing that needs a text."""
        return [self._rank(Query(None, v), near) for v, near in zip(vectors, self._nearest(vectors), strict=True)]

    @abstractmethod
    def hits(self, ranked: Ranked) -> list[Hit]:
        """Fetch what was found: texts, metadata and passages."""

    def pairs(self, ranked: Ranked) -> list[tuple[str, float]]:
        """Name what was found: (id of the document, score)."""
        with self._snapshot.store() as store:
            names = store.documents([match.doc for match in ranked.matches], texts=False)
        return [(names[match.doc].id, match.score) for match in ranked.matches]

    @abstractmethod
    def _nearest(self, vectors: FloatArray) -> list[list[Match]]:
        """Find what is nearest to each unit vector `[n, d]`: the candidates by vectors."""

    @abstractmethod
    def _rank(self, query: Query, near: list[Match]) -> Ranked:
        """Rank for one query, given its candidates by vectors (none in lexical mode)."""

    def _rerank(self, ranked: Ranked, candidates: list[Match], keys: Sequence[int], texts: Sequence[str]) -> Ranked:
        """Order candidates, known by their keys, by a closer look at their texts."""
        query, options = ranked.query.text, self._options
        assert query is not None  # `needs_text` has seen to it
        assert options.rerank is not None
        if options.rerank == rerank.MAXSIM:
            name, scores = "maxsim", rerank.maxsim(self._model(), self._snapshot.device, query, texts)
        else:
            name = "cross-encoder"
            scores = rerank.cross_encode(options.rerank, self._snapshot.device, query, texts)
        found = dict(zip(keys, scores, strict=True))
        of = dict(zip(keys, candidates, strict=True))
        matches = [of[key]._replace(score=score) for key, score in fusion.ranked(found)]
        return replace(ranked, matches=matches, scores={**ranked.scores, name: found})

    def _context(self, doc: int, text: str, span: tuple[int, int]) -> tuple[str, tuple[int, int]] | tuple[None, None]:
        """A passage with its neighbors, as text and span; None where they are not asked for."""
        if self._options.context is None:
            return None, None
        with self._snapshot.store() as store:
            _, spans = store.passages([doc])
        at = int(np.flatnonzero((spans == span).all(axis=1))[0])
        start = int(spans[max(at - self._options.context, 0), 0])
        stop = int(spans[min(at + self._options.context, len(spans) - 1), 1])
        return text[start:stop], (start, stop)

    def _documents(self, docs: Iterable[int]) -> dict[int, StoredDocument]:
        wanted = list(dict.fromkeys(docs))
        with self._snapshot.store() as store:
            found = store.documents(wanted)
        missing = [doc for doc in wanted if doc not in found]
        if missing:
            raise IndexFormatError(
                f"{self._snapshot.folder}: a vector belongs to document number {missing[0]}, which the store does not "
                f"have; run `aveyb-index verify {self._snapshot.folder.parent}`"
            )
        return found
