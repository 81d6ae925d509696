"""The fuzzing rig.

    python -m rigs.fuzz --minutes N --seed S [--kind KIND ...] [--out DIR]
    python -m rigs.fuzz --replay FILE

Tries run in fresh processes that are watched: a try that crashes, hangs or raises anything but an
error of ours is written to DIR as a small JSON file that `--replay` runs again. The exit code is 1
if there is one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import AveyBError
from rigs.faults.processes import child
from rigs.fuzz.kinds import KINDS, attack

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

HANG_SECONDS = 60.0
MEMORY = 4 << 30
TRIES = 50  # of one process
ALIKE = 3  # findings that end in the same words and are kept


@dataclass(frozen=True)
class Finding:
    """A try that ended as none may: `seed` and `number` make it again."""

    kind: str
    seed: int
    number: int
    what: str

    @property
    def last_line(self) -> str:
        """What it ended with: findings that end alike are mostly one."""
        return re.sub(r"'[^']*'|\d+", "#", self.what.strip().splitlines()[-1])


def attempt(kind: str, seed: int, number: int, folder: Path) -> str | None:
    """Run one try in this process; what is wrong, or None."""
    try:
        attack(kind)(random.Random(f"{kind} {seed} {number}"), folder)
    except AveyBError:
        return None
    except BaseException as error:
        # whatever a try raises is what is looked for; Lance's panics are no Exceptions
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return traceback.format_exc(limit=-6)
    return None


def work(connection: Connection, kind: str, seed: int, first: int, folder: Path) -> None:
    """Run tries and tell of each: its number before it, what was wrong after it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(null, stream)
    for number in itertools.count(first):
        connection.send(("begins", number, None))
        connection.send(("ended", number, attempt(kind, seed, number, folder)))


def watch(kind: str, seed: int, first: int, deadline: float) -> tuple[int, list[Finding]]:
    """Have a process run one try or more from `first` on until the deadline or its death; the next
    number, findings.
    """
    found: list[Finding] = []
    number, running = first, False
    with (
        tempfile.TemporaryDirectory() as folder,
        child(work, kind, seed, first, Path(folder)) as process,
    ):
        # a new process now and then: nothing of a try may hide what the next one does
        while (
            number == first or running or (time.monotonic() < deadline and number < first + TRIES)
        ):
            if not process.connection.poll(HANG_SECONDS):
                found.append(Finding(kind, seed, number, f"hangs for {HANG_SECONDS:.0f} s"))
                return number + 1, found
            try:
                said, at, what = process.answer()
            except EOFError:
                process.process.join()
                code = process.process.exitcode
                how = signal.Signals(-code).name if code < 0 else "its process ended"
                found.append(Finding(kind, seed, number, f"dies: {how}"))
                return number + 1, found
            running = said == "begins"
            number = at if running else at + 1
            if what:
                found.append(Finding(kind, seed, at, what))
    return number, found


def fuzz(
    minutes: float, seed: int, kinds: list[str], out: Path | None
) -> tuple[Counter[str], list[Finding]]:
    """Share the time evenly among the kinds; tries for each kind, and all findings."""
    tries: Counter[str] = Counter()
    findings: list[Finding] = []
    for position, kind in enumerate(kinds):
        deadline = time.monotonic() + 60 * minutes / len(kinds)
        while time.monotonic() < deadline:
            tries[kind], found = watch(kind, seed, tries[kind], deadline)
            for finding in found:
                findings.append(finding)
                alike = sum(
                    other.last_line == finding.last_line for other in findings if other.kind == kind
                )
                if out is not None and alike <= ALIKE:
                    out.mkdir(parents=True, exist_ok=True)
                    path = out / f"{kind}-{seed}-{finding.number}.json"
                    path.write_text(json.dumps(asdict(finding), indent=1))
        mine = [finding.last_line for finding in findings if finding.kind == kind]
        summary = f"{tries[kind]:,} tries, {len(mine)} findings, {len(set(mine))} of them different"
        print(f"{position + 1}/{len(kinds)} {kind}: {summary}", flush=True)
    return tries, findings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rigs.fuzz")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kind", action="append", help="only this kind; may be given several times"
    )
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--replay", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.replay:
        finding = Finding(**json.loads(arguments.replay.read_text()))
        with tempfile.TemporaryDirectory() as folder:
            what = attempt(finding.kind, finding.seed, finding.number, Path(folder))
        print(what or "nothing is wrong now")
        sys.exit(1 if what else 0)
    tries, findings = fuzz(
        arguments.minutes, arguments.seed, arguments.kind or list(KINDS), arguments.out
    )
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # tracebacks hold anything
    different = {(finding.kind, finding.last_line): finding for finding in reversed(findings)}
    for finding in different.values():
        print(f"\n{finding.kind} {finding.number}: {finding.what}")
    print(
        f"\n{sum(tries.values()):,} tries, {len(findings)} findings, {len(different)} of them"
        " different"
    )
    sys.exit(1 if findings else 0)
