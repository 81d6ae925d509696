"""Watch a folder by looking at it again and again: it needs no service of the system, and works over networks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.input.folders import list_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def watch_folder(folder: Path, seconds: float, act: Callable[[], object], *, follow_links: bool = False) -> None:
    """Call `act` now, and again whenever the files of a folder have changed and then stayed the same for a while.

    Args:
        folder: The folder.
        seconds: Between two looks, and how long files must stay as they are before `act` is called.
        act: What it raises ends the watch.
        follow_links: Whether files behind links are watched, too.

    Raises:
        InputError: the folder cannot be read any more.
    """
    seen = _look(folder, follow_links)
    act()
    while True:
        time.sleep(seconds)
        found = _look(folder, follow_links)
        if found == seen:
            continue
        while True:
            time.sleep(seconds)
            if (later := _look(folder, follow_links)) == found:
                break
            found = later
        seen = found
        act()


def _look(folder: Path, follow_links: bool) -> dict[str, tuple[int, int, int]]:
    """Size, time and number of every file that is read: a hint that something changed, not a proof."""
    found = {}
    for file in list_folder(folder, follow_links=follow_links).files:
        try:
            about = file.path.stat()
        except OSError:  # it is gone since it was listed
            continue
        found[file.id] = (about.st_size, about.st_mtime_ns, about.st_ino)
    return found
