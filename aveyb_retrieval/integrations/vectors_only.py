"""Another library's embeddings as the model of an index: one vector for each text, and no passages."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aveyb_retrieval import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

FloatArray = npt.NDArray[np.float32]
BATCH = 64  # texts that the other library is given at once


@dataclass(frozen=True)
class Vector:
    """A document's unit vector `[d]`. It has no passages, and how many tokens were read is not known."""

    vector: FloatArray
    n_tokens: int = 0
    n_cut: int = 0

    @property
    def passages(self) -> FloatArray:
        """None: `[0, d]`."""
        return np.empty((0, len(self.vector)), dtype=np.float32)

    @property
    def spans(self) -> npt.NDArray[np.int64]:
        """None: `[0, 2]`."""
        return np.empty((0, 2), dtype=np.int64)


class VectorsOnly:
    """What `build_index(model=...)` needs, from two functions; for an index with `granularity="document"`.

    The library does not say which weights made its vectors, so the index is bound to the name and the dimension.

    Args:
        source: The object of the other library; its class and its `model` or `model_name` name the model.
        embed_documents: Maps texts to one vector each.
        embed_query: Maps a query to its vector.
    """

    def __init__(
        self,
        source: object,
        embed_documents: Callable[[list[str]], Sequence[Sequence[float]]],
        embed_query: Callable[[str], Sequence[float]],
    ) -> None:
        self._embed_documents = embed_documents
        self._embed_query = embed_query
        self.dim = len(embed_query("how many dimensions?"))
        kind = type(source)
        own: Any = getattr(source, "model", None) or getattr(source, "model_name", None)
        self.model_name = f"{kind.__module__}.{kind.__qualname__}" + (f" {own}" if isinstance(own, str) else "")
        self.fingerprint = hashlib.sha256(f"{self.model_name} {self.dim}".encode()).hexdigest()

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[Vector]:
        """Encode (prefix, text) pairs, one result for each, in order."""
        texts = (prefix + text for prefix, text in documents)
        while batch := list(itertools.islice(texts, BATCH)):
            for vector in self._embed_documents(batch):
                yield Vector(_unit(vector))

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Encode queries into unit rows `[n, d]`."""
        rows = [_unit(self._embed_query(query)) for query in queries]
        return np.stack(rows) if rows else np.empty((0, self.dim), dtype=np.float32)

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[FloatArray]:
        """Raise ConfigError: there are no vectors of tokens."""
        raise ConfigError(f"{self.model_name} has no vectors of tokens; search without rerank='maxsim'")


def _unit(vector: Sequence[float]) -> FloatArray:
    row = np.asarray(vector, dtype=np.float32)
    length = float(np.linalg.norm(row))
    return row / length if length else row
