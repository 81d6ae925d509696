"""The plan for 10^9 passages: the page holds what the script prints, and the arithmetic is that of
its figures.
"""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "scale.py"
scale: dict[str, Any] = runpy.run_path(str(SCRIPT))


def cells(row: str, *options: str) -> list[str]:
    """The cells of the row with this name, in the tables that the options give."""
    found = re.findall(
        rf"^\| {re.escape(row)} \| (.*) \|$", scale["tables"](list(options)), re.MULTILINE
    )
    assert len(found) == 1, (row, found)
    return [cell.strip() for cell in found[0].split("|")]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_the_page_holds_what_the_script_prints() -> None:
    printed = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() in (ROOT / "benchmarks" / "notes" / "scale.md").read_text(
        encoding="utf-8"
    )


def test_hours_are_tokens_by_the_measured_speed() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "cpu_encode.json").read_text())["rows"]
    two_cores = next(r for r in rows if r.get("tokens") == 128 and r["dtype"] == "bfloat16")[
        "tokens_per_second"
    ]
    speed, hours, cost = cells("one core, the model alone, bfloat16", "--cpu-hour", "0.5")
    assert number(speed) == pytest.approx(two_cores["Avey-B (ours)"] / 2, abs=1)
    assert number(hours) == pytest.approx(1e9 / number(speed) / 3600, abs=0.01)
    assert number(cost) == pytest.approx(number(hours) / 2, abs=0.01)


def test_a_gpu_is_unmeasured_until_somebody_gives_its_speed() -> None:
    assert cells("one H200") == ["unmeasured"] * 2
    assert all("unmeasured" in cell for cell in cells("encoding on GPUs, GPU-hours"))
    slow = ("--gpu-tokens-per-second", "1000", "--gpu-hour", "3")
    assert cells("one H200 with 16 cores", *slow) == ["1,000", "277.78", "833.33"]
    assert number(cells("encoding on GPUs, GPU-hours", *slow)[-1]) == pytest.approx(
        128e9 / 1000 / 3600, abs=0.1
    )
    fast = cells("one H200 with 16 cores", "--gpu-tokens-per-second", "1e9", "--gpu-hour", "3")
    assert fast[0] == cells("what 16 cores can feed a GPU")[0]  # it is not faster than it is fed


def test_twice_the_passages_take_twice_the_room_and_prices_are_the_users() -> None:
    sizes = (
        "--passages",
        "1e8",
        "2e8",
        "--tokens",
        "300",
        "--memory-month",
        "2",
        "--cpu-hour",
        "1",
    )
    for row in ("indexes, GB on disk", "HNSW32 in memory, GB"):
        one, two = (number(cell.split(" x ")[0]) for cell in cells(row, *sizes))
        assert two == pytest.approx(2 * one, abs=1.5)
    memory = number(cells("HNSW32 in memory, GB", *sizes)[0].split(" x ")[0])
    assert number(cells("memory (HNSW32), cost a month", *sizes)[0]) == pytest.approx(
        4 * memory, abs=4
    )
    assert "cost" not in scale["tables"]([]).split("passages of 128")[1]
