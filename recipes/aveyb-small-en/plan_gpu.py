"""Check a training plan for a rented GPU against its limits: uploads, files back, minutes per call and in all.

What travels are packed texts (--packed), or texts and the teacher in pieces (--pieces), which the GPU then labels.
Prints the calls: uploads, labelling if there is any, training; exits with code 1 if a limit is broken. --speed and
--label-speed are tokens per second that short runs on that GPU show; the plan does not guess them.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packed import MANIFEST
from pieces import LIST

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
    labelling: float | None = None  # tokens per second through the teacher, and packed; None: they come with vectors
    upload: float = 8 * MIB  # bytes per second
    start_minutes: float = 1.5  # until the first command runs
    overhead_minutes: float = 0.7  # of a call: imports, reading the parts, the checkpoint


@dataclass(frozen=True)
class Call:
    """One command on the machine, with what travels there before it."""

    parts: tuple[str, ...]
    bytes: int
    labelling_minutes: float
    training_minutes: float
    minutes: float

    @property
    def work(self) -> str:
        """What the command does, for people."""
        work = [f"label {self.labelling_minutes:.1f} minutes"] if self.labelling_minutes else []
        work += [f"train {self.training_minutes:.1f} minutes"] if self.training_minutes else []
        return ", ".join(work) or "store the parts"


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


def plan(
    parts: dict[str, int], program: int, model: int, tokens: int, limits: Limits, rates: Rates, *, epochs: float = 1
) -> list[Call]:
    """Return the calls: uploads that only store their parts, labelling if it is due, then training.

    The last upload is followed by work in the same call, and each call works until the limit: both programs continue
    where they were stopped.

    Args:
        parts: bytes of each part.
        program: bytes of the program's files.
        model: bytes of the model to start from.
        tokens: tokens of the texts.
        limits: of the machine.
        rates: of the machine.
        epochs: how often each token is trained on.
    """
    groups = uploads(parts, program, model, limits)
    labelling = tokens / rates.labelling / 60 if rates.labelling else 0.0
    training = epochs * tokens / rates.training / 60
    calls: list[Call] = []
    while groups or labelling > 0 or training > 0:
        names, size = groups.pop(0) if groups else ([], program)
        fixed = size / rates.upload / 60 + rates.overhead_minutes + (0 if calls else rates.start_minutes)
        room = 0.0 if groups else limits.call_minutes - fixed
        if not groups and room <= 0:
            raise SystemExit(
                f"{fixed:.1f} minutes of overhead leave nothing of a call's {limits.call_minutes:g} minutes"
            )
        label = min(labelling, room)
        train = min(training, room - label)
        labelling, training = labelling - label, training - train
        calls.append(Call(tuple(names), size, label, train, fixed + label + train))
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


def packed_parts(folder: Path) -> tuple[dict[str, int], int]:
    """Return the bytes of each packed part, and the tokens in all of them."""
    listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["parts"]
    return {part["name"]: part["bytes"] for part in listed}, sum(part["tokens"] for part in listed)


def pieces(folder: Path, texts: Path) -> tuple[dict[str, int], int]:
    """Return the bytes of each piece of the archive, and the tokens of the texts in it."""
    listed = json.loads((folder / LIST).read_text(encoding="utf-8"))["pieces"]
    tokens = json.loads((texts / "report.json").read_text(encoding="utf-8"))["tokens"]
    return {name: (folder / name).stat().st_size for name in listed}, sum(tokens.values())


def main() -> None:
    """Parse the arguments and print the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--packed", type=Path, help="output folder of pack_texts.py")
    what.add_argument("--pieces", type=Path, help="output folder of `pieces.py cut`: texts and teacher, to be labelled")
    parser.add_argument("--texts", type=Path, help="output folder of make_texts.py; with --pieces")
    parser.add_argument("--tree", type=Path, required=True, help="the checkout that travels with each call")
    parser.add_argument("--model", type=Path, help="model to start from, if it is outside of the tree")
    parser.add_argument("--parameters", type=int, default=8_264_704, help="of the model, float32 on its way back")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--speed", type=float, required=True, help="training tokens per second, measured there")
    parser.add_argument("--label-speed", type=float, help="tokens per second of label_texts.py there; with --pieces")
    args = parser.parse_args()
    if args.pieces and not (args.texts and args.label_speed):
        parser.error("--pieces needs --texts and --label-speed")
    parts, tokens = pieces(args.pieces, args.texts) if args.pieces else packed_parts(args.packed)
    model = 0 if args.model is None else sum(f.stat().st_size for f in args.model.rglob("*") if f.is_file())
    limits, rates = Limits(), Rates(args.speed, args.label_speed if args.pieces else None)
    calls = plan(parts, tracked_bytes(args.tree), model, tokens, limits, rates, epochs=args.epochs)
    for number, call in enumerate(calls, start=1):
        sent = f"upload {call.bytes / MIB:.1f} MiB ({len(call.parts)} parts)"
        print(f"call {number}: {sent}, {call.work}; {call.minutes:.1f} minutes")
    print(f"{int(args.epochs * tokens):,} tokens, {sum(call.minutes for call in calls):.1f} minutes in all")
    problems = broken(calls, 4 * args.parameters, limits)
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
