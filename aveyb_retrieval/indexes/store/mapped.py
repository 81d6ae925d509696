"""Vectors of a Lance data file, mapped: a row costs the copy of its bytes, where `take` costs milliseconds a call.

Lance's file format writes a column of fixed-size lists as it is, row after row, where the column asks for the layout
"full zip" without compression and holds no nulls: each page is then an array `[n, d]` at a place in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from aveyb_retrieval.errors import IndexFormatError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from aveyb_retrieval.indexes.types import FloatArray, IntArray

LAYOUT = {b"lance-encoding:structural-encoding": b"fullzip", b"lance-encoding:compression": b"none"}
"""What a field says of itself so that its vectors can be mapped."""


@dataclass(frozen=True)
class MappedVectors:
    """The vectors of one data file, deleted rows too.

    Attributes:
        dtype: Of their components.
        starts: The row that each page begins with, `[p]`, ascending.
        positions: The byte at which it begins, `[p]`.
        windows: The bytes of a row that would begin at each byte of the file, `[bytes, row]`, a view.
    """

    dtype: np.dtype[np.floating]
    starts: IntArray
    positions: IntArray
    windows: npt.NDArray[np.uint8]

    @classmethod
    def open(cls, path: Path, column: str) -> MappedVectors:
        """Map a column of a data file.

        Raises:
            IndexFormatError: its vectors are not laid out as this package has Lance write them.
            OSError, ValueError: the file cannot be read.
        """
        from lance.file import LanceFileReader

        about = LanceFileReader(str(path)).metadata()
        place = about.schema.get_field_index(column)
        kind = about.schema.field(place).type
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        mapped = np.asarray(np.memmap(path, np.uint8, "r"))
        row, rows, starts, positions = kind.list_size * dtype.itemsize, 0, [], []
        for page in about.columns[place].pages:
            if len(page.buffers) != 1:  # nulls have none
                raise _unlike(path)
            (buffer,) = page.buffers
            if buffer.size % row or buffer.position + buffer.size > len(mapped):
                raise _unlike(path)
            starts.append(rows)
            positions.append(buffer.position)
            rows += buffer.size // row
        if rows != about.num_rows:
            raise _unlike(path)
        return cls(dtype, np.array(starts), np.array(positions), sliding_window_view(mapped, row))

    def read(self, rows: IntArray, out: FloatArray, places: IntArray) -> None:
        """Copy rows `[n]` to places `[n]` of `out` `[m, d]`."""
        pages = np.searchsorted(self.starts, rows, side="right") - 1
        first = self.positions[pages] + (rows - self.starts[pages]) * self.windows.shape[1]
        out[places] = self.windows[first].view(self.dtype)


def _unlike(path: Path) -> IndexFormatError:
    return IndexFormatError(
        f"{path}: its vectors are laid out otherwise than this package writes them; build the index again"
    )
