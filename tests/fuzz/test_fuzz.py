"""A slice of the fuzzing rig in the suite, and a proof that the rig sees what it is for."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from rigs.fuzz import rig
from rigs.fuzz.kinds import KINDS

if TYPE_CHECKING:
    from pathlib import Path


# a try takes tenths of a second
SLOW = ("faiss", "journal", "lance", "model", "pointer", "tokenizer")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=[pytest.mark.needs("torch")] * (".models." in home))
        for k, home in KINDS.items()
    ],
)
def test_no_try_of_the_first_few_is_a_finding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig, "HANG_SECONDS", 600.0)  # however busy the machine is
    monkeypatch.setattr(rig, "TRIES", tries := 2 if kind in SLOW else 25)
    assert rig.watch(kind, 0, 0, float("inf")) == (tries, [])


@pytest.mark.slow
def test_two_minutes_of_fuzzing_find_nothing() -> None:
    tries, findings = rig.fuzz(2.0, 1, list(KINDS), None)
    assert findings == []
    assert all(tries[kind] for kind in KINDS)


def bad(rng: object, folder: Path) -> None:
    raise ValueError("not ours")


def crash(rng: object, folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(rng: object, folder: Path) -> None:
    time.sleep(100)


def test_the_rig_sees_what_no_user_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    number, (finding,) = rig.watch(f"{__name__}.crash", 0, 5, float("inf"))
    assert (number, finding.number, finding.what) == (6, 5, "dies: SIGSEGV")
    monkeypatch.setattr(rig, "TRIES", 10)
    number, findings = rig.watch(f"{__name__}.bad", 0, 0, float("inf"))
    assert (number, len(findings), findings[0].last_line) == (10, 10, "ValueError: not ours")
    monkeypatch.setattr(rig, "HANG_SECONDS", 2.0)
    number, (finding,) = rig.watch(f"{__name__}.hang", 0, 7, float("inf"))
    assert (number, finding.number, finding.what) == (8, 7, "hangs for 2 s")
