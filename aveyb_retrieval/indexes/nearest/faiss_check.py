"""Check FAISS files in a process of their own: FAISS trusts what it reads, and a damaged file can end the process.

    python -m aveyb_retrieval.indexes.nearest.faiss_check FOLDER

reads what is expected of the files from FOLDER (written by `problems`) and prints, for each file in turn, one line with
its problems as a list in JSON.
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

from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.store.numbering import number_range
from aveyb_retrieval.system import forbid_dumps
from aveyb_retrieval.wording import how_it_ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

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
        environment["AVEYB_FAISS_TYPES"] = "any"  # a crash is only one of that process
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
    from aveyb_retrieval.indexes.nearest import faiss_file, faiss_index

    path, ids, dim = expected.path, expected.ids, expected.dim
    try:
        index = faiss_file.read(path, mapped=True)
    except AveyBError as error:
        return [str(error)]
    held = np.sort(faiss_index.stored_ids(index))
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
    from aveyb_retrieval.indexes.nearest import faiss_codes, faiss_index

    path, ids, found = expected.path, expected.ids, []
    assert expected.vectors is not None
    stored = np.load(expected.vectors, mmap_mode="r", allow_pickle=False)

    def vectors(some: IntArray) -> FloatArray:
        return stored[np.searchsorted(ids, some)].astype(np.float32)

    try:
        wrong = np.sort(np.concatenate([ids[:0], *faiss_codes.differing(index, ids, vectors)]))
        if len(wrong):
            found.append(f"{path}: {len(wrong):,} of its codes are not of the stored vectors, first of id {wrong[0]}")
    except AveyBError as error:
        found.append(f"{path}: {error}")
    except RuntimeError as error:
        why = faiss_index.reason(error)
        sys.stderr.write(f"{_NOTE}{path}: its codes are not compared with the vectors: FAISS cannot ({why})\n")
    rows = vectors(ids[:: max(1, len(ids) // _PROBES)])
    lost = _lost(index, rows[np.linalg.norm(rows, axis=1) > 0])
    if lost > 0.5:
        found.append(f"{path}: its graph does not find {lost:.0%} of the vectors that are in it")
    return found


def _lost(index: Any, rows: FloatArray) -> float:
    """The share of vectors `[n, d]` that a graph does not find when they are searched for; 0 without a graph."""
    from aveyb_retrieval.indexes.nearest.faiss_index import import_faiss, innermost

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


if __name__ == "__main__":
    main()
