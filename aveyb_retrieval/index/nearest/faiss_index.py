"""Nearest vectors through FAISS: which index for how many vectors, training, filling, opening and searching.

All vectors are unit length (or zero), so the inner product is the cosine. Ids are ours: an IVF index keeps them
itself, any other index is wrapped in `IndexIDMap` (the plain one: reconstruction by id is what the shards are for).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError, IndexFormatError, OptionalDependencyError
from aveyb_retrieval.index.nearest import exact
from aveyb_retrieval.index.storage import files
from aveyb_retrieval.index.storage.shards import VectorTable
from aveyb_retrieval.index.types import FloatArray, IntArray

if TYPE_CHECKING:
    import faiss

AUTO = "auto"
# Where "auto" changes from one type to the next. Exact search of 100,000 vectors of 256 components takes 5 ms on one
# core (measured, FAISS 1.15, x86 server), no more than encoding the query; it costs in proportion to both numbers. HNSW
# then answers in 0.3 ms, but keeps about 260 bytes of links for each vector in memory, and is built in one go: up to
# 2,000,000. Inverted lists can stay on disk. From 20,000,000 on even reading whole vectors is too much: codes of a
# sixteenth of their size are searched, and the best scored again. The last two limits are arithmetic, not measured.
FLAT_COMPONENTS = 100_000 * 256
HNSW_LIMIT = 2_000_000
IVF_LIMIT = 20_000_000
_limit_lock = threading.Lock()
DEFAULT_PARAMS = {"nprobe": 32, "efSearch": 96, "rescore": 4}


def import_faiss() -> Any:
    """The `faiss` module.

    Raises:
        OptionalDependencyError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise OptionalDependencyError("faiss", "cpu", "building and searching an index") from error
    return faiss


def choose_factory(wanted: str, count: int, dim: int) -> str:
    """Resolve "auto" to a FAISS factory string for `count` vectors of `dim` components; keep any other string."""
    if wanted != AUTO:
        return wanted
    cells = 2 ** round(math.log2(4 * math.sqrt(max(count, 1))))
    if count * dim <= FLAT_COMPONENTS:
        return "Flat"
    if count <= HNSW_LIMIT:
        return "HNSW32"
    if count <= IVF_LIMIT:
        return f"IVF{cells}_HNSW32,Flat"
    codes = next(m for m in range(max(1, dim // 4), 0, -1) if dim % m == 0)  # one byte for about four components
    return f"OPQ{codes},IVF{cells}_HNSW32,PQ{codes}"


def training_size(index: faiss.Index, count: int) -> int:
    """How many vectors of `count` to train an index on: FAISS asks for 39 per cell and gains little beyond 64."""
    faiss = import_faiss()
    if index.is_trained:
        return 0
    ivf = faiss.try_extract_index_ivf(index)
    return min(count, max(65_536, 64 * ivf.nlist if ivf else 0))


def create(factory: str, dim: int) -> faiss.Index:
    """Make an empty index from a FAISS factory string, one that keeps our ids.

    Raises:
        ConfigError: FAISS does not know the string, or it does not fit the dimension.
    """
    faiss = import_faiss()
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(f"FAISS cannot make an index {factory!r} for dimension {dim}: {_reason(error)}") from error
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None and ivf.nlist < 1:
        raise ConfigError(f"FAISS cannot make an index {factory!r}: it has no inverted lists; name at least one")
    if _keeps_ids(index):
        return index
    return faiss.IndexIDMap(index)


def train(index: faiss.Index, sample: FloatArray, factory: str) -> None:
    """Train an index on a sample of the vectors, `[n, d]`.

    Raises:
        ConfigError: there are too few vectors for this index.
    """
    try:
        index.train(sample)
    except RuntimeError as error:
        raise ConfigError(
            f"the index {factory!r} cannot be trained on {len(sample)} vectors: {_reason(error)}; "
            "use a smaller one, or --index auto"
        ) from error


def reserve(index: faiss.Index, count: int) -> None:
    """Make room for `count` more vectors at once, where an index keeps them in one array.

    Growing by doubling would copy the array again and again, and hold it one and a half times at the end.
    """
    faiss = import_faiss()
    inner = _innermost(index)
    if isinstance(inner, faiss.IndexHNSW):
        inner = faiss.downcast_index(inner.storage)
    if isinstance(inner, faiss.IndexFlatCodes):
        size = inner.codes.size()
        inner.codes.resize(size + count * inner.code_size)
        inner.codes.resize(size)  # gives nothing back


def fill(index: faiss.Index, ids: IntArray, vectors: FloatArray) -> None:
    """Add vectors `[n, d]` under our ids `[n]`."""
    index.add_with_ids(vectors, ids)


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
        IndexFormatError: FAISS cannot read it.
    """
    faiss = import_faiss()
    try:
        with _no_larger_than(path.stat().st_size):
            # releases of FAISS that do not have this flag map inverted lists only
            flag = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP)
            index = faiss.read_index(str(path), flag if mapped else 0)
    except (RuntimeError, MemoryError) as error:
        raise IndexFormatError(
            f"{path}: FAISS cannot read it ({_reason(error)}); `aveyb-index verify --repair` rebuilds it"
        ) from error
    if not _graph_is_sound(_innermost(index)):
        raise IndexFormatError(f"{path}: its graph points outside of itself; `aveyb-index verify --repair` rebuilds it")
    return index


@contextmanager
def _no_larger_than(size: int) -> Iterator[None]:
    """Have FAISS refuse arrays larger than the file that they are said to be in: a damaged length must not take all
    memory. The limit is one for the whole process, and not in every release of FAISS."""
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


def _innermost(index: faiss.Index) -> Any:
    """What is inside the wrappers that keep our ids and transform vectors."""
    faiss = import_faiss()
    inner: Any = index
    while isinstance(inner, (faiss.IndexIDMap, faiss.IndexPreTransform)):
        inner = faiss.downcast_index(inner.index)
    return inner


def stored_ids(index: Any) -> IntArray:
    """All ids that an index holds, in no particular order."""
    faiss = import_faiss()
    if isinstance(index, faiss.IndexIDMap):
        return faiss.vector_to_array(index.id_map)
    lists = faiss.extract_index_ivf(index).invlists
    parts = [np.empty(0, np.int64)]
    for cell in range(lists.nlist):
        size = lists.list_size(cell)
        if size:
            parts.append(faiss.rev_swig_ptr(lists.get_ids(cell), size).copy())
    return np.concatenate(parts)


def remove(index: faiss.Index, ids: IntArray) -> bool:
    """Take ids out of an index; False where this kind of index cannot (HNSW and other graphs)."""
    faiss = import_faiss()
    try:
        index.remove_ids(faiss.IDSelectorBatch(ids))
    except RuntimeError:
        return False
    return True


def _keeps_ids(index: faiss.Index) -> bool:
    faiss = import_faiss()
    if isinstance(index, (faiss.IndexIVF, faiss.IndexIDMap)):
        return True
    return isinstance(index, faiss.IndexPreTransform) and isinstance(faiss.downcast_index(index.index), faiss.IndexIVF)


def _reason(error: BaseException) -> str:
    """The last part of a FAISS message; what comes before is the C++ function it came from."""
    return str(error).strip().rsplit("Error: ", 1)[-1].splitlines()[0] if str(error).strip() else type(error).__name__


class Searcher:
    """A FAISS index opened for searching. Safe to use from many threads.

    Attributes:
        dim: Width of its vectors. count: How many it holds.
        knob: The setting that trades speed for recall: "nprobe", "efSearch", or "" where there is none.
        params: Settings of a search that asks for nothing else; `rescore` is how many candidates per result an index
            of shortened codes gives to be scored again in float.
        takes_selector: Whether a search can be limited to some ids.
        keeps_floats: Whether its scores are those of the vectors themselves, not of shortened codes.
    """

    def __init__(self, index: Any, params: dict[str, int], *, factory: str) -> None:
        faiss = import_faiss()
        inner = _innermost(index)
        transformed = isinstance(index, faiss.IndexPreTransform) or (
            isinstance(index, faiss.IndexIDMap)
            and isinstance(faiss.downcast_index(index.index), faiss.IndexPreTransform)
        )
        self.index = index
        self.dim = int(index.d)
        self.count = int(index.ntotal)
        self.params = {**DEFAULT_PARAMS, **params}
        self.knob = ""
        if isinstance(inner, faiss.IndexIVF):
            self.knob, self.largest = "nprobe", int(inner.nlist)
        elif isinstance(inner, faiss.IndexHNSW) and not transformed:
            self.knob, self.largest = "efSearch", max(self.count, 1)
        self.keeps_floats = not transformed and isinstance(
            inner, (faiss.IndexFlat, faiss.IndexHNSWFlat, faiss.IndexIVFFlat)
        )
        flat = isinstance(inner, faiss.IndexFlat) and not transformed
        self.is_exact = flat
        self.takes_selector = (flat or self.knob != "") and "fs" not in factory  # fast-scan codes take none
        self._transformed = transformed

    def search(
        self, queries: FloatArray, k: int, *, selector: Any = None, effort: int | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Nearest stored vectors of queries `[n, d]`: scores and ids `[n, k]`, padded with -inf and -1.

        `effort` replaces the tuned `nprobe` or `efSearch`; `selector` (of `select`) limits the search to some ids.
        """
        k = min(k, max(self.count, 1))
        parameters = self._parameters(selector, effort)
        scores, ids = self.index.search(np.ascontiguousarray(queries, dtype=np.float32), k, params=parameters)
        scores[ids < 0] = -np.inf
        return scores, ids

    def _parameters(self, selector: Any, effort: int | None) -> Any:
        faiss = import_faiss()
        if self.knob == "":
            return faiss.SearchParameters(sel=selector) if selector is not None else None
        value = min(effort or self.params[self.knob], self.largest)
        if self.knob == "efSearch":
            return faiss.SearchParametersHNSW(efSearch=value, sel=selector)
        inner = faiss.SearchParametersIVF(nprobe=value, sel=selector)
        return faiss.SearchParametersPreTransform(index_params=inner) if self._transformed else inner

    def select(self, ids: IntArray, *, dense: bool) -> Any:
        """A selector of these ids; `dense` ids (document numbers) get a bitmap, which is the fastest to ask."""
        faiss = import_faiss()
        if not dense:
            return faiss.IDSelectorBatch(ids)
        bits = np.zeros(int(ids.max()) + 1 if len(ids) else 1, dtype=bool)
        bits[ids] = True
        return faiss.IDSelectorBitmap(np.packbits(bits, bitorder="little"))

    def select_all_but(self, ids: IntArray) -> Any:
        """A selector of everything except these ids."""
        faiss = import_faiss()
        inner = faiss.IDSelectorBatch(ids)
        selector = faiss.IDSelectorNot(inner)
        selector.referenced_objects = [inner]  # FAISS keeps a bare pointer to it
        return selector


def search_rescored(
    searcher: Searcher,
    table: VectorTable,
    queries: FloatArray,
    k: int,
    *,
    selector: Any = None,
    effort: int | None = None,
    rescore: int | None = None,
) -> tuple[FloatArray, IntArray]:
    """The `k` nearest vectors with their true cosines, `[n, k]` each.

    An index of shortened codes is asked for `rescore` times as many, which are scored again from the stored vectors.
    """
    wanted = k if searcher.keeps_floats else k * (rescore or searcher.params["rescore"])
    scores, ids = searcher.search(queries, wanted, selector=selector, effort=effort)
    if not searcher.keeps_floats:
        rows, columns = np.nonzero(ids >= 0)
        vectors = table.gather(ids[rows, columns])
        scores = np.full(ids.shape, -np.inf, dtype=np.float32)
        scores[rows, columns] = np.einsum("nd,nd->n", vectors, queries[rows])
    return exact.top(scores, ids, k)
