"""strace at a process that waits: faults injected into its system calls, or a record of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTACH_SECONDS = 60.0


@cache
def why_not() -> str | None:
    """Why strace cannot be used here; None: it can."""
    if shutil.which("strace") is None:
        return "strace is not installed (Debian: apt-get install strace)"
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with attached(sleeper.pid, "-o", "/dev/null"):
            return None
    except PermissionError as error:
        return str(error)
    finally:
        sleeper.kill()
        sleeper.wait()


@contextmanager
def attached(pid: int, *options: str) -> Iterator[None]:
    """Follow all threads of a process while the block runs.

    Raises:
        PermissionError: the system does not let strace.
    """
    command = ["strace", "-f", "-qq", *options, "-p", str(pid)]
    tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    deadline = time.monotonic() + ATTACH_SECONDS
    while not _traced(pid):
        if tracer.poll() is not None or time.monotonic() > deadline:
            tracer.kill()
            raise PermissionError(f"strace cannot attach: {tracer.stderr.read().strip()}")
        time.sleep(0.005)
    try:
        yield
    finally:
        tracer.terminate()  # it lets go of the process
        tracer.wait()
        tracer.stderr.close()


def _traced(pid: int) -> bool:
    """Whether every thread of a process has a tracer."""
    tasks = Path(f"/proc/{pid}/task")
    return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks.iterdir())
