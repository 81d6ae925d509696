"""Show how far the encoding of a corpus has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

Track = Callable[..., Iterable[Any]]
"""Wraps an iterable in a progress bar: (items, total=..., description=...)."""


def no_progress(items: Iterable[Any], **_: Any) -> Iterable[Any]:
    """Return the items as they are: the `Track` that shows nothing."""
    return items


def progress_bars(*, quiet: bool = False) -> Progress:
    """Make progress bars on standard error, one per corpus that is encoded; inside `with`, their `track` is a `Track`.

    Args:
        quiet: show nothing.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=quiet)
