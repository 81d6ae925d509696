"""Make FAISS indexes: which one for how many vectors, training, filling.

All vectors are unit length (or zero), so the inner product is the cosine. Ids are ours: an IVF index keeps them
itself, any other index is wrapped in `IndexIDMap` (the plain one: reconstruction by id is what the datasets are for).
"""

from __future__ import annotations

import math
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError, extra_for
from aveyb_retrieval.indexes.nearest import faiss_structure

if TYPE_CHECKING:
    from collections.abc import Iterator

    import faiss

    from aveyb_retrieval.indexes.types import FloatArray, IntArray

AUTO = "auto"
# Measured by benchmarks/cpu/nearest.py on passages of real text: one bit a dimension (RaBitQ) with 400 candidates
# scored again finds .985 of the ten nearest, in 48 bytes a vector, where HNSW32 (.99) takes 1,300 and fifteen times
# longer to build. Lists would have to be searched by the quarter for the same recall, so they only pay in large files.
EXACT_COMPONENTS = 32_768 * 256  # numbers that are searched in memory before "auto" makes a file of them
ONE_LIST = 1_000_000  # vectors: up to so many, all codes are scanned
MANY = 8  # queries, from which on FAISS shares them among threads
ANY_TYPE = "set AVEYB_FAISS_TYPES=any"  # in messages
_HNSW = re.compile(r"HNSW(\d+)")


def import_faiss() -> Any:
    """The `faiss` module.

    Raises:
        OptionalDependencyError: it is not installed.
    """
    with extra_for("building and searching an index", "cpu"):
        import faiss
    return faiss


def takes_any_type() -> bool:
    """Whether the user takes files whose structure is not checked before FAISS, which trusts them, reads them."""
    return os.environ.get("AVEYB_FAISS_TYPES") == "any"


def exact_limit(dim: int) -> int:
    """How many vectors of `dim` components are searched exactly in memory."""
    return EXACT_COMPONENTS // dim


def choose_factory(wanted: str, count: int) -> str:
    """Resolve "auto" to a FAISS factory string for `count` vectors; keep any other string."""
    if wanted != AUTO:
        return wanted
    cells = 1 if count <= ONE_LIST else 2 ** round(math.log2(math.sqrt(count)))
    return f"IVF{cells},RaBitQfs"


def auto_params(factory: str) -> dict[str, int]:
    """Settings of a search for a type that "auto" chose: a quarter of its lists, which keeps recall@10 at .98."""
    cells = int(factory.partition(",")[0].removeprefix("IVF"))
    return {} if cells == 1 else {"nprobe": cells // 4}


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
        ConfigError: FAISS does not know the string, it does not fit the dimension, or such files would be refused.
    """
    faiss = import_faiss()
    if any(int(links) < 2 for links in _HNSW.findall(factory)):  # filling it ends the process
        raise ConfigError(f"FAISS cannot make an index {factory!r}: HNSW needs at least 2 links for each vector")
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(f"FAISS cannot make an index {factory!r} for dimension {dim}: {reason(error)}") from error
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None and ivf.nlist < 1:
        raise ConfigError(f"FAISS cannot make an index {factory!r}: it has no inverted lists; name at least one")
    made = index if _keeps_ids(index) else faiss.IndexIDMap(index)
    if not (takes_any_type() or faiss_structure.is_checked(faiss.serialize_index(made).tobytes())):
        raise ConfigError(
            f"index {factory!r}: files of this type are not checked before FAISS reads them; {ANY_TYPE} at the build "
            "and wherever it is searched, or choose another (auto, Flat, SQ8, HNSW32, IVF256,PQ16)"
        )
    return made


def train(index: faiss.Index, sample: FloatArray, factory: str) -> None:
    """Train an index on a sample of the vectors, `[n, d]`.

    Raises:
        ConfigError: there are too few vectors for this index.
    """
    try:
        index.train(sample)
    except RuntimeError as error:
        raise ConfigError(
            f"the index {factory!r} cannot be trained on {len(sample)} vectors: {reason(error)}; "
            "use a smaller one, or --index auto"
        ) from error


def reserve(index: faiss.Index, count: int) -> None:
    """Make room for `count` more vectors at once, where an index keeps them in one array.

    Growing by doubling would copy the array again and again, and hold it one and a half times at the end.
    """
    faiss = import_faiss()
    inner = innermost(index)
    if isinstance(inner, faiss.IndexHNSW):
        inner = faiss.downcast_index(inner.storage)
    if isinstance(inner, faiss.IndexFlatCodes):
        size = inner.codes.size()
        inner.codes.resize(size + count * inner.code_size)
        inner.codes.resize(size)  # gives nothing back


def fill(index: faiss.Index, ids: IntArray, vectors: FloatArray) -> None:
    """Add vectors `[n, d]` under our ids `[n]`.

    Raises:
        ConfigError: FAISS cannot: some types need more of them.
    """
    try:
        index.add_with_ids(vectors, ids)
    except RuntimeError as error:
        raise ConfigError(
            f"the index cannot take {len(ids):,} vectors: {reason(error)}; use another one, or --index auto"
        ) from error


@contextmanager
def threads_for(queries: int) -> Iterator[None]:
    """Search for few queries with one thread: others would wait for it actively, and take processors from Lance's."""
    faiss = import_faiss()
    before = faiss.omp_get_max_threads()  # of the calling thread alone
    faiss.omp_set_num_threads(before if queries >= MANY else 1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def innermost(index: faiss.Index) -> Any:
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
    return np.concatenate([np.empty(0, np.int64), *(list_ids(lists, cell) for cell in range(lists.nlist))])


def list_ids(lists: Any, cell: int) -> IntArray:
    """The ids in one inverted list."""
    size = lists.list_size(cell)
    return import_faiss().rev_swig_ptr(lists.get_ids(cell), size).copy() if size else np.empty(0, np.int64)


def _keeps_ids(index: faiss.Index) -> bool:
    faiss = import_faiss()
    if isinstance(index, (faiss.IndexIVF, faiss.IndexIDMap)):
        return True
    return isinstance(index, faiss.IndexPreTransform) and isinstance(faiss.downcast_index(index.index), faiss.IndexIVF)


def reason(error: BaseException) -> str:
    """The last part of a FAISS message; what comes before is the C++ function it came from."""
    return str(error).strip().rsplit("Error: ", 1)[-1].splitlines()[0] if str(error).strip() else type(error).__name__
