"""A power cut, imitated: what a disk may hold at any moment of a command is made from a record of
its system calls.

    python -m rigs.faults.power [--every N] [--seed N] [--seconds N]

strace records what a command writes, renames and flushes. From that every file has two contents,
the one in memory and the one that a flush has brought to the disk, and every folder two lists of
names. After a cut the disk may hold, for each file that was not flushed since its last write, the
old bytes, none, some or all of them; for each folder, the old names or the new ones. Whatever it
is, the index must open as it was before the command or, once that has returned, as it is after it;
and the same command must go on from there.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import AveyBError
from rigs.faults import strace, workload
from rigs.faults.check import check, held, wanted
from rigs.faults.disk import TRACED, Call, Disk, State, calls, of_fd
from rigs.faults.processes import child, quiet

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

KINDS = ("build", "add", "upsert", "delete", "metadata", "batch", "sync", "compact", "shards")
LOSSES = ("names", "bytes", "half", "mixed")


def record(connection: Connection, root: Path, command: workload.Command) -> None:
    """Give a command when told to."""
    quiet()
    workload.small_steps()
    connection.recv()
    command.run(root)
    connection.send("returned")
    connection.recv()


def prepared(
    kind: str, seed: int, folder: Path
) -> tuple[Path, workload.Command, workload.Documents]:
    """An index that a command of this kind can change, with a few versions behind it."""
    root, documents = folder / "ix", workload.Documents()
    with child(record_all, root, seed, kind) as run:
        documents = run.answer()
    number = 0 if kind == "build" else 5
    return root, workload.draw(seed, number, documents, (kind,)), documents


def record_all(connection: Connection, root: Path, seed: int, kind: str) -> None:
    """Make what the command `kind` starts from."""
    quiet()
    workload.small_steps()
    documents = workload.Documents()
    for number in range(0 if kind == "build" else 5):
        command = workload.draw(
            seed, number, documents, ("upsert", "delete", "sync") if number else ("build",)
        )
        command.prepare(root)
        command.run(root)
        documents = command.after(documents)
    connection.send(documents)
    connection.recv()


def cuts(
    kind: str, seed: int, folder: Path, *, every: int = 1, deadline: float = float("inf")
) -> tuple[int, list[str]]:
    """Cut the power during a command of one kind and after it: how many disks were checked, and
    violations.
    """
    place, before = folder / "place", folder / "before"
    place.mkdir(parents=True)
    root, command, documents = prepared(kind, seed, place)
    command.prepare(root)
    shutil.copytree(place, before)
    disk, log = Disk(place), folder / "strace.log"
    options = ("-y", "-xx", "-s", "100000000", "-e", f"trace={TRACED}", "-o", str(log))
    with child(record, root, command) as run, strace.attached(run.pid, *options):
        run.connection.send("go")
        assert run.answer() == "returned"
    recorded = list(calls(log))
    changing = [at for at, call in enumerate(recorded) if disk.apply(call)]
    assert disk.same_as(place), f"{kind}: the record was not understood ({dict(disk.unknown)})"
    assert not disk.unknown, disk.unknown
    rng, violations = random.Random(f"{kind} {seed}"), list[str]()
    end = len(recorded) - 1
    moments = [end, *(at for at in changing if at != end and not rng.randrange(every))]
    disks = _disks(Disk(before, place), recorded, moments, rng)
    checked = 0
    for (at, loss), state in disks:
        if time.monotonic() > deadline:
            break
        checked += 1
        _write(place, state)
        with child(check_disk, root, command, documents, at == end) as checker:
            wrong = checker.answer()
        if wrong:
            call = recorded[at]
            where = f"{kind}, seed {seed}, after call {at} of {len(recorded)}, loss of {loss}"
            violations.append(f"{where} ({call.name} {of_fd(call.arguments[0])[1]}): {wrong}")
            print(violations[-1], flush=True)
    return checked, violations


def _disks(
    disk: Disk, recorded: list[Call], moments: list[int], rng: random.Random
) -> list[tuple[tuple[int, str], State]]:
    """The different disks after cuts at some moments, the last moment's first, the others in any
    order.
    """
    found: dict[int, tuple[tuple[int, str], State]] = {}
    for at, call in enumerate(recorded):
        disk.apply(call)
        for loss in LOSSES * (3 if at == moments[0] else 1) if at in moments else ():
            state = disk.after_a_cut(loss, rng)
            # the last moment of a state is the strictest
            found[hash(tuple(sorted(state.items())))] = ((at, loss), state)
    disks = list(found.values())
    rng.shuffle(disks)
    return sorted(disks, key=lambda each: each[0][0] != moments[0])


def _write(place: Path, state: State) -> None:
    shutil.rmtree(place)
    place.mkdir()
    for name, data in state.items():  # folders come before what is in them
        if data is None:
            (place / name).mkdir()
        else:
            (place / name).write_bytes(data)


def check_disk(
    connection: Connection,
    root: Path,
    command: workload.Command,
    documents: workload.Documents,
    returned: bool,
) -> None:
    """Say what is wrong with an index after a cut, and after the command was given again; "" where
    nothing is.
    """
    quiet()
    workload.small_steps()
    before = wanted(documents) if command.number else None
    documents = command.after(documents)
    after = wanted(documents)
    try:
        seen = held(root)
        if seen != after and (returned or seen != before):
            connection.send(f"neither as before nor as after ({seen and len(seen)} documents)")
            return
        if command.kind == "sync":  # the folder is not what is looked at here
            command.prepare(root)
        command.run(root, done=seen == after)
        check(root, documents)
    except (AveyBError, AssertionError) as error:
        connection.send(f"{type(error).__name__}: {error}")
    else:
        connection.send("")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rigs.faults.power")
    parser.add_argument("--every", type=int, default=1, help="cut after about one call of so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only these commands")
    arguments = parser.parse_args()
    if reason := strace.why_not():
        raise SystemExit(reason)
    started, wrong = time.monotonic(), 0
    for kind in arguments.kind or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            number, violations = cuts(
                kind,
                arguments.seed,
                Path(folder),
                every=arguments.every,
                deadline=started + arguments.seconds,
            )
        wrong += len(violations)
        print(
            f"{kind}: {number} disks after a cut, {len(violations)} violations"
            f" ({time.monotonic() - started:.0f} s)"
        )
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
