"""Check a training plan for a rented GPU against its limits: uploads, files back, minutes per call and in all.

Prints the calls, one per upload, the last of which also trains; exits with code 1 if a limit is broken. --speed is
tokens per second as metrics.jsonl of a short run on that GPU shows them; the plan does not guess it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from aveyb_retrieval.training.packed import MANIFEST

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What the machine allows."""

    upload: int = 64 * MIB  # bytes per call, the program included
    file_back: int = 16 * MIB
    files_back: int = 8
    call_minutes: float = 10.0
    minutes: float = 30.0


@dataclass(frozen=True)
class Rates:
    """How fast the machine is; all but `training` are allowances."""

    training: float  # tokens per second
    upload: float = 8 * MIB  # bytes per second
    start_minutes: float = 1.5  # until the first command runs
    overhead_minutes: float = 0.7  # of a call: imports, reading the parts, the checkpoint


@dataclass(frozen=True)
class Call:
    """One command on the machine, with what travels there before it."""

    parts: tuple[str, ...]
    bytes: int
    training_minutes: float
    minutes: float


def uploads(parts: dict[str, int], program: int, model: int, limits: Limits) -> list[tuple[list[str], int]]:
    """Group the parts into uploads of the program, the model (in the first) and as many parts as fit."""
    groups: list[tuple[list[str], int]] = [([], program + model)]
    for name, size in parts.items():
        names, total = groups[-1]
        if total + size > limits.upload and (names or total > program):
            groups.append(([], program))
            names, total = groups[-1]
        names.append(name)
        groups[-1] = (names, total + size)
    return groups


def plan(parts: dict[str, int], program: int, model: int, tokens: int, limits: Limits, rates: Rates) -> list[Call]:
    """Return the calls: uploads that only store their parts, then training in as many calls as it takes.

    Args:
        parts: bytes of each part.
        program: bytes of the program's files.
        model: bytes of the model to start from.
        tokens: tokens to train on, over all epochs.
        limits: of the machine.
        rates: of the machine.
    """
    groups = uploads(parts, program, model, limits)
    left = tokens / rates.training / 60
    calls: list[Call] = []
    while groups or left > 0:
        names, size = groups.pop(0) if groups else ([], program)
        fixed = size / rates.upload / 60 + rates.overhead_minutes + (0 if calls else rates.start_minutes)
        training = 0.0 if groups else max(0.0, min(left, limits.call_minutes - fixed))
        if not groups and training <= 0 and left > 0:
            raise SystemExit(
                f"{fixed:.1f} minutes of overhead leave nothing of a call's {limits.call_minutes:g} minutes"
            )
        left -= training
        calls.append(Call(tuple(names), size, training, fixed + training))
    return calls


def broken(calls: list[Call], weights: int, limits: Limits) -> list[str]:
    """Name each limit that a plan breaks."""
    found = [
        f"call {number} uploads {call.bytes / MIB:.1f} MiB, {limits.upload / MIB:.0f} are allowed"
        for number, call in enumerate(calls, start=1)
        if call.bytes > limits.upload
    ]
    found += [
        f"call {number} takes {call.minutes:.1f} minutes, {limits.call_minutes:g} are allowed"
        for number, call in enumerate(calls, start=1)
        if call.minutes > limits.call_minutes + 1e-9
    ]
    total = sum(call.minutes for call in calls)
    if total > limits.minutes:
        found.append(f"all calls take {total:.1f} minutes, {limits.minutes:g} are allowed")
    pieces = math.ceil(weights / limits.file_back) + 2  # the list of pieces and metrics.jsonl
    if pieces > limits.files_back:
        found.append(f"the model comes back in {pieces} files, {limits.files_back} are allowed")
    return found


def tracked_bytes(tree: Path) -> int:
    """Return the size of the files that git tracks below `tree`."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=tree, capture_output=True, check=True).stdout.split(b"\0")
    return sum((tree / name.decode()).stat().st_size for name in names if name)


def main() -> None:
    """Parse the arguments and print the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packed", type=Path, required=True, help="output folder of pack_texts.py")
    parser.add_argument("--tree", type=Path, required=True, help="the checkout that travels with each call")
    parser.add_argument("--model", type=Path, help="model to start from, if it is outside of the tree")
    parser.add_argument("--parameters", type=int, default=8_264_704, help="of the model, float32 on its way back")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--speed", type=float, required=True, help="training tokens per second, measured there")
    args = parser.parse_args()
    listed = json.loads((args.packed / MANIFEST).read_text(encoding="utf-8"))["parts"]
    parts = {part["name"]: part["bytes"] for part in listed}
    tokens = int(args.epochs * sum(part["tokens"] for part in listed))
    model = 0 if args.model is None else sum(f.stat().st_size for f in args.model.rglob("*") if f.is_file())
    limits = Limits()
    calls = plan(parts, tracked_bytes(args.tree), model, tokens, limits, Rates(args.speed))
    for number, call in enumerate(calls, start=1):
        work = f"train {call.training_minutes:.1f} minutes" if call.training_minutes else "store the parts"
        print(
            f"call {number}: upload {call.bytes / MIB:.1f} MiB ({len(call.parts)} parts), {work}; "
            f"{call.minutes:.1f} minutes"
        )
    print(f"{tokens:,} tokens, {sum(call.minutes for call in calls):.1f} minutes in all")
    problems = broken(calls, 4 * args.parameters, limits)
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
