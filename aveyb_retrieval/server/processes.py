"""Processes that search. One process alone uses little more than one processor, since Python runs
one thread at a time.
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
from aveyb_retrieval.server.tickets import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from aveyb_retrieval.server.indexes import Indexes
    from aveyb_retrieval.server.tickets import Ticket

FOLLOW_SECONDS = 1.0  # how often new versions are looked for
_OVERTIME_SECONDS = 5.0  # that a process may work on when the time of its request is over
_END_SECONDS = 2.0  # in which a process that is not needed any more ends by itself

_log = logging.getLogger("aveyb_retrieval.server")


class Processes:
    """`count` processes, each with the indexes open as the server has them, and with one call at a
    time. With 1, calls run in this process.

    A process that ends is replaced, also one that works on after the time of its request. All end
    with the server, however that ends.

    Raises ConfigError if the model of the indexes was given loaded, Refusal (503) if a process ends
    at its start.
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
            # it answers when its indexes are open
            worker.ask(None, indexes.versions, type(indexes).follow)
            self._free.put(worker)

    def call(self, function: Callable[..., Any], ticket: Ticket, *arguments: Any) -> Any:
        """Call a function of a module with the indexes, the ticket and further arguments.

        An error of the package is raised here again, any other as RuntimeError. Raises Refusal
        (503) if the process ends.
        """
        if not self._count:
            return function(self._indexes, ticket, *arguments)
        try:
            worker = self._free.get(timeout=ticket.left)
        except Empty:
            raise ticket.expire() from None
        try:
            ticket.check()
            seconds = ticket.left + _OVERTIME_SECONDS
            return worker.ask(seconds, self._indexes.versions, function, ticket, *arguments)
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
    """A process, and the connection over which it is asked; `end` ends both and returns the exit
    code.
    """

    def __init__(self, again: Callable[[], Indexes], share: int) -> None:
        context = get_context("spawn")  # a fork would have the locks of other threads
        self._connection, far_end = context.Pipe()
        process = context.Process(target=_work, args=(far_end, again, share), daemon=True)
        process.start()
        far_end.close()  # or this process would not see that the other one has ended
        # it is called at the latest when this process ends, before that waits for its children
        self.end = Finalize(self, _end, (process, self._connection), exitpriority=1)

    def ask(self, seconds: float | None, *call: Any) -> Any:
        """Send a call (the arguments of `_answer`) and return its result, or raise its error.

        The process is ended if it does not answer within the time, or None for any time.
        """
        answer = None
        with suppress(EOFError, OSError):  # it has ended
            self._connection.send(call)
            if self._connection.poll(seconds):
                answer = self._connection.recv()
        if answer is None:
            message = f"a process that searches has ended ({how_it_ended(self.end() or 0)})"
            _log.error(message)
            raise Refusal(503, f"{message}; ask again")
        result, error = answer
        if error is not None:
            raise error
        return result


def _end(process: BaseProcess, connection: Connection) -> int | None:
    connection.close()
    process.join(_END_SECONDS)
    process.kill()
    process.join()
    return process.exitcode


def _work(connection: Connection, again: Callable[[], Indexes], share: int) -> None:
    """Answer calls until the connection ends, and follow new versions of the indexes in between."""
    # a terminal sends them to all processes, but the server ends this one by itself
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    setting = os.environ.get("OMP_NUM_THREADS", "")
    processors = int(setting) if setting.isdigit() else os.cpu_count() or 1
    threads = max(1, processors // share)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if threads == 1:
        # threads of the tokenizer look for work without pause
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    log_shortly()
    _log.disabled = True  # the server logs the same versions
    opened = cache(again)
    with suppress(EOFError, OSError):  # until the server has ended
        while True:
            if connection.poll(FOLLOW_SECONDS):
                connection.send(_answer(opened, *connection.recv()))
            else:
                with suppress(AveyBError, OSError):  # the next call raises it
                    opened().follow()


def _answer(
    opened: Callable[[], Indexes],
    versions: dict[str, str],
    function: Callable[..., Any],
    *arguments: Any,
) -> tuple[Any, Exception | None]:
    """Call a function with the indexes at some versions, and with arguments that begin with the
    ticket; return its result and its error.
    """
    CURRENT.set(arguments[0] if arguments else None)
    try:
        indexes = opened()
        if indexes.versions != versions:
            indexes.follow()
        return function(indexes, *arguments), None
    except AveyBError as error:
        return None, error
    except Exception:
        return None, RuntimeError(traceback.format_exc())
