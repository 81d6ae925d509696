"""Fresh processes in a hundredth of the time of new ones: copies of one that has imported
everything and done nothing.

multiprocessing's "forkserver" does that. Its server runs no code of an index, so no thread of
Lance, FAISS or OpenMP is copied amid its work, which a fork of the tests' own process would do.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Event

SECONDS = 180.0  # in which any process must answer


@cache
def _context() -> Any:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the server: many processes share few cores
    os.environ["RUST_BACKTRACE"] = "0"  # a trace takes seconds
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rigs.faults.preload"])
    return context


def event() -> Event:
    """An event that processes share; setting it is no system call that is traced."""
    made: Event = _context().Event()
    return made


class Child:
    """A process that runs `target(connection, *arguments)`, and the other end of its connection."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.connection: Connection
        self.connection, theirs = _context().Pipe()
        self.process = _context().Process(
            target=_run, args=(target, theirs, *arguments), daemon=True
        )
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def ask(self, *question: Any, seconds: float = SECONDS) -> Any:
        """Send a question and wait for its answer."""
        self.connection.send(question)
        return self.answer(seconds)

    def answer(self, seconds: float = SECONDS) -> Any:
        """Wait for something that the process says.

        Raises:
            EOFError: it died.
            AssertionError: it hangs, or an exception ended it.
        """
        assert self.connection.poll(seconds), f"process {self.pid} says nothing for {seconds:.0f} s"
        said = self.connection.recv()
        assert not isinstance(said, Failed), f"in another process:\n{said.traceback}"
        return said

    def kill(self) -> list[Any]:
        """Send SIGKILL, and return what the process had said that nobody has heard yet."""
        self.process.kill()
        self.process.join()
        heard = []
        with suppress(EOFError, ConnectionResetError):
            while self.connection.poll(0):
                heard.append(self.answer())
        self.end()
        return heard

    def end(self) -> int:
        """Close the connection, which tells the process to end, and wait for that; its
        exit code.
        """
        self.connection.close()
        self.process.join(SECONDS)
        code = self.process.exitcode
        assert code is not None, f"process {self.pid} does not end"
        self.process.close()
        return int(code)


class Failed:
    """What a process sends when an exception ends it."""

    def __init__(self, traceback: str) -> None:
        self.traceback = traceback


def _run(target: Callable[..., None], connection: Connection, *arguments: Any) -> None:
    import traceback

    try:
        target(connection, *arguments)
    except EOFError:  # the other end was closed: there is nothing more to do
        pass
    except BaseException:
        connection.send(Failed(traceback.format_exc()))
        raise SystemExit(1) from None


@contextmanager
def child(target: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """A process that ends with the block."""
    started = Child(target, *arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.join()


def quiet() -> None:
    """Give no warnings of stale locks, which each killed writer leaves, nor of forks, for which
    there is `preload`.
    """
    import logging

    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
