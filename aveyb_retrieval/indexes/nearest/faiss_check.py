"""Check FAISS files in a process of their own: FAISS trusts what it reads, and a damaged file can end the process.

    python -m aveyb_retrieval.indexes.nearest.faiss_check FOLDER

reads what is expected of the files from FOLDER (written by `problems`) and prints, for each file in turn, one line with
its problems as a list in JSON.

Compare what a FAISS index holds of each vector with the stored vector: `verify --deep`.

A stored vector is encoded once more by the index's own trained codec. What the index holds for it must be about as
near to the vector as that: a code that was changed, or moved to another id, is further away. Encoded vectors are
compared and not codes, because two codes can be equally near, and which of them is taken depends on rounding.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import AveyBError, how_it_ended
from aveyb_retrieval.indexes.nearest.faiss_file import import_faiss, list_ids
from aveyb_retrieval.indexes.types import number_range
from aveyb_retrieval.system import forbid_dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

    Vectors = Callable[[IntArray], FloatArray]

logger = logging.getLogger(__name__)

_SECONDS = 120.0
_BYTES_PER_SECOND = 20 << 20  # a slow disk
_VECTORS_PER_SECOND = 500  # encoded and compared
_PROBES = 1000  # vectors that a graph must find
_NOTE = "note: "  # begins what the other process says beside its findings


@dataclass(frozen=True)
class Expected:
    """What a FAISS file should hold.

    Attributes:
        path: The file.
        kind: The kind of its vectors.
        first, stop: It covers the documents numbered in `[first, stop)`.
        count: How many vectors are in it, deleted ones too.
        ids: The ids `[n]` of those in it that are stored, ascending.
        dim: Their width.
        vectors: A file of numpy with the stored vectors `[n, d]` of `ids`, float16 or float32, with which codes are
            compared; None: they are not.
    """

    path: Path
    kind: Kind
    first: int
    stop: int
    count: int
    ids: IntArray
    dim: int
    vectors: Path | None = None

    @property
    def seconds(self) -> float:
        """How long a check may take."""
        compared = len(self.ids) / _VECTORS_PER_SECOND if self.vectors else 0.0
        return _SECONDS + self.path.stat().st_size / _BYTES_PER_SECOND + compared


def problems(expected: Sequence[Expected]) -> list[str]:
    """Return the problems of FAISS files as sentences; a crash of FAISS on one of them is one.

    One process reads them all; if it crashes, another one goes on behind the file that it crashed on.
    """
    found: list[str] = []
    rest = list(expected)
    while rest:
        done, failure = _in_child(rest)
        found += [problem for problems in done for problem in problems]
        rest = rest[len(done) :]
        if rest:
            found.append(f"{rest[0].path}: {failure}")
            rest = rest[1:]
    return found


def _in_child(expected: Sequence[Expected]) -> tuple[list[list[str]], str]:
    """The problems of each file up to the one that ended the process, and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        _write_request(Path(folder), expected)
        command = [sys.executable, "-m", __name__, folder]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        limit = sum(item.seconds for item in expected)
        try:
            done = subprocess.run(  # noqa: S603  # this module, in another process
                command, env=environment, capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired as error:
            output = error.stdout or b""
            text = output.decode() if isinstance(output, bytes) else output
            return _lines(text), f"FAISS did not finish reading it in {limit:.0f} s"
    for note in done.stderr.splitlines():
        if note.startswith(_NOTE):
            logger.warning("%s", note.removeprefix(_NOTE))
    what = "FAISS crashes on it" if done.returncode < 0 else "it cannot be checked"
    return _lines(done.stdout), f"{what} ({how_it_ended(done.returncode, done.stderr)})"


def _lines(output: str) -> list[list[str]]:
    return [json.loads(line) for line in output.split("\n")[:-1]]


# --- in the other process ---------------------------------------------------------------------------------------------


def problems_here(expected: Expected) -> list[str]:
    """Return the problems of one file, found in this process: only for a file that is known to be sound."""
    from aveyb_retrieval.indexes.nearest import faiss_file

    path, ids, dim = expected.path, expected.ids, expected.dim
    try:
        index = faiss_file.read(path, mapped=True)
    except AveyBError as error:
        return [str(error)]
    held = np.sort(faiss_file.stored_ids(index))
    if not len(held) == index.ntotal == expected.count:
        return [f"{path}: {len(held):,} ids of {index.ntotal:,} vectors in it, the manifest says {expected.count:,}"]
    if missing := int((~np.isin(ids, held, assume_unique=True)).sum()):
        return [f"{path}: {missing:,} of the {len(ids):,} stored vectors are not in it"]
    first, stop = number_range(expected.kind, expected.first, expected.stop)
    if len(held) and (held[0] < first or held[-1] >= stop or not (np.diff(held) > 0).all()):
        return [f"{path}: ids in it are double or not of the documents {expected.first:,} to {expected.stop:,}"]
    if index.d != dim:
        return [f"{path}: vectors of dimension {index.d}, the manifest says {dim}"]
    if not len(held):
        return []  # nothing to search; an empty index of inverted lists is not even trained
    queries = np.eye(min(dim, 4), dim, dtype=np.float32)
    found = index.search(queries, min(10, len(held)))[1]  # a wrong structure may crash only here
    if not np.isin(found[found >= 0], held).all():
        return [f"{path}: a search finds ids that are not in it"]
    return _content_problems(index, expected) if expected.vectors and len(ids) else []


def _content_problems(index: Any, expected: Expected) -> list[str]:
    """What is wrong with the codes and the graph of an index in order."""
    from aveyb_retrieval.indexes.nearest import faiss_file

    path, ids, found = expected.path, expected.ids, []
    assert expected.vectors is not None
    stored = np.load(expected.vectors, mmap_mode="r", allow_pickle=False)

    def vectors(some: IntArray) -> FloatArray:
        return stored[np.searchsorted(ids, some)].astype(np.float32)

    try:
        wrong = np.sort(np.concatenate([ids[:0], *differing(index, ids, vectors)]))
        if len(wrong):
            found.append(f"{path}: {len(wrong):,} of its codes are not of the stored vectors, first of id {wrong[0]}")
    except AveyBError as error:
        found.append(f"{path}: {error}")
    except RuntimeError as error:
        why = faiss_file.reason(error)
        sys.stderr.write(f"{_NOTE}{path}: its codes are not compared with the vectors: FAISS cannot ({why})\n")
    rows = vectors(ids[:: max(1, len(ids) // _PROBES)])
    lost = _lost(index, rows[np.linalg.norm(rows, axis=1) > 0])
    if lost > 0.5:
        found.append(f"{path}: its graph does not find {lost:.0%} of the vectors that are in it")
    return found


def _lost(index: Any, rows: FloatArray) -> float:
    """The share of vectors `[n, d]` that a graph does not find when they are searched for; 0 without a graph."""
    from aveyb_retrieval.indexes.nearest.faiss_file import import_faiss, innermost

    faiss = import_faiss()
    graph = innermost(index)
    if not len(rows) or not isinstance(graph, faiss.IndexHNSWFlat) or isinstance(index, faiss.IndexPreTransform):
        return 0.0
    graph.hnsw.efSearch = 96
    best = index.search(rows, 1)[0][:, 0]
    return float((best < np.einsum("nd,nd->n", rows, rows) - 1e-3).mean())


def _write_request(folder: Path, expected: Sequence[Expected]) -> None:
    request = []
    for number, item in enumerate(expected):
        np.save(folder / f"{number}.npy", item.ids)
        fields = {name: value for name, value in vars(item).items() if name != "ids"}
        request.append({**fields, "path": str(item.path), "vectors": str(item.vectors or "")})
    (folder / "request.json").write_text(json.dumps(request))


def _read_request(folder: Path) -> list[Expected]:
    request = json.loads((folder / "request.json").read_text())
    expected = []
    for number, fields in enumerate(request):
        fields["path"] = Path(fields["path"])
        fields["vectors"] = Path(fields["vectors"]) if fields["vectors"] else None
        expected.append(Expected(**fields, ids=np.load(folder / f"{number}.npy", allow_pickle=False)))
    return expected


def main() -> None:
    """Check files in this process and print the problems of each as JSON."""
    forbid_dumps()
    for expected in _read_request(Path(sys.argv[1])):
        sys.stdout.write(json.dumps(problems_here(expected)) + "\n")
        sys.stdout.flush()


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


if __name__ == "__main__":
    main()
