"""Models as an evaluation reads documents with them: as an index does, or as peers are usually
measured.

All are loaded by `aveyb_retrieval.encoder.embedders.loading`, like the model of an index, and an
index takes each of them, so that peers are measured by the same code in the same run.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from aveyb_retrieval.encoder.model_folders import model_folder
from aveyb_retrieval.errors import ConfigError, ModelError
from aveyb_retrieval.eval.base import fingerprint_of
from aveyb_retrieval.eval.tasks import STANDARD, EvalProtocol
from aveyb_retrieval.indexes.types import EmbedderLike, Encoded, EncodedRow, takes_processors

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.embedders.embedder import Embedder
    from aveyb_retrieval.encoder.embedders.sentence_embedder import SentenceEmbedder
    from aveyb_retrieval.encoder.embedders.windows import WindowEncoder
    from aveyb_retrieval.encoder.text.passages import PassageSize

Chunker = Callable[[str], list[tuple[int, int]]]
"""Cuts a text into character ranges [start, end) that are read one by one."""

_TEXTS_PER_CALL = 512  # texts handed to a model at once; it sorts them by length inside


class MeasuredModel(EmbedderLike, Protocol):
    """A model for an index that also shows its prompts: our `Embedder`, or a stand-in in tests."""

    prompts: dict[str, str]
    precision: str


def word_chunks(words: int, overlap: int = 0) -> Chunker:
    """Cut texts into chunks of `words` words between white space, `overlap` of them shared; the
    last may be shorter.
    """
    if words < 1:
        raise ConfigError(f"a chunk needs at least 1 word, not {words}")
    if not 0 <= overlap < words:
        raise ConfigError(
            f"an overlap of {overlap} words: must be at least 0 and below the chunk's {words}"
        )

    def chunk(text: str) -> list[tuple[int, int]]:
        tokens = list(re.finditer(r"\S+", text))
        # a chunk of nothing but overlap adds nothing
        last = max(len(tokens) - overlap, min(len(tokens), 1))
        return [
            (tokens[i].start(), tokens[min(i + words, len(tokens)) - 1].end())
            for i in range(0, last, words - overlap)
        ]

    return chunk


class AsMeasured:
    """A model that reads documents as a protocol shows them; an index takes it in the model's
    place.

    Attributes:
        granularity: what it makes vectors of: "document", "passage" or "both".
        chunks: how documents are cut, for reports: "passages" (as an index of the model does),
            "none", "60 words".
    """

    granularity = "both"
    chunks = "passages"

    def __init__(self, model: MeasuredModel, protocol: EvalProtocol = STANDARD) -> None:
        """Measure a loaded model; by a protocol with prefixes it reads those, and titles once, as
        its authors do.
        """
        if protocol.query_prefix is not None and protocol.document_prefix is not None:
            model = copy.copy(model)  # the caller's keeps its own prompts
            model.prompts = {"query": protocol.query_prefix, "document": protocol.document_prefix}
        if protocol is not STANDARD and (size := getattr(model, "passage_size", None)) is not None:
            model = cast("Any", model).with_passage_size(replace(size, titled=False))
        self._model = model
        self._separator = "\n" if protocol is STANDARD else protocol.title_separator
        # in reports by its last two parts: the last is often `model`
        folder = Path(model.model_name)
        self.model_name = (
            "/".join(folder.resolve().parts[-2:]) if folder.is_dir() else model.model_name
        )
        self.dim, self.precision = model.dim, model.precision
        self.prompts: dict[str, str] = dict(model.prompts)
        self.max_tokens: int | None = getattr(model, "max_tokens", None)
        self.passage_size: PassageSize | None = getattr(model, "passage_size", None)

    @property
    def computes_on_cpu(self) -> bool:
        """Whether the model takes the processors of this machine."""
        return takes_processors(self._model)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model's own and of how it reads documents."""
        size = str(self.passage_size)
        return fingerprint_of(
            [self._model.fingerprint, self.prompts, self._separator, self.chunks, size]
        )

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Encode queries into unit rows `[n, d]` float32."""
        return np.asarray(self._model.encode_queries(queries), dtype=np.float32)

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[Encoded]:
        """Yield the vectors of each (prefix, text), in order; a prefix is a title and a
        line end.
        """
        return self._model.encode_documents(
            (self._titled(prefix), text) for prefix, text in documents
        )

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[np.ndarray]:
        """Encode texts into one `[T, d]` float32 array of unit rows each."""
        return self._model.token_vectors(texts, prompt=prompt)

    def _titled(self, prefix: str) -> str:
        return prefix.removesuffix("\n") + self._separator if prefix else ""


class PeerModel(AsMeasured):
    """A sentence-transformers model as peers are usually measured: whole texts, cut at its limit
    without a word.

    Under `standard` the model's own query and document prompts are used; under a protocol with
    prefixes those are put in front of the text instead, as plain text.
    """

    granularity = "document"
    chunks = "none"

    def __init__(self, model: SentenceEmbedder, protocol: EvalProtocol = STANDARD) -> None:
        """Measure a loaded model; texts are cut at its `model.max_seq_length`."""
        super().__init__(model, protocol)
        self._peer, self._own_prompts = model.model, protocol.query_prefix is None
        self._separator = protocol.title_separator
        self.max_tokens, self.passage_size = self._peer.max_seq_length, None

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Encode queries into unit rows `[n, d]` float32."""
        return self._encode(list(queries), "query")

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[Encoded]:
        """Yield the vector of each (prefix, text), in order."""
        nothing = np.zeros((0, self.dim), dtype=np.float32), np.zeros((0, 2), dtype=np.int64)
        pairs = iter(documents)
        while batch := list(itertools.islice(pairs, _TEXTS_PER_CALL)):
            texts = [self._titled(prefix) + text for prefix, text in batch]
            counts = self._count([self.prompts["document"] + text for text in texts])
            limit = self.max_tokens or max(counts)
            for vector, tokens in zip(self._encode(texts, "document"), counts, strict=True):
                yield EncodedRow(
                    vector, *nothing, n_tokens=min(tokens, limit), n_cut=max(0, tokens - limit)
                )

    def _encode(self, texts: list[str], kind: str) -> np.ndarray:
        options = {"batch_size": 32, "normalize_embeddings": True, "show_progress_bar": False}
        if not self._own_prompts:
            vectors = self._peer.encode(
                [self.prompts[kind] + text for text in texts], prompt="", **options
            )
        elif kind == "query":
            vectors = self._peer.encode_query(texts, **options)
        else:
            vectors = self._peer.encode_document(texts, **options)
        return np.asarray(vectors, dtype=np.float32)

    def _count(self, texts: list[str]) -> list[int]:
        options = {"truncation": False, "verbose": False, "return_attention_mask": False}
        return [len(ids) for ids in self._peer.tokenizer(texts, **options)["input_ids"]]


class ChunkedModel(AsMeasured):
    """A model that reads the chunks of a document one by one, and nothing else of it.

    The title is read with the first chunk, where the document begins.
    """

    granularity = "passage"

    def __init__(
        self,
        model: AsMeasured,
        chunker: Chunker,
        chunks: str = "fixed",
        protocol: EvalProtocol = STANDARD,
    ) -> None:
        """Measure a model on what `chunker` cuts; `chunks` names the chunking in reports and
        fingerprints.
        """
        super().__init__(model)
        self._separator, self._chunker, self.chunks = protocol.title_separator, chunker, chunks
        self.max_tokens, self.passage_size = model.max_tokens, None

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[Encoded]:
        """Yield the chunks of each (prefix, text) as its passages, in order; the document's own
        vector is 0.
        """
        pairs = iter(documents)
        while batch := list(itertools.islice(pairs, _TEXTS_PER_CALL)):
            cuts = [self._chunker(text) for _, text in batch]
            encoded = self._model.encode_documents(
                ("", (self._titled(prefix) if i == 0 else "") + text[start:end])
                for (prefix, text), cut in zip(batch, cuts, strict=True)
                for i, (start, end) in enumerate(cut)
            )
            for cut in cuts:
                own = list(itertools.islice(encoded, len(cut)))
                vectors = np.array([item.vector for item in own], dtype=np.float32).reshape(
                    -1, self.dim
                )
                yield EncodedRow(
                    np.zeros(self.dim, np.float32),
                    vectors,
                    np.array(cut, dtype=np.int64).reshape(-1, 2),
                    n_tokens=sum(item.n_tokens for item in own),
                    n_cut=sum(item.n_cut for item in own),
                )


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded: as `Embedder.load` does it; a peer has its own limit of tokens where
    none is given.
    """

    device: str = "cpu"
    precision: str = "auto"
    max_tokens: int | None = None


def load_embedder(model: str, options: LoadOptions | None = None) -> Embedder | WindowEncoder:
    """Load a model as an index does, `default`, `minilm`, a folder or a hub name; errors are
    `load_encoder`'s.
    """
    from aveyb_retrieval.encoder.embedders import loading

    return loading.load_encoder(
        None if model == "default" else model, **asdict(options or LoadOptions())
    )


def load_measured(
    model: str,
    protocol: EvalProtocol = STANDARD,
    options: LoadOptions | None = None,
    *,
    chunk_words: int | None = None,
) -> AsMeasured:
    """Load a model to be measured as an index uses it; a peer's chunks, and by the paper's
    protocol, as a peer.
    """
    if not is_ours(model) and (chunk_words or protocol.query_prefix is not None):
        loaded: AsMeasured = load_peer(model, protocol, options)
    else:
        loaded = AsMeasured(load_embedder(model, options), protocol)
    if not chunk_words:
        return loaded
    return ChunkedModel(loaded, word_chunks(chunk_words), f"{chunk_words} words", protocol)


def load_peer(
    model: str, protocol: EvalProtocol = STANDARD, options: LoadOptions | None = None
) -> PeerModel:
    """Load a sentence-transformers model to be measured as peers usually are: texts cut at its
    limit.
    """
    from aveyb_retrieval.encoder.embedders.sentence_embedder import SentenceEmbedder

    options = options or LoadOptions()
    loaded = load_embedder(model, replace(options, max_tokens=None))
    if not isinstance(loaded, SentenceEmbedder):
        raise ModelError(
            f"{model}: an Avey-B model has no limit at which texts are cut; measure it as an index"
            " does"
        )
    if options.max_tokens is not None:
        loaded.model.max_seq_length = options.max_tokens
    return PeerModel(loaded, protocol)


def is_ours(model: str) -> bool:
    """Return whether a model is `default`, or an Avey-B model in a folder, the hub or its cache."""
    from aveyb_retrieval.encoder.embedders.loading import is_aveyb

    try:
        return is_aveyb(model_folder(None if model == "default" else model))
    except ModelError:  # not there, or a name of no folder: loading it will say why
        return False
