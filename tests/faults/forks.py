"""Run something in a copy of this process, which it may kill: a fork starts in milliseconds, Python in a second."""

from __future__ import annotations

import json
import os
import traceback
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import AveyBError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Fork:
    """A running copy. What its work yields comes back as JSON; an error of ours comes back as its message."""

    def __init__(self, work: Callable[[], Iterable[Any]]) -> None:
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            return
        try:
            for item in work():
                os.write(writer, json.dumps({"item": item}).encode() + b"\n")
        except AveyBError as error:
            os.write(writer, json.dumps({"refused": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        except BaseException:
            os.write(writer, json.dumps({"raised": traceback.format_exc(limit=-6)}).encode() + b"\n")
        finally:
            os._exit(0)

    def end(self) -> tuple[list[Any], str, int]:
        """Wait for the end: what the work yielded, the message of an error of ours, and the signal that ended it or 0.

        Raises:
            AssertionError: it raised anything else.
        """
        with os.fdopen(self._reader, "rb") as answers:
            said = [json.loads(line) for line in answers]
        status = os.waitpid(self.pid, 0)[1]
        for line in said:
            assert "raised" not in line, line["raised"]
        refused = next((line["refused"] for line in said if "refused" in line), "")
        signaled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return [line["item"] for line in said if "item" in line], refused, signaled


def forked(work: Callable[[], Iterable[Any]]) -> tuple[list[Any], str, int]:
    """Run something in a copy of this process to its end; see `Fork.end`."""
    return Fork(work).end()
