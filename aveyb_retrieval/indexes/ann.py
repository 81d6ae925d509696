"""Nearest vectors through FAISS: which index for how many vectors, training, filling, opening and searching.

All vectors are unit length (or zero), so the inner product is the cosine. Ids are ours: an IVF index keeps them
itself, any other index is wrapped in `IndexIDMap` (the plain one: reconstruction by id is what the shards are for).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError, IndexFormatError, OptionalDependencyError
from aveyb_retrieval.indexes import files
from aveyb_retrieval.indexes.protocols import FloatArray, IntArray

if TYPE_CHECKING:
    import faiss

AUTO = "auto"
FLAT_LIMIT = 50_000
HNSW_LIMIT = 2_000_000
IVF_LIMIT = 20_000_000
DEFAULT_PARAMS = {"nprobe": 32, "efSearch": 96}


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
    if count <= FLAT_LIMIT:
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


def fill(index: faiss.Index, blocks: Iterable[tuple[IntArray, FloatArray]]) -> int:
    """Add blocks of (ids, vectors); returns how many vectors were added."""
    count = 0
    for ids, vectors in blocks:
        index.add_with_ids(vectors, ids)
        count += len(ids)
    return count


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
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
    except (RuntimeError, MemoryError) as error:
        raise IndexFormatError(
            f"{path}: FAISS cannot read it ({_reason(error)}); `aveyb-index verify --repair` rebuilds it"
        ) from error


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
    """A FAISS index opened for searching: picks the right parameters object and passes id selectors. Thread-safe."""

    def __init__(self, index: Any, params: dict[str, int], *, factory: str) -> None:
        faiss = import_faiss()
        self.index = index
        self.dim = int(index.d)
        self.count = int(index.ntotal)
        self.params = {**DEFAULT_PARAMS, **params}
        inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index
        self._transformed = isinstance(inner, faiss.IndexPreTransform)
        if self._transformed:
            inner = faiss.downcast_index(inner.index)
        self.knob = (
            "nprobe" if isinstance(inner, faiss.IndexIVF) else "efSearch" if isinstance(inner, faiss.IndexHNSW) else ""
        )
        self.largest = int(inner.nlist) if self.knob == "nprobe" else self.count
        self.is_exact = isinstance(inner, faiss.IndexFlat) and not self._transformed
        self.takes_selector = self.is_exact or (
            self.knob != "" and (not self._transformed or self.knob == "nprobe") and "x4fs" not in factory
        )
        self.keeps_floats = not self._transformed and isinstance(
            inner, (faiss.IndexFlat, faiss.IndexHNSWFlat, faiss.IndexIVFFlat)
        )

    def search(
        self, queries: FloatArray, k: int, *, selector: faiss.IDSelector | None = None, effort: int | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Nearest stored vectors of queries `[n, d]`: scores and ids `[n, k]`, padded with -inf and -1.

        `effort` replaces the tuned `nprobe` or `efSearch`; `selector` limits the search to some ids.
        """
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise ConfigError(f"queries of shape {queries.shape} for an index of dimension {self.dim}")
        k = min(k, max(self.count, 1))
        parameters = self._parameters(selector, effort)
        scores, ids = self.index.search(np.ascontiguousarray(queries, dtype=np.float32), k, params=parameters)
        scores[ids < 0] = -np.inf
        return scores, ids

    def _parameters(self, selector: faiss.IDSelector | None, effort: int | None) -> faiss.SearchParameters | None:
        faiss = import_faiss()
        if self.knob == "":
            return faiss.SearchParameters(sel=selector) if selector is not None else None
        value = min(effort or self.params[self.knob], self.largest)
        if self.knob == "efSearch":
            inner = faiss.SearchParametersHNSW(efSearch=value, sel=selector)
        else:
            inner = faiss.SearchParametersIVF(nprobe=value, sel=selector)
        return faiss.SearchParametersPreTransform(index_params=inner) if self._transformed else inner


def select(ids: IntArray, *, dense: bool) -> faiss.IDSelector:
    """A selector of these ids; `dense` ids (document numbers) get a bitmap, which is the fastest to ask."""
    faiss = import_faiss()
    if not dense:
        return faiss.IDSelectorBatch(ids)
    bits = np.zeros(int(ids.max()) + 1 if len(ids) else 1, dtype=bool)
    bits[ids] = True
    return faiss.IDSelectorBitmap(np.packbits(bits, bitorder="little"))
