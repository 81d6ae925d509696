"""The list of promises names tests that are there, and says "Not" where none holds a promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "tests" / "promises.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| asked for")
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_promise_is_held_by_a_test_that_is_there(row: list[str]) -> None:
    _, now, tests = row
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
    assert named or (tests == "-" and re.search(r"\bnot (yet|tried)\b", now, re.IGNORECASE))
    for file, name in named:
        assert re.search(
            rf"^ *(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE
        ), name
