"""Systems under test: BM25, exact dense search with any encoder, an index directory end to end, and fusions.

Constructing a system is cheap enough to ask for its `info`; the work (tokenizing, encoding) happens at the first
search, so that a result which is already known costs nothing.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError, InputError, extra_for
from aveyb_retrieval.eval.base import DEFAULT_MODE, Run, SystemInfo, fingerprint_of, info_fingerprint, rank
from aveyb_retrieval.eval.encoders import CorpusEncoder, LoadOptions
from aveyb_retrieval.eval.tasks import STANDARD, EvalProtocol, joined_text
from aveyb_retrieval.eval.vectors import (
    EncodedCorpus,
    is_complete,
    mean_vector,
    score_documents,
    search,
    write_corpus,
)
from aveyb_retrieval.indexes.types import silent
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aveyb_retrieval.eval.data import Corpus
    from aveyb_retrieval.eval.vectors import DocumentVectors
    from aveyb_retrieval.indexes.search.retriever import Retriever
    from aveyb_retrieval.indexes.types import EmbedderLike, Progress


class BM25System:
    """BM25 (Lucene's variant) over English stems without stop words, by bm25s; titles are joined to the text."""

    def __init__(self, corpus: Corpus, protocol: EvalProtocol = STANDARD, *, k1: float = 0.9, b: float = 0.4) -> None:
        """Measure BM25 on a corpus; the index is made at the first search."""
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
        self.info = SystemInfo(
            name="BM25", kind="lexical", model="bm25s", fingerprint=fingerprint_of(settings), settings=settings
        )

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        """Return at most `k` documents per query; those that share no term with it are left out.

        Raises:
            InputError: the corpus has no words but stop words.
        """
        bm25s, stemmer = bm25_modules()
        if self._index is None:
            texts = [joined_text(document, self._protocol) for document in self._corpus]
            tokens = bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False)
            if not tokens.vocab:
                raise InputError(f"{self._corpus.source}: BM25 finds no word in the corpus that is not a stop word")
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


def bm25_modules() -> tuple[Any, Any]:
    """Return the module bm25s and an English stemmer.

    Raises:
        OptionalDependencyError: one of them is not installed.
    """
    with extra_for("the BM25 baseline", "bm25"):
        import bm25s
        import Stemmer
    return bm25s, Stemmer.Stemmer("english")


class VectorCache:
    """Encoded corpora by fingerprint of (encoder, corpus) under one folder, or a temporary one when None.

    Whatever is found complete is used again when `reuse` is set; otherwise each corpus is encoded once per process.
    """

    def __init__(self, folder: Path | None = None, *, reuse: bool = True, progress: Progress = silent) -> None:
        """Keep vectors in `folder`; `progress` shows the encoding of each corpus."""
        self._temporary = tempfile.TemporaryDirectory(prefix="aveyb-eval-") if folder is None else None
        self._folder = Path(self._temporary.name) if self._temporary else Path(str(folder))
        self._reuse = reuse
        self._progress = progress
        self._open: dict[str, EncodedCorpus] = {}

    def encoded(self, encoder: CorpusEncoder, corpus: Corpus) -> EncodedCorpus:
        """Return the corpus's vectors, computed at most once."""
        key = fingerprint_of([info_fingerprint(encoder.info), corpus.fingerprint])[:32]
        if key not in self._open:
            folder = self._folder / "vectors" / key
            if not (self._reuse and is_complete(folder)):
                vectors = self._shown(encoder.encode_corpus(corpus), len(corpus), encoder.info.name)
                write_corpus(folder, vectors, encoder.dim, lambda: encoder.cut_texts)
            self._open[key] = EncodedCorpus(folder)
        return self._open[key]

    def _shown(self, vectors: Iterable[DocumentVectors], total: int, name: str) -> Iterator[DocumentVectors]:
        for done, found in enumerate(vectors, start=1):
            self._progress(f"{name}: encoding", done, total, 0)
            yield found


class DenseSystem:
    """Exact inner-product search over an encoder's vectors; `granularity` as in `vectors.search`."""

    def __init__(
        self,
        encoder: CorpusEncoder,
        corpus: Corpus,
        cache: VectorCache,
        *,
        granularity: str = "document",
        name: str = "",
    ) -> None:
        self.encoder = encoder
        self.corpus = corpus
        self.cache = cache
        self.granularity = granularity
        self.notices: list[str] = []
        self.info = replace(
            encoder.info,
            name=name or encoder.info.name,
            settings={**encoder.info.settings, "granularity": granularity},
        )

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        """Return the `k` best documents per query."""
        return self._search(queries, self.encoder.encode_queries(list(queries.values())), k)

    def scored(
        self, queries: Mapping[str, str], k: int, others: Mapping[str, Iterable[str]]
    ) -> tuple[Run, dict[str, float]]:
        """Return the k best of each query and its `others`, all with scores, and the mean score over the corpus."""
        vectors = self.encoder.encode_queries(list(queries.values()))
        run = self._search(queries, vectors, k)
        encoded = self.cache.encoded(self.encoder, self.corpus)
        for query, vector in zip(queries, vectors, strict=True):
            missing = [doc for doc in others[query] if doc not in run[query]]
            positions = np.array([self.corpus.positions[doc] for doc in missing], dtype=np.int64)
            scores = score_documents(encoded, vector, positions, self.granularity)
            run[query] |= {doc: float(score) for doc, score in zip(missing, scores, strict=True)}
        background = vectors @ mean_vector(encoded)
        return run, dict(zip(queries, background.tolist(), strict=True))

    def _search(self, queries: Mapping[str, str], vectors: np.ndarray, k: int) -> Run:
        encoded = self.cache.encoded(self.encoder, self.corpus)
        if encoded.cut_texts:
            texts = len(encoded.passages) if encoded.documents is None else len(encoded)
            limit = self.info.max_tokens
            where = "the model's limit" if limit is None else f"{limit} tokens"
            self.notices = [f"{self.info.name}: {encoded.cut_texts:,} of {plural(texts, 'text')} cut at {where}"]
        positions, scores = search(encoded, vectors, k, self.granularity)
        ids = self.corpus.ids
        return {
            query: {ids[p]: float(s) for p, s in zip(row, values, strict=True)}
            for query, row, values in zip(queries, positions, scores, strict=True)
        }


def index_info(
    path: Path,
    *,
    mode: str,
    granularity: str | None = None,
    rerank: str | None = None,
    options: LoadOptions,
    name: str = "",
) -> SystemInfo:
    """Describe an index directory that is searched in a mode; a hybrid one depends on the weights of passages, too.

    Raises:
        IndexFormatError: there is no index, or it is damaged.
        ConfigError: `options.max_tokens` is not the limit that the index was built with.
    """
    from aveyb_retrieval.files import hash_file
    from aveyb_retrieval.indexes.search.scoring import WEIGHTS
    from aveyb_retrieval.indexes.store.manifest import IndexDirectory, describe

    facts, index_dir = describe(path), IndexDirectory(path)
    model = facts["model"] or {}
    limit = model.get("max_tokens")
    if options.max_tokens not in (None, limit):
        raise ConfigError(
            f"{path}: built with max_tokens {limit}, and {options.max_tokens} is asked for; leave it out, or build "
            "another index"
        )
    return SystemInfo(
        name=name or f"index {path.name}",
        kind="index",
        model=str(model.get("name", "unknown")),
        fingerprint=hash_file(index_dir.manifest(index_dir.visible())).sha256,
        max_tokens=limit,
        prompts=dict(model.get("prompts") or {}),
        precision=options.precision,
        storage_dtype=facts["storage_dtype"],
        settings={
            "mode": mode,
            "granularity": granularity or facts["granularity"],
            "factory": {kind: [tier["factory"] for tier in tiers] for kind, tiers in facts["indexes"].items()},
            "params": {kind: [tier["params"] for tier in tiers] for kind, tiers in facts["indexes"].items()},
            **({"relevance": WEIGHTS} if mode == "hybrid" else {}),
            **({"rerank": rerank} if rerank is not None else {}),
        },
    )


def open_index(path: Path, model: EmbedderLike | None, options: LoadOptions) -> Retriever:
    """Open an index with a loaded model, or with the one that it names, loaded as `options` say."""
    from aveyb_retrieval.indexes.search.retriever import Retriever

    precision = options.precision if model is None else "auto"  # a loaded model keeps its own
    return Retriever.load(path, model=model, device=options.device, precision=precision)


class IndexSystem:
    """An index directory, searched end to end through `Retriever`: its approximation and its search mode included."""

    def __init__(
        self,
        path: str | Path,
        *,
        mode: str = DEFAULT_MODE,
        granularity: str | None = None,
        rerank: str | None = None,
        options: LoadOptions | None = None,
        model: EmbedderLike | None = None,
        name: str = "",
        documents: int | None = None,
    ) -> None:
        """Open an index.

        Args:
            path: The index directory.
            mode: "hybrid", "dense" or "lexical".
            granularity: Which vectors rank; None: those that the index has.
            rerank: What orders the best 100 again, as for `Retriever.search`; None: nothing.
            options: Where and in which precision queries are encoded and searched.
            model: The model that made the index, loaded as `options` say; None loads the one that the index names.
            name: What reports call it; default: the directory's name.
            documents: Of the corpus that it should hold; a notice says where it holds another number.

        Raises:
            IndexFormatError: there is no index, or it is damaged.
            ConfigError: `options.max_tokens` is not the limit that the index was built with.
        """
        from aveyb_retrieval.indexes.search.options import WEIGHT
        from aveyb_retrieval.indexes.search.scoring import MAXSIM_WEIGHT

        self._path = Path(path)
        self._search: dict[str, Any] = {"mode": mode, "granularity": granularity, "rerank": rerank}
        self._options = options or LoadOptions()
        self._model = model
        self._retriever: Retriever | None = None
        self._documents = documents
        self.notices: list[str] = []
        info = index_info(
            self._path, mode=mode, granularity=granularity, rerank=rerank, options=self._options, name=name
        )
        weights = {"weight": WEIGHT} if mode == "hybrid" else {}
        if rerank is not None:
            weights["maxsim_weight"] = MAXSIM_WEIGHT
        self.info = replace(info, settings=info.settings | weights)

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        """Return at most `k` documents per query, by `Retriever.rank`."""
        if self._retriever is None:
            self._retriever = open_index(self._path, self._model, self._options)
            if self._search["mode"] != "lexical":
                precision = getattr(self._retriever.model, "precision", None)  # a stand-in of the caller's may not say
                self.info = replace(self.info, precision=precision)
            if self._documents not in (None, len(self._retriever)):
                self.notices.append(
                    f"{self.info.name} holds {plural(len(self._retriever), 'document')}, the corpus {self._documents:,}"
                )
        answers = self._retriever.rank(list(queries.values()), k=k, **self._search)
        return {query: dict(ranking) for query, ranking in zip(queries, answers, strict=True)}


class HybridSystem:
    """The index's weighted fusion over exact vectors and the BM25 of bm25s, without what best passages add to it.

    The first `depth` documents of either side compete, or as many as are asked for, each with both of its scores.
    """

    def __init__(
        self, lexical: BM25System, dense: DenseSystem, *, weight: float | None = None, depth: int = 100, name: str = ""
    ) -> None:
        """Fuse words and vectors; `weight` of the vectors, None is the index's own."""
        from aveyb_retrieval.indexes.search.options import WEIGHT

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
        """Return the `k` best documents per query by the weighted sum of both scores."""
        from aveyb_retrieval.indexes.search.scoring import weighted

        depth, weight = max(self.info.settings["depth"], k), self.info.settings["weight"]
        words = self._lexical.search(queries, depth)
        near, background = self._dense.scored(queries, depth, words)
        self.notices = [*self._lexical.notices, *self._dense.notices]
        run: Run = {}
        for query in queries:
            fused = weighted(near[query], words[query], background=background[query], weight=weight)
            run[query] = {doc: fused[doc] for doc in rank(fused)[:k]}
        return run
