"""Check FAISS files in a process of their own: FAISS trusts what it reads, and a damaged file can end the process.

    python -m aveyb_retrieval.indexes.nearest.faiss_check FOLDER

reads what is expected of the files from FOLDER (written by `problems`) and prints, for each file in turn, one line with
its problems as a list in JSON.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.store.vectors import VectorTable, open_shard

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
        ids: Their ids `[n]`, ascending.
        dim: Their width.
        shards: The files of the stored vectors, with which codes are compared; empty: they are not.
    """

    path: Path
    kind: Kind
    ids: IntArray
    dim: int
    shards: tuple[Path, ...] = ()

    @property
    def seconds(self) -> float:
        """How long a check may take."""
        compared = len(self.ids) / _VECTORS_PER_SECOND if self.shards else 0.0
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
    if done.returncode < 0:
        return _lines(done.stdout), f"FAISS crashes on it ({signal.Signals(-done.returncode).name})"
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return _lines(done.stdout), f"it cannot be checked ({reason})"


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
    if not np.array_equal(held, ids) or index.ntotal != len(ids):
        return [f"{path}: the {len(held):,} ids in it are not the {len(ids):,} of the stored vectors"]
    if index.d != dim:
        return [f"{path}: vectors of dimension {index.d}, the manifest says {dim}"]
    if not len(ids):
        return []  # nothing to search; an empty index of inverted lists is not even trained
    queries = np.eye(min(dim, 4), dim, dtype=np.float32)
    found = index.search(queries, min(10, len(ids)))[1]  # a wrong structure may crash only here
    if not np.isin(found[found >= 0], ids).all():
        return [f"{path}: a search finds ids that are not of the stored vectors"]
    return _content_problems(index, expected) if expected.shards else []


def _content_problems(index: Any, expected: Expected) -> list[str]:
    """What is wrong with the codes and the graph of an index in order."""
    from aveyb_retrieval.indexes.nearest import faiss_codes, faiss_index

    path, found = expected.path, []
    views = (open_shard(shard, expected.dim) for shard in expected.shards)
    table = VectorTable((view[expected.kind] for view in views if expected.kind in view), expected.dim)
    try:
        wrong = np.sort(np.concatenate(list(faiss_codes.differing(index, table.gather))))
        if len(wrong):
            found.append(f"{path}: {len(wrong):,} of its codes are not of the stored vectors, first of id {wrong[0]}")
    except AveyBError as error:
        found.append(f"{path}: {error}")
    except RuntimeError as error:
        why = faiss_index.reason(error)
        sys.stderr.write(f"{_NOTE}{path}: its codes are not compared with the vectors: FAISS cannot ({why})\n")
    probes = expected.ids[:: max(1, len(expected.ids) // _PROBES)]
    rows = table.gather(probes)
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
        shards = [str(path) for path in item.shards]
        request.append({"path": str(item.path), "kind": item.kind, "dim": item.dim, "shards": shards})
    (folder / "request.json").write_text(json.dumps(request))


def _read_request(folder: Path) -> list[Expected]:
    request = json.loads((folder / "request.json").read_text())
    return [
        Expected(
            path=Path(item["path"]),
            kind=item["kind"],
            ids=np.load(folder / f"{number}.npy", allow_pickle=False),
            dim=item["dim"],
            shards=tuple(map(Path, item["shards"])),
        )
        for number, item in enumerate(request)
    ]


def main() -> None:
    """Check files in this process and print the problems of each as JSON."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for expected in _read_request(Path(sys.argv[1])):
        sys.stdout.write(json.dumps(problems_here(expected)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
