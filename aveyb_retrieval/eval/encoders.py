"""Models that turn a corpus and queries into vectors, as an index reads documents, or as peers are usually measured.

All are loaded by `aveyb_retrieval.encoder.embedders.loading`, like the model of an index, and used through the
`CorpusEncoder` protocol, so that peers are measured by the same code in the same run.

Inside MTEB (extra `mteb`):

    import mteb
    from aveyb_retrieval.eval.encoders import EmbedderModel, IndexModel

    tasks = mteb.get_tasks(["NQ", "MSMARCO", "MultiLongDocRetrieval"], languages=["eng"])
    mteb.evaluate(EmbedderModel(embedder), tasks)      # the vectors, searched exactly by MTEB
    mteb.evaluate(IndexModel(embedder), tasks)         # our index end to end: build, then Retriever.rank

A saved model also works as `SentenceTransformer(path)`, which MTEB wraps by itself; `EmbedderModel` is the way to
documents of any length, in constant memory. Both carry `mteb_model_meta`: without it MTEB would file the scores under
an empty name.
"""

from __future__ import annotations

import copy
import itertools
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aveyb_retrieval.errors import ConfigError, ModelError, extra_for
from aveyb_retrieval.eval.base import SystemInfo
from aveyb_retrieval.eval.data import Document
from aveyb_retrieval.eval.tasks import STANDARD, EvalProtocol, joined_text
from aveyb_retrieval.eval.vectors import DocumentVectors
from aveyb_retrieval.indexes.types import EmbedderLike

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mteb.models.model_meta import ModelMeta

    from aveyb_retrieval.encoder.embedders.embedder import Embedder
    from aveyb_retrieval.encoder.embedders.sentence_embedder import SentenceEmbedder
    from aveyb_retrieval.indexes.search.retriever import Retriever


Chunker = Callable[[Document], list[tuple[int, int]]]
"""Cuts a document's text into character ranges [start, end) that are read one by one."""

_TEXTS_PER_CALL = 512  # texts handed to a model at once; it sorts them by length inside


class CorpusEncoder(Protocol):
    """A model under one protocol; `info` names weights, prompts, length limit and precision."""

    info: SystemInfo
    dim: int
    cut_texts: int  # texts longer than the limit, counted while encoding documents

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Encode queries into unit rows `[n, d]` float32."""

    def encode_corpus(self, documents: Iterable[Document]) -> Iterator[DocumentVectors]:
        """Yield the vectors of each document, in order."""


class PromptedEmbedder(EmbedderLike, Protocol):
    """A model for an index that also shows its prompts: our `Embedder`, or a stand-in in tests."""

    prompts: dict[str, str]
    precision: str


def word_chunks(words: int, overlap: int = 0) -> Chunker:
    """Cut texts into chunks of `words` whitespace-separated words.

    Consecutive chunks share `overlap` words; the last chunk may be shorter.

    Raises:
        ConfigError: `words` is below 1, or `overlap` is not below `words`.
    """
    if words < 1:
        raise ConfigError(f"a chunk needs at least 1 word, not {words}")
    if not 0 <= overlap < words:
        raise ConfigError(f"an overlap of {overlap} words: must be at least 0 and below the chunk's {words}")

    def chunk(document: Document) -> list[tuple[int, int]]:
        tokens = list(re.finditer(r"\S+", document.text))
        last = max(len(tokens) - overlap, min(len(tokens), 1))  # a chunk of nothing but overlap adds nothing
        return [
            (tokens[i].start(), tokens[min(i + words, len(tokens)) - 1].end()) for i in range(0, last, words - overlap)
        ]

    return chunk


class EmbedderEncoder:
    """A model as an index uses it: one vector for the document and one for each passage, or fixed chunks one by one.

    The title goes in front of the text, on a line of its own as the index builds it (`standard`) or as the protocol
    joins it, and only an index reads it again in later splits. With a `chunker`, each chunk is encoded alone (without
    its document, without late chunking) and there is no document vector; `chunks` names the chunking in reports and
    fingerprints.
    """

    def __init__(
        self,
        embedder: PromptedEmbedder,
        protocol: EvalProtocol = STANDARD,
        *,
        chunker: Chunker | None = None,
        chunks: str = "fixed",
        max_tokens: int | None = None,
    ) -> None:
        """Measure an embedder; `max_tokens` says how it was loaded."""
        if protocol.query_prefix is not None and protocol.document_prefix is not None:
            embedder = copy.copy(embedder)  # the caller's keeps its own prompts
            embedder.prompts = {"query": protocol.query_prefix, "document": protocol.document_prefix}
        if protocol is not STANDARD:
            embedder = _reading_titles_once(embedder)
        self.dim = embedder.dim
        self.cut_texts = 0
        self._embedder = embedder
        self._chunker = chunker
        self._separator = "\n" if protocol is STANDARD else protocol.title_separator
        name = _label(embedder.model_name)
        self.info = SystemInfo(
            name=name,
            kind="dense",
            model=name,
            fingerprint=embedder.fingerprint,
            max_tokens=max_tokens,
            prompts=dict(embedder.prompts),
            precision=embedder.precision,
            settings={
                "title_separator": self._separator,
                "chunks": chunks if chunker else "passages",
                "passage_size": str(getattr(embedder, "passage_size", None)),
            },
        )

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Encode queries into unit rows `[n, d]` float32."""
        return np.asarray(self._embedder.encode_queries(queries), dtype=np.float32)

    def encode_corpus(self, documents: Iterable[Document]) -> Iterator[DocumentVectors]:
        """Yield the vectors of each document, in order."""
        if self._chunker is not None:
            yield from _encode_chunks(documents, self._chunker, self._encode_texts, self.dim)
            return
        pairs = ((document.title + self._separator if document.title else "", document.text) for document in documents)
        for encoded in self._embedder.encode_documents(pairs):
            self.cut_texts += encoded.n_cut > 0
            yield DocumentVectors(encoded.vector, encoded.passages, encoded.spans)

    def _encode_texts(self, texts: list[str]) -> np.ndarray:
        encoded = list(self._embedder.encode_documents(("", text) for text in texts))
        self.cut_texts += sum(item.n_cut > 0 for item in encoded)
        return np.stack([item.vector for item in encoded])


def _reading_titles_once(embedder: Any) -> Any:
    """Return the same model without titles at the head of later splits: a document is one text to the authors."""
    size = getattr(embedder, "passage_size", None)
    return embedder if size is None else embedder.with_passage_size(replace(size, titled=False))


class SentenceTransformerEncoder:
    """A sentence-transformers model as peers are usually measured: whole texts cut at its limit, or fixed chunks.

    Under `standard` the model's own query and document prompts are used; under a protocol with prefixes those are put
    in front of the text instead, as plain text. Chunks carry the title in front of the first one only: the title is
    read where the document begins.
    """

    def __init__(
        self,
        embedder: SentenceEmbedder,
        name: str,
        protocol: EvalProtocol = STANDARD,
        *,
        chunker: Chunker | None = None,
        chunks: str = "",
    ) -> None:
        """Measure a loaded model under the given name; texts are cut at its `model.max_seq_length`."""
        self.cut_texts = 0
        self.dim = embedder.dim
        self._model = embedder.model
        self._protocol = protocol
        self._chunker = chunker
        if protocol.query_prefix is None:
            self._prompts = embedder.prompts
        else:
            self._prompts = {"query": protocol.query_prefix, "document": protocol.document_prefix or ""}
        self.info = SystemInfo(
            name=name,
            kind="dense",
            model=name,
            fingerprint=embedder.fingerprint,
            max_tokens=self._model.max_seq_length,
            prompts=self._prompts,
            precision=embedder.precision,
            settings={"title_separator": protocol.title_separator, "chunks": chunks if chunker else "none"},
        )

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Encode queries into unit rows `[n, d]` float32."""
        return self._encode(list(queries), "query")

    def encode_corpus(self, documents: Iterable[Document]) -> Iterator[DocumentVectors]:
        """Yield the vectors of each document, in order."""
        if self._chunker is not None:
            yield from _encode_chunks(documents, self._chunker, self._encode_documents, self.dim, self._protocol)
            return
        nothing = np.zeros((0, self.dim), dtype=np.float32), np.zeros((0, 2), dtype=np.int64)
        for batch in _batches(documents, _TEXTS_PER_CALL):
            vectors = self._encode_documents([joined_text(document, self._protocol) for document in batch])
            yield from (DocumentVectors(vector, *nothing) for vector in vectors)

    def _encode_documents(self, texts: list[str]) -> np.ndarray:
        self.cut_texts += self._count_cut([self._prompts["document"] + text for text in texts])
        return self._encode(texts, "document")

    def _encode(self, texts: list[str], kind: str) -> np.ndarray:
        options = {"batch_size": 32, "normalize_embeddings": True, "show_progress_bar": False}
        if self._protocol.query_prefix is not None:
            vectors = self._model.encode([self._prompts[kind] + text for text in texts], prompt="", **options)
        elif kind == "query":
            vectors = self._model.encode_query(texts, **options)
        else:
            vectors = self._model.encode_document(texts, **options)
        return np.asarray(vectors, dtype=np.float32)

    def _count_cut(self, texts: list[str]) -> int:
        """Count the texts that are longer than the model's limit, which it truncates silently."""
        limit = self._model.max_seq_length
        if limit is None:
            return 0
        lengths = self._model.tokenizer(texts, truncation=False, verbose=False, return_attention_mask=False)[
            "input_ids"
        ]
        return sum(len(ids) > limit for ids in lengths)


def _encode_chunks(
    documents: Iterable[Document],
    chunker: Chunker,
    encode: Callable[[list[str]], np.ndarray],
    dim: int,
    protocol: EvalProtocol = STANDARD,
) -> Iterator[DocumentVectors]:
    """Encode every chunk as a text of its own, a few hundred per call; the title is joined to the first chunk."""
    waiting: list[list[tuple[int, int]]] = []
    texts: list[str] = []

    def encoded() -> Iterator[DocumentVectors]:
        vectors = encode(texts) if texts else np.zeros((0, dim), dtype=np.float32)
        row = 0
        for ranges in waiting:
            spans = np.array(ranges, dtype=np.int64).reshape(-1, 2)
            yield DocumentVectors(None, vectors[row : row + len(ranges)], spans)
            row += len(ranges)

    for document in documents:
        ranges = chunker(document)
        waiting.append(ranges)
        for i, (start, end) in enumerate(ranges):
            text = document.text[start:end]
            texts.append(joined_text(document._replace(text=text), protocol) if i == 0 else text)
        if len(texts) >= _TEXTS_PER_CALL:
            yield from encoded()
            waiting, texts = [], []
    yield from encoded()


def _batches(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    iterator = iter(documents)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded.

    Attributes:
        device: A torch device.
        precision: "float32", "bfloat16" or "float16"; our models also compute in "int8". "auto": as an index
            loads it, "int8" on a CPU where the model has that form, else "float32".
        max_tokens: Read at most this many tokens of a text; None is the model's own limit (ours has none).
    """

    device: str = "cpu"
    precision: str = "auto"
    max_tokens: int | None = None


def load_embedder(model: str, options: LoadOptions | None = None) -> Embedder | SentenceEmbedder:
    """Load a model as an index does: `default`, `minilm`, a folder or a hub name.

    Raises:
        ModelError: the model cannot be loaded.
        ConfigError: an option is out of range or not one that this model has.
    """
    from aveyb_retrieval.encoder.embedders import loading

    options = options or LoadOptions()
    return loading.load_encoder(
        None if model == "default" else model,
        device=options.device,
        precision=options.precision,
        max_tokens=options.max_tokens,
    )


def load_encoder(
    model: str,
    protocol: EvalProtocol = STANDARD,
    options: LoadOptions | None = None,
    *,
    chunk_words: int | None = None,
) -> CorpusEncoder:
    """Load a model to be measured as an index uses it; a peer's chunks, and by the paper's protocol.

    Raises:
        ModelError: the model cannot be loaded.
        ConfigError: an option is out of range or not one that this model has.
    """
    options = options or LoadOptions()
    chunker = word_chunks(chunk_words) if chunk_words else None
    chunks = f"{chunk_words} words" if chunk_words else ""
    ours = is_ours(model)
    if not ours and (chunker or protocol.query_prefix is not None):
        return load_peer(model, protocol, options, chunker=chunker, chunks=chunks)
    return EmbedderEncoder(
        load_embedder(model, options),
        protocol,
        chunker=chunker,
        chunks=chunks,
        max_tokens=options.max_tokens,
    )


def load_peer(
    model: str,
    protocol: EvalProtocol = STANDARD,
    options: LoadOptions | None = None,
    *,
    chunker: Chunker | None = None,
    chunks: str = "",
) -> SentenceTransformerEncoder:
    """Load a sentence-transformers model to be measured as peers usually are: texts, or chunks, cut at its limit.

    Raises:
        ModelError: the model cannot be loaded, or is one of ours.
        ConfigError: an unknown precision.
    """
    from aveyb_retrieval.encoder.embedders.sentence_embedder import SentenceEmbedder

    options = options or LoadOptions()
    loaded = load_embedder(model, replace(options, max_tokens=None))
    if not isinstance(loaded, SentenceEmbedder):
        raise ModelError(f"{model}: an Avey-B model has no limit at which texts are cut; measure it as an index does")
    if options.max_tokens is not None:
        loaded.model.max_seq_length = options.max_tokens
    return SentenceTransformerEncoder(loaded, _label(model), protocol, chunker=chunker, chunks=chunks)


def _label(model: str) -> str:
    """Name a model in reports: a hub name as it is, a folder by its last two parts (the last is often `model`)."""
    path = Path(model)
    return "/".join(path.resolve().parts[-2:]) if path.is_dir() else model


def is_ours(model: str) -> bool:
    """Return whether a model is `default` or its configuration (in a folder, the hub or its cache) says `avey-b`."""
    if model == "default":
        return True
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(model)
    except (OSError, ValueError):  # not there, or not a transformers configuration: sentence-transformers will say why
        return False
    return config.get("model_type") == "avey-b"


class EmbedderModel:
    """MTEB's `EncoderProtocol` over an `Embedder`: document vectors, query and document prompts by prompt type."""

    def __init__(self, embedder: EmbedderLike) -> None:
        self._embedder = embedder
        self._meta = _meta(embedder.model_name, embedder.fingerprint, embedder.dim)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Name and revision under which MTEB files the scores."""
        return self._meta

    def encode(self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: Any = None, **_: Any) -> np.ndarray:
        """Encode MTEB's batches (dicts with the key `text`; documents also `title` and `body`) to `[n, d]` float32."""
        rows = []
        for batch in inputs:
            if prompt_type is not None and str(getattr(prompt_type, "value", prompt_type)) == "query":
                rows.append(self._embedder.encode_queries(list(batch["text"])))
            else:
                rows.append(np.stack([e.vector for e in self._embedder.encode_documents(_pairs(batch))]))
        return np.concatenate(rows) if rows else np.zeros((0, self._embedder.dim), dtype=np.float32)

    def similarity(self, a: Any, b: Any) -> np.ndarray:
        """Return the cosine similarities `[n, m]` of unit rows."""
        return np.atleast_2d(np.asarray(a)) @ np.atleast_2d(np.asarray(b)).T

    def similarity_pairwise(self, a: Any, b: Any) -> np.ndarray:
        """Return the cosine similarities `[n]` of matching unit rows."""
        return np.einsum("nd,nd->n", np.asarray(a), np.asarray(b))


class IndexModel:
    """MTEB's `SearchProtocol`: the corpus becomes one of our indexes, queries are ranked by `Retriever`.

    The indexes lie in a temporary folder that lives as long as this object.
    """

    def __init__(self, embedder: EmbedderLike, *, index: str = "auto") -> None:
        """Prepare to index with an embedder; `index` is the type of index."""
        self._meta = _meta(embedder.model_name, embedder.fingerprint, embedder.dim, suffix=f"-index-{index}")
        self._embedder, self._type = embedder, index
        self._folder = tempfile.TemporaryDirectory(prefix="aveyb-mteb-")
        self._retriever: Retriever | None = None
        self._builds = 0

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Name and revision under which MTEB files the scores."""
        return self._meta

    def index(self, corpus: Iterable[Mapping[str, Any]], **_: Any) -> None:
        """Build an index of MTEB's corpus (rows with `id`, `text`, optionally `title`)."""
        from aveyb_retrieval.indexes.changes.update import build_index
        from aveyb_retrieval.indexes.search.retriever import Retriever

        rows = ({"_id": str(r["id"]), "title": r.get("title") or "", "text": r.get("text") or ""} for r in corpus)
        self._builds += 1
        folder = Path(self._folder.name) / f"corpus-{self._builds}"
        build_index(rows, folder, model=self._embedder, index=self._type)
        self._retriever = Retriever.load(folder, model=self._embedder)

    def search(
        self, queries: Iterable[Mapping[str, Any]], *, top_k: int, top_ranked: Any = None, **_: Any
    ) -> dict[str, dict[str, float]]:
        """Return the scores of the best `top_k` documents of each query (rows with `id`, `text`).

        Raises:
            ConfigError: `index` was not called, or the task asks to rerank given documents.
        """
        if top_ranked is not None:
            raise ConfigError("a reranking task gives the documents to order; an index searches the whole corpus")
        if self._retriever is None:
            raise ConfigError("IndexModel.search was called before IndexModel.index")
        rows = [(str(row["id"]), str(row["text"])) for row in queries]
        answers = self._retriever.rank([text for _, text in rows], top_k)
        return {query: dict(answer) for (query, _), answer in zip(rows, answers, strict=True)}


def _pairs(batch: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (prefix, text) of each document; titles go on a line of their own, as the index builds them."""
    if "title" in batch and "body" in batch:
        for title, body in zip(batch["title"], batch["body"], strict=True):
            yield f"{title}\n" if title else "", body
    else:
        yield from (("", text) for text in batch["text"])


def _meta(name: str, fingerprint: str, dim: int, suffix: str = "") -> ModelMeta:
    with extra_for("evaluation through MTEB", "mteb"):
        from mteb.models.model_meta import ModelMeta
    label = name if name.count("/") == 1 else f"aveyb-retrieval/{Path(name).name}"
    values = {"name": label + suffix, "revision": fingerprint[:12], "embed_dim": dim, "similarity_fn_name": "cosine"}
    return ModelMeta.create_empty(overwrites=values)
