"""Token vectors for late interaction, made small: rotated, cut to fewer dimensions, rounded to a
byte or a bit each.

    y = P x / |P x|   x: a token's output [d]; P: the first w rows of a random rotation [d, d]
    int8   c = round(127 y)             stands for c / 127
    1bit   c = 1 where y >= 0, else -1  stands for c / sqrt(w)

A query keeps its y unrounded, so a cosine is taken as `<y_query, c> / 127` or `<y_query, c> /
sqrt(w)`: only one side of it is rounded. P is a subsampled randomized Hadamard transform (Ailon and
Chazelle 2006) whose signs and rows are drawn by SHA-256, so it is the same on every machine and
nothing of it is stored. Principal components of the outputs did worse: they keep what all tokens
have in common.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

STORAGES = ("int8", "1bit")
CODE_DIMENSIONS = 128  # dimensions that are kept, where the model has as many
_LEVELS = 127
_BYTE_BITS = 8  # bits
# document rows multiplied at once: they, and their products, stay in the processor's cache
_BLOCK_ROWS = 4096
_MIN_NORM = 1e-12
# of each byte, [256, 8]
_SIGNS = 2 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.int8) - 1


@dataclass(frozen=True)
class TokenCodes:
    """The token vectors of some passages, as they are stored.

    Attributes:
        codes: `[R, row_bytes]`, int8 or uint8, a row for each token.
        ranges: int64 `[n, 2]`, the rows `[start, end)` of each passage; those of passages that
            overlap do, too.
    """

    codes: npt.NDArray[np.integer]
    ranges: npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenCodec:
    """A way to make token vectors small; equal fields give equal codes everywhere.

    dim: d, the width of the model's token vectors.
    storage: "int8" (a byte for each dimension that is kept) or "1bit".
    """

    dim: int
    storage: str

    def __post_init__(self) -> None:
        if self.storage not in STORAGES:
            raise ConfigError(
                f"token_vectors={self.storage!r}: must be one of {', '.join(STORAGES)}"
            )
        if self.dim < _BYTE_BITS:
            raise ConfigError(
                f"token_vectors={self.storage!r}: needs token vectors of at least {_BYTE_BITS}"
                f" dimensions, and the model's have {self.dim}; leave it out"
            )

    @property
    def width(self) -> int:
        """Dimensions that are kept, w."""
        return min(self.dim, CODE_DIMENSIONS) // _BYTE_BITS * _BYTE_BITS

    @property
    def row_bytes(self) -> int:
        """Bytes of a token."""
        return self.width if self.storage == "int8" else self.width // _BYTE_BITS

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of stored rows."""
        return np.dtype(np.int8 if self.storage == "int8" else np.uint8)

    @cached_property
    def projection(self) -> npt.NDArray[np.float32]:
        """P, `[w, d]`: rows of a Hadamard matrix whose columns have random signs."""
        size = 1 << (self.dim - 1).bit_length()
        rows = np.array(sorted(range(size), key=lambda row: _digest(f"row {row}"))[: self.width])
        signs = np.array(
            [1 - 2 * (_digest(f"column {column}")[0] & 1) for column in range(self.dim)]
        )
        common = rows[:, None] & np.arange(self.dim)
        odd = np.zeros_like(common)
        while common.any():
            odd ^= common & 1
            common >>= 1
        return ((1 - 2 * odd) * signs / math.sqrt(size)).astype(np.float32)

    def empty(self, count: int) -> npt.NDArray[np.integer]:
        """Return room for the codes of some tokens, zeros `[count, row_bytes]`."""
        return np.zeros((count, self.row_bytes), dtype=self.dtype)

    def encode(self, vectors: torch.Tensor | npt.NDArray[np.float32]) -> npt.NDArray[np.integer]:
        """Make token vectors `[T, d]` small: codes `[T, row_bytes]`."""
        if isinstance(vectors, np.ndarray):
            kept = self._kept(vectors)
        else:  # on a device: y is made there
            import torch

            projection = torch.from_numpy(self.projection).to(vectors.device)
            kept = (
                torch.nn.functional.normalize(vectors.float() @ projection.T, dim=-1).cpu().numpy()
            )
        if self.storage == "int8":
            return np.rint(kept * _LEVELS).astype(np.int8)
        return np.packbits(kept >= 0, axis=1)

    def concatenate(self, parts: Sequence[TokenCodes]) -> TokenCodes:
        """Return the codes of all passages of some parts, in order."""
        starts = np.cumsum([0, *(len(part.codes) for part in parts)])
        ranges = [part.ranges + start for part, start in zip(parts, starts[:-1], strict=True)]
        return TokenCodes(
            np.concatenate([self.empty(0), *(part.codes for part in parts)]),
            np.concatenate([np.zeros((0, 2), np.int64), *ranges]),
        )

    def decode(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """Return c, whole numbers, int8 `[T, w]`."""
        return codes if self.storage == "int8" else _SIGNS[codes].reshape(len(codes), -1)

    def query(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return a query's y over the unit of the codes, float32 `[q, w]`: products with decoded
        codes are cosines.
        """
        return self._kept(vectors) / np.float32(
            _LEVELS if self.storage == "int8" else math.sqrt(self.width)
        )

    def _kept(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return y, float32 `[T, w]`, unit rows; zeros stay zeros."""
        kept = vectors @ self.projection.T
        return kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), _MIN_NORM)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def late_interaction_numpy(
    query: npt.NDArray[np.float32],
    rows: npt.NDArray[Any],
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> npt.NDArray[np.float32]:
    """Score every document against one query, in blocks of whole documents; products are summed in
    float32.

    Document i owns the rows `begins[i]` to `ends[i]` (int64 `[n]`, ascending) of `rows` `[R, D]`,
    whatever their type. Returns float32 `[n]`; 0 for a document, or a query `[q, D]`, without
    tokens.
    """
    scores = np.zeros(len(begins), dtype=np.float32)
    (present,) = np.nonzero(ends > begins)
    begins, ends, first = begins[present], ends[present], 0
    while len(query) and first < len(present):
        after = max(
            first + 1, int(np.searchsorted(ends, begins[first] + _BLOCK_ROWS, side="right"))
        )
        origin = begins[first]
        # [q, rows]
        products = query @ rows[origin : ends[after - 1]].astype(np.float32, copy=False).T
        # The maximum from each begin to its end, and from each end to the next begin, which is left
        # out again.
        bounds = np.stack([begins[first:after], ends[first:after]], 1).ravel()[:-1] - origin
        scores[present[first:after]] = np.maximum.reduceat(products, bounds, axis=1)[:, ::2].sum(0)
        first = after
    return scores
