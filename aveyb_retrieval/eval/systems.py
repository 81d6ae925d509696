"""Systems under test: BM25, exact dense search with any encoder, an index directory end to end, and their fusion.

Constructing a system is cheap enough to ask for its `info`; the work (tokenising, encoding) happens at the first
search, so that a result which is already known costs nothing.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aveyb_retrieval.errors import ConfigError, IndexFormatError, OptionalDependencyError
from aveyb_retrieval.eval.base import Run, System, SystemInfo, fingerprint_of, info_fingerprint, rank
from aveyb_retrieval.eval.datasets import Corpus, Document
from aveyb_retrieval.eval.encoders import CorpusEncoder
from aveyb_retrieval.eval.protocols import STANDARD, EvalProtocol, joined_text
from aveyb_retrieval.eval.vectors import (
    EncodedCorpus,
    is_complete,
    mean_vector,
    score_documents,
    search,
    write_corpus,
)

Track = Callable[[Iterable[Document], int, str], Iterable[Document]]
"""Wraps an iterable in a progress bar: (documents, total, description)."""


def no_progress(documents: Iterable[Document], total: int, description: str) -> Iterable[Document]:
    """The `Track` that shows nothing."""
    return documents


class BM25System:
    """BM25 (Lucene's variant) over English stems without stop words, by bm25s; titles are joined to the text."""

    def __init__(self, corpus: Corpus, protocol: EvalProtocol = STANDARD, *, k1: float = 0.9, b: float = 0.4) -> None:
        self._corpus = corpus
        self._protocol = protocol
        self._index: Any = None
        self.notices: list[str] = []
        settings = {
            "k1": k1,
            "b": b,
            "stemmer": "english",
            "stopwords": "en",
            "title_separator": protocol.title_separator,
        }
        self.info = SystemInfo("BM25", "lexical", "bm25s", fingerprint_of(settings), settings=settings)

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        """Documents that share no term with the query are not returned."""
        bm25s, stemmer = _bm25_modules()
        if self._index is None:
            texts = [joined_text(document, self._protocol) for document in self._corpus]
            tokens = bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False)
            self._index = bm25s.BM25(k1=self.info.settings["k1"], b=self.info.settings["b"])
            self._index.index(tokens, show_progress=False)
        tokens = bm25s.tokenize(list(queries.values()), stopwords="en", stemmer=stemmer, show_progress=False)
        k = min(k, len(self._corpus))
        positions, scores = self._index.retrieve(tokens, k=k, show_progress=False)
        ids = self._corpus.ids
        return {
            query: {ids[p]: float(s) for p, s in zip(row, values, strict=True) if s > 0}
            for query, row, values in zip(queries, positions, scores, strict=True)
        }


def _bm25_modules() -> tuple[Any, Any]:
    try:
        import bm25s
        import Stemmer
    except ImportError as error:
        raise OptionalDependencyError("bm25s and PyStemmer", "bm25", "the BM25 baseline") from error
    return bm25s, Stemmer.Stemmer("english")


class VectorCache:
    """Encoded corpora by fingerprint of (encoder, corpus) under one folder, or a temporary one when None.

    Whatever is found complete is used again when `reuse` is set; otherwise each corpus is encoded once per process.
    """

    def __init__(self, folder: Path | None = None, *, reuse: bool = True, track: Track = no_progress) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="aveyb-eval-") if folder is None else None
        self._folder = Path(self._temporary.name) if self._temporary else Path(str(folder))
        self._reuse = reuse
        self._track = track
        self._open: dict[str, EncodedCorpus] = {}

    def encoded(self, encoder: CorpusEncoder, corpus: Corpus) -> EncodedCorpus:
        """The corpus's vectors, computed at most once."""
        key = fingerprint_of([info_fingerprint(encoder.info), corpus.fingerprint])[:32]
        if key not in self._open:
            folder = self._folder / "vectors" / key
            if not (self._reuse and is_complete(folder)):
                documents = self._track(corpus, len(corpus), f"{encoder.info.name}: encoding")
                start = time.perf_counter()
                write_corpus(
                    folder,
                    encoder.encode_corpus(documents),
                    encoder.dim,
                    lambda: (time.perf_counter() - start, encoder.cut_texts),
                )
            self._open[key] = EncodedCorpus(folder)
        return self._open[key]


class DenseSystem:
    """Exact inner-product search over an encoder's vectors; `unit` as in `vectors.search`."""

    def __init__(
        self, encoder: CorpusEncoder, corpus: Corpus, cache: VectorCache, *, unit: str = "document", name: str = ""
    ) -> None:
        self.encoder = encoder
        self.corpus = corpus
        self.cache = cache
        self.unit = unit
        self.notices: list[str] = []
        self.info = replace(
            encoder.info, name=name or encoder.info.name, settings={**encoder.info.settings, "unit": unit}
        )

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        return self._search(queries, self.encoder.encode_queries(list(queries.values())), k)

    def scored(
        self, queries: Mapping[str, str], k: int, others: Mapping[str, Iterable[str]]
    ) -> tuple[Run, dict[str, float]]:
        """The k best of each query and its `others`, all with their scores, and the mean score over the corpus."""
        vectors = self.encoder.encode_queries(list(queries.values()))
        run = self._search(queries, vectors, k)
        encoded = self.cache.encoded(self.encoder, self.corpus)
        place = {doc: i for i, doc in enumerate(self.corpus.ids)}
        for query, vector in zip(queries, vectors, strict=True):
            missing = [doc for doc in others[query] if doc not in run[query]]
            positions = np.array([place[doc] for doc in missing], dtype=np.int64)
            scores = score_documents(encoded, vector, positions, self.unit)
            run[query] |= {doc: float(score) for doc, score in zip(missing, scores, strict=True)}
        background = vectors @ mean_vector(encoded)
        return run, dict(zip(queries, background.tolist(), strict=True))

    def _search(self, queries: Mapping[str, str], vectors: np.ndarray, k: int) -> Run:
        encoded = self.cache.encoded(self.encoder, self.corpus)
        if encoded.cut_texts:
            texts = len(encoded.passages) if encoded.documents is None else len(encoded)
            limit = self.info.max_tokens
            self.notices = [f"{self.info.name}: {encoded.cut_texts:,} of {texts:,} texts cut at {limit} tokens."]
        positions, scores = search(encoded, vectors, k, self.unit)
        ids = self.corpus.ids
        return {
            query: {ids[p]: float(s) for p, s in zip(row, values, strict=True)}
            for query, row, values in zip(queries, positions, scores, strict=True)
        }


class IndexSystem:
    """An index directory, searched end to end through `Retriever`: its approximation and its search mode included."""

    def __init__(self, path: str | Path, *, mode: str = "dense", name: str = "") -> None:
        from aveyb_retrieval.index.storage.directory import MANIFEST, IndexDirectory
        from aveyb_retrieval.index.storage.manifest import Manifest

        self._path = Path(path)
        self._mode = mode
        self._retriever: Any = None
        self.notices: list[str] = []
        version = IndexDirectory(self._path).current()
        if version is None:
            raise IndexFormatError(f"{self._path}: no index here; build one with `aveyb-index build`.")
        manifest = Manifest.read(self._path / version)
        model = manifest.model or {}
        settings = {
            "mode": mode,
            "granularity": manifest.granularity,
            "factory": {kind: index.factory for kind, index in manifest.indexes.items()},
            "params": {kind: index.params for kind, index in manifest.indexes.items()},
        }
        self.info = SystemInfo(
            name or f"index {self._path.name}",
            "index",
            str(model.get("name", "unknown")),
            hashlib.sha256((self._path / version / MANIFEST).read_bytes()).hexdigest(),
            model.get("max_tokens"),
            dict(model.get("prompts") or {}),
            manifest.storage_dtype,
            settings,
        )

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        if self._retriever is None:
            from aveyb_retrieval.index.search.retriever import Retriever

            self._retriever = Retriever.load(self._path)
        answers = self._retriever.rank(list(queries.values()), k=k, mode=self._mode)
        return {query: dict(ranking) for query, ranking in zip(queries, answers, strict=True)}


class HybridSystem:
    """Reciprocal rank fusion of the first `depth` documents of each system, by the index's own `fusion` module."""

    def __init__(self, systems: Sequence[System], *, depth: int = 100, name: str = "") -> None:
        from aveyb_retrieval.index.search.fusion import RRF_K

        if len(systems) < 2:
            raise ConfigError("A hybrid needs at least two systems.")
        self._systems = systems
        self.notices: list[str] = []
        infos = [system.info for system in systems]
        self.info = SystemInfo(
            name or "RRF(" + ", ".join(info.name for info in infos) + ")",
            "hybrid",
            " + ".join(info.model for info in infos),
            fingerprint_of([info_fingerprint(info) for info in infos]),
            next((info.max_tokens for info in infos if info.max_tokens is not None), None),
            next((info.prompts for info in infos if info.prompts), {}),
            next((info.dtype for info in infos if info.dtype != "-"), "-"),
            {"fusion": "rrf", "constant": RRF_K, "depth": depth, "of": [info.name for info in infos]},
        )

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        runs = [system.search(queries, self.info.settings["depth"]) for system in self._systems]
        self.notices = [notice for system in self._systems for notice in system.notices]
        return {query: _fuse([run.get(query, {}) for run in runs], k) for query in queries}


class WeightedSystem:
    """`Retriever`'s hybrid search with exact vectors and the evaluation's BM25: the first `depth` documents of either
    side, each with both of its scores."""

    def __init__(
        self, lexical: BM25System, dense: DenseSystem, *, weight: float | None = None, depth: int = 100, name: str = ""
    ) -> None:
        from aveyb_retrieval.index.search.options import WEIGHT

        self._lexical, self._dense = lexical, dense
        self.notices: list[str] = []
        weight = WEIGHT if weight is None else weight
        self.info = replace(
            dense.info,
            name=name or f"hybrid of {lexical.info.name} and {dense.info.name}",
            kind="hybrid",
            fingerprint=fingerprint_of([info_fingerprint(lexical.info), info_fingerprint(dense.info)]),
            settings={
                "fusion": "weighted",
                "weight": weight,
                "depth": depth,
                "of": [lexical.info.name, dense.info.name],
            },
        )

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        from aveyb_retrieval.index.search.fusion import weighted

        depth, weight = self.info.settings["depth"], self.info.settings["weight"]
        words = self._lexical.search(queries, depth)
        near, background = self._dense.scored(queries, depth, words)
        self.notices = [*self._lexical.notices, *self._dense.notices]
        run: Run = {}
        for query in queries:
            fused = weighted(near[query], words[query], background=background[query], weight=weight)
            run[query] = {doc: fused[doc] for doc in rank(fused)[:k]}
        return run


def _fuse(scored: Sequence[Mapping[str, float]], k: int) -> dict[str, float]:
    """The k best documents of one query by reciprocal rank; each list is ranked in trec_eval's order."""
    from aveyb_retrieval.index.search.fusion import reciprocal_rank

    numbers: dict[str, int] = {}
    rankings = [[(numbers.setdefault(doc, len(numbers)), scores[doc]) for doc in rank(scores)] for scores in scored]
    fused = reciprocal_rank(rankings)
    by_id = {doc: fused[number] for doc, number in numbers.items()}
    return {doc: by_id[doc] for doc in rank(by_id)[:k]}
