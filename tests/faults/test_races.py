"""Two writers at once: one of them wins, the other is refused, and nothing of the winner's is lost."""

from __future__ import annotations

import contextlib
import multiprocessing
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexLockedError
from aveyb_retrieval.indexes.store.lock import writer_lock
from aveyb_retrieval.indexes.changes import transaction
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_a_build_that_comes_second_leaves_the_first_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other build runs from start to end just after this one saw that there is no folder yet."""
    root, lock = tmp_path / "ix", transaction.writer_lock

    @contextlib.contextmanager
    def late(path: Path) -> Iterator[None]:
        monkeypatch.setattr(transaction, "writer_lock", lock)
        build_index(make_documents(20), root, model=FakeEmbedder())
        with lock(path):
            yield

    monkeypatch.setattr(transaction, "writer_lock", late)
    with pytest.raises(ConfigError, match="already there"):
        build_index(make_documents(30, seed=1), root, model=FakeEmbedder())
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        assert len(retriever) == 20


def test_a_lock_whose_file_was_removed_meanwhile_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that fails removes its folder; who has opened its lock file by then must lock the new one."""
    from aveyb_retrieval.indexes.store import lock

    path, flock, removed = tmp_path / "ix" / "lock", lock.fcntl.flock, []

    def remove_first(handle: Any, operation: int) -> None:
        if not removed:
            removed.append(path)
            path.unlink()
        flock(handle, operation)

    monkeypatch.setattr(lock.fcntl, "flock", remove_first)
    with writer_lock(path), pytest.raises(IndexLockedError), writer_lock(path):
        pass


def race(root: Path, count: int, barrier: Any, results: Any) -> None:
    barrier.wait()
    try:
        results.put(("built", build_index(make_documents(count), root, model=FakeEmbedder()).documents))
    except AveyBError as error:
        results.put((type(error).__name__, count))


@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_of_two_builds_that_race_one_is_refused(rounds: int, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("forkserver")
    spawn.set_forkserver_preload(["tests.faults.test_races"])
    for number in range(rounds):
        root, barrier, results = tmp_path / f"{number}", spawn.Barrier(2), spawn.Queue()
        processes = [spawn.Process(target=race, args=(root, count, barrier, results)) for count in (20, 30)]
        for process in processes:
            process.start()
        outcomes = dict(results.get(timeout=60) for _ in processes)
        for process in processes:
            process.join()
        assert "built" in outcomes
        assert set(outcomes) - {"built"} <= {"ConfigError", "IndexLockedError"}
        assert len(outcomes) == 2, "both were told that they had built the index"
        with Retriever.load(root, model=FakeEmbedder(), verify=True) as retriever:
            assert len(retriever) == outcomes["built"]
