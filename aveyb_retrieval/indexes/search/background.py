"""Work of a search that other threads do while it goes on."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Outcome = TypeVar("Outcome")
_pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2), "aveyb-search")


def start(work: Callable[[], Outcome]) -> Callable[[], Outcome]:
    """Start some work in another thread; calling the result waits for its value.

    Work that no thread has taken up by then is done by the caller: the others were busy.
    """
    try:
        future = _pool.submit(work)
    except RuntimeError:  # no thread is started once the process is about to end
        return work
    return lambda: work() if future.cancel() else future.result()
