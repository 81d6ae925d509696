"""Nothing leaks, and many readers beside a writer all see whole versions: shortly here, in full in the slow suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import consistent, load

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("searches", "opens", "reopens"), [(300, 30, 8), pytest.param(20_000, 2_000, 200, marks=pytest.mark.slow)]
)
def test_memory_and_descriptors_stay_flat(searches: int, opens: int, reopens: int, tmp_path: Path) -> None:
    for usage in load.leaks(tmp_path / "ix", searches, opens, reopens):
        # between two compactions each change adds one file of vectors
        assert max(usage.descriptors) - min(usage.descriptors) <= load.COMPACT_EVERY + 1, usage
        assert usage.growth < 16, usage


@pytest.mark.parametrize("minutes", [0.1, pytest.param(2, marks=pytest.mark.slow)])
def test_sixteen_threads_and_four_processes_beside_a_writer(minutes: float, tmp_path: Path) -> None:
    for usage in load.crowd(tmp_path / "ix", minutes):
        assert usage.growth < 64, usage


@pytest.mark.parametrize("tries", [16, pytest.param(389, marks=pytest.mark.slow)])
def test_a_change_with_its_hashes_is_found_where_answers_change(tries: int) -> None:
    outcomes, missed = consistent.run(tries, 0)
    print(f"\n{tries} changes with their hashes: {dict(outcomes)}")
    assert missed == []
