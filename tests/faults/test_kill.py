"""SIGKILL at any instant of a build or a change: resumed, it ends with the answers of a run that was not killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aveyb_retrieval import Hit, Retriever
from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from aveyb_retrieval.indexes.changes.verify import verify_index
from tests.faults import workload
from tests.indexes.conftest import WORDS
from tests.indexes.fake import FakeEmbedder

ROOT = Path(__file__).resolve().parents[2]
QUERIES = [" ".join(random.Random(i).choices(WORDS, k=4)) for i in range(100)]


def command(mode: str, root: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "tests.faults.workload", mode, str(root), *more]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def answers(root: Path) -> list[list[Hit]]:
    with Retriever.load(root, model=FakeEmbedder(), verify=True) as retriever:
        return retriever.search(QUERIES, k=10)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Indexes of runs that nobody killed: after the build, and after each change on top of it."""
    folder = tmp_path_factory.mktemp("whole")
    workload.run("build", folder / "build")
    for mode in ("update", "metadata"):
        shutil.copytree(folder / "build", folder / mode)
        workload.run(mode, folder / mode)
    return {mode: folder / mode for mode in ("build", "update", "metadata")}


@pytest.fixture(scope="module")
def expected(whole: dict[str, Path]) -> dict[str, list[list[Hit]]]:
    return {mode: answers(root) for mode, root in whole.items()}


def prepare(mode: str, root: Path, whole: dict[str, Path]) -> None:
    if mode != "build":
        shutil.copytree(whole["build"], root)


def check_readers(mode: str, root: Path, expected: dict[str, list[list[Hit]]]) -> None:
    """What readers see after a kill is the old index or the new one, never anything between."""
    try:
        seen = answers(root)
    except IndexFormatError as error:
        assert mode == "build", error
        assert "no index here" in str(error)
    else:
        assert seen in (expected["build"], expected[mode])


@pytest.mark.parametrize("every", [30, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["build", "update", "metadata"])
def test_killed_at_any_operation_on_the_disk(
    mode: str, every: int, tmp_path: Path, whole: dict[str, Path], expected: dict[str, list[list[Hit]]]
) -> None:
    """In this process an exception stands for the kill, which leaves the same disk behind and is faster."""
    total = count_operations(mode, tmp_path / "count", whole)
    assert total > {"build": 60, "update": 60, "metadata": 15}[mode]
    rows = []
    for die_at in range(1, total + 1, min(every, total // 3)):
        root = tmp_path / f"{die_at}"
        prepare(mode, root, whole)
        name = fail_at(mode, root, die_at)
        check_readers(mode, root, expected)
        workload.run(mode, root)
        assert answers(root) == expected[mode], f"after failing at operation {die_at} ({name})"
        assert verify_index(root).problems == []
        assert not IndexDirectory(root).building.exists()
        rows.append(name)
        shutil.rmtree(root)
    print(
        f"\n{mode}: died once at each of {len(rows)} of {total} operations:",
        {n: rows.count(n) for n in sorted(set(rows))},
    )


@pytest.mark.parametrize("wanted", [2, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["build", "update"])
def test_killed_at_random_moments(
    mode: str, wanted: int, tmp_path: Path, whole: dict[str, Path], expected: dict[str, list[list[Hit]]]
) -> None:
    rng = random.Random(mode)
    started = time.monotonic()
    prepare(mode, tmp_path / "timed", whole)
    subprocess.run(command(mode, tmp_path / "timed"), env=environment(), check=True, cwd=ROOT)
    seconds = time.monotonic() - started
    root, kills, attempts = tmp_path / "ix", 0, 0
    prepare(mode, root, whole)
    outcomes = {"killed": 0, "ended first": 0}
    while kills < wanted and attempts < 5 * wanted:
        attempts += 1
        process = subprocess.Popen(command(mode, root), env=environment(), cwd=ROOT)
        time.sleep(rng.uniform(0.3, 1.0) * seconds)
        process.send_signal(signal.SIGKILL)
        killed = process.wait() == -signal.SIGKILL
        outcomes["killed" if killed else "ended first"] += 1
        kills += killed
        check_readers(mode, root, expected)
        if not killed:  # finished before the signal: begin again
            assert answers(root) == expected[mode]
            shutil.rmtree(root)
            prepare(mode, root, whole)
    assert kills == wanted
    subprocess.run(command(mode, root), env=environment(), check=True, cwd=ROOT)
    assert answers(root) == expected[mode]
    assert verify_index(root).problems == []
    print(
        f"\n{mode}: {outcomes}, then finished: {len(QUERIES)} queries, the same top 10 as the run that was not killed"
    )


@pytest.mark.parametrize("die_at", [1, 13, 44, 71])
def test_a_real_kill_leaves_what_a_failed_operation_leaves(
    die_at: int, tmp_path: Path, expected: dict[str, list[list[Hit]]]
) -> None:
    dying = subprocess.run(command("build", tmp_path / "ix", "--die-at", str(die_at)), env=environment(), cwd=ROOT)
    assert dying.returncode == -signal.SIGKILL
    check_readers("build", tmp_path / "ix", expected)
    workload.run("build", tmp_path / "ix")
    assert answers(tmp_path / "ix") == expected["build"]


class Dead(BaseException):
    """Stands for the death of the process: nothing may catch it and go on."""


def count_operations(mode: str, root: Path, whole: dict[str, Path]) -> int:
    prepare(mode, root, whole)
    names: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        protect(patch)
        workload.small_steps()
        workload.intercept(names.append)
        workload.run(mode, root)
    return len(names)


def fail_at(mode: str, root: Path, die_at: int) -> str:
    """Run until the given operation, and die there; returns what the operation was."""
    count, died = 0, ""

    def hook(name: str) -> None:
        nonlocal count, died
        count += 1
        if count >= die_at:
            died = died or name
            raise Dead

    with pytest.MonkeyPatch.context() as patch:
        protect(patch)
        workload.small_steps()
        workload.intercept(hook)
        with pytest.raises(Dead):
            workload.run(mode, root)
    return died


def protect(patch: pytest.MonkeyPatch) -> None:
    """Have the patch put back what `workload.intercept` is going to replace."""
    for name in workload.OPERATIONS:
        patch.setattr(workload.files, name, getattr(workload.files, name))
    patch.setattr(workload.Store, "transaction", workload.Store.transaction)
    patch.setattr(workload.ingest, "BATCH_DOCUMENTS", 25)
