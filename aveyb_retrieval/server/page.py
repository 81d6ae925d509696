"""The page for people: files of this package, read once, sent with a hash that browsers can ask again with."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

_SCRIPTS = ("page.js", "api.js", "facets.js", "filters.js", "reader.js", "text.js")
_FILES = {
    "/": ("index.html", "text/html"),
    "/page/style.css": ("style.css", "text/css"),
    **{f"/page/{name}": (name, "text/javascript") for name in _SCRIPTS},
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
    "/favicon.ico": ("icon.svg", "image/svg+xml"),
}
PATHS = frozenset(_FILES)


def routes() -> list[Route]:
    """Make the routes of the page's files."""
    return [_route(path, name, kind) for path, (name, kind) in _FILES.items()]


def _route(path: str, name: str, media_type: str) -> Route:
    content = files("aveyb_retrieval.server").joinpath("page", name).read_bytes()
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"', "Cache-Control": "no-cache"}

    async def page(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return Route(path, page)
