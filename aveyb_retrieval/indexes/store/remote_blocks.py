"""Files of an index in an object store, of which parts are kept here, in files with holes.

x.arrow.parts    as long as x.arrow, empty where nothing was read yet
x.arrow.marks    for each block of 64 KiB its checksum, 0 where it is not here
"""

from __future__ import annotations

import logging
import zlib
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.store.objects import ObjectStore
from aveyb_retrieval.indexes.store.place import IN_PARTS, Cache

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from aveyb_retrieval.indexes.types import IntArray

logger = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 16
MAX_GAP_BLOCKS = 4  # between two that are read with them, which costs less than a second request
MAX_REQUEST_BLOCKS = 64
ROOM_BYTES = 64 << 20  # after which the limit of the cache is looked at
MAX_MEMORY_BLOCKS = 1 << 12  # that are kept in memory if the disk has no room


class StoredBytes:
    """The bytes of one file in an object store. The parts that were read are here, shared by the
    processes of a machine; files of an index never change.
    """

    def __init__(self, address: str, path: Path, copy: Path) -> None:
        """Take the address of a file, where it would be if it were here whole, and the copy of the
        index which that is in.
        """
        folder, _, self._name = address.rpartition("/")
        self._store, self._copy = ObjectStore.at(folder), copy
        parts, marks = (path.with_name(path.name + suffix) for suffix in IN_PARTS)
        parts.parent.mkdir(parents=True, exist_ok=True)
        size = parts.stat().st_size if parts.exists() else 0
        if not size:
            described = self._store.about(self._name)
            if described is None:
                raise IndexFormatError(f"{address}: missing; {self._store.remedy}")
            size = described[0].bytes
        for file, length in ((parts, size), (marks, 4 * -(-size // BLOCK_BYTES))):
            with file.open("ab") as handle:
                handle.truncate(length)
        self._file, self._lock = parts.open("r+b"), Lock()
        self._marks = np.memmap(marks, np.uint32, "r+")
        self._bytes: npt.NDArray[np.uint8] = np.asarray(np.memmap(parts, np.uint8, "r"))
        self._sure = np.zeros(len(self._marks), bool)  # what this process has looked at
        self._room = 0
        self._is_full = False  # the disk: what is read from now on is in memory
        self._in_memory = np.zeros(len(self._sure), bool)

    def require(self, starts: IntArray, stops: IntArray) -> npt.NDArray[np.uint8]:
        """An array as long as the file, in which bytes `[start, stop)` of all pairs are there."""
        firsts, ends = starts // BLOCK_BYTES, -(-stops // BLOCK_BYTES)
        firsts, ends = np.clip(firsts, 0, len(self._sure)), np.clip(ends, 0, len(self._sure))
        pairs = zip(firsts.tolist(), ends.tolist(), strict=True)
        blocks = [np.arange(first, end) for first, end in pairs if first < end]
        needed_blocks = np.unique(np.concatenate(blocks)) if blocks else np.empty(0, np.int64)
        with self._lock:
            if self._is_full:
                return self._require_in_memory(needed_blocks)
            missing = [
                block
                for block in needed_blocks[~self._sure[needed_blocks]].tolist()
                if not self._is_here(block)
            ]
            runs = _runs(missing)
            try:
                if runs:
                    self._make_room(runs)
                    self._fetch(runs)
            except (OSError, ConfigError) as error:
                logger.warning("%s: nothing more of the index is kept here (%s)", self._copy, error)
                self._is_full = True
                self._bytes = np.zeros(len(self._bytes), np.uint8)
                return self._require_in_memory(needed_blocks)
            return self._bytes

    def _require_in_memory(self, blocks: IntArray) -> npt.NDArray[np.uint8]:
        """The bytes with some blocks; as soon as many were read, the memory of all is given up."""
        if int(self._in_memory.sum()) > MAX_MEMORY_BLOCKS:
            self._bytes = np.zeros(len(self._bytes), np.uint8)  # who has the old ones keeps these
            self._in_memory[:] = False
        runs = _runs(blocks[~self._in_memory[blocks]].tolist())
        for start, data in self._read(runs) if runs else ():
            self._bytes[start : start + len(data)] = np.frombuffer(data, np.uint8)
        self._in_memory[blocks] = True
        return self._bytes

    def _make_room(self, runs: list[list[int]]) -> None:
        size = sum(end - first for first, end in runs) * BLOCK_BYTES
        if self._room < size:
            self._room = max(ROOM_BYTES, size)
            Cache.of_environment().make_room(self._room, self._copy)
        self._room -= size

    def _is_here(self, block: int) -> bool:
        data = self._bytes[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES].data
        self._sure[block] = self._marks[block] != 0 and self._marks[block] == (
            zlib.crc32(data) or 1
        )
        return bool(self._sure[block])

    def _read(self, runs: list[list[int]]) -> list[tuple[int, bytes]]:
        """The bytes of runs of blocks, with the place that each begins at."""
        edges = [
            (first * BLOCK_BYTES, min(end * BLOCK_BYTES, len(self._bytes))) for first, end in runs
        ]
        read = self._store.ranges(self._name, edges)
        return [(start, data) for (start, _), data in zip(edges, read, strict=True)]

    def _fetch(self, runs: list[list[int]]) -> None:
        for (first, end), (start, data) in zip(runs, self._read(runs), strict=True):
            self._file.seek(start)
            self._file.write(data)
            self._file.flush()
            for block in range(first, end):
                at = (block - first) * BLOCK_BYTES
                self._marks[block] = zlib.crc32(data[at : at + BLOCK_BYTES]) or 1
            self._sure[first:end] = True


def _runs(blocks: list[int]) -> list[list[int]]:
    """Ranges `[first, end)` of ascending blocks as requests read them, with those in small gaps."""
    runs = list[list[int]]()
    for block in blocks:
        near = bool(runs) and block - runs[-1][1] <= MAX_GAP_BLOCKS
        if near and block - runs[-1][0] < MAX_REQUEST_BLOCKS:
            runs[-1][1] = block + 1
        else:
            runs.append([block, block + 1])
    return runs
