"""Requests that are not answered: statuses, messages and log lines."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from aveyb_retrieval.errors import (
    AveyBError,
    ConfigError,
    IndexFormatError,
    InputError,
    shortened,
    without_flags,
)
from aveyb_retrieval.server.answer_types import Error, OpenAIError, OpenAIErrorFields

if TYPE_CHECKING:
    from starlette.requests import Request

    from aveyb_retrieval.server.answer_types import Answer

OPENAI = "/v1/"  # paths that answer in OpenAI's shape

_log = logging.getLogger("aveyb_retrieval.server")
# by status: the `error_type` of an answer, and its description in `/openapi.json` ("": left out)
STATUSES = {
    400: ("Validation", "The request is not HTTP, or a path is not valid"),
    401: ("Unauthorized", "No key, or a wrong one"),
    403: ("Forbidden", "A page of another origin asks, or the key has no right to this"),
    404: ("NotFound", "No such index, document or model"),
    405: ("MethodNotAllowed", ""),
    409: (
        "Conflict",
        "Another process writes to the index, or a cursor is of another search or version of it",
    ),
    413: ("Validation", "More than a limit allows"),
    415: ("Validation", "The body does not say that it is JSON"),
    421: ("Misdirected", "The server has another name"),
    422: ("Validation", "A field is missing, unknown or out of range"),
    429: ("Overloaded", "Too many requests run and wait"),
    499: ("ClientLeft", ""),
    500: ("Backend", "An index cannot be written, or a bug"),
    503: ("Unavailable", "It took too long, or an index is not in its place"),
}


class Refusal(AveyBError):
    """A request that is not answered, with the HTTP status that says why."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code

    def __reduce__(self) -> tuple[type[Refusal], tuple[int, str, str | None]]:
        """Let it pass from one process to another."""
        return type(self), (self.status, str(self), self.code)


def refuse(request: Request, error: Exception) -> Response:
    """Answer with an error of the package, or with what routing raised."""
    if isinstance(error, Refusal):
        return error_response(request.url.path, error.status, str(error), error.code)
    if isinstance(error, HTTPException):
        allowed = (error.headers or {}).get("Allow")
        message = f"{request.method} {request.url.path}: {error.detail}"
        if allowed:
            message += f"; allowed: {allowed}"
        return error_response(
            request.url.path, error.status_code, message, headers=dict(error.headers or {})
        )
    if isinstance(error, (ConfigError, InputError)):
        return error_response(request.url.path, 422, str(error))
    _log.error(
        "%s %s: %s", request.method, shortened(request.url.path), shortened(str(error), 2000)
    )
    # the log has the message, which may name folders of this machine
    if isinstance(error, IndexFormatError):
        message = (
            "the index is not in its place, or damaged; it is opened again once it can be; the log"
            " says why"
        )
        return error_response(request.url.path, 503, message)
    return error_response(
        request.url.path, 500, "the index cannot be read or written; the server's log says why"
    )


def _openai_type(status: int) -> str:
    """Return the `type` of an error under `/v1/`."""
    if status >= 500:
        return "server_error"
    return "rate_limit_error" if status == 429 else "invalid_request_error"


def error_response(
    path: str,
    status: int,
    message: str,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Make the answer of an error: an `OpenAIError` under `/v1/`, else an `Error`."""
    headers = dict(headers or {})
    # a message may repeat a name of a file, which need not be Unicode
    message = shortened(without_flags(message)).encode("utf-8", "backslashreplace").decode()
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        headers["Retry-After"] = "1"
    content: Answer
    if path.startswith(OPENAI):
        fields = OpenAIErrorFields(
            message=message, type=_openai_type(status), param=None, code=code
        )
        content = OpenAIError(error=fields)
    else:
        content = Error(error=message, error_type=STATUSES.get(status, STATUSES[500])[0])
    return Response(msgspec.json.encode(content), status, headers, "application/json")


_MAX_LINE_CHARACTERS = 4000  # of a line of the log, tracebacks included


class _ShortLines(logging.Formatter):
    """A formatter that shortens long lines."""

    def format(self, record: logging.LogRecord) -> str:
        return shortened(super().format(record), _MAX_LINE_CHARACTERS)


def log_shortly() -> None:
    """Write this package's warnings to standard error, in lines that repeat little of a request."""
    handler = logging.StreamHandler()
    handler.setFormatter(_ShortLines())
    logging.getLogger("aveyb_retrieval").addHandler(handler)
