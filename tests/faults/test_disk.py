"""Disks that fail or are full: the error is ours, the old index stays, and the same call continues."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aveyb_retrieval import Retriever
from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from tests.faults import workload
from tests.faults.test_kill import QUERIES, environment, protect
from tests.indexes.fake import FakeEmbedder

ROOT = Path(__file__).resolve().parents[2]
CODES = [errno.ENOSPC, errno.EIO]


def ids(root: Path) -> list[list[tuple[str, float]]]:
    with Retriever.load(root, model=FakeEmbedder(), verify=True) as retriever:
        return retriever.rank(QUERIES[:20], k=10)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built") / "ix"
    workload.run("build", root)
    return root


@pytest.fixture(scope="module")
def updated(built: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[str, float]]]:
    root = tmp_path_factory.mktemp("updated") / "ix"
    shutil.copytree(built, root)
    workload.run("update", root)
    return ids(root)


def failing(root: Path, fail_at: int, code: int) -> tuple[bool, str]:
    """Upsert with the given operation failing; whether it was reached, and the message."""
    count = 0

    def hook(name: str) -> None:
        nonlocal count
        count += 1
        if count == fail_at:
            raise OSError(code, os.strerror(code))

    with pytest.MonkeyPatch.context() as patch:
        protect(patch)
        workload.small_steps()
        workload.intercept(hook)
        try:
            workload.run("update", root)
        except AveyBError as error:
            return True, str(error)
    return False, ""


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_every_operation_can_fail(every: int, built: Path, updated: object, tmp_path: Path) -> None:
    before = ids(built)
    fail_at, failed = 1, 0
    while True:
        root = tmp_path / f"{fail_at}"
        shutil.copytree(built, root)
        reached, message = failing(root, fail_at, CODES[fail_at % 2])
        if not reached:
            break
        failed += 1
        if "hard links" not in message:
            assert "the same command again" in message, f"at operation {fail_at}"
        assert ids(root) in (before, updated)
        workload.run("update", root)
        assert ids(root) == updated, f"after failing at operation {fail_at}"
        shutil.rmtree(root)
        fail_at += every
    assert failed >= 60 // every
    print(
        f"\n{failed} operations failed once each, with {[errno.errorcode[c] for c in CODES]}; each continued to the end"
    )


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from aveyb_retrieval.errors import AveyBError
from tests.faults import workload
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
workload.small_steps()
try:
    workload.run("build", Path(sys.argv[1]))
except AveyBError as error:
    sys.exit(f"refused: {error}")
"""


def test_a_limit_on_file_sizes_stops_sqlite_and_everything_else_cleanly(built: Path, tmp_path: Path) -> None:
    """The kernel refuses to let any file grow beyond the limit, SQLite's and FAISS's too: as on a full disk."""
    stopped = 0
    for limit in (0, 3_000, 20_000, 60_000, 120_000, 250_000, 100_000_000):
        root = tmp_path / "ix"  # the same one each time: every attempt continues the one before
        command = [sys.executable, "-c", FULL_DISK, str(root), str(limit)]
        done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            assert "refused: " in done.stderr, done.stderr
            assert "Traceback" not in done.stderr
            assert IndexDirectory(root).current() is None
            stopped += 1
    assert stopped >= 4
    assert ids(root) == ids(built)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small disk needs root")
def test_a_full_disk_is_survived(built: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        for size in ("100k", "250k", "450k"):
            subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
            with pytest.raises(AveyBError, match=r"No space left|full"):
                workload.run("build", disk / "ix")
            assert IndexDirectory(disk / "ix").current() is None
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        workload.run("build", disk / "ix")
        assert ids(disk / "ix") == ids(built)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_kept_index_survives_a_read_only_disk(built: Path, tmp_path: Path) -> None:
    root = tmp_path / "ix"
    shutil.copytree(built, root)
    before: Any = ids(root)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert ids(root) == before
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755)
