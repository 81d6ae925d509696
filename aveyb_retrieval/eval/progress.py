"""Show how far the encoding of a corpus has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Track = Callable[[Iterable[Any], int, str], Iterable[Any]]
"""Wraps an iterable in a progress bar: (items, total, description)."""


def no_progress(items: Iterable[Any], total: int, description: str) -> Iterable[Any]:
    """Return the items as they are: the `Track` that shows nothing."""
    return items


class ProgressBars:
    """Progress bars on standard error, one per corpus that is encoded; inside `with`, it is a `Track`."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Prepare the bars; `quiet` ones show nothing."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), disable=quiet)

    def __enter__(self) -> ProgressBars:
        """Start to draw."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the bars as they are."""
        self._progress.stop()

    def __call__(self, items: Iterable[Any], total: int, description: str) -> Iterable[Any]:
        """Yield the items, moving a new bar by one for each."""
        return self._progress.track(items, total=total, description=description)
