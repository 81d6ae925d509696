"""Requests and answers of HTTP: addresses, limits, refusals, and what every route needs."""

from __future__ import annotations

import ipaddress
import json
import logging
import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast

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

if TYPE_CHECKING:
    from starlette.requests import Request

    from aveyb_retrieval.server.gate import Metrics
    from aveyb_retrieval.server.indexes import Indexes
    from aveyb_retrieval.server.processes import Processes
    from aveyb_retrieval.server.work import Work
LOOPBACK = ("127.0.0.1", "localhost", "::1")  # names and addresses of this machine


def network(address: str) -> str:
    """Return what stands for one client: an IPv4 address, or the first 64 bits of an
    IPv6 address.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)


def to_json(content: Any) -> bytes:
    """Write JSON."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def json_answer(content: bytes) -> Response:
    """Answer with what is JSON already."""
    return Response(content, media_type="application/json")


@dataclass(frozen=True)
class Context:
    """The parts of a running server.

    Texts are encoded by one thread, since the model uses all processors by itself: long requests
    wait there, and searches do not wait for them. Indexes are changed one after the other.
    """

    indexes: Indexes
    limits: Limits
    searching: Work
    encoding: Work
    writing: Work
    metrics: Metrics
    openapi: bytes
    originals: bool
    processes: Processes


def context(request: Request) -> Context:
    """Return the parts of the server that a request came to."""
    return cast("Context", request.app.state.context)


CANDIDATES_FACTOR = 10  # a search may look at this many times `max_k` candidates


def _limit(default: float, unit: str, meaning: str, *, least: int = 1) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning, "least": least})


@dataclass(frozen=True)
class Limits:
    """The limits of a server; `aveyb-serve` has an option for each, and `meaning` in its metadata
    says what it is.
    """

    max_body: int = _limit(8 << 20, "BYTES", "Largest body of a request.")
    max_answer: int = _limit(32 << 20, "BYTES", "Largest answer.")
    max_held: int = _limit(
        128 << 20, "BYTES", "Bodies that arrive and answers that leave, together."
    )
    max_batch: int = _limit(1024, "N", "Queries, inputs, texts or documents of one request.")
    max_query: int = _limit(8192, "N", "Characters of a query.")
    max_text: int = _limit(1 << 20, "N", "Characters of a text to embed.")
    max_rerank_text: int = _limit(1 << 16, "N", "Characters of a text to rerank.")
    max_k: int = _limit(100, "N", "Hits of one query, those before its offset included.")
    max_hits: int = _limit(10_240, "N", "Hits of all queries of one request.")
    max_passages: int = _limit(10, "N", "Passages of one hit.")
    max_context: int = _limit(5, "N", "Neighbors of a passage on each side.")
    timeout: float = _limit(60.0, "SECONDS", "Time of a request.")
    threads: int = _limit(4, "N", "Searches that run at once.")
    processes: int = _limit(1, "N", "Processes that search; with 1, the server's own does.")
    max_waiting: int = _limit(128, "N", "Requests that wait for their turn.", least=0)
    max_connections: int = _limit(4000, "N", "Open connections.")
    max_connections_each: int = _limit(500, "N", "Open connections of one address that are read.")
    max_rate: int = _limit(16 << 20, "BYTES", "Bytes a second that are read of one client.")
    head_timeout: float = _limit(10.0, "SECONDS", "Time in which the head of a request arrives.")
    write_timeout: float = _limit(
        30.0, "SECONDS", "Time in which a client reads 256 KiB of an answer."
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            name, value, least = each.name, getattr(self, each.name), each.metadata["least"]
            if isinstance(each.default, float):
                if not (math.isfinite(value) and value > 0):
                    raise ConfigError(f"{name}={value!r}: must be a number of seconds above 0")
            elif value < least:
                raise ConfigError(f"{name}={value!r}: must be a whole number of at least {least}")

    @property
    def max_candidates(self) -> int:
        """The candidates that one search may look at."""
        return CANDIDATES_FACTOR * self.max_k


OPENAI = "/v1/"  # paths that answer in OpenAI's shape

_log = logging.getLogger("aveyb_retrieval.server")
# of errors: what kind an answer names, and what `/openapi.json` says of it, "" where nothing
STATUSES = {
    400: ("Validation", "The request is not HTTP, or a path is not valid"),
    401: ("Unauthorized", "No key, or a wrong one"),
    403: ("Forbidden", "A page of another origin asks, or the key has no right to this"),
    404: ("NotFound", "No such index, document or model"),
    405: ("MethodNotAllowed", ""),
    409: (
        "Conflict",
        (
            "Another process is writing to the index, or a cursor is of another search or version"
            " of it"
        ),
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
        message = f"{request.method} {request.url.path}: {error.detail}" + (
            f"; allowed: {allowed}" if allowed else ""
        )
        return error_response(
            request.url.path, error.status_code, message, headers=dict(error.headers or {})
        )
    if isinstance(error, (ConfigError, InputError)):
        return error_response(request.url.path, 422, str(error))
    _log.error(
        "%s %s: %s", request.method, shortened(request.url.path), shortened(str(error), 2000)
    )
    # what went wrong inside may name folders of this machine
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
    """The `type` of an error under `/v1/`."""
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
    """Write an error as `{"error": {"message", "type", "param", "code"}}` under `/v1/`, else
    `{"error", ...}`.
    """
    message, headers = shortened(without_flags(message)), dict(headers or {})
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        headers["Retry-After"] = "1"
    if path.startswith(OPENAI):
        content: dict[str, object] = {
            "error": {"message": message, "type": _openai_type(status), "param": None, "code": code}
        }
    else:
        content = {"error": message, "error_type": STATUSES.get(status, STATUSES[500])[0]}
    # in ASCII: a message may repeat what a client sent, which need not be Unicode
    written = json.dumps(content)
    return Response(written, status, headers, "application/json")


_LONGEST_LINE = 4000  # characters of a log line, tracebacks included


class _ShortLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return shortened(super().format(record), _LONGEST_LINE)


def log_shortly() -> None:
    """Write this package's warnings to standard error: lines that repeat little of what a request
    sent.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_ShortLines())
    logging.getLogger("aveyb_retrieval").addHandler(handler)
