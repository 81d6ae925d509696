"""Who sees how far a change is: a function that the caller gave or, in a notebook, a bar."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.types import silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.types import Progress

QUIET_SECONDS = 2.0  # of work that is over sooner no bar is shown
UPDATE_SECONDS = 0.25  # between two looks of one stage


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """Give the function that is called as work goes on: `progress`, else in a notebook one that
    shows a bar while the block runs, else one that shows nothing.
    """
    shell = None if progress is not None else notebook_shell()
    if shell is None:
        yield progress or silent
        return
    bar = NotebookBar(shell.display_pub)
    try:
        yield bar
    except BaseException:
        bar.close("stopped")
        raise
    bar.close("done")


def notebook_shell() -> Any | None:
    """The IPython shell of a notebook's kernel; None in any other program."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if shell is not None and "IPKernelApp" in shell.config else None


class NotebookBar:
    """A bar for the stage that runs, as HTML that is written anew, and a line of text for where
    HTML is not shown.
    """

    def __init__(self, publisher: Any) -> None:
        """Take IPython's `DisplayPublisher`."""
        self._publisher = publisher
        self._name = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._shown: tuple[str, float] | None = None  # the stage, and when it was shown last
        self._state: tuple[str, int, int | None, int] = ("", 0, None, 0)

    def __call__(self, stage: str, done: int, total: int | None, tokens: int) -> None:
        """Show how far a stage is, unless that was shown just now."""
        now = time.monotonic()
        with self._lock:
            self._state = stage, done, total, tokens
            if now - self._began < QUIET_SECONDS:
                return
            if self._shown and self._shown[0] == stage and now - self._shown[1] < UPDATE_SECONDS:
                return
            self._publish(now, "")

    def close(self, outcome: str) -> None:
        """Say how it ended, where a bar was shown."""
        with self._lock:
            if self._shown is not None:
                self._publish(time.monotonic(), outcome)

    def _publish(self, now: float, outcome: str) -> None:
        stage, done, total, tokens = self._state
        seconds = f"{now - self._began:,.0f} s"
        count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        parts = [f"{stage}: {count}"] if done or total else [stage]
        parts += [f"{tokens:,} tokens"] if tokens else []
        words = ", ".join([*parts, f"{outcome} after {seconds}" if outcome else seconds])
        extent = f' value="{min(done, total)}" max="{total}"' if total else ""
        extent = ' value="1" max="1"' if outcome == "done" else extent
        bar = "" if outcome == "stopped" else f"<progress{extent}></progress> "
        self._publisher.publish(
            {"text/plain": words, "text/html": f"{bar}{escape(words)}"},
            transient={"display_id": self._name},
            update=self._shown is not None,
        )
        self._shown = stage, now
