"""Readers while a writer works: no error, no torn answers, and after reopening nothing stale."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.indexes.changes.update import add_documents
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

START = 500


def search_until(root: Path, done: Any, results: Any) -> None:
    """Search and reopen until the writer is done; hand back (searches, milliseconds, what went wrong)."""
    embedder, last = FakeEmbedder(), 0
    problems: list[str] = []
    times: list[float] = []
    retriever = Retriever.load(root, model=embedder)
    while not done.is_set() or len(times) < 20:
        started = time.perf_counter()
        hits = retriever.search("word1 word2 word3", k=10, granularity="document")
        times.append((time.perf_counter() - started) * 1e3)
        if len(hits) != 10 or [h.score for h in hits] != sorted((h.score for h in hits), reverse=True):
            problems.append(f"{len(hits)} hits in {retriever.version}")
        if len(times) % 5 == 0:
            retriever.reopen()
            if len(retriever) < last:
                problems.append(f"{len(retriever)} documents after {last}")
            last = len(retriever)
    retriever.reopen()
    retriever.close()
    results.put((last if problems else len(retriever), float(np.percentile(times, 99)), problems))


@pytest.mark.parametrize(("batch", "rounds"), [(40, 2), pytest.param(1000, 10, marks=pytest.mark.slow)])
def test_eight_threads_and_four_processes_search_while_documents_are_added(
    tmp_path: Path, batch: int, rounds: int
) -> None:
    root, embedder = tmp_path / "ix", FakeEmbedder()
    build_index(make_documents(START), root, model=embedder)
    spawn = multiprocessing.get_context("spawn")
    done_here, done_there, results = threading.Event(), spawn.Event(), spawn.Queue()
    processes = [spawn.Process(target=search_until, args=(root, done_there, results)) for _ in range(4)]
    threads = [threading.Thread(target=search_until, args=(root, done_here, results)) for _ in range(8)]
    workers: list[Any] = [*processes, *threads]
    for worker in workers:
        worker.start()
    started = time.monotonic()
    for number in range(rounds):
        rows = make_documents(batch, seed=number, first=START + number * batch)
        add_documents(rows, root, model=embedder)
    seconds = time.monotonic() - started
    done_here.set()
    done_there.set()
    told = [results.get(timeout=120) for _ in range(12)]
    for worker in workers:
        worker.join()
    assert [problem for _, _, problems in told for problem in problems] == []
    assert {count for count, _, _ in told} == {START + rounds * batch}, "nobody saw an old version after reopening"
    assert [p.name for p in root.glob("v*")] == [f"v{rounds + 1:06d}"] or len(list(root.glob("v*"))) <= 2
    worst = max(p99 for _, p99, _ in told)
    print(
        f"\n{rounds * batch} documents added in {seconds:.1f} s under 12 readers; worst p99 of a search {worst:.1f} ms"
    )


def test_one_retriever_is_shared_by_threads_and_reopened_under_them(tmp_path: Path) -> None:
    root, embedder = tmp_path / "ix", FakeEmbedder()
    build_index(make_documents(200), root, model=embedder)
    retriever = Retriever.load(root, model=embedder)
    problems: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                for mode in ("dense", "hybrid"):
                    assert len(retriever.search("word5 word6", k=5, mode=mode, filter={"year": {"$gte": 2003}})) == 5
        except BaseException as error:  # whatever a thread dies of fails the test
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(6):
        add_documents(make_documents(20, seed=number, first=200 + 20 * number), root, model=embedder)
        retriever.reopen()
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(retriever) == 320
    retriever.close()
