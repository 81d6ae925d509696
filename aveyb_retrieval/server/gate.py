"""The middleware that every request passes: origin and key are checked, the request is counted and
logged, and its answer gets safe headers.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from aveyb_retrieval.errors import shortened
from aveyb_retrieval.server.addresses import network
from aveyb_retrieval.server.refusals import error_response
from aveyb_retrieval.server.tickets import Pool, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from aveyb_retrieval.server.access_log import AccessLog
    from aveyb_retrieval.server.counters import Metrics
    from aveyb_retrieval.server.keys import Key, KeyFile, Keys, Right
    from aveyb_retrieval.server.limits import ServerLimits
    from aveyb_retrieval.server.origins import Origins

PART_BYTES = 1 << 18  # of a body that are sent at once
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

_log = logging.getLogger("aveyb_retrieval.server")


class Gate:
    """ASGI middleware that gives each request a ticket, or refuses it.

    `right` returns the right that a key needs for a method and a path, None if everybody may.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: ServerLimits,
        keys: Keys | KeyFile,
        log: AccessLog | None,
        origins: Origins,
        metrics: Metrics,
        right: Callable[[str, str], Right | None],
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
                # an answer may hold what only the owner of a key may see
                headers.setdefault("Cache-Control", "no-store")
                await send(message)
            else:
                await _send_in_parts(message, send)

        keys = self._keys.current()
        key = keys.which(request_headers.get("authorization", ""))
        ticket = self._make_ticket(scope, receive, key)
        self._metrics.running.inc()
        try:
            refusal = self._refusal(scope, request_headers, keys, key)
            await (refusal or self._app)(scope, receive, send_safely)
        except ClientDisconnect:
            status = 499  # the client left while it sent its body, so nobody is answered
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
            self._count(scope, ticket, status, time.perf_counter() - began)

    def _make_ticket(self, scope: Scope, receive: Receive, key: Key | None) -> Ticket:
        """Make the ticket of a request and put it into its state."""
        address = scope["client"][0] if scope.get("client") else ""
        client = network(address) if key is None else key.name
        ticket = Ticket(client, self._pool, self._limits, receive)
        ticket.only = None if key is None else key.filter
        scope.setdefault("state", {})["ticket"] = ticket
        return ticket

    def _count(self, scope: Scope, ticket: Ticket, status: int, seconds: float) -> None:
        self._metrics.running.dec()
        # labels are names of endpoints: there is no end of paths
        route = getattr(scope.get("endpoint"), "__name__", "none")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        if self._log is not None:
            self._log.note(scope, ticket.client, status, seconds, ticket.questions)

    def _refusal(
        self, scope: Scope, headers: Headers, keys: Keys, key: Key | None
    ) -> Response | None:
        """Return the answer to a request that is refused, or to a preflight; None for others."""
        path, method = scope["path"], scope["method"]
        # a proxy may read another end of the body
        if "transfer-encoding" in headers and "content-length" in headers:
            message = "both Content-Length and Transfer-Encoding; send one of them"
            return error_response(path, 400, message, headers={"Connection": "close"})
        needed = self._right(method, path)
        is_open = needed is None and method in ("GET", "HEAD")
        right: Right = needed or "search"
        if refused := self._origins.refusal(headers, method, is_page=is_open):
            return error_response(path, *refused)
        if self._origins.is_preflight(headers, method):
            return Response(status_code=204)  # browsers send no key with it
        if right == "write" and not keys.writing:
            return error_response(
                path,
                403,
                "this server takes no changes, as none of its keys may: --write-key-file, or the"
                " right to write in --keys",
            )
        if key is None and (right == "write" or (keys.reading and not is_open)):
            reason = "wrong key" if "authorization" in headers else "no key"
            return error_response(
                path,
                401,
                f"{reason}; send the header Authorization: Bearer KEY",
                "invalid_api_key",
            )
        if key is not None and not is_open and right not in key.rights:
            return error_response(path, 403, f"this key has no right to {right}")
        return None


async def _send_in_parts(message: Message, send: Send) -> None:
    """Send a body in parts, so that only one of them waits for a client that does not read."""
    body = message.get("body", b"")
    last = max(0, (len(body) - 1) // PART_BYTES) * PART_BYTES  # where the last part begins
    for start in range(0, last, PART_BYTES):
        await send({**message, "body": body[start : start + PART_BYTES], "more_body": True})
    await send({**message, "body": body[last:] if last else body})
