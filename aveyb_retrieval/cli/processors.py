"""How many processors a command may use, and how its threads wait.

OpenMP's threads spin while they wait for each other, and by default there are as many as the machine has processors.
On a busy machine, or in a container that may use two processors of sixty-four, they take turns at spinning: an index
took four to five times as long to build. The variables below are read when torch and FAISS are loaded, so they are set
before.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping


def respect_processors(environment: MutableMapping[str, str] = os.environ, root: Path = Path("/")) -> None:
    """Let threads wait without spinning, and no more of them than the container's quota; what the user chose stays.

    Does nothing once torch is loaded, which has read its settings.
    """
    if "torch" in sys.modules:
        return
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    quota = processor_quota(root)
    if quota is not None and quota < _visible():
        environment.setdefault("OMP_NUM_THREADS", str(max(1, math.floor(quota))))


def _visible() -> int:
    """Processors that this process may run on (on Linux), or that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_quota(root: Path = Path("/")) -> float | None:
    """How many processors the control groups of this process may use; None where there is no limit.

    Reads version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us`) of Linux's control groups, from the group of this
    process up to the topmost one that it can see.
    """
    quotas = [_quota(folder) for folder in _groups(root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux, or not mounted
        return []
    groups = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        group = mount / name.strip("/")
        groups += [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]
    return groups


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):  # no limit is set in this group
        return None
