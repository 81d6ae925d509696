"""The scripts that judge the kernels on a GPU: every part runs to its end at toy size, and no accident loses a row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "gpu"
sys.path.insert(0, str(SCRIPTS))
from common import Clock, Journal, about, attempt, front_flops  # noqa: E402
from workers import run_worker  # noqa: E402

from aveyb_retrieval.encoder.config import AveyBConfig  # noqa: E402

PARTS = {1: "check", 2: "encode_ours", 3: "encode_peers", 4: "kernels", 5: "train"}


GPU_PYTHON = os.environ.get("GPU_PYTHON", "")  # an interpreter with the versions of the GPU machine


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "python",
    [
        pytest.param(sys.executable, id="here"),
        pytest.param(
            GPU_PYTHON,
            id="torch 2.11",
            marks=pytest.mark.skipif(
                not GPU_PYTHON,
                reason="GPU_PYTHON names no interpreter with torch 2.11 and Triton 3.6 (docs/kernels.md)",
            ),
        ),
    ],
)
def test_dry_run_of_a_part(part: int, python: str, tmp_path: Path) -> None:
    environment = os.environ | {"DEVICE": "cpu", "TOY": "1", "PYTHON": python}
    run = subprocess.run(
        [SCRIPTS / "run.sh", str(part), tmp_path], capture_output=True, text=True, timeout=500, env=environment
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    path = tmp_path / f"dry_run_{PARTS[part]}.json"
    document = json.loads(path.read_text())
    assert python == sys.executable or document["about"]["torch"].startswith("2.11.")
    rows = document["rows"]
    assert len(rows) >= 4
    for row in rows:
        # oneDNN has no float8 product of this form on some processors; the column is the library's, not ours.
        assert row.get("ok", True) or "library_ms" in row["note"], row
    lines = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
    assert lines[1:] == rows


def test_a_part_that_does_not_exist(tmp_path: Path) -> None:
    run = subprocess.run([SCRIPTS / "run.sh", "6", tmp_path], capture_output=True, text=True)
    assert run.returncode == 2
    assert "no part 6" in run.stderr


def test_the_parts_fit_into_a_lease_of_half_an_hour() -> None:
    text = (SCRIPTS / "run.sh").read_text()
    minutes = [int(line.split("run ")[1].split()[0]) for line in text.splitlines() if ") run " in line]
    assert len(minutes) == len(PARTS)
    assert "--kill-after=5 $((60 * minutes + 25))" in text
    start, transfers, ending = 1.5, 12 / 60, 30 / 60
    assert start + sum(m + transfers + ending for m in minutes) <= 30
    assert max(minutes) + ending < 9
    for part, m in enumerate(minutes, start=1):
        assert any(line.startswith(f"#   {part} ") and f"({m} minutes)" in line for line in text.splitlines())


def test_a_part_at_its_deadline_keeps_its_rows(tmp_path: Path) -> None:
    """`timeout`'s two signals, as in run.sh, to a script that has measured rows and does not listen to the first."""
    code = f"""
import signal, sys, time; sys.path.insert(0, {str(SCRIPTS)!r})
from pathlib import Path
from common import Journal, attempt
signal.signal(signal.SIGINT, signal.SIG_IGN)
journal = Journal(Path({str(tmp_path)!r}), "x", {{"device": "cpu"}})
import torch
def full(): raise torch.OutOfMemoryError("CUDA out of memory")
journal.add({{"row": 0}})
journal.add(attempt({{"row": 1}}, full))
journal.add({{"row": 2}})
while True: time.sleep(1)
"""
    ended = subprocess.run(["timeout", "--signal=INT", "--kill-after=2", "15", sys.executable, "-c", code])
    assert ended.returncode in (137, -9)
    rows = [json.loads(line) for line in (tmp_path / "dry_run_x.jsonl").read_text().splitlines()][1:]
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert rows[1]["note"].startswith("out of memory")


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), KeyError("x"), AssertionError(), type("Odd", (Exception,), {})()],
)
def test_an_error_is_a_row(error: Exception) -> None:
    def fail() -> dict[str, Any]:
        raise error

    row = attempt({"model": "a", "ms": None}, fail)
    assert row["model"] == "a"
    assert row["ok"] is False
    assert row["note"].startswith("out of memory" if isinstance(error, torch.OutOfMemoryError) else "error")


def test_a_killed_script_keeps_its_rows(tmp_path: Path) -> None:
    code = f"""
import sys, time; sys.path.insert(0, {str(SCRIPTS)!r})
from pathlib import Path
from common import Journal
journal = Journal(Path({str(tmp_path)!r}), "x", {{"device": "cpu"}})
for i in range(3): journal.add({{"row": i}})
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "row=2" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGKILL)
    lines = (tmp_path / "dry_run_x.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines[1:]] == [{"row": i} for i in range(3)]


@pytest.mark.parametrize(
    ("ending", "note"),
    [
        ("raise RuntimeError('illegal memory access')", "ended with code 1: .*illegal memory access"),
        ("os.kill(os.getpid(), 9)", "ended with code -9"),
        ("time.sleep(60)", "killed after 3 s"),
    ],
)
def test_a_worker_that_ends_badly_keeps_its_rows(ending: str, note: str) -> None:
    code = f"import os, time; print('noise'); print('ROW {{\"ms\": 1}}', flush=True); {ending}"
    rows: list[dict[str, Any]] = []
    begin = time.monotonic()
    run_worker([sys.executable, "-c", code], 3, rows.append, {"model": "a"})
    assert time.monotonic() - begin < 20
    assert rows[0] == {"ms": 1}
    assert rows[1]["model"] == "a"
    assert rows[1]["ok"] is False
    assert __import__("re").search(note, rows[1]["note"]), rows[1]


def test_a_worker_that_ends_well_adds_nothing() -> None:
    rows: list[dict[str, Any]] = []
    run_worker([sys.executable, "-c", "print('ROW {}')"], 20, rows.append, {"model": "a"})
    assert rows == [{}]


def test_the_floor_of_the_ranker_counts_distinct_ids() -> None:
    config = AveyBConfig.released_base(vocab_size=100, hidden_size=32, num_hidden_layers=2, split_size=16)
    compressor = 2.0 * 32 * 16 * min(config.num_retrieved + 1, 4) * 64
    same = torch.full((64,), 7)
    assert front_flops(config, same) == compressor + 2.0 * 32 * 3  # three earlier splits of one id
    distinct = torch.arange(64)
    assert front_flops(config, distinct) == compressor + 2.0 * 32 * 16 * (48 + 32 + 16)
    assert front_flops(config, same[:16]) == 2.0 * 32 * 16 * 16


def test_a_median_is_that_of_one_run() -> None:
    clock = Clock(torch.device("cpu"), minutes=1)
    assert 8 < clock.median(lambda: time.sleep(0.01), seconds=0.2) < 40


def test_a_journal_closes_as_one_document(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "y", about(torch.device("cpu"), toy=True))
    journal.add({"a": 1.5, "b": None})
    journal.close(more=2)
    document = json.loads((tmp_path / "dry_run_y.json").read_text())
    assert document["rows"] == [{"a": 1.5, "b": None}]
    assert document["about"]["more"] == 2
