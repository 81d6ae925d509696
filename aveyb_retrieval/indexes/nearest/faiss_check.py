"""Check FAISS files in a process of their own: FAISS trusts what it reads, and a damaged file can end the process.

    python -m aveyb_retrieval.indexes.nearest.faiss_check FOLDER

reads what is expected of the files from FOLDER (written by `problems`) and prints, for each file in turn, one line with
its problems as a list in JSON.

`verify --deep` also gives it the stored vectors, of which some are searched for: a file of any type must find half of
them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.nearest.faiss_file import read, stored_ids
from aveyb_retrieval.indexes.types import number_range
from aveyb_retrieval.system import forbid_dumps
from aveyb_retrieval.wording import how_it_ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.types import IntArray, Kind

_SECONDS = 120.0
_BYTES_PER_SECOND = 20 << 20  # a slow disk
_PROBES = 1000  # stored vectors that are searched for
_CANDIDATES = 100  # that a search for one of them gives
MOST_LOST = 0.5  # of them


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
        vectors: A file of numpy with the stored vectors `[n, d]` of `ids`, float16 or float32, of which some are
            searched for; None: none are.
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
        return _SECONDS + self.path.stat().st_size / _BYTES_PER_SECOND


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
    what = "FAISS crashes on it" if done.returncode < 0 else "it cannot be checked"
    return _lines(done.stdout), f"{what} ({how_it_ended(done.returncode, done.stderr)})"


def _lines(output: str) -> list[list[str]]:
    return [json.loads(line) for line in output.split("\n")[:-1]]


# --- in the other process ---------------------------------------------------------------------------------------------


def problems_here(expected: Expected) -> list[str]:
    """Return the problems of one file, found in this process: only for a file that is known to be sound."""
    path, ids, dim = expected.path, expected.ids, expected.dim
    try:
        index = read(path, mapped=True)
    except AveyBError as error:
        return [str(error)]
    held = np.sort(stored_ids(index))
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
    assert expected.vectors is not None
    lost = _lost(index, expected.ids, np.load(expected.vectors, mmap_mode="r", allow_pickle=False))
    if lost <= MOST_LOST:
        return []
    return [f"{expected.path}: a search for the vectors that are in it does not find {lost:.0%} of them"]


def _lost(index: Any, ids: IntArray, stored: np.ndarray) -> float:
    """The share of some of the stored vectors `[n, d]` that are not among the candidates of a search for them."""
    rows = stored[:: max(1, len(ids) // _PROBES)].astype(np.float32)
    rows = rows[np.linalg.norm(rows, axis=1) > 0]
    if not len(rows):
        return 0.0
    found = index.search(rows, min(_CANDIDATES, int(index.ntotal)))[1]
    best = [
        (stored[np.searchsorted(ids, some[np.isin(some, ids)])].astype(np.float32) @ row).max(initial=-1.0)
        for some, row in zip(found, rows, strict=True)
    ]
    return float((np.array(best) < np.einsum("nd,nd->n", rows, rows) - 1e-3).mean())


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
