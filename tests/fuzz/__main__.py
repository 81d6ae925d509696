"""The fuzzing rig.

    python -m tests.fuzz --minutes N --seed S [--kind KIND ...] [--out DIR]
    python -m tests.fuzz --replay FILE

Tries run in processes that are watched: a try that crashes, hangs or raises anything but an error of ours is written to
DIR as a small JSON file that `--replay` runs again. The exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

HANG_SECONDS = 60.0
MEMORY = 4 << 30
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Finding:
    """A try that ended as none may: `seed` and `number` make it again."""

    kind: str
    seed: int
    number: int
    what: str


def attempt(kind: str, seed: int, number: int, folder: Path) -> str | None:
    """Run one try in this process; what is wrong, or None."""
    from aveyb_retrieval.errors import AveyBError
    from tests.fuzz.kinds import KINDS

    try:
        KINDS[kind](random.Random(f"{kind} {seed} {number}"), folder)
    except AveyBError:
        return None
    except Exception:  # whatever a try raises is what is looked for
        return traceback.format_exc(limit=-6)
    return None


def work(kind: str, seed: int, first: int, last: int, folder: Path) -> None:
    """Run tries and print one line for each: its number before it, what was wrong after it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    for number in range(first, last):
        print(json.dumps({"begins": number}), flush=True)
        print(json.dumps({"ended": number, "what": attempt(kind, seed, number, folder)}), flush=True)


def watch(kind: str, seed: int, first: int, deadline: float) -> tuple[int, list[Finding]]:
    """Have a process run tries from `first` on until the deadline or its death; the next number, and findings."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.fuzz", "--worker", kind, str(seed), str(first), folder]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        found: list[Finding] = []
        number, running, buffer = first, False, b""
        while time.monotonic() < deadline or running:
            if not select.select([process.stdout], [], [], HANG_SECONDS)[0]:
                found.append(Finding(kind, seed, number, f"hangs for {HANG_SECONDS:.0f} s"))
                number += 1
                break
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                code = process.wait()
                died = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                found.append(Finding(kind, seed, number, f"dies: {died}"))
                number += 1
                break
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                said = json.loads(line)
                running = "begins" in said
                number = said["begins"] if running else said["ended"] + 1
                if said.get("what"):
                    found.append(Finding(kind, seed, said["ended"], said["what"]))
        process.kill()
        process.wait()
        process.stdout.close()
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
                if out is not None:
                    out.mkdir(parents=True, exist_ok=True)
                    path = out / f"{kind}-{seed}-{finding.number}.json"
                    path.write_text(json.dumps(asdict(finding), indent=1))
        count = sum(finding.kind == kind for finding in findings)
        print(f"{position + 1}/{len(kinds)} {kind}: {tries[kind]:,} tries, {count} findings", flush=True)
    return tries, findings


def main() -> None:
    if "--worker" in sys.argv:
        kind, seed, first, folder = sys.argv[sys.argv.index("--worker") + 1 :]
        work(kind, int(seed), int(first), 1 << 62, Path(folder))
        return
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
    from tests.fuzz.kinds import KINDS

    tries, findings = fuzz(arguments.minutes, arguments.seed, arguments.kind or list(KINDS), arguments.out)
    for finding in findings:
        print(f"\n{finding.kind} {finding.number}: {finding.what}")
    print(f"\n{sum(tries.values()):,} tries, {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
