"""The scripts that judge the kernels on a GPU run to their end on a CPU at toy size, and write what they measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "gpu"


@pytest.mark.parametrize("name", ["check", "kernels", "encode", "train"])
def test_dry_run(name: str, tmp_path: Path) -> None:
    command = [sys.executable, SCRIPTS / f"{name}.py", "--device", "cpu", "--toy", "--out", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    rows = json.loads((tmp_path / f"dry_run_{name}.json").read_text())["rows"]
    assert len(rows) >= 6
    for row in rows:
        assert row.get("ok", True), row
        assert "Error" not in (row.get("note") or ""), row
