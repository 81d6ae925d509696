"""A slice of the fuzzing rig in the suite, and a proof that the rig sees what it is for."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.fuzz import __main__ as rig
from tests.fuzz.kinds import KINDS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", KINDS)
def test_no_try_of_the_first_few_is_a_finding(kind: str, tmp_path: Path) -> None:
    for number in range(12):
        assert rig.attempt(kind, 0, number, tmp_path) is None


@pytest.mark.slow
def test_a_minute_of_fuzzing_finds_nothing() -> None:
    tries, findings = rig.fuzz(1.0, 1, list(KINDS), None)
    assert findings == []
    assert all(tries[kind] for kind in KINDS)


def bad(rng: object, folder: Path) -> None:
    raise ValueError("not ours")


def crash(rng: object, folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(rng: object, folder: Path) -> None:
    time.sleep(100)


def test_the_rig_sees_what_no_user_may_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig, "HANG_SECONDS", 0.4)
    for attack in (bad, crash, hang):
        monkeypatch.setitem(KINDS, attack.__name__, attack)
    assert "not ours" in (rig.attempt("bad", 0, 0, tmp_path) or "")
    assert rig.attempt("page", 0, 0, tmp_path) is None
    number, (finding,) = rig.watch("crash", 0, 5, time.monotonic() + 30)
    assert (number, finding.number, finding.what) == (6, 5, "dies: SIGSEGV")
    number, (finding,) = rig.watch("hang", 0, 7, time.monotonic() + 30)
    assert (number, finding.number, finding.what) == (8, 7, "hangs for 0 s")
    _, findings = rig.watch("bad", 0, 0, time.monotonic() + 0.2)
    assert {finding.last_line for finding in findings} == {"ValueError: not ours"}
