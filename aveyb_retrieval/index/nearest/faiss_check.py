"""Check a FAISS file in a process of its own: FAISS trusts what it reads, and a damaged file can end the process.

    python -m aveyb_retrieval.index.nearest.faiss_check FILE IDS WIDTH

compares the ids in FILE with those of the array IDS (`.npy`, ascending) and prints the problems as a list in JSON.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import AveyBError

if TYPE_CHECKING:
    from aveyb_retrieval.index.types import IntArray

_SECONDS = 120.0
_BYTES_PER_SECOND = 20 << 20  # a slow disk


def problems(path: Path, expected: IntArray, dim: int) -> list[str]:
    """Return problems of a FAISS file as sentences; a crash of FAISS on it is one.

    Args:
        path: The file.
        expected: The ids `[n]` that it should hold, ascending.
        dim: The width of its vectors.
    """
    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "ids.npy"
        np.save(ids, expected)
        command = [sys.executable, "-m", __name__, str(path), str(ids), str(dim)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(  # noqa: S603  # this module, in another process
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_SECONDS + path.stat().st_size / _BYTES_PER_SECOND,
            )
        except subprocess.TimeoutExpired as error:
            return [f"{path}: FAISS did not finish reading it in {error.timeout:.0f} s"]
    if done.returncode < 0:
        return [f"{path}: FAISS crashes on it ({signal.Signals(-done.returncode).name})"]
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [f"{path}: it cannot be checked ({reason})"]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def problems_here(path: Path, expected: IntArray, dim: int) -> list[str]:
    """Return the same as `problems`, found in this process: only for a file that is known to be sound."""
    from aveyb_retrieval.index.nearest import faiss_file, faiss_index

    try:
        index = faiss_file.read(path, mapped=True)
    except AveyBError as error:
        return [str(error)]
    held = np.sort(faiss_index.stored_ids(index))
    if not np.array_equal(held, expected) or index.ntotal != len(expected):
        return [f"{path}: the {len(held):,} ids in it are not the {len(expected):,} of the stored vectors"]
    if index.d != dim:
        return [f"{path}: vectors of dimension {index.d}, the manifest says {dim}"]
    if not len(expected):
        return []  # nothing to search; an empty index of inverted lists is not even trained
    queries = np.eye(min(dim, 4), dim, dtype=np.float32)
    found = index.search(queries, min(10, len(expected)))[1]  # a wrong structure may crash only here
    if not np.isin(found[found >= 0], expected).all():
        return [f"{path}: a search finds ids that are not of the stored vectors"]
    return []


def main() -> None:
    """Check one file in this process and print the problems as JSON."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ids = np.load(sys.argv[2], allow_pickle=False)
    sys.stdout.write(json.dumps(problems_here(Path(sys.argv[1]), ids, int(sys.argv[3]))) + "\n")


if __name__ == "__main__":
    main()
