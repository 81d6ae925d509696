"""Kills and faults by the hundred: all commands, all types of index, both formats.

    python -m tests.faults.campaign [--kills N] [--faults N] [--races N] [--seed S]

A kill is a SIGKILL of a real process, at an operation on the disk or at any moment. A fault is ENOSPC or EIO from an
operation. After each, readers see the old index or the new one, and the same command ends with the new one, sound.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import Retriever
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexLockedError
from aveyb_retrieval.indexes.changes import ingest
from aveyb_retrieval.indexes.changes.update import add_documents
from aveyb_retrieval.indexes.changes.verify import verify_index
from tests.faults import workload
from tests.faults.commands import CASES, COMMANDS, DOCUMENTS, Case, answers, check_whole, expected, forked_checks, same
from tests.faults.forks import Fork, forked
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 10  # documents of a commit: several of them in every command that encodes
WHOLE = 100  # from so many faults on, every operation of every command fails once
CODES = (errno.ENOSPC, errno.EIO)


def intercepted(case: Case, root: Path, hook: Callable[[int, str], None]) -> Iterator[Any]:
    """Run a command with a hook before each operation on the disk (in a fork, whose modules may be changed)."""
    ingest.BATCH_DOCUMENTS = BATCH
    count = 0

    def counting(name: str) -> None:
        nonlocal count
        count += 1
        hook(count, name)

    workload.intercept(counting)
    case.run(root)
    yield count


@cache
def operations(case: Case, folder: Path) -> tuple[int, float]:
    """How many operations on the disk a command needs, and how many seconds."""
    root = folder / "counted"
    case.prepare(root, folder)
    started = time.monotonic()
    (count,), _, _ = forked(lambda: intercepted(case, root, lambda number, name: None))
    seconds = time.monotonic() - started
    shutil.rmtree(root)
    return count, seconds


def after_a_stop(case: Case, root: Path, folder: Path) -> None:
    """Check what readers see, give the command again, and check what it leaves."""
    before, after = expected(case, folder)
    seen = answers(root)
    assert same(seen, before) or same(seen, after), f"{case}: readers see neither the old index nor the new one"
    with forked_checks():
        case.run(root)
    check_whole(case, root, after)


def kill(case: Case, rng: random.Random, folder: Path) -> str:
    """Kill a command once, and check; what it was killed at."""
    root = folder / "ix"
    case.prepare(root, folder)
    count, seconds = operations(case, folder)
    if rng.random() < 0.7:
        target, random_moment = rng.randint(1, count), False

        def die(number: int, name: str) -> None:
            if number == target:
                os.kill(os.getpid(), signal.SIGKILL)

        _, _, died = forked(lambda: intercepted(case, root, die))
        assert died == signal.SIGKILL
    else:
        random_moment = True
        process = Fork(lambda: intercepted(case, root, lambda number, name: None))
        time.sleep(rng.uniform(0, seconds))
        os.kill(process.pid, signal.SIGKILL)
        _, _, died = process.end()
    after_a_stop(case, root, folder)
    shutil.rmtree(root)
    return ("at a moment" if random_moment else "at an operation") if died else "ended first"


def fault(case: Case, target: int, code: int, folder: Path) -> str:
    """Have one operation of a command fail, and check; what the command said."""
    root = folder / "ix"
    case.prepare(root, folder)

    def fail(number: int, name: str) -> None:
        if number == target:
            raise OSError(code, os.strerror(code))

    ended, refused, died = forked(lambda: intercepted(case, root, fail))
    assert not died, f"{case} died of a fault at operation {target}"
    assert ended or "same command again" in refused or "not repaired" in refused, f"{case}, {target}: {refused!r}"
    after_a_stop(case, root, folder)
    shutil.rmtree(root)
    return "refused" if refused else "went on without it"  # a hard link that fails becomes a copy


def kills(count: int, seed: int, folder: Path) -> Counter[str]:
    """Kill commands in turn, so that every case has its share."""
    rng = random.Random(f"kills {seed}")
    outcomes: Counter[str] = Counter()
    turn = 0
    while outcomes["at an operation"] + outcomes["at a moment"] < count:
        outcomes[kill(CASES[turn % len(CASES)], rng, folder)] += 1
        turn += 1
    return outcomes


def faults(count: int, seed: int, folder: Path) -> Counter[str]:
    """Have every operation of every command fail on a flat index, then operations of all cases at random."""
    rng = random.Random(f"faults {seed}")
    flat = [case for case in CASES if case.index in ("Flat", "flat")]
    every = [(case, number + 1) for case in flat for number in range(operations(case, folder)[0])]
    rng.shuffle(every)
    while len(every) < count:
        case = rng.choice(CASES)
        every.append((case, rng.randint(1, operations(case, folder)[0])))
    outcomes: Counter[str] = Counter()
    for number, (case, target) in enumerate(every if count >= WHOLE else every[:count]):
        outcomes[fault(case, target, CODES[number % 2], folder)] += 1
    return outcomes


# --- several processes ------------------------------------------------------------------------------------------------


def _add(root: Path, part: int) -> Iterator[int]:
    """Add a part of the documents, however often another writer is in the way."""
    ingest.BATCH_DOCUMENTS = BATCH
    rows = make_documents(25, seed=part, first=DOCUMENTS + 25 * part)
    while True:
        try:
            yield add_documents(rows, root, model=FakeEmbedder()).documents
            return
        except IndexLockedError:
            time.sleep(0.002)
        except ConfigError:  # the other writer was killed within a change that only it can continue
            return


def race(rng: random.Random, folder: Path) -> str:
    """Kill one of two racing writers; both give their command again: nothing is lost, and nothing is there twice."""
    root = folder / "raced"
    COMMANDS["build"](root, rng.choice(("Flat", "HNSW8", "IVF4,Flat")))
    writers = [Fork(lambda part=part: _add(root, part)) for part in (0, 1)]
    time.sleep(rng.uniform(0, 0.15))
    victim = rng.choice(writers)
    os.kill(victim.pid, signal.SIGKILL)
    died = [writer.end()[2] for writer in writers]
    for part in (0, 1, 0, 1):  # the one whose change was interrupted continues it first
        rows = make_documents(25, seed=part, first=DOCUMENTS + 25 * part)
        try:
            add_documents(rows, root, model=FakeEmbedder())
        except AveyBError as error:
            known = ("already", "other arguments", "not those that the interrupted change had read")
            assert any(words in str(error) for words in known), error
    with Retriever.load(root, model=FakeEmbedder(), verify=True) as retriever:
        assert len(retriever) == DOCUMENTS + 50
        names = [hit.id for hit in retriever.search("word1", k=200, mode="dense", granularity="document")]
        assert sorted(names) == sorted(f"doc-{i}" for i in range(DOCUMENTS + 50))
    with forked_checks():
        assert verify_index(root, deep=True).problems == []
    shutil.rmtree(root)
    return "one of two writers killed" if any(died) else "both ended first"


def _read(root: Path, seconds: float) -> Iterator[int]:
    """Search and reopen; every answer is whole and in order, and no version is older than the one before."""
    deadline, last, searches = time.monotonic() + seconds, 0, 0
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        while time.monotonic() < deadline:
            hits = retriever.search("word1 word2", k=10, granularity="document")
            assert len(hits) == 10
            assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
            searches += 1
            retriever.reopen()
            assert len(retriever) >= last
            last = len(retriever)
    yield searches


def beside_readers(rng: random.Random, folder: Path, rounds: int) -> tuple[int, int]:
    """Kill a writer again and again while other processes read; kills and searches."""
    root = folder / "read"
    COMMANDS["build"](root, "Flat")
    readers = [Fork(lambda: _read(root, 0.25 * rounds)) for _ in range(3)]
    killed = 0
    for part in range(rounds):
        while True:
            writer = Fork(lambda part=part: _add(root, part))
            time.sleep(rng.uniform(0.01, 0.15))
            os.kill(writer.pid, signal.SIGKILL)
            if not writer.end()[2]:
                break
            killed += 1
            if rng.random() < 0.3:
                forked(lambda part=part: _add(root, part))
                break
    searches = sum(reader.end()[0][0] for reader in readers)
    with forked_checks():
        assert verify_index(root, deep=True).problems == []
    shutil.rmtree(root)
    return killed, searches


def run(kill_count: int, fault_count: int, race_count: int, seed: int) -> list[str]:
    """Run everything; the lines of the summary."""
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.monotonic()

        def say(text: str) -> None:
            lines.append(f"{text} ({time.monotonic() - started:.0f} s)")
            print(lines[-1], flush=True)

        outcomes = kills(kill_count, seed, folder)
        number = outcomes["at an operation"] + outcomes["at a moment"]
        say(f"{number} kills over {len(CASES)} cases: {dict(outcomes)}; nothing lost, every command continued")
        outcomes = faults(fault_count, seed, folder)
        say(f"{sum(outcomes.values())} faults (ENOSPC, EIO): {dict(outcomes)}; the old index stayed, all continued")
        rng = random.Random(f"races {seed}")
        raced = Counter(race(rng, folder) for _ in range(race_count))
        say(f"{race_count} races of two writers: {dict(raced)}; no document lost or doubled")
        killed, searches = beside_readers(rng, folder, max(1, race_count // 3))
        say(f"{killed} kills of a writer beside 3 readers, {searches:,} searches: each of one whole version")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--races", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # each killed writer leaves a stale lock, which is reported
    run(arguments.kills, arguments.faults, arguments.races, arguments.seed)


if __name__ == "__main__":
    main()
