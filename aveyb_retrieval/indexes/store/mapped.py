"""Vectors of a Lance data file, mapped: a row costs the copy of its bytes, where `take` costs milliseconds a call.

Lance's file format writes a column of fixed-size lists as it is, row after row, where the column asks for the layout
"full zip" without compression and holds no nulls: each page is then an array `[n, d]` at a place in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import IndexFormatError

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.types import FloatArray, IntArray

LAYOUT = {b"lance-encoding:structural-encoding": b"fullzip", b"lance-encoding:compression": b"none"}
"""What a field says of itself so that its vectors can be mapped."""


@dataclass(frozen=True)
class MappedVectors:
    """The vectors of one data file, deleted rows too: the row that each page begins with, and the pages `[n, d]`."""

    starts: list[int]
    pages: list[np.ndarray]

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
        dtype, width = np.dtype(kind.value_type.to_pandas_dtype()), kind.list_size
        starts, pages, rows = [], [], 0
        for page in about.columns[place].pages:
            (count, rest) = divmod(sum(buffer.size for buffer in page.buffers), width * dtype.itemsize)
            if len(page.buffers) != 1 or rest:
                raise _unlike(path)
            mapped = np.memmap(path, dtype, "r", offset=page.buffers[0].position, shape=(count, width))
            pages.append(np.asarray(mapped))
            starts.append(rows)
            rows += count
        if rows != about.num_rows:
            raise _unlike(path)
        return cls(starts, pages)

    def read(self, rows: IntArray, out: FloatArray, places: IntArray) -> None:
        """Copy rows `[n]` to places `[n]` of `out` `[m, d]`."""
        for start, page in zip(self.starts, self.pages, strict=True):
            here = (rows >= start) & (rows < start + len(page))
            out[places[here]] = page[rows[here] - start]


def _unlike(path: Path) -> IndexFormatError:
    return IndexFormatError(
        f"{path}: its vectors are laid out otherwise than this package writes them; build the index again"
    )
