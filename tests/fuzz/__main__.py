"""The fuzzing rig.

    python -m tests.fuzz --minutes N --seed S [--kind KIND ...] [--out DIR]
    python -m tests.fuzz --replay FILE

Tries run in processes that are watched: a try that crashes, hangs or raises anything but an error of ours is written to
DIR as a small JSON file that `--replay` runs again. The exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from aveyb_retrieval.errors import AveyBError
from tests.fuzz.kinds import KINDS

HANG_SECONDS = 60.0
MEMORY = 4 << 30
TRIES = 5000  # of one process
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
        KINDS[kind](random.Random(f"{kind} {seed} {number}"), folder)
    except AveyBError:
        return None
    except Exception:  # whatever a try raises is what is looked for
        return traceback.format_exc(limit=-6)
    return None


def work(kind: str, seed: int, first: int, folder: Path, pipe: int) -> None:
    """Run tries and write one line for each: its number before it, what was wrong after it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    for number in itertools.count(first):
        os.write(pipe, json.dumps({"begins": number}).encode() + b"\n")
        os.write(pipe, json.dumps({"ended": number, "what": attempt(kind, seed, number, folder)}).encode() + b"\n")


def start(kind: str, seed: int, first: int, folder: Path) -> tuple[int, int]:
    """Start tries in a copy of this process, which has loaded everything already; its number, and what it writes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(null, stream)
        os.setpgid(0, 0)
        work(kind, seed, first, folder, writer)
    finally:
        os._exit(1)


def watch(kind: str, seed: int, first: int, deadline: float) -> tuple[int, list[Finding]]:
    """Have a process run tries from `first` on until the deadline or its death; the next number, and findings."""
    with tempfile.TemporaryDirectory() as folder:
        child, pipe = start(kind, seed, first, Path(folder))
        found: list[Finding] = []
        number, running, buffer = first, False, b""
        # a new process now and then: what allocators keep of their address space counts towards the limit
        while (time.monotonic() < deadline and number < first + TRIES) or running:
            if not select.select([pipe], [], [], HANG_SECONDS)[0]:
                found.append(Finding(kind, seed, number, f"hangs for {HANG_SECONDS:.0f} s"))
                number += 1
                break
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                status = os.waitpid(child, 0)[1]
                how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "its process ended"
                found.append(Finding(kind, seed, number, f"dies: {how}"))
                os.close(pipe)
                return number + 1, found
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                said = json.loads(line)
                running = "begins" in said
                number = said["begins"] if running else said["ended"] + 1
                if said.get("what"):
                    found.append(Finding(kind, seed, said["ended"], said["what"]))
        os.killpg(child, signal.SIGKILL)  # what it forked, too
        os.waitpid(child, 0)
        os.close(pipe)
    return number, found


def fuzz(minutes: float, seed: int, kinds: list[str], out: Path | None) -> tuple[Counter[str], list[Finding]]:
    """Share the time evenly among the kinds; tries for each kind, and all findings."""
    tries: Counter[str] = Counter()
    findings: list[Finding] = []
    for position, kind in enumerate(kinds):
        deadline = time.monotonic() + 60 * minutes / len(kinds)
        while time.monotonic() < deadline:
            tries[kind], found = watch(kind, seed, tries[kind], deadline)
            for finding in found:
                findings.append(finding)
                alike = sum(other.last_line == finding.last_line for other in findings if other.kind == kind)
                if out is not None and alike <= ALIKE:
                    out.mkdir(parents=True, exist_ok=True)
                    path = out / f"{kind}-{seed}-{finding.number}.json"
                    path.write_text(json.dumps(asdict(finding), indent=1))
        mine = [finding.last_line for finding in findings if finding.kind == kind]
        summary = f"{tries[kind]:,} tries, {len(mine)} findings, {len(set(mine))} of them different"
        print(f"{position + 1}/{len(kinds)} {kind}: {summary}", flush=True)
    return tries, findings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", help="only this kind; may be given several times")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--replay", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.replay:
        finding = Finding(**json.loads(arguments.replay.read_text()))
        with tempfile.TemporaryDirectory() as folder:
            what = attempt(finding.kind, finding.seed, finding.number, Path(folder))
        print(what or "nothing is wrong now")
        sys.exit(1 if what else 0)
    tries, findings = fuzz(arguments.minutes, arguments.seed, arguments.kind or list(KINDS), arguments.out)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # tracebacks hold anything
    different = {(finding.kind, finding.last_line): finding for finding in reversed(findings)}
    for finding in different.values():
        print(f"\n{finding.kind} {finding.number}: {finding.what}")
    print(f"\n{sum(tries.values()):,} tries, {len(findings)} findings, {len(different)} of them different")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
