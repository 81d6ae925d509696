"""What the passages of vectors are compared with: words, both fused, and an index of ours through `Retriever`.

Words, too, are scored exactly; `IndexPassages` measures the product instead, from build to search.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.eval.base import DEFAULT_MODE, SystemInfo, fingerprint_of, info_fingerprint
from aveyb_retrieval.eval.encoders import LoadOptions
from aveyb_retrieval.eval.passages import PassageTable, Scorer, Scores, best_rows
from aveyb_retrieval.eval.systems import bm25_modules, index_info, open_index
from aveyb_retrieval.eval.tasks import STANDARD, joined_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.eval.data import Corpus, Document
    from aveyb_retrieval.eval.encoders import Chunker
    from aveyb_retrieval.eval.passages import Passage, Range
    from aveyb_retrieval.indexes.types import EmbedderLike


class WordScorer:
    """BM25 over chunks by bm25s (English stems, without stop words), IDF over all chunks of the corpus.

    The title is read with the first chunk, where the document begins.
    """

    def __init__(self, corpus: Corpus, chunker: Chunker, chunks: str, *, k1: float = 1.5, b: float = 0.75) -> None:
        """Score the chunks that `chunker` cuts; `chunks` names them. `k1` and `b` are those of bm25s by default."""
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
        spans = [self._chunker(document) for document in self._corpus]
        offsets = np.cumsum([0, *(len(ranges) for ranges in spans)])
        return PassageTable(self._corpus, offsets, np.array([r for ranges in spans for r in ranges], dtype=np.int64))

    @cached_property
    def _index(self) -> Any:
        bm25s, stemmer = bm25_modules()
        texts: list[str] = []
        for document, first, last in zip(self._corpus, self.table.offsets[:-1], self.table.offsets[1:], strict=True):
            texts.extend(_chunk_texts(document, [(int(a), int(b)) for a, b in self.table.spans[first:last]]))
        tokens = bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False)
        index = bm25s.BM25(k1=self.info.settings["k1"], b=self.info.settings["b"])
        index.index(tokens, show_progress=False)
        return index

    def scores(self, queries: Sequence[str]) -> Iterator[Scores]:
        """Yield BM25 of all chunks for each query; -inf for a chunk without any of its words."""
        bm25s, stemmer = bm25_modules()
        words = bm25s.tokenize(list(queries), stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False)
        for found in words:
            scores = self._index.get_scores(found) if found else np.zeros(len(self.table.spans), np.float32)
            yield np.where(scores > 0, scores, -np.inf).astype(np.float32)


class FusedPassages:
    """Two scorers over the same passages, fused; each names its `depth` best, and both score all of those."""

    def __init__(
        self, lexical: Scorer, dense: Scorer, *, weight: float | None = None, depth: int = 100, name: str = ""
    ) -> None:
        """Fuse by reciprocal ranks (`weight` None), or as the index does, with `weight` of the cosines' share."""
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
        from aveyb_retrieval.indexes.search.scoring import ranked

        table = self._lexical.table
        if not np.array_equal(table.spans, self._dense.table.spans):
            raise ConfigError(f"{self.info.name}: the two rank different passages; give both the same chunks")
        texts = list(queries.values())
        found = {}
        for query, words, cosines in zip(queries, self._lexical.scores(texts), self._dense.scores(texts), strict=True):
            rows = table.rows(within[query] if within else None)
            fused = self._fuse(words, cosines, rows)
            found[query] = [table.passage(row) for row, _ in ranked(fused)[:k]]
        return found

    def _fuse(self, words: Scores, cosines: Scores, rows: np.ndarray) -> dict[int, float]:
        from aveyb_retrieval.indexes.search.scoring import reciprocal_rank, weighted

        lists = [
            [(row, float(scores[row])) for row in best_rows(scores, rows, self._depth)] for scores in (words, cosines)
        ]
        if self._weight is None:
            return reciprocal_rank(lists)
        candidates = {row for best in lists for row, _ in best}
        return weighted(
            {row: float(cosines[row]) for row in candidates},
            {row: float(words[row]) for row in candidates if np.isfinite(words[row])},
            background=float(cosines.mean()),
            weight=self._weight,
        )


class IndexPassages:
    """Passages of an index of ours, searched end to end through `Retriever`.

    Near copies are kept, because the marked answers of a question may repeat. A search within documents filters on
    the metadata field `document`: build the index of `indexed_rows`.
    """

    def __init__(
        self,
        path: Path,
        *,
        mode: str = DEFAULT_MODE,
        rerank: str | None = None,
        options: LoadOptions | None = None,
        model: EmbedderLike | None = None,
        name: str = "",
    ) -> None:
        """Open an index; the arguments are those of `IndexSystem`, and `rerank` as in a search."""
        self._path = path
        self._search: dict[str, Any] = {"mode": mode, "unit": "passage", "fold": False, "rerank": rerank}
        self._options = options or LoadOptions()
        self._model = model
        self._retriever: Any = None
        self.info = index_info(path, mode=mode, rerank=rerank, options=self._options, name=name)

    def search(
        self, queries: Mapping[str, str], k: int, within: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, list[Passage]]:
        """Return at most `k` passages per query, best first; see `PassageSystem`."""
        if self._retriever is None:
            self._retriever = open_index(self._path, self._model, self._options)
        found = {}
        for query, text in queries.items():
            only = {"filter": {"document": {"$in": list(within[query])}}} if within else {}
            hits = self._retriever.search(text, k=k, **self._search, **only)
            found[query] = [(hit.id, *hit.span) for hit in hits]
        return found


def indexed_rows(corpus: Corpus) -> Iterator[dict[str, str]]:
    """Yield the documents of a corpus for `build_index`, each with its id as the metadata field `document`."""
    for document in corpus:
        yield {"_id": document.id, "title": document.title, "text": document.text, "document": document.id}


def _chunk_texts(document: Document, ranges: Sequence[Range]) -> list[str]:
    texts = [document.text[start:end] for start, end in ranges]
    return [joined_text(document._replace(text=texts[0]), STANDARD), *texts[1:]] if texts else []
