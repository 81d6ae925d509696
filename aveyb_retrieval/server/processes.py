"""Processes that search: one process alone uses little more than one processor, as Python runs one
thread at a time.
"""

from __future__ import annotations

import logging
import os
import signal
import traceback
from contextlib import suppress
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import AveyBError, ConfigError, how_it_ended
from aveyb_retrieval.server.refusals import Refusal, log_shortly
from aveyb_retrieval.server.work import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from aveyb_retrieval.server.indexes import Indexes
    from aveyb_retrieval.server.work import Ticket

FOLLOW_SECONDS = 1.0  # how often new versions are looked for
_GRACE = (
    5.0  # seconds beyond the time of a request until the process that still works for it is ended
)
_END_SECONDS = 2.0  # in which a process that is not needed any more ends by itself

_log = logging.getLogger("aveyb_retrieval.server")


class Processes:
    """So many processes, each with the indexes open as the server has them, and one call at a time;
    of 1, this one.

    One that ends is replaced, also one that works on after the time of its request. All end with
    the server, however that ends. ConfigError where the model of the indexes was given loaded,
    Refusal (503) where one ends at its start.
    """

    def __init__(self, count: int, indexes: Indexes) -> None:
        self._indexes, self._count = indexes, count if count > 1 else 0
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        if self._count == 0:
            return
        if indexes.again is None:
            raise ConfigError(
                f"processes={count}: each loads the model; give its folder or name, not a"
                " loaded one"
            )
        self._begin = partial(_Worker, indexes.again, count)
        for worker in [self._begin() for _ in range(self._count)]:
            # which returns when they are open
            worker.ask(None, indexes.versions, type(indexes).follow)
            self._free.put(worker)

    def call(self, function: Callable[..., Any], ticket: Ticket, *given: Any) -> Any:
        """Call a function of a module with the indexes, the ticket and what is given.

        What it raises is raised here, where it is no error of the package as RuntimeError; Refusal
        (503) where the process ends.
        """
        if not self._count:
            return function(self._indexes, ticket, *given)
        try:
            worker = self._free.get(timeout=ticket.left)
        except Empty:
            raise ticket.expire() from None
        try:
            ticket.check()
            return worker.ask(
                ticket.left + _GRACE, self._indexes.versions, function, ticket, *given
            )
        finally:
            if not worker.end.still_active():
                with suppress(OSError):  # the next call tries again
                    worker = self._begin()
            self._free.put(worker)

    def close(self) -> None:
        """End all; to be called when nothing runs."""
        for _ in range(self._count):
            self._free.get().end()


class _Worker:
    def __init__(self, again: Callable[[], Indexes], share: int) -> None:
        context = get_context("spawn")  # never a fork: its locks would be those of other threads
        self._connection, other = context.Pipe()
        process = context.Process(target=_work, args=(other, again, share), daemon=True)
        process.start()
        other.close()  # or its end would not be seen
        # at the latest when this process ends, and before it would wait for its children
        self.end = Finalize(self, _end, (process, self._connection), exitpriority=1)

    def ask(self, seconds: float | None, *call: Any) -> Any:
        try:
            self._connection.send(call)
            if not self._connection.poll(seconds):
                raise TimeoutError
            found, error = self._connection.recv()
        except (EOFError, OSError):
            ended = f"a process that searches has ended ({how_it_ended(self.end() or 0)})"
            _log.error(ended)
            raise Refusal(503, f"{ended}; ask again") from None
        if error is not None:
            raise error
        return found


def _end(process: BaseProcess, connection: Connection) -> int | None:
    connection.close()
    process.join(_END_SECONDS)
    process.kill()
    process.join()
    return process.exitcode


def _work(connection: Connection, again: Callable[[], Indexes], share: int) -> None:
    """Answer calls until the connection ends, and follow new versions of the indexes in between."""
    # which may be sent to all: the server ends this one by itself
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    own = os.environ.get("OMP_NUM_THREADS", "")
    threads = max(1, (int(own) if own.isdigit() else os.cpu_count() or 1) // share)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if threads == 1:
        # its threads look for work without pause
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    log_shortly()
    _log.disabled = True  # what it would say of versions, the server says too
    opened = cache(again)
    with suppress(EOFError, OSError):  # the server has ended
        while True:
            if connection.poll(FOLLOW_SECONDS):
                connection.send(_answer(opened, *connection.recv()))
            else:
                with suppress(AveyBError, OSError):  # the next call says it
                    opened().follow()


def _answer(
    opened: Callable[[], Indexes],
    versions: dict[str, str],
    function: Callable[..., Any],
    *given: Any,
) -> tuple[Any, Exception | None]:
    CURRENT.set(next(iter(given), None))  # the ticket
    try:
        indexes = opened()
        if indexes.versions != versions:
            indexes.follow()
        return function(indexes, *given), None
    except AveyBError as error:
        return None, error
    except Exception:
        return None, RuntimeError(traceback.format_exc())
