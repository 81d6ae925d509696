"""Kills, faults of system calls and power cuts: a few of each here, a hundred in slow tests, all by the campaigns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import campaign, faults, power, strace

if TYPE_CHECKING:
    from pathlib import Path

KILLS = [10, pytest.param(100, marks=pytest.mark.slow)]
FAULTS = [5, pytest.param(100, marks=pytest.mark.slow)]


@pytest.fixture
def traced() -> None:
    if reason := strace.why_not():
        pytest.skip(reason)


@pytest.mark.parametrize("count", KILLS)
def test_nothing_is_lost_by_a_kill(count: int, tmp_path: Path) -> None:
    outcomes, violations = campaign.kills(count, 0, tmp_path)
    print(f"\n{dict(outcomes)}")
    assert violations == []
    assert sum(outcomes.values()) == count


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("count", FAULTS)
def test_a_system_call_that_fails_is_an_error_of_ours_and_nothing_more(count: int, tmp_path: Path) -> None:
    outcomes, violations = faults.faults(count, 0, tmp_path)
    print(f"\n{dict(outcomes)}")
    assert violations == []
    assert sum(outcomes.values()) == count


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in power.KINDS[1:]] + ["build"])
def test_nothing_is_lost_by_a_power_cut(kind: str, tmp_path: Path) -> None:
    disks, violations = power.cuts(kind, 0, tmp_path, every=300 if kind == "build" else 60)
    print(f"\n{disks} disks")
    assert violations == []
    assert disks > 5
