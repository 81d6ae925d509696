"""A tiny deterministic model for tests: every word is a pseudo-random vector, a text the mean of
its words.
"""

from __future__ import annotations

import copy
import hashlib
import re
from bisect import bisect_right
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from aveyb_retrieval.encoder.embedders.embedder import EncodedDocument
from aveyb_retrieval.encoder.network.token_codec import TokenCodec, TokenCodes
from aveyb_retrieval.encoder.text.passages import outline
from aveyb_retrieval.indexes.types import unit_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pytest


def load_instead(monkeypatch: pytest.MonkeyPatch, load: Callable[..., FakeEmbedder]) -> None:
    """Load every model by `load`, also one that a test before has loaded and that is still in
    memory.
    """
    monkeypatch.setattr("aveyb_retrieval.encoder.embedders.loading.load_encoder", load)
    forget_models(monkeypatch)


def forget_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find none of the models that tests before have loaded and that are still in memory."""
    monkeypatch.setattr("aveyb_retrieval.indexes.model._loaded", WeakValueDictionary())


class FakeEmbedder:
    """Splits a text into passages of `split_size` words; counts the words it has encoded in
    `encoded_words`.
    """

    def __init__(
        self, dim: int = 16, split_size: int = 8, seed: str = "a", max_tokens: int | None = None
    ) -> None:
        self.dim = dim
        self.split_size = split_size
        self.max_tokens = max_tokens
        self.model_name = f"fake-{seed}"
        self.fingerprint = hashlib.sha256(f"{dim} {split_size} {seed}".encode()).hexdigest()
        self.prompts = {"query": "", "document": ""}
        self.precision = "float32"
        self.encoded_words = 0
        self._seed = seed
        self._codec: TokenCodec | None = None

    def with_token_codec(self, codec: TokenCodec | None) -> FakeEmbedder:
        other = copy.copy(self)
        other._codec = codec
        return other

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedDocument]:
        for prefix, text in documents:
            yield self._document(prefix, text)

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        rows = [unit(self._vectors(_words(q)).sum(axis=0)) for q in queries]
        return np.stack(rows) if rows else np.empty((0, self.dim), np.float32)

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[np.ndarray]:
        return [self._vectors(_words(text)) for text in texts]

    def _document(self, prefix: str, text: str) -> EncodedDocument:
        found = _words(prefix + text)
        kept = found[: self.max_tokens]
        starts = range(0, len(kept), self.split_size)
        groups = [kept[i : i + self.split_size] for i in starts]
        self.encoded_words += len(kept)
        vectors = self._vectors(kept)
        sums = np.add.reduceat(vectors, starts) if groups else vectors
        spans = np.array([[g[0][1], g[-1][2]] for g in groups], np.int64).reshape(-1, 2) - len(
            prefix
        )
        spans = spans.clip(0, len(text))
        marks, names = zip(
            (-1, ""), *((each.start, each.words) for each in outline(text).headings), strict=True
        )
        headings = tuple(names[bisect_right(marks, start) - 1] for start in spans[:, 0].tolist())
        tokens = None
        if self._codec is not None:
            ends = np.cumsum([0, *(len(g) for g in groups)])
            codes = self._codec.encode(vectors)
            tokens = TokenCodes(codes, np.stack([ends[:-1], ends[1:]], axis=1))
        cut = len(found) - len(kept)
        return EncodedDocument(
            unit(vectors.sum(axis=0)), unit_rows(sums), spans, len(kept), cut, headings, tokens
        )

    def _vectors(self, words: list[tuple[str, int, int]]) -> np.ndarray:
        rows = [_word_vector(self._seed, word, self.dim) for word, _, _ in words]
        return np.array(rows, np.float32).reshape(-1, self.dim)


class InterruptedEmbedder(FakeEmbedder):
    """Stops after some documents, as if its process had been told to end; counts those before."""

    def __init__(self, after: int | None = None) -> None:
        super().__init__()
        self.after = after
        self.encoded_documents = 0

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedDocument]:
        for document in super().encode_documents(documents):
            if self.encoded_documents == self.after:
                raise KeyboardInterrupt
            self.encoded_documents += 1
            yield document


def _words(text: str) -> list[tuple[str, int, int]]:
    return [(m.group().lower(), m.start(), m.end()) for m in re.finditer(r"\w+", text)]


def unit(vector: np.ndarray) -> np.ndarray:
    """The vector at unit length; a zero vector as it is."""
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)


@cache
def _word_vector(seed: str, word: str, dim: int) -> np.ndarray:
    digest = hashlib.sha256(f"{seed} {word}".encode("utf-8", "backslashreplace")).digest()
    return unit(np.random.default_rng(int.from_bytes(digest[:8], "little")).normal(size=dim))
