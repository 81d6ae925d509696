"""Threads wait without spinning, and keep to the container's share of the processors."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.cli.common import processor_quota, respect_processors

if TYPE_CHECKING:
    from pathlib import Path


def machine(root: Path, groups: str, **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_max", ".max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_no_control_groups(tmp_path: Path) -> None:
    assert processor_quota(tmp_path) is None


def test_the_smallest_quota_of_a_group_and_those_above_counts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/a/b\n",
        a__b__cpu_max="max 100000\n",
        a__cpu_max="150000 100000\n",
        cpu_max="max 100000",
    )
    assert processor_quota(root) == 1.5


def test_a_container_that_sees_its_own_group_as_the_topmost(tmp_path: Path) -> None:
    assert processor_quota(machine(tmp_path, "0::/\n", cpu_max="200000 100000\n")) == 2.0


def test_version_1(tmp_path: Path) -> None:
    root = machine(tmp_path, "3:cpu,cpuacct:/x\n2:memory:/x\n")
    folder = root / "sys/fs/cgroup/cpu,cpuacct/x"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("50000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert processor_quota(root) == 0.5
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert processor_quota(root) is None


def test_what_the_user_chose_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    root = machine(tmp_path, "0::/\n", cpu_max="250000 100000\n")
    chosen: dict[str, str] = {}
    respect_processors(chosen, root)
    assert chosen == {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "2"}
    own = {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "7"}
    respect_processors(own, root)
    assert own == {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "7"}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    fewer: dict[str, str] = {}
    respect_processors(fewer, root)
    assert fewer == {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.parametrize("command", ["index", "eval", "train"])
def test_every_command_sets_them_before_torch_is_loaded(command: str) -> None:
    code = (
        "import os, sys\n"
        f"from aveyb_retrieval.cli.{command} import main\n"
        "try:\n    main(['no-such-command'])\n"
        "except SystemExit:\n    print(os.environ['OMP_WAIT_POLICY'])\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.stdout.strip().endswith("PASSIVE"), done.stderr
