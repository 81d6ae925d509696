"""The campaign of kills and faults: a few in the fast suite, five hundred of each in the slow one."""

from __future__ import annotations

import pytest

from tests.faults import campaign


@pytest.mark.parametrize(("kills", "races"), [(6, 2), pytest.param(500, 60, marks=pytest.mark.slow)])
def test_kills_and_faults_lose_nothing(kills: int, races: int) -> None:
    print("", *campaign.run(kills, kills, races, seed=kills), sep="\n")
