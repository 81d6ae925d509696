"""Kills, faults of system calls and power cuts: a few of each here, a hundred in slow tests, all by
the campaigns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aveyb_retrieval import Retriever, build_index
from rigs.faults import campaign, faults, power, strace
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

ROOT = Path(__file__).resolve().parents[2]

KILLS = [5, pytest.param(100, marks=pytest.mark.slow)]
FAULTS = [3, pytest.param(100, marks=pytest.mark.slow)]


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
def test_a_system_call_that_fails_is_an_error_of_ours_and_nothing_more(
    count: int, tmp_path: Path
) -> None:
    outcomes, violations = faults.faults(count, 0, tmp_path)
    print(f"\n{dict(outcomes)}")
    assert violations == []
    assert sum(outcomes.values()) == count


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in power.KINDS[1:]] + ["build"]
)
def test_nothing_is_lost_by_a_power_cut(kind: str, tmp_path: Path) -> None:
    disks, violations = power.cuts(kind, 0, tmp_path, every=300 if kind == "build" else 60)
    print(f"\n{disks} disks")
    assert violations == []
    assert disks > 5


@pytest.mark.usefixtures("traced")
def test_the_command_line_says_it_in_one_line(tmp_path: Path) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(10), root, model=FakeEmbedder())
    command = [
        sys.executable,
        "-c",
        "from aveyb_retrieval.cli.index import main; main()",
        "delete",
        str(root),
        "doc-1",
    ]
    inject = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=fsync"]
    failing = [
        [*inject, "-e", f"inject=fsync:error={code}:when=1", *command] for code in faults.CODES
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for arguments, expected in (*((each, 2) for each in failing), (command, 0)):
        done = subprocess.run(
            arguments, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == expected, done.stderr
        assert "Traceback" not in done.stderr
        with Retriever.load(root, model=FakeEmbedder()) as retriever:
            assert len(retriever) == (10 if expected else 9)
