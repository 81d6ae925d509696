"""Rank passages by their vectors, exactly: every passage gets a score for every query.

Ties go to the passage that comes first in the corpus.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.eval.base import SystemInfo
    from aveyb_retrieval.eval.datasets import Corpus, Document
    from aveyb_retrieval.eval.encoders import Chunker, CorpusEncoder
    from aveyb_retrieval.eval.passages import Passage, PassageSystem, Range
    from aveyb_retrieval.eval.systems import VectorCache
    from aveyb_retrieval.eval.vectors import EncodedCorpus

Scores = npt.NDArray[np.float32]


class PassageTable:
    """The passages of a corpus: row i is characters `spans[i]` of document `owners[i]`.

    owners: `[m]` int64, positions in the corpus; spans: `[m, 2]` int64; offsets: `[n + 1]` int64, document j owns
    rows offsets[j] to offsets[j + 1].
    """

    def __init__(self, corpus: Corpus, offsets: np.ndarray, spans: np.ndarray) -> None:
        self._corpus = corpus
        self.offsets = np.asarray(offsets)
        self.spans = np.asarray(spans)
        self.owners = np.repeat(np.arange(len(corpus)), np.diff(self.offsets))

    def rows(self, documents: Iterable[str] | None) -> np.ndarray:
        """Return the rows of some documents, or of all; a passage without text is left out, it cannot be shown."""
        if documents is None:
            rows = np.arange(len(self.spans))
        else:
            positions = sorted(self._corpus.positions[doc] for doc in documents)
            rows = np.concatenate([np.arange(self.offsets[p], self.offsets[p + 1]) for p in positions])
        return rows[self.spans[rows, 0] < self.spans[rows, 1]]

    def passage(self, row: int) -> Passage:
        """Return the passage of a row."""
        start, end = (int(value) for value in self.spans[row])
        return self._corpus.ids[self.owners[row]], start, end


class Scorer(Protocol):
    """Gives every passage of a table a score for a query."""

    info: SystemInfo

    @property
    def table(self) -> PassageTable:
        """The passages."""

    def scores(self, queries: Sequence[str]) -> Iterator[Scores]:
        """Yield the scores `[m]` of all passages for each query; -inf for a passage that is not found at all."""


class VectorScorer:
    """Cosines of an encoder's passages: late chunking's, or chunks encoded one by one."""

    def __init__(self, encoder: CorpusEncoder, corpus: Corpus, cache: VectorCache, *, name: str = "") -> None:
        self.info = replace(encoder.info, name=name or encoder.info.name)
        self._encoder = encoder
        self._corpus = corpus
        self._cache = cache

    @cached_property
    def _encoded(self) -> EncodedCorpus:
        return self._cache.encoded(self._encoder, self._corpus)

    @cached_property
    def table(self) -> PassageTable:
        """The passages that the encoder made."""
        return PassageTable(self._corpus, self._encoded.offsets, self._encoded.spans)

    def scores(self, queries: Sequence[str]) -> Iterator[Scores]:
        """Yield the cosines of all passages with each query."""
        vectors = np.asarray(self._encoded.passages)
        for query in self._encoder.encode_queries(list(queries)):
            yield vectors @ query


class ExactPassages:
    """Rank passages by one scorer, exactly."""

    def __init__(self, scorer: Scorer, *, name: str = "") -> None:
        """Rank by a scorer; reports call it `name`, else as the scorer is called."""
        self._scorer = scorer
        self.info = replace(scorer.info, name=name or scorer.info.name)

    def search(
        self, queries: Mapping[str, str], k: int, within: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, list[Passage]]:
        """Return at most `k` passages per query, best first; see `PassageSystem`."""
        table = self._scorer.table
        found = {}
        for query, scores in zip(queries, self._scorer.scores(list(queries.values())), strict=True):
            best = best_rows(scores, table.rows(within[query] if within else None), k)
            found[query] = [table.passage(row) for row in best]
        return found


def chunks_of(encoded: EncodedCorpus, positions: Mapping[str, int]) -> Chunker:
    """Return a chunker that repeats the passages of an encoded corpus, to read exactly those in another way."""

    def chunk(document: Document) -> list[Range]:
        position = positions[document.id]
        rows = encoded.spans[encoded.offsets[position] : encoded.offsets[position + 1]]
        return [(int(start), int(end)) for start, end in rows]

    return chunk


def late_against_fixed(
    make_encoder: Callable[[Chunker | None], CorpusEncoder], corpus: Corpus, cache: VectorCache
) -> list[PassageSystem]:
    """Return late chunking and the same spans encoded one by one; `make_encoder(None)` is the late-chunking encoder."""
    late = make_encoder(None)
    chunker = chunks_of(cache.encoded(late, corpus), corpus.positions)
    fixed = make_encoder(chunker)
    return [
        ExactPassages(VectorScorer(late, corpus, cache), name=f"{late.info.name}, late chunking"),
        ExactPassages(VectorScorer(fixed, corpus, cache), name=f"{fixed.info.name}, chunks one by one"),
    ]


def best_rows(scores: Scores, rows: np.ndarray, k: int) -> list[int]:
    """Return the `k` best of some rows by their scores, best first, ties by the lower row."""
    from aveyb_retrieval.indexes.nearest.exact import top

    _, ids = top(scores[rows][None], rows[None], k)
    return [int(row) for row in ids[0] if row >= 0]
