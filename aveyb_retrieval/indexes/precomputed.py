"""Vectors that were made elsewhere: one row per document, from `.npy` or Parquet, in place of a model."""

from __future__ import annotations

import hashlib
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.types import EncodedRow, FloatArray, unit_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BLOCK_BYTES = 16 << 20
_NO_SPANS = np.empty((0, 2), dtype=np.int64)


class PrecomputedVectors:
    """A matrix of vectors `[n, d]`, read row by row and scaled to unit length; `ids` where the file has them."""

    def __init__(self, rows: npt.NDArray[np.floating], name: str, ids: Sequence[str] | None = None) -> None:
        if rows.ndim != 2 or rows.shape[1] == 0 or not np.issubdtype(rows.dtype, np.floating):
            raise InputError(
                f"{name}: an array of shape {rows.shape} and type {rows.dtype}; [documents, d] floats are needed"
            )
        self.rows = rows
        self.name = name
        self.ids = ids
        self.dim = int(rows.shape[1])
        self._step = max(1, _BLOCK_BYTES // (4 * self.dim))
        self._block: tuple[int, FloatArray] = (0, np.empty((0, self.dim), dtype=np.float32))  # first row, unit rows

    @classmethod
    def open(cls, source: str | Path | npt.NDArray[np.floating]) -> PrecomputedVectors:
        """Open a `.npy` file (memory-mapped), a Parquet file with a `vector` column, or take an array.

        Raises:
            InputError: it is missing, of another format, not two-dimensional or not of floats.
        """
        if isinstance(source, np.ndarray):
            return cls(source, "vectors")
        path = Path(source)
        try:
            if path.suffix == ".npy":
                return cls(np.load(path, mmap_mode="r", allow_pickle=False), str(path))
            if path.suffix == ".parquet":
                return cls(*_read_parquet(path))
        except (OSError, ValueError, EOFError, SyntaxError, TokenError) as error:  # the last two: of a header of .npy
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}: not readable as vectors ({error})") from error
        raise InputError(f"{path}: vectors are read from .npy and .parquet files")

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self) -> str:
        """The name with a hash of all rows: an interrupted change must not continue with other vectors."""
        digest = hashlib.sha256(str((self.rows.shape, self.rows.dtype.str)).encode())
        for start in range(0, len(self), self._step):
            digest.update(np.ascontiguousarray(self.rows[start : start + self._step]).data)
        return f"{self.name} (sha256 {digest.hexdigest()[:16]})"

    def documents(self) -> Iterator[dict[str, Any]]:
        """A corpus for vectors that come without one: ids (row numbers where there are none) and empty texts."""
        for row in range(len(self)):
            yield {"_id": self.ids[row] if self.ids is not None else str(row), "text": ""}

    def document(self, position: int, document_id: str) -> EncodedRow:
        """The vector of the document at `position` of the corpus, counted from 0, and no passages.

        Raises:
            InputError: there is none, it is that of another id, or it is not finite.
        """
        if position >= len(self):
            raise InputError(
                f"{self.name}: {len(self)} vectors, but the corpus has more documents; one row each is needed"
            )
        if self.ids is not None and self.ids[position] != document_id:
            raise InputError(
                f"{self.name}, row {position + 1}: the vector of {self.ids[position]!r}, "
                f"but the corpus has {document_id!r} there; both must have the same order"
            )
        unit = self._unit(position)
        if np.isnan(unit[0]):
            raise InputError(
                f"{self.name}, row {position + 1} (document {document_id!r}): the vector holds NaN or infinity"
            )
        return EncodedRow(unit, unit[None, :][:0], _NO_SPANS)

    def _unit(self, position: int) -> FloatArray:
        """One row at unit length (all NaN if it is not finite). Made in blocks, as rows are asked for in order."""
        start, block = self._block
        if not start <= position < start + len(block):
            start = position
            block = unit_rows(self.rows[start : start + self._step])
            self._block = start, block
        return block[position - start]


def _read_parquet(path: Path) -> tuple[npt.NDArray[np.floating], str, list[str] | None]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:  # the last: of a column's name
        raise InputError(f"{path}: not readable as Parquet ({error})") from error
    if "vector" not in table.column_names:
        raise InputError(f"{path}: has the columns {table.column_names}; one called 'vector' is needed")
    try:
        column = table.column("vector").combine_chunks()
        rows = np.stack([np.asarray(v, dtype=np.float32) for v in column.to_numpy(zero_copy_only=False)])
    except (TypeError, ValueError, pyarrow.ArrowException) as error:
        raise InputError(
            f"{path}: the column 'vector' does not hold lists of numbers of one length ({error})"
        ) from error
    field = next((f for f in ("_id", "id") if f in table.column_names), None)
    return rows, str(path), [str(v) for v in table.column(field).to_pylist()] if field else None
