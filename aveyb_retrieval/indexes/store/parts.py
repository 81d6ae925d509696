"""Columns of data files in an object store; what was read of them once is kept here, in files with
holes.

x.lance.parts    as long as x.lance, empty where nothing was read yet
x.lance.marks    for each block of 64 KiB its checksum, 0 where it is not here
"""

from __future__ import annotations

import logging
import zlib
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.store.objects import ObjectStore
from aveyb_retrieval.indexes.store.place import IN_PARTS, Cache
from aveyb_retrieval.indexes.types import width_of_places

if TYPE_CHECKING:
    from pathlib import Path

    from lance.file import LanceFileReader

    from aveyb_retrieval.indexes.types import FloatArray, IntArray

logger = logging.getLogger(__name__)

BLOCK = 1 << 16
_GAP = 4  # blocks between two that are read with them, which costs less than a second request
_LONGEST = 64  # blocks of one request
_ROOM = 64 << 20  # bytes after which the limit of the cache is looked at


class KeptParts:
    """The parts of one file that are here, shared by the processes of a machine; files of Lance
    never change.
    """

    def __init__(self, address: str, path: Path) -> None:
        folder, _, self._name = address.rpartition("/")
        self._store = ObjectStore.at(folder)
        self._copy = path.parents[2]
        parts, marks = (path.with_name(path.name + suffix) for suffix in IN_PARTS)
        parts.parent.mkdir(parents=True, exist_ok=True)
        size = parts.stat().st_size if parts.exists() else 0
        if not size and (about := self._store.about(self._name)) is not None:
            size = about[0].bytes
        for file, length in ((parts, size), (marks, 4 * -(-size // BLOCK))):
            with file.open("ab") as handle:
                handle.truncate(length)
        self._file, self._lock = parts.open("r+b"), Lock()
        self._marks = np.memmap(marks, np.uint32, "r+")
        self.bytes = np.asarray(np.memmap(parts, np.uint8, "r"))
        self._sure = np.zeros(len(self._marks), bool)  # what this process has looked at
        self._room = 0
        self._is_full = False

    def bring(self, starts: IntArray, stops: IntArray) -> bool:
        """See to it that bytes `[start, stop)` are here, `[n]` of each; False where there is no
        room for them.
        """
        pairs = zip((starts // BLOCK).tolist(), (-(-stops // BLOCK)).tolist(), strict=True)
        wanted = np.unique(np.concatenate([np.arange(first, end) for first, end in pairs]))
        missing = [
            block for block in wanted[~self._sure[wanted]].tolist() if not self._is_here(block)
        ]
        if not missing:
            return True
        runs = [[missing[0], missing[0] + 1]]
        for block in missing[1:]:
            if block - runs[-1][1] <= _GAP and block - runs[-1][0] < _LONGEST:
                runs[-1][1] = block + 1
            else:
                runs.append([block, block + 1])
        with self._lock:
            if self._is_full:
                return False
            try:
                if self._room < (size := sum(end - first for first, end in runs) * BLOCK):
                    self._room = max(_ROOM, size)
                    Cache.of_environment().make_room(self._room, self._copy)
                self._room -= size
                self._fetch(runs)
            except (OSError, ConfigError) as error:
                logger.warning("%s: nothing more of the index is kept here (%s)", self._copy, error)
                self._is_full = True
                return False
        return True

    def _is_here(self, block: int) -> bool:
        data = self.bytes[block * BLOCK : (block + 1) * BLOCK].data
        self._sure[block] = self._marks[block] != 0 and self._marks[block] == (
            zlib.crc32(data) or 1
        )
        return bool(self._sure[block])

    def _fetch(self, runs: list[list[int]]) -> None:
        edges = [(first * BLOCK, min(end * BLOCK, len(self.bytes))) for first, end in runs]
        for (first, end), (start, _), data in zip(
            runs, edges, self._store.ranges(self._name, edges), strict=True
        ):
            self._file.seek(start)
            self._file.write(data)
            self._file.flush()
            for block in range(first, end):
                at = (block - first) * BLOCK
                self._marks[block] = zlib.crc32(data[at : at + BLOCK]) or 1
            self._sure[first:end] = True


class StoredColumn:
    """A column of a data file in an object store, deleted rows too: whoever reads rows asks for
    these.
    """

    def __init__(self, address: str, column: str, path: Path) -> None:
        """Take the address of a file, and where it would be if it were here whole; nothing is asked
        yet.
        """
        self._address, self._column, self._path = address, column, path

    @cached_property
    def _reader(self) -> LanceFileReader:
        from lance.file import LanceFileReader

        return LanceFileReader(self._address, columns=[self._column])

    @cached_property
    def _parts(self) -> KeptParts:
        return KeptParts(self._address, self._path)

    @cached_property
    def _pages(self) -> tuple[IntArray, ...] | None:
        """Pages' first rows, places of bytes, places and widths of texts' places, `[p]`; None:
        another layout.
        """
        about = self._reader.metadata()
        place = about.schema.get_field_index(self._column)
        kind, rows, found = about.schema.field(place).type, 0, []
        row = (
            kind.list_size * kind.value_type.bit_width // 8
            if pa.types.is_fixed_size_list(kind)
            else 0
        )
        for page in about.columns[place].pages:
            if len(page.buffers) != (1 if row else 2):
                return None
            data, places = page.buffers[0], page.buffers[-1]
            width = row or width_of_places(data.size)
            found.append((rows, data.position, places.position, width))
            rows += data.size // row if row else places.size // width - 1
        return tuple(np.array(found, np.int64).T) if rows == about.num_rows else None

    def _take(self, rows: IntArray) -> pa.Array:
        wanted, places = np.unique(rows, return_inverse=True)
        return (
            self._reader.take_rows(wanted.tolist())
            .to_table()[self._column]
            .combine_chunks()
            .take(pa.array(places))
        )

    def read_vectors(self, rows: IntArray, out: FloatArray, places: IntArray) -> None:
        """Copy rows `[n]` to places `[n]` of `out` `[m, d]`."""
        if self._pages is not None and len(rows):
            starts, data, _, width = self._pages
            page = np.searchsorted(starts, rows, side="right") - 1
            first = data[page] + (rows - starts[page]) * width[page]
            if self._parts.bring(first, first + width[page]):
                found = self._parts.bytes[first[:, None] + np.arange(width[0])]
                out[places] = found.view(np.dtype(f"f{width[0] // out.shape[1]}"))
                return
        out[places] = (
            self._take(rows).flatten().to_numpy(zero_copy_only=False).reshape(len(rows), -1)
        )

    def read_texts(self, rows: IntArray) -> list[bytes]:
        """The texts of rows `[n]`, in UTF-8, laid out as `MappedTexts` gives them."""
        if self._pages is not None and len(rows):
            starts, data, edges, width = self._pages
            page = np.searchsorted(starts, rows, side="right") - 1
            at, wide = edges[page] + (rows - starts[page]) * width[page], width[page]
            if self._parts.bring(at, at + 2 * wide):
                first, end = (
                    data[page] + self._numbers(at, wide),
                    data[page] + self._numbers(at + wide, wide),
                )
                if self._parts.bring(first, end):
                    pairs = zip(first.tolist(), end.tolist(), strict=True)
                    return [self._parts.bytes[start + 8 : stop].tobytes() for start, stop in pairs]
        return [text.encode() for text in self._take(rows).to_pylist()]

    def _numbers(self, at: IntArray, width: IntArray) -> IntArray:
        """Numbers `[n]` of so many bytes `[n]` that begin at places `[n]`."""
        pairs = zip(at.tolist(), width.tolist(), strict=True)
        return np.array(
            [
                int.from_bytes(self._parts.bytes[start : start + wide], "little")
                for start, wide in pairs
            ]
        )
