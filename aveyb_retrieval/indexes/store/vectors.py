"""The vectors on disk, from which every index can be rebuilt: immutable shards in safetensors form, memory-mapped.

A shard holds what one commit of a build encoded: `document_ids` int64 `[n]`, `document` `[n, d]`, `passage_ids` int64
`[m]`, `passage` `[m, d]`, and where the index keeps them token vectors (`tokens.py`); ids ascend within a shard and
from shard to shard. safetensors is eight bytes of header length, a JSON header, and the raw little-endian arrays:
nothing in it can run.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store import files
from aveyb_retrieval.indexes.types import KINDS, FloatArray, IntArray, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from aveyb_retrieval.indexes.store.store import Shard

STORAGE_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}

_NAMES = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
}
_MAX_HEADER = 1 << 20


def write_shard(
    path: Path,
    vectors: Mapping[Kind, tuple[IntArray, FloatArray]],
    storage_dtype: str,
    others: Mapping[str, npt.NDArray[np.generic]] | None = None,
) -> files.FileInfo:
    """Write one shard, atomically.

    Args:
        path: Its file.
        vectors: (ids, `[n, d]` vectors) of each kind, kept as `storage_dtype`.
        storage_dtype: "float32" or "float16".
        others: Further tensors by name, kept as they are.
    """
    from safetensors.numpy import save

    tensors: dict[str, npt.NDArray[np.generic]] = {}
    for kind, (ids, rows) in vectors.items():
        tensors[f"{kind}_ids"] = np.ascontiguousarray(ids, dtype=np.int64)
        tensors[kind] = np.ascontiguousarray(rows, dtype=STORAGE_DTYPES[storage_dtype])
    tensors |= {name: np.ascontiguousarray(rows) for name, rows in (others or {}).items()}
    return files.write_atomic(path, save(tensors))


class ShardView(NamedTuple):
    """One kind of vectors in one shard: ids `[n]` ascending, vectors `[n, d]` in the stored dtype; both mapped."""

    ids: IntArray
    rows: npt.NDArray[np.floating]


def open_shard(path: Path, dim: int) -> dict[Kind, ShardView]:
    """Map a shard into memory after checking that its header describes exactly this file.

    Raises:
        IndexFormatError: it does not.
    """
    arrays = map_arrays(path)
    shard: dict[Kind, ShardView] = {}
    for kind in KINDS:
        if kind in arrays:
            ids, rows = arrays.get(f"{kind}_ids"), arrays[kind]
            if (
                ids is None
                or ids.dtype != np.int64
                or rows.ndim != 2
                or rows.shape != (len(ids), dim)
                or rows.dtype.kind != "f"
            ):
                raise damaged(path, f"tensor {kind!r} has shape {rows.shape}, not one row of {dim} for each id")
            shard[kind] = ShardView(ids, rows)
    return shard


def map_arrays(path: Path) -> dict[str, npt.NDArray]:
    """Map the tensors of a safetensors file into memory, by name, after checking that its header fits the file.

    Raises:
        IndexFormatError: it does not.
    """
    with files.open_regular(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        length = int.from_bytes(handle.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise damaged(path, f"header of {length} bytes in a file of {size}")
        try:
            header = json.loads(handle.read(length))
            entries = {
                k: (_NAMES[v["dtype"]], tuple(v["shape"]), *v["data_offsets"])
                for k, v in header.items()
                if k != "__metadata__"
            }
            if not all(type(n) is int and n >= 0 for _, shape, a, b in entries.values() for n in (*shape, a, b)):
                raise ValueError("sizes must be whole numbers")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise damaged(path, f"unreadable header ({error})") from error
    arrays: dict[str, npt.NDArray] = {}
    whole = np.memmap(path, dtype=np.uint8, mode="r")  # one map, as each holds a descriptor as long as it lives
    for name, (dtype, shape, start, stop) in entries.items():
        count = int(np.prod([int(n) for n in shape], dtype=object))
        if stop - start != count * dtype.itemsize or 8 + length + stop > size:
            raise damaged(path, f"tensor {name!r} of shape {shape} at bytes {start} to {stop} of {size}")
        if count:
            arrays[name] = whole[8 + length + start : 8 + length + stop].view(dtype).reshape(shape)
            arrays[name].offset = 8 + length + start  # type: ignore[attr-defined]  # of a memmap; `_read_rows` reads there
        else:
            arrays[name] = np.empty(shape, dtype)
    return arrays


def damaged(path: Path, what: str) -> IndexFormatError:
    """Return the error that says what is wrong with a shard."""
    return IndexFormatError(f"{path}: damaged vectors ({what}); restore the file from a copy or build the index again")


class VectorTable:
    """All vectors of one kind, in shards, ordered by id. Safe to read from many threads."""

    def __init__(self, shards: Iterable[ShardView], dim: int) -> None:
        self.dim = dim
        self._shards = sorted((s for s in shards if len(s.ids)), key=lambda s: int(s.ids[0]))
        self._first = np.array([s.ids[0] for s in self._shards], dtype=np.int64)
        self._dense = [int(s.ids[-1]) - int(s.ids[0]) + 1 == len(s.ids) for s in self._shards]

    def __len__(self) -> int:
        """Number of stored vectors, those of removed documents included."""
        return sum(len(s.ids) for s in self._shards)

    def gather(self, ids: IntArray) -> FloatArray:
        """Vectors `[n, d]` float32 of `n` ids, in their order.

        Raises:
            IndexFormatError: an id has no vector.
        """
        out = np.empty((len(ids), self.dim), dtype=np.float32)
        which = np.searchsorted(self._first, ids, side="right") - 1
        for s in np.unique(which):
            mine = np.flatnonzero(which == s)
            positions = self._positions(int(s), ids[mine])
            out[mine] = self._shards[s].rows[positions]
        return out

    def _positions(self, s: int, ids: IntArray) -> IntArray:
        """Rows of ids in one shard (-1: before the first)."""
        known = self._shards[s].ids if s >= 0 else np.empty(0, np.int64)
        dense = s >= 0 and self._dense[s]
        positions = ids - known[0] if dense else np.searchsorted(known, ids)
        if positions.max() >= len(known) or not np.array_equal(known[positions], ids):
            raise IndexFormatError(
                "a vector that the index refers to is not among the stored vectors: the index is damaged; "
                "run `aveyb-index verify` on it"
            )
        return positions

    def blocks(self, rows: int = 16384) -> Iterator[tuple[IntArray, FloatArray]]:
        """All vectors, as (ids `[n]`, vectors `[n, d]` float32) with at most `rows` rows at a time."""
        for ids, stored in self._shards:
            for start in range(0, len(ids), rows):
                stop = min(start + rows, len(ids))
                yield np.array(ids[start:stop]), _read_rows(stored, start, stop)


def _read_rows(stored: npt.NDArray[np.floating], start: int, stop: int) -> FloatArray:
    """Rows read from the file, not through the map: pages of a map count as this process's memory once touched."""
    if not isinstance(stored, np.memmap) or stored.filename is None:
        return np.array(stored[start:stop], dtype=np.float32)
    width = stored.shape[1]
    offset = stored.offset + start * width * stored.itemsize
    flat = np.fromfile(stored.filename, dtype=stored.dtype, count=(stop - start) * width, offset=offset)
    return flat.reshape(-1, width).astype(np.float32, copy=False)


def open_table(folder: Path, shards: Iterable[Shard], kind: Kind, dim: int) -> VectorTable:
    """Map the shards of a version (or of a change) into one table of vectors of one kind."""
    views = (open_shard(folder / shard.name, dim) for shard in shards)
    return VectorTable((view[kind] for view in views if kind in view), dim)
