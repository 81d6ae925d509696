"""What every request passes: its host and key are checked, it is counted, and its answer gets safe headers."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.server.refusals import error_response

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from aveyb_retrieval.server.metrics import Metrics

_log = logging.getLogger("aveyb_retrieval.server")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
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
_NO_STORE = "no-store"  # answers may hold what only the owner of a key may see


class Keys:
    """The keys that open a server; none open it to everybody."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def fits(self, authorization: str) -> bool:
        """Whether a header `Authorization: Bearer KEY` has one of the keys; takes equally long for any wrong one."""
        scheme, _, key = authorization.partition(" ")
        given = _digest(key.strip().encode("latin-1"))
        fitting = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(fitting)


def read_keys(path: Path) -> Keys:
    """Read keys from a file, one on each line; empty lines and those that begin with # do not count.

    Raises:
        ConfigError: the file cannot be read, holds no key, or one that is no printable ASCII.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a file of keys ({error})") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{path}: holds no key; write one on each line")
    for number, key in enumerate(keys, start=1):
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError(f"{path}: key {number} must be printable ASCII without blanks")
    return Keys(keys)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Gate:
    """ASGI middleware around the whole application.

    Args:
        app: What is behind it.
        keys: One of these is needed, but for paths that `is_open`.
        hosts: Names that the header Host may have, which keeps pages of other sites from reaching a server on this
            machine by a name of their own (DNS rebinding); None for any.
        metrics: Where requests are counted.
        is_open: Whether a path needs no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys,
        hosts: Collection[str] | None,
        metrics: Metrics,
        is_open: Callable[[str], bool],
    ) -> None:
        self._app = app
        self._keys = keys
        self._hosts = hosts
        self._metrics = metrics
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it; a bug of ours is logged, and the client does not see its traceback."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status, began_to_answer = 500, False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, began_to_answer
            if message["type"] == "http.response.start":
                status, began_to_answer = message["status"], True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", _NO_STORE)
            await send(message)

        self._metrics.running.inc()
        try:
            refusal = self._refusal(scope)
            await (refusal or self._app)(scope, receive, send_with_headers)
        except Exception:
            if began_to_answer:
                raise
            _log.exception("%s %s", scope["method"], scope["path"])
            answer = error_response(scope["path"], 500, "internal error; the server's log says more")
            await answer(scope, receive, send_with_headers)
        finally:
            self._metrics.running.dec()
            route = _route(scope)
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if self._hosts is not None and (host := _host(headers.get("host", ""))) not in self._hosts:
            message = f"this server is not called {host!r}; name it with --allow-host"
            return error_response(path, 421, message)
        if self._keys and not self._is_open(path) and not self._keys.fits(headers.get("authorization", "")):
            message = "wrong key; send the header Authorization: Bearer KEY"
            return error_response(path, 401, message, "invalid_api_key")
        return None


def _host(header: str) -> str:
    """Return the name in a header Host, without a port and without the brackets of an IPv6 address."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _route(scope: Scope) -> str:
    """Return the name of the function that answered; paths are endless, and so no labels."""
    endpoint = scope.get("endpoint")
    return getattr(endpoint, "__name__", "none")
