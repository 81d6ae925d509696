"""One process for each model: what one of them does to the device, its memory or the compiler harms no other.

A worker prints its rows as lines of JSON that begin with `ROW `; they are kept as they come. A worker that fails, is
killed or is stuck leaves the rows that it has printed, and one more that says how it ended.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PREFIX = "ROW "


def print_row(row: Mapping[str, Any]) -> None:
    """Hand a row to the parent."""
    print(PREFIX + json.dumps(row), flush=True)


def run_worker(
    command: Sequence[str], seconds: float, keep: Callable[[dict[str, Any]], None], name: dict[str, Any]
) -> None:
    """Run a worker to its end, `seconds` at most.

    Args:
        command: the program and its arguments.
        seconds: the worker is killed after so long.
        keep: called with every row.
        name: the columns that name the worker, for the row that says how it ended if that was not well.
    """
    until = time.monotonic() + seconds
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    tail: list[str] = []
    while True:
        try:
            line = lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            process.kill()
            process.wait()
            keep(name | {"ok": False, "note": f"killed after {seconds:.0f} s"})
            return
        if line is None:
            break
        if line.startswith(PREFIX):
            keep(json.loads(line[len(PREFIX) :]))
        else:
            tail = [*tail[-4:], line.strip()]
    if code := process.wait():
        keep(name | {"ok": False, "note": f"ended with code {code}: {' | '.join(tail)}"[:300]})


def _read(stream: Iterable[str], lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
