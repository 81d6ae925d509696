"""Which pages of browsers may ask: one policy for the headers Host, Origin and Sec-Fetch-Site.

A browser sends requests in the name of any page that somebody visits, also to a server that only this machine reaches.
It says where the page comes from: in Origin (every request that is not a plain GET), in Sec-Fetch-Site (all requests to
HTTPS and to this machine). Programs send neither, and are not held up. Content-Type: see `reading.read_body`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from starlette.datastructures import Headers

_OURS = ("same-origin", "none")  # none: typed, or a bookmark
_PREFLIGHT_SECONDS = 600


class Origins:
    """Who may ask from a browser.

    Args:
        hosts: Names that the header Host may have, which keeps out pages that reach this server by a name of their own
            (DNS rebinding); None for any.
        others: Origins, as `https://app.example.org`, whose pages may ask besides this server's own.

    Raises:
        ConfigError: what is given in `others` is no origin.
    """

    def __init__(self, hosts: Collection[str] | None = None, others: Collection[str] = ()) -> None:
        self._hosts = hosts
        self._others = {_checked(origin) for origin in others}

    def refusal(self, headers: Headers, method: str, *, is_page: bool) -> tuple[int, str] | None:
        """Say why a request is refused, as status and message; None where it is not.

        Args:
            headers: Its headers.
            method: Its method.
            is_page: Whether it asks for a file of this server's page, to which other sites may link.
        """
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and (name := _name(host)) not in self._hosts:
            return 421, f"this server is not called {name!r}; name it with --allow-host"
        if origin in self._others:
            return None
        site = headers.get("sec-fetch-site")
        if site in _OURS or (site is None and (origin is None or origin.partition("://")[2] == host)):
            return None
        if is_page and method == "GET" and headers.get("sec-fetch-mode") == "navigate":
            return None
        return 403, f"a page of {origin or 'another site'} asks; allow it with --cors-origin"

    def answer_headers(self, headers: Headers) -> Mapping[str, str]:
        """Return headers that let a page of another origin read the answer; of a preflight: send the request."""
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
            method == "OPTIONS" and "access-control-request-method" in headers and headers.get("origin") in self._others
        )


def _name(host: str) -> str:
    """Return the name in a header Host, without a port and without the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _checked(origin: str) -> str:
    """Return an origin as browsers write it."""
    try:
        parts = urlsplit(origin)
        is_origin = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_origin = False
    if not is_origin or origin.lower() != f"{parts.scheme}://{parts.netloc}".lower():
        raise ConfigError(f"--cors-origin {origin}: not an origin; write it as https://app.example.org, without a path")
    return origin.lower()
