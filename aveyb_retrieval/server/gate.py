"""What every request passes: its origin and key are checked, it is counted, and its answer gets
safe headers.

A browser sends requests in the name of any page that somebody visits, also to a server that only
this machine reaches. It says where the page comes from: in Origin (every request that is not a
plain GET), in Sec-Fetch-Site (all requests to HTTPS and to this machine). Programs send neither,
and are not held up. Content-Type: see `requests.read_body`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from hashlib import sha256
from logging import StreamHandler, makeLogRecord
from logging.handlers import WatchedFileHandler
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from aveyb_retrieval.errors import ConfigError, shortened
from aveyb_retrieval.server.addresses import network
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.refusals import error_response
from aveyb_retrieval.server.work import Pool, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from aveyb_retrieval.server.indexes import Indexes
    from aveyb_retrieval.server.keys import Key, KeyFile, Keys, Right
    from aveyb_retrieval.server.limits import Limits

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "aveyb_requests",
            "Requests that were answered.",
            ("route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "aveyb_request_seconds",
            "From the arrival of a request to the end of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.running = Gauge(
            "aveyb_running_requests", "Requests without an answer yet.", registry=self.registry
        )
        self.batches = Histogram(
            "aveyb_query_batch_size",
            "Queries that were encoded together.",
            buckets=_SIZES,
            registry=self.registry,
        )

    def watch(self, indexes: Indexes) -> None:
        """Also report the state of the indexes, whenever it is asked for."""
        self._indexes = indexes
        self.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the sizes of the indexes, and which of them cannot follow their newest version."""
        documents = GaugeMetricFamily(
            "aveyb_index_documents", "Documents of an index.", labels=("index", "version")
        )
        failing = GaugeMetricFamily(
            "aveyb_index_follow_failing",
            "1 while the newest version of an index cannot be opened.",
            labels=("index",),
        )
        for name, retriever in self._indexes.retrievers.items():
            documents.add_metric((name, retriever.version), len(retriever))
            failing.add_metric((name,), float(name in self._indexes.failures))
        yield documents
        yield failing


async def metrics(request: Request) -> Response:
    """Answer a scrape."""
    return Response(
        generate_latest(context(request).metrics.registry), media_type=CONTENT_TYPE_LATEST
    )


_OURS = ("same-origin", "none")  # none: typed, or a bookmark
_PREFLIGHT_SECONDS = 600


class Origins:
    """Who may ask from a browser: besides this server's own pages those of `others`, as
    `https://app.example.org`.

    `hosts` are names that the header Host may have, which keeps out pages that reach this server by
    a name of their own (DNS rebinding); None for any.
    """

    def __init__(self, hosts: Collection[str] | None = None, others: Collection[str] = ()) -> None:
        self._hosts = hosts
        self._others = {_checked(origin) for origin in others}

    def refusal(self, headers: Headers, method: str, *, is_page: bool) -> tuple[int, str] | None:
        """Say why a request is refused, as status and message, or None; to a file of the page other
        sites may link.
        """
        host, origin = headers.get("host", ""), headers.get("origin")
        # without a port, and without the brackets of an IPv6 address
        name = (
            host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        ).lower()
        if self._hosts is not None and name not in self._hosts:
            return 421, f"this server is not called {name!r}; name it with --allow-host"
        if origin in self._others:
            return None
        site = headers.get("sec-fetch-site")
        if site in _OURS or (
            site is None and (origin is None or origin.partition("://")[2] == host)
        ):
            return None
        if is_page and method == "GET" and headers.get("sec-fetch-mode") == "navigate":
            return None
        return 403, f"a page of {origin or 'another site'} asks; allow it with --cors-origin"

    def answer_headers(self, headers: Headers) -> Mapping[str, str]:
        """Return headers that let a page of another origin read the answer; of a preflight: send
        the request.
        """
        if not self._others:
            return {}
        if (origin := headers.get("origin")) not in self._others:
            return {"Vary": "Origin"}
        allowed = {
            "Vary": "Origin",
            "Access-Control-Allow-Origin": origin or "",
            "Access-Control-Expose-Headers": "Retry-After",
        }
        if "access-control-request-method" in headers:
            allowed |= {
                "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
                "Access-Control-Allow-Headers": "Authorization, Content-Type",
                "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
            }
        return allowed

    def is_preflight(self, headers: Headers, method: str) -> bool:
        """Whether a browser asks if a page of an allowed origin may send a request."""
        return (
            method == "OPTIONS"
            and "access-control-request-method" in headers
            and headers.get("origin") in self._others
        )


def _checked(origin: str) -> str:
    """Return an origin as browsers write it."""
    try:
        parts = urlsplit(origin)
        is_origin = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_origin = False
    if not is_origin or origin.lower() != f"{parts.scheme}://{parts.netloc}".lower():
        raise ConfigError(
            f"--cors-origin {origin}: not an origin; write it as https://app.example.org, without a"
            " path"
        )
    return origin.lower()


_log = logging.getLogger("aveyb_retrieval.server")
PART_BYTES = 1 << 18  # bytes of a body that are sent at once
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
CHANGES = ("PUT", "PATCH", "DELETE")  # methods that need a key that may write


class Gate:
    """ASGI middleware: gives each request a ticket; `right` says what a key must be allowed to read
    a path.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        keys: Keys | KeyFile,
        log: AccessLog | None,
        origins: Origins,
        metrics: Metrics,
        right: Callable[[str], Right | None],
    ) -> None:
        self._app, self._limits, self._keys, self._log = app, limits, keys, log
        self._origins, self._metrics, self._right, self._pool = origins, metrics, right, Pool()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it; a bug of ours is logged, and the client does not see its
        traceback.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status, began_to_answer = 500, False
        request_headers = Headers(scope=scope)

        async def send_safely(message: Message) -> None:
            nonlocal status, began_to_answer
            if message["type"] == "http.response.start":
                status, began_to_answer = message["status"], True
                headers = MutableHeaders(scope=message)
                headers.update({**_HEADERS, **self._origins.answer_headers(request_headers)})
                # it may hold what only the owner of a key may see
                headers.setdefault("Cache-Control", "no-store")
                await send(message)
            else:
                await _send_in_parts(message, send)

        keys = self._keys.current()
        number = keys.which(request_headers.get("authorization", ""))
        key = None if number is None else keys.entries[number]
        address = scope["client"][0] if scope.get("client") else ""
        client = network(address) if key is None else key.name  # on whose fair share it counts
        ticket = scope.setdefault("state", {})["ticket"] = Ticket(
            client, self._pool, self._limits, receive
        )
        ticket.only = None if key is None else key.filter
        self._metrics.running.inc()
        try:
            refusal = self._refusal(scope, request_headers, keys, key)
            await (refusal or self._app)(scope, receive, send_safely)
        except ClientDisconnect:
            status = 499  # it left while it sent its body; nobody is there to be answered
        except Exception:
            if began_to_answer:
                raise
            _log.exception("%s %s", scope["method"], shortened(scope["path"]))
            answer = error_response(
                scope["path"], 500, "internal error; the server's log says more"
            )
            await answer(scope, receive, send_safely)
        finally:
            ticket.release()
            self._metrics.running.dec()
            # paths are endless, and so no labels
            route = getattr(scope.get("endpoint"), "__name__", "none")
            self._metrics.requests.labels(route, str(status)).inc()
            seconds = time.perf_counter() - began
            self._metrics.seconds.labels(route).observe(seconds)
            if self._log is not None:
                self._log.note(scope, client, status, seconds, ticket.asked)

    def _refusal(
        self, scope: Scope, headers: Headers, keys: Keys, key: Key | None
    ) -> Response | None:
        path, method = scope["path"], scope["method"]
        # a proxy may read another end of the body
        if "transfer-encoding" in headers and "content-length" in headers:
            message = "Content-Length beside Transfer-Encoding; send one of them"
            return error_response(path, 400, message, headers={"Connection": "close"})
        needed = "write" if method in CHANGES else self._right(path)
        is_open = needed is None and method in ("GET", "HEAD")
        right: Right = needed or "search"
        if refused := self._origins.refusal(headers, method, is_page=is_open):
            return error_response(path, *refused)
        if self._origins.is_preflight(headers, method):
            return Response(status_code=204)  # browsers send no key with it
        if right == "write" and not keys.writing:
            how = "--write-key-file, or the right to write in --keys"
            return error_response(
                path, 403, f"this server takes no changes, as none of its keys may: {how}"
            )
        if key is None and (right == "write" or (keys.reading and not is_open)):
            what = "wrong key" if "authorization" in headers else "no key"
            return error_response(
                path, 401, f"{what}; send the header Authorization: Bearer KEY", "invalid_api_key"
            )
        if key is not None and not is_open and right not in key.rights:
            return error_response(path, 403, f"this key has no right to {right}")
        return None


class AccessLog:
    """Who asked for what: a line of JSON a request, to a file or standard output ("-"); `questions`
    or their hashes.
    """

    def __init__(self, path: str, *, questions: bool = False) -> None:
        try:
            # a file that was moved away is made again
            self._to = (
                StreamHandler(sys.stdout)
                if path == "-"
                else WatchedFileHandler(path, encoding="utf-8")
            )
        except OSError as error:
            raise ConfigError(
                f"--access-log {path}: cannot be written ({error.strerror})"
            ) from None
        self._questions = questions

    def note(
        self, scope: Scope, client: str, status: int, seconds: float, asked: Sequence[str]
    ) -> None:
        """Write a line; questions are hashed by SHA-256, of which the first 16 digits are kept."""
        hashed = (sha256(each.encode("utf-8", "replace")).hexdigest()[:16] for each in asked)
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "key": client,
            "method": scope["method"],
            "path": shortened(scope["path"]),
            "status": status,
            "seconds": round(seconds, 4),
            "questions": list(asked if self._questions else hashed),
        }
        self._to.handle(makeLogRecord({"msg": json.dumps(line)}))


async def _send_in_parts(message: Message, send: Send) -> None:
    """Send a body so that no more than a part of it waits for a client that does not read."""
    body = message.get("body", b"")
    last = len(body) - 1 - (len(body) - 1) % PART_BYTES if body else 0  # where the last part begins
    for start in range(0, last, PART_BYTES):
        await send({**message, "body": body[start : start + PART_BYTES], "more_body": True})
    await send({**message, "body": body[last:] if last else body})
