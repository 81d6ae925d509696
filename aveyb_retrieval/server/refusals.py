"""Errors as answers: which status, and in which of the two shapes that clients expect."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from aveyb_retrieval.errors import AveyBError, ConfigError, InputError
from aveyb_retrieval.wording import shortened

if TYPE_CHECKING:
    from starlette.requests import Request

OPENAI = "/v1/"  # paths that answer in OpenAI's shape

_log = logging.getLogger("aveyb_retrieval.server")
# TEI's names of errors, and words of the same kind where it has none
_KINDS = {
    400: "Validation",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    413: "Validation",
    415: "Validation",
    421: "Misdirected",
    422: "Validation",
    429: "Overloaded",
    499: "ClientLeft",
    503: "Timeout",
}


class Refusal(AveyBError):
    """A request that is not answered, with the HTTP status that says why."""

    def __init__(self, status: int, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def refuse(request: Request, error: Exception) -> Response:
    """Answer with an error of the package, or with what routing raised."""
    if isinstance(error, Refusal):
        return error_response(request.url.path, error.status, str(error), error.code)
    if isinstance(error, HTTPException):
        allowed = (error.headers or {}).get("Allow")
        message = f"{request.method} {request.url.path}: {error.detail}" + (f"; allowed: {allowed}" if allowed else "")
        return error_response(request.url.path, error.status_code, message, headers=dict(error.headers or {}))
    if isinstance(error, (ConfigError, InputError)):
        return error_response(request.url.path, 422, str(error))
    _log.error("%s %s: %s", request.method, shortened(request.url.path), shortened(str(error), 2000))
    # what went wrong inside may name folders of this machine
    return error_response(request.url.path, 500, "the index cannot be read or written; the server's log says why")


def error_response(
    path: str, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    """Write an error as `{"error": {"message", "type", "param", "code"}}` under `/v1/`, else as TEI does."""
    message, headers = shortened(message), dict(headers or {})
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        headers["Retry-After"] = "1"
    if path.startswith(OPENAI):
        kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
        content: dict[str, object] = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    else:
        content = {"error": message, "error_type": _KINDS.get(status, "Backend")}
    written = json.dumps(content)  # in ASCII: a message may repeat what a client sent, which need not be Unicode
    return Response(written, status, headers, "application/json")
