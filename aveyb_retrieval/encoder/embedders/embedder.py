"""Embedder: stream texts in and vectors out, one per document and one per passage with its
character span.

A passage's vector is the mean of its own tokens' outputs, whichever splits they lie in, so one
encoding serves passages of any size. An output has seen the token's own split, with the title at
its head, and what the compressor takes from earlier splits: nothing in the embedded model, whose
compressor is zero. Documents of any length share batches, because after the ranker every split is
processed alone; memory does not depend on the number of texts.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.encoder.embedders.sentence_transformers import (
    check_modules,
    identity,
    read_limit,
    read_prompts,
)
from aveyb_retrieval.encoder.model_folders import (
    DEFAULT_MODEL,
    MODEL_FILES,
    fingerprint,
    model_folder,
)
from aveyb_retrieval.encoder.network.token_codec import TokenCodec, TokenCodes
from aveyb_retrieval.encoder.onnx.model import FILES, OnnxModel
from aveyb_retrieval.encoder.text.passages import (
    DEFAULT_SIZE,
    Cuts,
    PassageSize,
    cut_passages,
    cut_splits,
    repeat_title,
)
from aveyb_retrieval.encoder.text.tokenizer import as_pairs, as_texts
from aveyb_retrieval.encoder.text.wordpiece import load_tokenizer, tokenizer_files
from aveyb_retrieval.errors import BackendError, ConfigError, extra_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from numpy.typing import ArrayLike

    from aveyb_retrieval.encoder.network.split_encoder import InferenceModel, SplitEncoder
    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer

_MIN_NORM = 1e-12
_ROWS_AT_ONCE = 4096  # passages whose means are computed together, in float64
TOKENIZED_TEXTS = (
    512  # texts whose words are kept: what a document is about is asked for again and again
)
# A longer text is read in sections, each as if it were a text of its own (with the title): ranking
# a split against all earlier ones takes memory and time that grow with the square of the length.
SECTION_TOKENS = 1 << 20  # a multiple of every split size, a power of two
AUTO = "auto"
PRECISIONS = ("int8", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class EncodedDocument:
    """The vectors of one text.

    Attributes:
        vector: float32 `[d]`, unit length: the mean of all token vectors; zeros for a text without
            tokens.
        passages: float32 `[n, d]`, unit rows: the mean of each passage's token vectors.
        spans: int64 `[n, 2]`, character offsets `[start, end)` of each passage in the text; empty
            for a passage that holds only prompt or prefix.
        n_tokens: tokens encoded, prompt and prefix included as often as they are read.
        n_cut: tokens left out because of `max_tokens`.
        headings: for each passage the nearest heading at its start or above, "" where there is
            none.
        tokens: the codes of the passages' tokens; None unless the model was given a codec.
        weights: float32 `[n]`, 0 to 1: how well the model knows each passage (`text.knowledge`);
            None: nothing is known of that.
    """

    vector: np.ndarray
    passages: np.ndarray
    spans: np.ndarray
    n_tokens: int
    n_cut: int
    headings: tuple[str, ...] = ()
    tokens: TokenCodes | None = None
    weights: np.ndarray | None = None


def _ignore(count: int) -> None:
    """Do nothing with a count of tokens."""


class TextEncoder(ABC):
    """What both kinds of encoder do alike with their documents: subclasses tokenize, cut and encode
    them.
    """

    token_codec: TokenCodec | None = None
    _watch: Callable[[int], None] = staticmethod(_ignore)  # is given the tokens that were read

    def __init__(self, max_tokens: int | None, batch_tokens: int) -> None:
        """Check the options of how much is read; one out of range is a ConfigError."""
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(
                f"max_tokens is {max_tokens}; it must be at least 1, or None for no limit"
            )
        if batch_tokens < 1:
            raise ConfigError(f"batch_tokens is {batch_tokens}; it must be at least 1")
        self.max_tokens, self.batch_tokens = max_tokens, batch_tokens

    def with_passage_size(self, size: PassageSize | None) -> Self:
        """Return the same model with passages of another size; None: the splits of an Avey-B model,
        else the default.

        Raises:
            ConfigError: passages that the model cannot encode so, or that do not fit into its
                window.
        """
        other: Any = copy.copy(self)
        other.passage_size = self._checked(size)
        return other

    def with_token_codec(self, codec: TokenCodec | None) -> Self:
        """Return the same model, which also gives the tokens of documents, made small
        by a codec.
        """
        other = copy.copy(self)
        other.token_codec = codec
        return other

    def with_watch(self, watch: Callable[[int], None]) -> Self:
        """Return the same model, which calls `watch` with counts of tokens while it reads them."""
        other = copy.copy(self)
        other._watch = watch
        return other

    @property
    def computes_on_cpu(self) -> bool:
        """Whether it takes the processors of this machine, and no GPU."""
        return True

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedDocument]:
        """Encode (prefix, text) pairs as they come, in order; spans are positions in the text.

        The document prompt and the prefix (a title, say) are read before the text, by Avey-B models
        again at the head of every split unless the passage size says otherwise.

        Raises:
            InputError: a text cannot be tokenized, or something is not a pair of texts.
        """
        for batch in self._batches(self._cut(prefix, text) for prefix, text in as_pairs(documents)):
            yield from self._encode(batch)

    def spans_of(self, text: str) -> np.ndarray:
        """Return the characters `[start, stop)` of a text without a title, int64 `[m, 2]`, that its
        passages have.
        """
        return self._cut("", text).cuts.spans

    def _batches(self, jobs: Iterable[Any]) -> Iterator[list[Any]]:
        batch: list[Any] = []
        size = 0
        for job in jobs:
            batch.append(job)
            # an empty text counts too: a million of them must not accumulate
            size += job.n_tokens + 1
            if size >= self.batch_tokens:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    @abstractmethod
    def _checked(self, size: PassageSize | None) -> PassageSize | None:
        """Return the size with what it leaves open; ConfigError where the model cannot read it."""

    @abstractmethod
    def _cut(self, prefix: str, text: str) -> Any:
        """Tokenize a text and cut it into passages."""

    @abstractmethod
    def _encode(self, batch: list[Any]) -> Iterator[EncodedDocument]:
        """Encode texts that were cut."""


@dataclass(frozen=True)
class _Tokenized:
    """A text's tokens int32 `[T]` and passages."""

    ids: np.ndarray
    cuts: Cuts
    n_cut: int
    weights: np.ndarray | None = None  # float32 [n] of the passages

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @cached_property
    def edges(self) -> np.ndarray:
        """Return where runs of tokens of one section that lie in the same passages begin, int64
        `[n]`.
        """
        sections = np.arange(SECTION_TOKENS, len(self.ids), SECTION_TOKENS)
        return np.unique(
            np.concatenate([self.cuts.ranges[:, 0], self.cuts.ranges[:-1, 1], sections])
        )

    def token_codes(self, codes: np.ndarray) -> TokenCodes:
        """Return the codes of the passages, from those `[T, row_bytes]` of all tokens."""
        return TokenCodes(codes.copy(), self.cuts.ranges)


class Embedder(TextEncoder):
    """Encode documents and queries with an Avey-B model.

    Attributes:
        dim: d, the width of the vectors.
        split_size: S, tokens in a full split.
        passage_size: how long passages are; None: each split is one.
        token_codec: how the tokens of documents are kept for late interaction; None: they are not.
        model_name: the name or folder that was loaded.
        precision: what the model computes in: "int8" by ONNX Runtime, any other by torch.
        fingerprint: SHA-256 of configuration, weights, tokenizer and prompts, the same in every
            precision.
        prompts: text put before every "query" and "document".

    >>> embedder = Embedder.load()
    >>> (lease,) = embedder.encode_documents([("Lease", "A tenant gives three months' notice.")])
    >>> bool(embedder.encode_queries(["notice of a tenant"])[0] @ lease.vector > 0.3)
    True
    """

    def __init__(
        self,
        model: SplitEncoder | OnnxModel,
        tokenizer: Tokenizer,
        *,
        prompts: dict[str, str],
        model_name: str,
        fingerprint: str,
        precision: str = "float32",
        max_tokens: int | None = None,
        batch_tokens: int = 16384,
        passage_size: PassageSize | None = DEFAULT_SIZE,
    ) -> None:
        """Wrap a loaded model; `load` reads one from a folder and documents the options
        and errors.
        """
        super().__init__(max_tokens, batch_tokens)
        self.model, self.tokenizer, self.prompts = model.eval(), tokenizer, prompts
        self.model_name, self.fingerprint, self.precision = model_name, fingerprint, precision
        self.passage_size = self._checked(passage_size)
        self.dim: int = model.config.hidden_size
        self.split_size: int = model.config.split_size
        # the last ones of `word_vectors`
        self._tokenized: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.model_name!r}, {self.dim} dimensions,"
            f" {self.precision}, fingerprint {self.fingerprint[:16]}>"
        )

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        name: str | None = None,
        device: str = "cpu",
        precision: str = AUTO,
        max_tokens: int | None = None,
        batch_tokens: int = 16384,
        warm: bool = False,
        passage_size: PassageSize | None = DEFAULT_SIZE,
    ) -> Embedder:
        """Load a model folder, or a model of the Hugging Face hub by its name.

        Args:
            model: folder or hub name; None: the embedded one.
            name: what to call it; None: what it was loaded by.
            device: "cpu", or another device of torch.
            precision: what the model computes in; vectors are float32 in any case. "int8" runs the
                folder's ONNX form on a CPU, without torch (`onnx/model_int8.onnx`, which
                `aveyb-train export` makes); the others run in torch: "float32", "bfloat16" or
                "float16". In float16 squares above 65,504 overflow, which is an error while
                encoding. "auto": "int8" on a CPU where the folder has that form, else "float32".
            max_tokens: truncate texts to this many tokens; what is cut is counted. None: the limit
                that the folder was saved with (sentence-transformers' `max_seq_length`), else read
                everything.
            batch_tokens: tokens encoded at once; bounds memory, does not change results.
            warm: encode some batches now, so that the first text does not wait until kernels are
                compiled and graphs captured.
            passage_size: how long passages are; None: each split is one.

        Raises:
            ModelError: the folder is missing or incomplete, holds another architecture or the
                tokenizer of another model, does not pool by the mean, or has a `truncate_dim`; its
                ONNX form is missing, damaged or of other weights.
            ConfigError: an option is out of range.
            BackendError: there is no such device.
            OptionalDependencyError: torch is needed and not installed.
        """
        if precision not in (AUTO, *PRECISIONS):
            raise ConfigError(
                f"precision is {precision!r}; choose one of {', '.join((AUTO, *PRECISIONS))}"
            )
        if precision == "int8" and device != "cpu":
            raise ConfigError(
                f"precision is 'int8' and device {device!r}: int8 runs on a CPU; choose another"
                " precision"
            )
        check_device(device)
        folder = model_folder(model)
        if precision == AUTO:
            has_onnx = device == "cpu" and (folder / FILES["int8"]).is_file()
            precision = "int8" if has_onnx else "float32"
        encoder: InferenceModel | OnnxModel
        encoder = (
            OnnxModel.load(folder, precision)
            if precision == "int8"
            else _torch_model(folder, device, precision)
        )
        check_modules(folder)
        tokenizer = load_tokenizer(folder, encoder.config.vocab_size)
        prompts = read_prompts(folder)
        if warm:
            encoder.eval().warm_up()
        return cls(
            encoder,
            tokenizer,
            prompts=prompts,
            model_name=name or str(DEFAULT_MODEL.name if model is None else model),
            fingerprint=fingerprint_of(folder),
            precision=precision,
            max_tokens=read_limit(folder) if max_tokens is None else max_tokens,
            batch_tokens=batch_tokens,
            passage_size=passage_size,
        )

    @property
    def computes_on_cpu(self) -> bool:
        """See `TextEncoder.computes_on_cpu`."""
        return isinstance(self.model, OnnxModel) or self.model.device.type == "cpu"

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Return float32 `[n, d]`, unit rows: the queries' vectors, query prompt included.

        Raises:
            InputError: one of them is not a text; a single text is one query.
        """
        tokenized = (self._whole(query, "query") for query in as_texts(queries, "queries"))
        vectors = [
            vector for batch in self._batches(tokenized) for vector in self._whole_vectors(batch)
        ]
        return np.stack(vectors) if vectors else np.zeros((0, self.dim), np.float32)

    def _whole_vectors(self, batch: list[_Tokenized]) -> Iterator[np.ndarray]:
        """Yield the vectors `[d]` of texts that are one passage each."""
        counts = [len(item.ids) for item in batch]
        if max(counts) > SECTION_TOKENS:
            yield from (encoded.vector for encoded in self._encode(batch))
            return
        sums, _ = self.model.token_sums(
            _joined(batch), counts, np.array(counts), codec=None, watch=self._watch
        )
        self._check_finite(sums)
        yield from map(_unit, sums)

    def query_weights(self, queries: Sequence[str]) -> np.ndarray:
        """Return how well the model knows each query, float32 `[n]`, 0 to 1."""
        knowledge = self.tokenizer.knowledge
        weights = [knowledge.weight(text, *self.tokenizer.encode(text)) for text in queries]
        return np.array(weights, np.float32)

    def count_tokens(self, texts: Sequence[str], *, prompt: str) -> list[int]:
        """Count the tokens that are read of each text as a "query" or a "document", prompt
        included.
        """
        whole = (self.prompts[prompt] + text for text in as_texts(texts, "texts"))
        return [self._limited(len(self.tokenizer.encode_ids(text))) for text in whole]

    def word_vectors(
        self, texts: Sequence[str]
    ) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """Look up unit rows float32 `[n, D]` of tokens; of each text which its have, and where they
        begin `[T]`.
        """
        known = self._tokenized
        if new := [text for text in dict.fromkeys(as_texts(texts, "texts")) if text not in known]:
            known = known | dict(zip(new, self.tokenizer.encode_words(new), strict=True))
            self._tokenized = dict([*known.items()][-TOKENIZED_TEXTS:])
        found = [known[text] for text in texts]
        ids, numbers = number_tokens([ids for ids, _ in found])
        rows = self.model.embeddings(ids)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _MIN_NORM)
        return rows, [(mine, starts) for mine, (_, starts) in zip(numbers, found, strict=True)]

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[np.ndarray]:
        """Return for late interaction one vector per token of each "query" or "document", prompt
        included.

        For each text float32 `[T, d]`, unit rows.
        """
        vectors: list[np.ndarray] = []
        for batch in self._batches(self._whole(text, prompt) for text in as_texts(texts, "texts")):
            counts = [len(item.ids) for item in batch]
            rows = self.model.token_rows(_joined(batch), counts)
            vectors += np.split(rows, np.cumsum(counts)[:-1])
        return vectors

    def _cut(self, prefix: str, text: str) -> _Tokenized:
        """Return a document's tokens and passages."""
        before = self.prompts["document"] + prefix
        ids, offsets = self.tokenizer.encode(before + text)
        kept = self._limited(len(ids))
        n_cut = len(ids) - kept
        whole = before + text, ids, offsets
        ids, offsets = ids[:kept], offsets[:kept]
        if before:
            offsets = offsets - len(before)
        if self.passage_size is None:
            cuts = cut_splits(text, offsets, self.split_size)
        else:
            cuts = cut_passages(text, offsets, self.passage_size)
        weights = self.tokenizer.knowledge.weights(*whole, cuts.spans + len(before))
        if self.passage_size is None:
            return _Tokenized(ids, cuts, n_cut, weights=weights)
        if prefix and self.passage_size.titled:
            n_title = int((offsets[:, 1] <= 0).sum())
            ids, cuts = repeat_title(ids, cuts, n_title, self.split_size)
        return _Tokenized(ids, cuts, n_cut, weights=weights)

    def _whole(self, text: str, prompt: str) -> _Tokenized:
        """Return a text's tokens as a single passage."""
        text = self.prompts[prompt] + text
        ids = self.tokenizer.encode_ids(text)
        kept = self._limited(len(ids))
        some = min(kept, 1)
        cuts = Cuts(np.array([[0, kept]])[:some], np.array([[0, len(text)]])[:some], ("",) * some)
        return _Tokenized(ids[:kept], cuts, len(ids) - kept)

    def _checked(self, size: PassageSize | None) -> PassageSize | None:
        if size is None:
            return None
        if size.late is False:
            raise ConfigError(
                "late=False: an Avey-B model always encodes passages within their document; leave"
                " late out"
            )
        return replace(size, titled=size.titled is not False)

    def _limited(self, length: int) -> int:
        return length if self.max_tokens is None else min(length, self.max_tokens)

    def _encode(self, batch: list[_Tokenized]) -> Iterator[EncodedDocument]:
        if any(len(item.ids) > SECTION_TOKENS for item in batch):
            for item in batch:
                yield from self._encoded([item], *self._sums_of_sections(item))
            return
        sums, codes = self.model.token_sums(
            _joined(batch),
            [len(item.ids) for item in batch],
            np.concatenate([np.diff(np.append(item.edges, len(item.ids))) for item in batch]),
            codec=self.token_codec,
            watch=self._watch,
        )
        yield from self._encoded(batch, sums, codes)

    def _sums_of_sections(self, item: _Tokenized) -> tuple[np.ndarray, np.ndarray | None]:
        """Return what `token_sums` gives of a text, read section by section."""
        edges = np.append(item.edges, len(item.ids))
        sums, codes = [], []
        for start in range(0, max(1, len(item.ids)), SECTION_TOKENS):
            stop = min(start + SECTION_TOKENS, len(item.ids))
            first, last = np.searchsorted(edges, [start, stop])
            section_sums, section_codes = self.model.token_sums(
                item.ids[start:stop],
                [stop - start],
                np.diff(edges[first : last + 1]),
                codec=self.token_codec,
                watch=self._watch,
            )
            sums.append(section_sums)
            codes.append(section_codes)
        joined = [part for part in codes if part is not None]
        return np.concatenate(sums), np.concatenate(joined) if joined else None

    def _check_finite(self, sums: np.ndarray) -> None:
        """Raise BackendError if sums overflowed."""
        if self.precision == "float16" and not np.isfinite(sums).all():
            raise BackendError(
                f"{self.model_name}: its vectors are not finite in float16, which ends at 65,504;"
                ' load it with precision "bfloat16" or "float32"'
            )

    def _encoded(
        self, batch: list[_Tokenized], sums: np.ndarray, codes: np.ndarray | None
    ) -> Iterator[EncodedDocument]:
        self._check_finite(sums)
        start, first_token = 0, 0
        for item in batch:
            edges = item.edges
            runs = sums[start : start + len(edges)]
            start += len(edges)
            total, passages = _means(item, runs)
            yield EncodedDocument(
                vector=_unit(total),
                passages=passages,
                spans=item.cuts.spans,
                n_tokens=len(item.ids),
                n_cut=item.n_cut,
                headings=item.cuts.headings,
                tokens=(
                    None
                    if codes is None
                    else item.token_codes(codes[first_token : first_token + len(item.ids)])
                ),
                weights=item.weights,
            )
            first_token += len(item.ids)


def _unit(total: np.ndarray) -> np.ndarray:
    """Return a sum `[d]` over its length; zeros stay zeros."""
    length = float(np.linalg.norm(total))
    return total / length if length else total


def _means(item: _Tokenized, runs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a text's sum `[d]` and its passages' unit means float32 `[n, d]`.

    Args:
        item: the text.
        runs: float32 `[r, d]`, the sums of its runs of tokens.
    """
    ranges, edges = item.cuts.ranges, item.edges
    first, last = np.searchsorted(edges, ranges[:, 0]), np.searchsorted(edges, ranges[:, 1])
    passages = np.zeros((len(ranges), runs.shape[1]), np.float32)
    for number in range(len(ranges)):
        passages[number] = runs[first[number] : last[number]].sum(axis=0)
    for start in range(0, len(ranges), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        means = passages[rows] / np.diff(ranges[rows], axis=1)
        lengths = np.linalg.norm(means, axis=1)
        passages[rows] = means / np.maximum(lengths, _MIN_NORM)[:, None]
    return runs.sum(axis=0), passages


def _joined(batch: list[_Tokenized]) -> np.ndarray:
    return np.concatenate([item.ids for item in batch])


def number_tokens(ids: Sequence[ArrayLike]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the different tokens of some texts, int64 `[n]`, and which of them those of each text
    are, int64 `[T]`.
    """
    texts = [np.asarray(each, dtype=np.int64) for each in ids]
    different, numbers = np.unique(
        np.concatenate([np.zeros(0, np.int64), *texts]), return_inverse=True
    )
    return (
        different,
        np.split(numbers, np.cumsum([len(each) for each in texts], dtype=np.int64))[:-1],
    )


def fingerprint_of(folder: Path) -> str:
    """Return the fingerprint of the Avey-B model in a folder."""
    return fingerprint(folder, (*MODEL_FILES, *tokenizer_files(folder)), identity(folder))


def _torch_model(folder: Path, device: str, precision: str) -> InferenceModel:
    with extra_for(f"precision {precision!r} and models without an ONNX form"):
        import torch

        from aveyb_retrieval.encoder.network.split_encoder import InferenceModel
    return InferenceModel.load(folder).to(device=device, dtype=getattr(torch, precision))


def check_device(device: str) -> None:
    """Raise ConfigError or BackendError where torch, or this machine, lacks a device; the CPU needs
    no torch.
    """
    if device == "cpu":
        return
    with extra_for(f"device {device!r}"):
        import torch
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device is {device!r}; give cpu, cuda, cuda:1 or another device of torch"
        ) from error
    if found.type == "cuda" and not torch.cuda.is_available():
        reason = "there is no GPU" if torch.version.cuda else "torch is built without CUDA"
        raise BackendError(
            f"device {device!r}: {reason}; use cpu, or install a CUDA build of torch"
        )
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise BackendError(
            f"device {device!r}: there are {torch.cuda.device_count()} GPUs, numbered from 0"
        )
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise BackendError(f"device {device!r}: this machine has none; use cpu")
