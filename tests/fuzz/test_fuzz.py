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
    for number in range(2 if kind == "faiss" else 12):
        assert rig.attempt(kind, 0, number, tmp_path) is None


@pytest.mark.slow
def test_a_minute_of_fuzzing_finds_nothing() -> None:
    tries, findings = rig.fuzz(1.0, 1, list(KINDS), None)
    assert findings == []
    assert all(tries[kind] for kind in KINDS)


@pytest.mark.parametrize("what", ["raise ValueError", "crash"])
def test_the_rig_sees_what_no_user_may_see(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(rng: object, folder: Path) -> None:
        if what == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        raise ValueError("not ours")

    monkeypatch.setitem(KINDS, "bad", bad)
    if what != "crash":
        assert "not ours" in (rig.attempt("bad", 0, 0, tmp_path) or "")
        return
    monkeypatch.setattr(rig.sys, "executable", "/bin/false")  # a process that ends before its first try
    number, (finding,) = rig.watch("corpus", 0, 5, time.monotonic() + 30)
    assert finding.what == "dies: exit code 1"
    assert number == 6
