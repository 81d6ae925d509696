"""What encoders with a window do alike: documents in passages, one by one or within windows.

A document's passages are encoded one by one, or late: as many together as fit into a window, each
the mean of its own token outputs, where the model pools by the mean. The document's vector is the
model's own where the document fits into its window, and else the mean of the passages' vectors,
weighted by their tokens. So everything is read; what a model nevertheless cuts off is counted.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.encoder.embedders.embedder import EncodedDocument, TextEncoder
from aveyb_retrieval.encoder.network.token_codec import TokenCodes
from aveyb_retrieval.encoder.text.knowledge import Knowledge, pieces_of
from aveyb_retrieval.encoder.text.passages import DEFAULT_SIZE, Cuts, PassageSize, cut_passages
from aveyb_retrieval.encoder.text.tokenizer import as_texts
from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # in sentence-transformers' own order
_MARGIN_TOKENS = 8  # a passage alone can have a few tokens more than within its text
_NO_PART_OF_A_MODEL = {".md", ".png", ".jpg", ".gitattributes", ".py", ".pyc"}
OTHER_BACKENDS = {"onnx", "openvino", ".git", ".cache", "__pycache__"}


@dataclass(frozen=True)
class _Job:
    """One document: what comes before its text, the text, and its passages."""

    prefix: str
    text: str
    cuts: Cuts
    counts: np.ndarray  # int64 [n], tokens of each passage, prefix included
    n_cut: int
    weights: np.ndarray  # float32 [n], how well the model knows each passage

    @property
    def n_tokens(self) -> int:
        return int(self.counts.sum())

    def passage(self, number: int) -> str:
        start, stop = self.cuts.spans[number]
        return (self.prefix if number == 0 else "") + self.text[start:stop]


class WindowEncoder(TextEncoder):
    """An encoder that reads a window of tokens at once.

    Attributes:
        window: tokens that the model reads at once; None: any number.
        prompts: text put before every "query" and "document".
        passage_size: how long passages are, and whether they are encoded one by one or late.
    """

    model_name: str
    fingerprint: str
    precision: str
    dim: int
    token_dim: int
    window: int | None
    prompts: dict[str, str]
    passage_size: PassageSize
    _tokenizer: Any  # of the package tokenizers; it neither cuts nor pads

    @abstractmethod
    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """float32 `[n, d]`, unit rows: the queries' vectors, query prompt included."""

    @abstractmethod
    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[np.ndarray]:
        """For late interaction: float32 `[T, d]` unit rows for each text, prompt and special tokens
        included.
        """

    @abstractmethod
    def _documents(self, texts: list[str]) -> tuple[np.ndarray, list[TokenCodes]]:
        """Return unit rows float32 `[n, d]` and, with a codec, the codes of each text's tokens."""

    @abstractmethod
    def _window_vectors(self, ids: list[int], weights: np.ndarray) -> tuple[np.ndarray, Any]:
        """Return unit rows float32 `[n, d]` of means over tokens `[T]` by weights `[n, T]`, and the
        outputs of the tokens `[T, D]`.
        """

    @abstractmethod
    def _not_late(self) -> str | None:
        """Why the model cannot encode passages late, or None."""

    @cached_property
    def _overhead(self) -> int:
        """Tokens of the model's own marks and the prompt of a document."""
        return len(self._tokenizer.encode(self.prompts["document"]).ids)

    @cached_property
    def _knowledge(self) -> Knowledge:
        return Knowledge(pieces_of(self._tokenizer))

    def query_weights(self, queries: Sequence[str]) -> np.ndarray:
        """Return how well the model knows each query, float32 `[n]`, 0 to 1."""
        encodings = self._tokenizer.encode_batch(list(queries), add_special_tokens=False)
        weights = [
            self._knowledge.weight(text, np.array(each.ids, int), offsets_of(each))
            for text, each in zip(queries, encodings, strict=True)
        ]
        return np.array(weights, np.float32)

    def count_tokens(self, texts: Sequence[str], *, prompt: str) -> list[int]:
        """Count the tokens of each text as a "query" or a "document", prompt and special tokens
        included.

        Of a query longer than the model's window, only what fits is read and counted; documents are
        read whole.
        """
        counts = [
            len(self._tokenizer.encode(self.prompts[prompt] + text).ids)
            for text in as_texts(texts, "texts")
        ]
        if prompt == "query" and self.window is not None:
            return [min(count, self.window) for count in counts]
        return counts

    def _checked(self, size: PassageSize | None) -> PassageSize:
        if size is None:
            fitting = (
                self.window - self._overhead if self.window is not None else DEFAULT_SIZE.tokens
            )
            size = PassageSize(min(DEFAULT_SIZE.tokens, fitting))
        longest = size.tokens + size.overlap
        if self.window is not None and longest > self.window - self._overhead:
            given = f"passage_tokens is {size.tokens}"
            given += f", passage_overlap {size.overlap}" if size.overlap else ""
            raise ConfigError(
                f"{given}; {self.model_name} reads {self.window} tokens at once, {self._overhead}"
                f" of them its own marks and prompt: give at most {self.window - self._overhead}"
                " together"
            )
        if size.titled:
            raise ConfigError(
                f"titled=True: {self.model_name} is no Avey-B model and has no splits; leave"
                " titled out"
            )
        if size.late and (reason := self._not_late()):
            raise ConfigError(
                f"late=True: {self.model_name} {reason}; leave late out to encode passages one"
                " by one"
            )
        return replace(size, titled=False)

    def _cut(self, prefix: str, text: str) -> _Job:
        before = len(prefix)
        encoding = self._tokenizer.encode(prefix + text, add_special_tokens=False)
        offsets = offsets_of(encoding)
        kept = len(offsets) if self.max_tokens is None else min(len(offsets), self.max_tokens)
        cuts = cut_passages(text, offsets[:kept] - before, self.passage_size)
        ids = np.array(encoding.ids, int)
        weights = self._knowledge.weights(prefix + text, ids, offsets, cuts.spans + before)
        counts = np.diff(cuts.ranges, axis=1)[:, 0]
        job = _Job(prefix, text, cuts, counts, len(offsets) - kept, weights)
        # the model will cut off tokens of passages that do not fit into it
        if self.window is not None:
            room = self.window - self._overhead
            close = np.flatnonzero(job.counts > room - _MARGIN_TOKENS)
            lengths = [
                len(self._tokenizer.encode(job.passage(i), add_special_tokens=False).ids)
                for i in close
            ]
            job = replace(job, n_cut=job.n_cut + sum(max(0, length - room) for length in lengths))
        return job

    def _encode(self, batch: list[_Job]) -> Iterator[EncodedDocument]:
        late = bool(self.passage_size.late)
        texts: list[str] = []
        whole: list[int | None] = []
        firsts: list[int] = []
        for job in batch:
            single = bool(len(job.cuts))  # the model reads the whole document at once
            if single and self.window is not None:
                single = (
                    not job.n_cut and int(job.cuts.ranges[-1, 1]) + self._overhead <= self.window
                )
            whole.append(len(texts) if single else None)
            if single:
                texts.append(
                    job.prefix
                    + (job.text if self.max_tokens is None else job.text[: job.cuts.spans[-1, 1]])
                )
            firsts.append(len(texts))
            # a passage that is all of its document is known
            if not late and not (single and len(job.cuts) == 1):
                texts += [job.passage(i) for i in range(len(job.cuts))]
        vectors, codes = self._documents(texts)
        for job, one, first in zip(batch, whole, firsts, strict=True):
            count = len(job.cuts)
            if late:
                passages, tokens = self._late(job)
            else:
                start = one if one is not None and count == 1 else first
                passages, tokens = vectors[start : start + count], codes[start : start + count]
            total = (job.counts[:, None] * passages).sum(axis=0)
            length = float(np.linalg.norm(total))
            mean = (total / length if length else total).astype(np.float32)
            yield EncodedDocument(
                vector=mean if one is None else vectors[one],
                passages=passages,
                spans=job.cuts.spans,
                n_tokens=int(job.cuts.ranges[-1, 1]) if len(job.cuts) else 0,
                n_cut=job.n_cut,
                headings=job.cuts.headings,
                tokens=None if self.token_codec is None else self.token_codec.concatenate(tokens),
                weights=job.weights,
            )

    def _late(self, job: _Job) -> tuple[np.ndarray, list[TokenCodes]]:
        """Return unit vectors float32 `[n, d]` of all passages, encoded window by window, and codes
        as `_documents`.
        """
        windows = [self._late_window(job, first, end) for first, end in self._windows(job)]
        rows = [np.zeros((0, self.dim), np.float32), *(vectors for vectors, _ in windows)]
        return np.concatenate(rows), [codes for _, codes in windows if codes is not None]

    def _windows(self, job: _Job) -> Iterator[tuple[int, int]]:
        """Runs of passages [first, end) that fit into the model's window."""
        first = 0
        room = (self.window or 1 << 62) - self._overhead - _MARGIN_TOKENS
        for end in range(1, len(job.cuts) + 1):
            inside = job.cuts.ranges[end - 1, 1] - job.cuts.ranges[first, 0]
            if inside > room and end - 1 > first:
                yield first, end - 1
                first = end - 1
        if len(job.cuts):
            yield first, len(job.cuts)

    def _late_window(self, job: _Job, first: int, end: int) -> tuple[np.ndarray, TokenCodes | None]:
        spans = job.cuts.spans[first:end]
        prefix = self.prompts["document"] + (job.prefix if first == 0 else "")
        base = int(spans[0, 0])
        encoding = self._tokenizer.encode(prefix + job.text[base : int(spans[-1, 1])])
        length = len(encoding.ids) if self.window is None else min(len(encoding.ids), self.window)
        places = np.array(encoding.offsets[:length])[:, 0] - len(prefix) + base
        special = np.array(encoding.special_tokens_mask[:length], dtype=bool)
        outside = np.where(np.arange(length) < length // 2, base, spans[-1, 1] - 1)
        places[special] = outside[special]
        places = places.clip(base, max(int(spans[-1, 1]) - 1, base))
        inside = (places >= spans[:, :1]) & (places < np.maximum(spans[:, 1:], spans[:, :1] + 1))
        weights = inside / np.maximum(inside.sum(axis=1, keepdims=True), 1)
        vectors, outputs = self._window_vectors(encoding.ids[:length], weights)
        if self.token_codec is None:
            return vectors, None
        begins = inside.argmax(axis=1)  # a passage's tokens follow each other
        ranges = np.stack([begins, begins + inside.sum(axis=1)], axis=1)
        return vectors, TokenCodes(self.token_codec.encode(outputs), ranges)


def offsets_of(encoding: Any) -> np.ndarray:
    """Return the characters `[start, end)` of an encoding's tokens, int64 `[T, 2]`."""
    return np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)


def choose_prompts(named: Mapping[str, str | None]) -> dict[str, str]:
    """Return the prompts of queries and documents among those that a model has by name."""
    names = [name for name in _DOCUMENT_PROMPTS if name in named]
    return {
        "query": named.get("query") or "",
        "document": (named[names[0]] or "") if names else "",
    }


def model_files(folder: Path) -> list[str]:
    """Return every file that the model is made of: weights, configuration, tokenizer
    and prompts.
    """
    files = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        file.as_posix()
        for file in files
        if file.suffix not in _NO_PART_OF_A_MODEL and not OTHER_BACKENDS & set(file.parts)
    ]
