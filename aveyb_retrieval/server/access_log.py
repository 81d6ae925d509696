"""The log of requests: who asked for what."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from hashlib import sha256
from logging import Handler, StreamHandler, makeLogRecord
from logging.handlers import WatchedFileHandler
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import ConfigError, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

_HASH_DIGITS = 16  # of the SHA-256 of a question


class AccessLog:
    """A line of JSON for each request, in a file or on standard output ("-").

    A line has the questions of a request if `questions` is true, else their hashes.
    """

    def __init__(self, path: str, *, questions: bool = False) -> None:
        self._questions = questions
        self._handler: Handler
        try:
            if path == "-":
                self._handler = StreamHandler(sys.stdout)
            else:
                # it makes a file again that was moved away
                self._handler = WatchedFileHandler(path, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"--access-log {path}: cannot be written ({error.strerror})"
            ) from None

    def note(
        self, scope: Scope, client: str, status: int, seconds: float, questions: Sequence[str]
    ) -> None:
        """Write a line about a request that was answered."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "key": client,
            "method": scope["method"],
            "path": shortened(scope["path"]),
            "status": status,
            "seconds": round(seconds, 4),
            "questions": list(questions if self._questions else map(_hash, questions)),
        }
        self._handler.handle(makeLogRecord({"msg": json.dumps(line)}))


def _hash(question: str) -> str:
    return sha256(question.encode("utf-8", "replace")).hexdigest()[:_HASH_DIGITS]
