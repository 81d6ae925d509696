"""Kills by the hundred: SIGKILL at random moments of every command, and at once the next process
goes on.

    python -m rigs.faults.campaign --kills 500 [--seed N] [--seconds N]

Each process gives commands one after the other and says what has returned; all of them work on one
index. The one that follows a kill finds the index as it was before the interrupted command or after
it, gives the command again, and finds everything that was acknowledged: texts, words, vectors.
Readers that were open throughout answer as before.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import Retriever
from aveyb_retrieval.indexes.store.manifest import IndexDirectory
from rigs.faults import workload
from rigs.faults.check import check, differences, held, wanted
from rigs.faults.processes import Child, quiet
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

DEEP_EVERY = 10  # kills: comparing all contents takes long
ROUNDS = 100  # kills of one index; then another one is begun
LAST = 4  # commands that a process gives, at most, before one is interrupted
READERS = 3


def write(
    connection: Connection,
    root: Path,
    seed: int,
    first: int,
    documents: workload.Documents,
    interrupted: bool,
    deep: bool,
) -> None:
    """Give commands from number `first` on, which may have been interrupted, until killed."""
    quiet()
    workload.small_steps()
    command = workload.draw(seed, first, documents)
    seen = held(root)
    before, after = wanted(documents) if first else None, wanted(command.after(documents))
    assert seen in (
        before,
        after,
    ), f"{command}: neither as before nor as after; {_both(seen, before, after)}"
    number = first
    while True:
        command = workload.draw(seed, number, documents)
        if number > first or not interrupted:  # what an interrupted command had made stays
            command.prepare(root)
        connection.send(("begins", number))
        command.run(root, done=number == first and seen == after)
        connection.send(("returned", number))
        documents = command.after(documents)
        if number == first:
            check(root, documents, deep=deep)
            assert not IndexDirectory(root).journal.exists()
            connection.send(("checked", number))
        number += 1


def _both(seen: Any, before: Any, after: Any) -> str:
    if seen is None:
        return "there is no index"
    return f"before: {differences(seen, before or {})}; after: {differences(seen, after)}"


def read(connection: Connection, root: Path) -> None:
    """Hold a version of an index, and search it whenever asked: say how the answers differ from the
    first ones.
    """
    quiet()
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        first = _answers(retriever)
        connection.send(len(retriever))
        while True:
            connection.recv()
            connection.send(_different(_answers(retriever), first))


Answers = list[dict[str, tuple[float, str]]]


def _answers(retriever: Retriever) -> Answers:
    """Score and text of every document found, for a few queries of every mode; and all
    documents.
    """
    found = [{each.id: (0.0, each.text) for each in retriever.documents()}]
    for mode in ("dense", "lexical", "hybrid"):
        for query in ("word1 word2", "word9", "word30"):
            hits = retriever.search(query, k=1000, mode=mode, granularity="document")  # type: ignore[arg-type]
            found.append({hit.id: (hit.score, hit.text) for hit in hits})
    return found


def _different(now: Answers, first: Answers) -> str:
    """What differs; the last digits of scores depend on where a vector lies in memory."""
    for mine, theirs in zip(now, first, strict=True):
        if set(mine) != set(theirs):
            return differences(mine, theirs)
        for name, (score, text) in theirs.items():
            if abs(mine[name][0] - score) > 1e-5 or mine[name][1] != text:
                return f"{name}: {mine[name]} and not {theirs[name]}"
    return ""


def kills(
    count: int, seed: int, folder: Path, deadline: float = float("inf")
) -> tuple[Counter[str], list[str]]:
    """Kill writers until `count` commands were interrupted; how many of each kind, and what was
    wrong after it.
    """
    outcomes, violations, part = Counter[str](), list[str](), 0
    while sum(outcomes.values()) < count and time.monotonic() < deadline:
        root = folder / f"{part}" / "ix"
        root.parent.mkdir()
        try:
            _one_index(
                min(ROUNDS, count - sum(outcomes.values())),
                seed * 1000 + part,
                root,
                outcomes,
                deadline,
            )
        except AssertionError as error:  # the next index begins afresh
            violations.append(f"seed {seed * 1000 + part}: {error}")
            print(violations[-1], flush=True)
        part += 1
    return outcomes, violations


def _one_index(count: int, seed: int, root: Path, outcomes: Counter[str], deadline: float) -> None:
    rng = random.Random(f"kills {seed}")
    run, killed = Run(root, seed), 0
    readers: list[Child] = []
    while killed < count and time.monotonic() < deadline:
        if run.until_killed(rng, deep=killed % DEEP_EVERY == DEEP_EVERY - 1):
            killed += 1
            outcomes[workload.draw(seed, run.number, run.documents).kind] += 1
        for reader in readers:
            different = reader.ask("again")
            assert not different, f"a reader's answers changed by command {run.number}: {different}"
        if len(readers) == READERS or (readers and rng.random() < 0.2):
            readers.pop(rng.randrange(len(readers))).end()
        if run.documents and rng.random() < 0.3:
            readers.append(Child(read, root))
            readers[-1].answer()
    for reader in readers:
        assert reader.ask("again") == ""
        reader.end()


class Run:
    """The commands of one index: how many have returned, and what it holds after them."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.seed = root, seed
        self.number = 0
        self.documents: workload.Documents = {}
        self.begun = False  # command `number`, by this process or by one that was killed
        self._began: float | None = None
        self._usual = 0.5  # seconds of a command

    def until_killed(self, rng: random.Random, *, deep: bool) -> bool:
        """Have a process give commands and kill it at a random moment; whether that interrupted
        one.
        """
        target = self.number + rng.choice((0, 0, 1, 2, LAST))
        writer = Child(write, self.root, self.seed, self.number, self.documents, self.begun, deep)
        try:
            while self._began is None or self.number < target:
                self._hear(writer.answer())
            moment = time.monotonic() + rng.uniform(0, 1.2 * self._usual)
            while writer.connection.poll(max(0.0, moment - time.monotonic())):
                self._hear(writer.answer())
        except EOFError:
            raise AssertionError(
                f"seed {self.seed}: command {self.number} ended its process"
            ) from None
        for said in writer.kill():
            self._hear(said)
        interrupted, self._began = self._began is not None, None
        return interrupted

    def _hear(self, said: tuple[str, int]) -> None:
        what, number = said
        if what == "begins":
            self._began, self.begun = time.monotonic(), True
        elif what == "returned" and self._began is not None:
            self.documents = workload.draw(self.seed, number, self.documents).after(self.documents)
            self.number = number + 1
            self._usual += 0.2 * (time.monotonic() - self._began - self._usual)
            self._began, self.begun = None, False


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rigs.faults.campaign")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outcomes, violations = kills(
            arguments.kills, arguments.seed, Path(folder), started + arguments.seconds
        )
    number, seconds = sum(outcomes.values()), time.monotonic() - started
    print(f"{number} kills in {seconds:.0f} s: {dict(outcomes)}; {len(violations)} violations")
    raise SystemExit(bool(violations))


if __name__ == "__main__":
    main()
