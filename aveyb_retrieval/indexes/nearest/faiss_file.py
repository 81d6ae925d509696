"""Read and write FAISS index files, and refuse damaged ones."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.nearest import faiss_structure
from aveyb_retrieval.indexes.nearest.faiss_index import ANY_TYPE, import_faiss, innermost, reason, takes_any_type
from aveyb_retrieval.indexes.store import files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import faiss

_limit_lock = threading.Lock()


def write(index: faiss.Index, path: Path) -> files.FileInfo:
    """Write an index to disk, atomically."""
    faiss = import_faiss()
    failure: list[OSError] = []
    with files.atomic_writer(path) as out:

        def forward(data: bytes) -> int:
            try:
                return out.write(data)
            except OSError as error:  # it must not cross FAISS's C++, which would turn it into a message
                failure.append(error)
                return 0

        try:
            faiss.write_index(index, faiss.PyCallbackIOWriter(forward, 1 << 20))
        except RuntimeError as error:
            raise (failure[0] if failure else error) from error
        if failure:
            raise failure[0]
    return out.info()


def read(path: Path, *, mapped: bool) -> faiss.Index:
    """Open an index file; `mapped` leaves the vectors on disk, shared between processes, and allows no change.

    Raises:
        IndexFormatError: its structure is damaged, of a type that is not checked, or FAISS cannot read it.
    """
    faiss = import_faiss()
    if not faiss_structure.check(path) and not takes_any_type():
        raise IndexFormatError(
            f"{path}: of a type whose structure is not checked before FAISS reads it; {ANY_TYPE} if you trust its maker"
        )
    try:
        with _no_larger_than(path.stat().st_size):
            # releases of FAISS that do not have this flag map inverted lists only
            flag = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP)
            index = faiss.read_index(str(path), flag if mapped else 0)
    except (RuntimeError, MemoryError) as error:
        raise IndexFormatError(
            f"{path}: FAISS cannot read it ({reason(error)}); `aveyb-index verify --repair` rebuilds it"
        ) from error
    if not all(map(_graph_is_sound, _graphs(innermost(index)))):
        raise IndexFormatError(f"{path}: its graph points outside of itself; `aveyb-index verify --repair` rebuilds it")
    return index


@contextmanager
def _no_larger_than(size: int) -> Iterator[None]:
    """Have FAISS refuse arrays larger than the file that they are in: a damaged length must not take all memory.

    The limit is one for the whole process, and not in every release of FAISS.
    """
    faiss = import_faiss()
    if not hasattr(faiss, "set_deserialization_vector_byte_limit"):
        yield
        return
    with _limit_lock:
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(size)
        try:
            yield
        finally:
            faiss.set_deserialization_vector_byte_limit(before)


def _graphs(index: Any) -> list[Any]:
    """An index, and the one that chooses its inverted lists: either can be a graph."""
    faiss = import_faiss()
    return [index, faiss.downcast_index(index.quantizer)] if isinstance(index, faiss.IndexIVF) else [index]


def _graph_is_sound(index: faiss.Index) -> bool:
    """Whether every link of an HNSW graph stays inside it. FAISS follows links unchecked: a wrong one is a crash."""
    faiss = import_faiss()
    if not isinstance(index, faiss.IndexHNSW) or index.ntotal == 0:
        return True
    graph, count = index.hnsw, index.ntotal
    neighbors = _view(graph.neighbors)
    offsets, levels = _view(graph.offsets), _view(graph.levels)
    per_level = _view(graph.cum_nneighbor_per_level)
    return bool(
        len(levels) == count
        and len(offsets) == count + 1
        and levels.min() >= 1
        and levels.max() < len(per_level)
        and offsets[0] == 0
        and np.array_equal(np.diff(offsets.astype(np.int64)), per_level[levels])
        and offsets[-1] == len(neighbors)
        and neighbors.min() >= -1
        and neighbors.max() < count
        and 0 <= graph.entry_point < count
        and graph.max_level == levels[graph.entry_point] - 1
    )


def _view(vector: Any) -> np.ndarray:
    """The contents of a C++ vector, not copied."""
    return import_faiss().rev_swig_ptr(vector.data(), vector.size()) if vector.size() else np.empty(0, np.int64)
