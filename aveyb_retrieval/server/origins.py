"""Which pages may ask from a browser, and under which names the server answers.

A browser sends requests in the name of any page that somebody visits, also to a server that only
this machine reaches. It says where the page comes from: in Origin (every request that is not a
plain GET), and in Sec-Fetch-Site (all requests to HTTPS and to this machine). Programs send
neither, and are not held up. The third guard is Content-Type: see `fields.read_body`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from starlette.datastructures import Headers

_SAME_SITE = ("same-origin", "none")  # none: somebody typed the address, or followed a bookmark
_PREFLIGHT_SECONDS = 600  # for which a browser remembers that a page may ask


class Origins:
    """The origins whose pages may ask: this server's own, and `allowed` such as
    `https://app.example.org`.

    `hosts` are names that the header Host may have, None for any. They keep out pages that reach
    this server under a name of their own (DNS rebinding).
    """

    def __init__(self, hosts: Collection[str] | None = None, allowed: Collection[str] = ()) -> None:
        self._hosts = hosts
        self._allowed = {_checked(origin) for origin in allowed}

    def refusal(self, headers: Headers, method: str, *, is_page: bool) -> tuple[int, str] | None:
        """Return the status and message of a refusal, or None. Other sites may link to a file of
        the page (`is_page`).
        """
        host, origin = headers.get("host", ""), headers.get("origin")
        name = _host_name(host)
        if self._hosts is not None and name not in self._hosts:
            return 421, f"this server is not called {name!r}; name it with --allow-host"
        if origin in self._allowed:
            return None
        site = headers.get("sec-fetch-site")
        if site in _SAME_SITE:
            return None
        if site is None and (origin is None or origin.partition("://")[2] == host):
            return None
        if is_page and method == "GET" and headers.get("sec-fetch-mode") == "navigate":
            return None
        return 403, f"a page of {origin or 'another site'} asks; allow it with --cors-origin"

    def answer_headers(self, headers: Headers) -> Mapping[str, str]:
        """Return headers that let a page of another origin read the answer, and those that let it
        send the request if it asks first (a preflight).
        """
        if not self._allowed:
            return {}
        origin = headers.get("origin")
        if origin not in self._allowed:
            return {"Vary": "Origin"}
        answer_headers = {
            "Vary": "Origin",
            "Access-Control-Allow-Origin": origin or "",
            "Access-Control-Expose-Headers": "Retry-After",
        }
        if "access-control-request-method" in headers:
            answer_headers |= {
                "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
                "Access-Control-Allow-Headers": "Authorization, Content-Type",
                "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
            }
        return answer_headers

    def is_preflight(self, headers: Headers, method: str) -> bool:
        """Whether a browser asks if a page of an allowed origin may send a request."""
        return (
            method == "OPTIONS"
            and "access-control-request-method" in headers
            and headers.get("origin") in self._allowed
        )


def _host_name(host: str) -> str:
    """Return the name in a header Host, without a port and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _checked(origin: str) -> str:
    """Return an origin as browsers write it, or raise ConfigError."""
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
