"""Passages ranked by a score of each of them: vectors, words, and both fused, to compare an index
with.

Ties go to the passage that comes first in the corpus.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.eval.base import SystemInfo, fingerprint_of, info_fingerprint
from aveyb_retrieval.eval.encoders import LoadOptions
from aveyb_retrieval.eval.named_systems import indexed
from aveyb_retrieval.eval.systems import bm25_modules, index_info
from aveyb_retrieval.eval.tasks import STANDARD, joined_text
from aveyb_retrieval.indexes.vectors import StoredShards

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from span_scores import Passage, Range

    from aveyb_retrieval.eval.data import Corpus, Document
    from aveyb_retrieval.eval.encoders import AsMeasured, Chunker
    from aveyb_retrieval.indexes.types import EncodedRow

Scores = npt.NDArray[np.float32]


class PassageTable:
    """The passages of a corpus: row i is characters `spans[i]` of document `owners[i]`.

    owners: `[m]` int64, positions in the corpus; spans: `[m, 2]` int64; offsets: `[n + 1]` int64,
    document j owns rows offsets[j] to offsets[j + 1].
    """

    def __init__(self, corpus: Corpus, offsets: np.ndarray, spans: np.ndarray) -> None:
        self._corpus = corpus
        self.offsets = np.asarray(offsets)
        self.spans = np.asarray(spans)
        self.owners = np.repeat(np.arange(len(corpus)), np.diff(self.offsets))

    def rows(self, documents: Iterable[str] | None) -> np.ndarray:
        """Return the rows of some documents, or of all; a passage without text is left out, it
        cannot be shown.
        """
        if documents is None:
            rows = np.arange(len(self.spans))
        else:
            positions = sorted(self._corpus.positions[doc] for doc in documents)
            rows = np.concatenate(
                [np.arange(self.offsets[p], self.offsets[p + 1]) for p in positions]
            )
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
        """Yield the scores `[m]` of all passages for each query; -inf for a passage that is not
        found at all.
        """


class VectorScorer:
    """Cosines of a model's passages: late chunking's, or chunks encoded one by one."""

    def __init__(self, model: AsMeasured, corpus: Corpus, folder: Path, *, name: str = "") -> None:
        self._model = model
        self._corpus = corpus
        self._path = indexed(model, corpus, folder / "vectors", granularity=model.granularity)
        info = index_info(
            self._path, mode="dense", options=LoadOptions(), name=name or model.model_name
        )
        self.info = replace(info, settings={**info.settings, "chunks": model.chunks})

    @cached_property
    def _encoded(self) -> list[EncodedRow]:
        found = {record.id: record.encoded for record in StoredShards(self._path).documents()}
        return [encoded for name in self._corpus.ids if (encoded := found[name]) is not None]

    @cached_property
    def table(self) -> PassageTable:
        """The passages that the model made."""
        offsets = np.cumsum([0, *(len(encoded.spans) for encoded in self._encoded)])
        return PassageTable(
            self._corpus, offsets, np.concatenate([encoded.spans for encoded in self._encoded])
        )

    def scores(self, queries: Sequence[str]) -> Iterator[Scores]:
        """Yield the cosines of all passages with each query."""
        vectors = np.concatenate([encoded.passages for encoded in self._encoded])
        for query in self._model.encode_queries(list(queries)):
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


class WordScorer:
    """BM25 over chunks by bm25s (English stems, without stop words), IDF over all chunks of the
    corpus.

    The title is read with the first chunk, where the document begins.
    """

    def __init__(
        self, corpus: Corpus, chunker: Chunker, chunks: str, *, k1: float = 1.5, b: float = 0.75
    ) -> None:
        """Score the chunks that `chunker` cuts; `chunks` names them.

        `k1` and `b` are those of bm25s by default.
        """
        settings = {"k1": k1, "b": b, "stemmer": "english", "stopwords": "en", "chunks": chunks}
        self.info = SystemInfo(
            name=f"BM25, {chunks}",
            kind="lexical",
            model="bm25s",
            fingerprint=fingerprint_of(settings),
            settings=settings,
        )
        self._corpus = corpus
        self._chunker = chunker

    @cached_property
    def table(self) -> PassageTable:
        """The chunks."""
        spans = [self._chunker(document.text) for document in self._corpus]
        offsets = np.cumsum([0, *(len(ranges) for ranges in spans)])
        return PassageTable(
            self._corpus, offsets, np.array([r for ranges in spans for r in ranges], dtype=np.int64)
        )

    @cached_property
    def _index(self) -> Any:
        bm25s, stemmer = bm25_modules()
        texts: list[str] = []
        for document, first, last in zip(
            self._corpus, self.table.offsets[:-1], self.table.offsets[1:], strict=True
        ):
            texts.extend(
                _chunk_texts(document, [(int(a), int(b)) for a, b in self.table.spans[first:last]])
            )
        tokens = bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False)
        index = bm25s.BM25(k1=self.info.settings["k1"], b=self.info.settings["b"])
        index.index(tokens, show_progress=False)
        return index

    def scores(self, queries: Sequence[str]) -> Iterator[Scores]:
        """Yield BM25 of all chunks for each query; -inf for a chunk without any of its words."""
        bm25s, stemmer = bm25_modules()
        words = bm25s.tokenize(
            list(queries), stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
        )
        for found in words:
            scores = (
                self._index.get_scores(found)
                if found
                else np.zeros(len(self.table.spans), np.float32)
            )
            yield np.where(scores > 0, scores, -np.inf).astype(np.float32)


class FusedPassages:
    """Two scorers over the same passages, fused; each names its `depth` best, and both score all of
    those.
    """

    def __init__(
        self,
        lexical: Scorer,
        dense: Scorer,
        *,
        weight: float | None = None,
        depth: int = 100,
        name: str = "",
    ) -> None:
        """Fuse by reciprocal ranks (`weight` None), or as the index does, with `weight` of the
        cosines' share.
        """
        infos = (lexical.info, dense.info)
        fusion = "RRF" if weight is None else f"weighted fusion ({weight:g} vectors)"
        self._lexical = lexical
        self._dense = dense
        self._weight = weight
        self._depth = depth
        self.info = replace(
            dense.info,
            name=name or f"{fusion} of {lexical.info.name} and {dense.info.name}",
            kind="hybrid",
            fingerprint=fingerprint_of([info_fingerprint(info) for info in infos]),
            settings={"fusion": fusion, "depth": depth, "of": [info.name for info in infos]},
        )

    def search(
        self, queries: Mapping[str, str], k: int, within: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, list[Passage]]:
        """Return at most `k` passages per query, best first; see `PassageSystem`.

        Raises:
            ConfigError: the two scorers rank different passages.
        """
        from aveyb_retrieval.indexes.search.fusion import ranked

        table = self._lexical.table
        if not np.array_equal(table.spans, self._dense.table.spans):
            raise ConfigError(
                f"{self.info.name}: the two rank different passages; give both the same chunks"
            )
        texts = list(queries.values())
        found = {}
        for query, words, cosines in zip(
            queries, self._lexical.scores(texts), self._dense.scores(texts), strict=True
        ):
            rows = table.rows(within[query] if within else None)
            fused = self._fuse(words, cosines, rows)
            found[query] = [table.passage(row) for row, _ in ranked(fused)[:k]]
        return found

    def _fuse(self, words: Scores, cosines: Scores, rows: np.ndarray) -> dict[int, float]:
        from aveyb_retrieval.indexes.search.fusion import fuse_scores, reciprocal_rank

        lists = [
            [(row, float(scores[row])) for row in best_rows(scores, rows, self._depth)]
            for scores in (words, cosines)
        ]
        if self._weight is None:
            return reciprocal_rank(lists)
        candidates = np.array(sorted({row for best in lists for row, _ in best}), np.int64)
        bm25 = words[candidates].astype(np.float64)
        fused = fuse_scores(
            cosines[candidates].astype(np.float64),
            np.where(np.isfinite(bm25), bm25, np.nan),
            background=float(cosines.mean()),
            weight=self._weight,
        )
        return dict(zip(candidates.tolist(), fused.tolist(), strict=True))


def _chunk_texts(document: Document, ranges: Sequence[Range]) -> list[str]:
    texts = [document.text[start:end] for start, end in ranges]
    return [joined_text(document._replace(text=texts[0]), STANDARD), *texts[1:]] if texts else []


def best_rows(scores: Scores, rows: np.ndarray, k: int) -> list[int]:
    """Return the `k` best of some rows by their scores, best first, ties by the lower row."""
    from aveyb_retrieval.indexes.nearest.tiers import top

    _, ids = top(scores[rows][None], rows[None], k)
    return [int(row) for row in ids[0] if row >= 0]
