"""Compare what a FAISS index holds of each vector with the stored vector: `verify --deep`.

A stored vector is encoded once more by the index's own trained codec. What the index holds for it must be about as
near to the vector as that: a code that was changed, or moved to another id, is further away. Encoded vectors are
compared and not codes, because two codes can be equally near, and which of them is taken depends on rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.indexes.nearest.faiss_index import import_faiss, list_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aveyb_retrieval.indexes.types import FloatArray, IntArray

    Vectors = Callable[[IntArray], FloatArray]

BLOCK = 8192  # vectors compared at once
SLACK, ROUNDING = 0.02, 1e-5  # of a distance: relative to that of the codec, and absolute


def differing(index: Any, known: IntArray, vectors: Vectors) -> Iterator[IntArray]:
    """Yield the ids whose codes are not those of their vectors, block by block.

    Args:
        index: A FAISS index that keeps our ids.
        known: The ids to compare, ascending; it may hold others.
        vectors: Gives the stored vectors `[n, d]` of some of them `[n]`.

    Raises:
        RuntimeError: this type is not decoded, here or by FAISS.
    """
    yield from _compare(index, None, known, vectors)


def _compare(index: Any, ids: IntArray | None, known: IntArray, vectors: Vectors) -> Iterator[IntArray]:
    """Go down to where codes are; `ids` are those of the index's positions where a wrapper keeps them."""
    faiss = import_faiss()
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexIDMap):
        yield from _compare(index.index, faiss.vector_to_array(index.id_map), known, vectors)
    elif isinstance(index, faiss.IndexPreTransform):
        yield from _compare(index.index, ids, known, _transformed(index, vectors))
    elif isinstance(index, faiss.IndexHNSW):
        yield from _compare(index.storage, ids, known, vectors)
    elif isinstance(index, faiss.IndexRefine):
        yield from _compare(index.base_index, ids, known, vectors)
        yield from _compare(index.refine_index, ids, known, vectors)
    elif isinstance(index, faiss.IndexIVF):
        if not isinstance(index, _decoded_lists()):
            raise RuntimeError(f"the lists of {type(index).__name__} are not decoded")
        yield from _compare_lists(index, known, vectors)
    else:
        assert ids is not None  # only inverted lists keep ids themselves
        for start in range(0, len(ids), BLOCK):
            some = ids[start : start + BLOCK]
            compared = np.isin(some, known)
            held = index.reconstruct_n(start, len(some))[compared]
            some = some[compared]
            wanted = vectors(some)
            yield some[_further(wanted, held, index.sa_decode(index.sa_encode(wanted)))]


def _transformed(index: Any, vectors: Vectors) -> Vectors:
    faiss = import_faiss()
    chain = [faiss.downcast_VectorTransform(index.chain.at(i)) for i in range(index.chain.size())]

    def transform(ids: IntArray) -> FloatArray:
        rows = vectors(ids)
        for step in chain:
            rows = step.apply(rows)
        return rows

    return transform


def _decoded_lists() -> tuple[type, ...]:
    """The types whose inverted lists can be compared, of those that this release of FAISS has."""
    faiss = import_faiss()
    names = ("IndexIVFFlat", "IndexIVFPQ", "IndexIVFScalarQuantizer", "IndexIVFRaBitQ", "IndexIVFRaBitQFastScan")
    return tuple(getattr(faiss, name) for name in names if hasattr(faiss, name))


def _compare_lists(index: Any, known: IntArray, vectors: Vectors) -> Iterator[IntArray]:
    """The same for inverted lists; a vector must also be in the list that the index would put it into."""
    faiss = import_faiss()
    lists = faiss.downcast_InvertedLists(index.invlists)
    for cell in range(index.nlist):
        ids = list_ids(lists, cell)
        for start in range(0, len(ids), BLOCK):
            some = ids[start : start + BLOCK]
            compared = np.isin(some, known)
            codes = _list_codes(index, lists, cell, start, len(some))[compared]
            some = some[compared]
            if not len(some):
                continue
            wanted = np.ascontiguousarray(vectors(some), dtype=np.float32)
            again = _encode_in_list(index, wanted, cell)
            held = again.copy()
            held[:, again.shape[1] - codes.shape[1] :] = codes  # behind the number of the list
            wrong = _further(wanted, index.sa_decode(held), index.sa_decode(again)) | _nearer_list(index, wanted, cell)
            yield some[wrong]


def _list_codes(index: Any, lists: Any, cell: int, start: int, count: int) -> np.ndarray:
    """Codes of one list from position `start` on, `[count, bytes]`; `start` is a multiple of `BLOCK`."""
    faiss = import_faiss()
    size = int(index.code_size)
    if not hasattr(lists, "n_per_block"):
        whole = faiss.rev_swig_ptr(lists.get_codes(cell), lists.list_size(cell) * size)
        return whole.reshape(-1, size)[start : start + count]
    each, packed = int(lists.n_per_block), int(lists.block_size)  # codes of several vectors are interleaved
    blocks = -(-lists.list_size(cell) // each)
    whole = faiss.rev_swig_ptr(lists.get_codes(cell), blocks * packed).reshape(blocks, packed)
    out = np.zeros((-(-count // each), each, size), dtype=np.uint8)
    for place, block in enumerate(whole[start // each : start // each + len(out)]):
        lists.packer.unpack_all(faiss.swig_ptr(np.ascontiguousarray(block)), faiss.swig_ptr(out[place]))
    return out.reshape(-1, size)[:count]


def _encode_in_list(index: Any, rows: FloatArray, cell: int) -> np.ndarray:
    """Encode vectors `[n, d]` as members of one list, `[n, bytes]`; its number comes first."""
    faiss = import_faiss()
    where = np.full(len(rows), cell, dtype=np.int64)
    out = np.empty((len(rows), index.coarse_code_size() + index.code_size), dtype=np.uint8)
    pointer = faiss.swig_ptr
    index.encode_vectors(len(rows), pointer(rows), pointer(where), pointer(out), True)
    return out


def _nearer_list(index: Any, rows: FloatArray, cell: int) -> np.ndarray:
    """Which vectors `[n, d]` the index would put into another list than this one; not those between two, bool `[n]`."""
    quantizer = import_faiss().downcast_index(index.quantizer)
    _, best = quantizer.search(rows, 1)
    other = np.flatnonzero(best[:, 0] != cell)
    nearer = np.zeros(len(rows), dtype=bool)
    here = quantizer.reconstruct(cell)
    for position in other.tolist():
        row, there = rows[position], quantizer.reconstruct(int(best[position, 0]))
        if quantizer.metric_type == import_faiss().METRIC_INNER_PRODUCT:
            gain = float(row @ there - row @ here)
        else:
            gain = float(np.linalg.norm(row - here) - np.linalg.norm(row - there))
        nearer[position] = gain > ROUNDING
    return nearer


def _further(wanted: FloatArray, held: FloatArray, again: FloatArray) -> np.ndarray:
    """Which rows of `held` are further from those of `wanted` than `again` is, bool `[n]`."""
    limit = np.linalg.norm(wanted - again, axis=1) * (1 + SLACK) + ROUNDING
    return ~(np.linalg.norm(wanted - held, axis=1) <= limit)  # NaN is further
