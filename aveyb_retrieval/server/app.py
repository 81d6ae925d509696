"""The application: routes, what surrounds them, and what begins and ends with it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.server import openapi, page
from aveyb_retrieval.server.answers import to_json
from aveyb_retrieval.server.context import Context
from aveyb_retrieval.server.gate import Gate, Keys
from aveyb_retrieval.server.limits import Limits
from aveyb_retrieval.server.metrics import Metrics
from aveyb_retrieval.server.origins import Origins
from aveyb_retrieval.server.refusals import refuse
from aveyb_retrieval.server.work import Work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aveyb_retrieval.server.indexes import Indexes

FOLLOW_SECONDS = 1.0  # how often new versions are looked for
_OPEN = page.PATHS | {operation.path for operation in openapi.OPERATIONS if operation.is_open}


def create_app(
    indexes: Indexes,
    *,
    limits: Limits | None = None,
    keys: Keys | None = None,
    origins: Origins | None = None,
    counters: Metrics | None = None,
    originals: bool = False,
) -> Starlette:
    """Make the ASGI application. It closes the indexes when it ends.

    Args:
        indexes: What it serves.
        limits: What a request may ask for.
        keys: What opens it; none: it is open to everybody who reaches it.
        origins: Names that it answers to, and which browsers' pages may ask; None: any name, only its own page.
        counters: Where it counts.
        originals: Whether it gives out the files that documents were read from.
    """
    limits, counters, keys = limits or Limits(), counters or Metrics(), keys or Keys()
    counters.watch(indexes)
    server = Context(
        indexes=indexes,
        limits=limits,
        searching=Work("search", limits.threads, limits.max_waiting),
        encoding=Work("encode", 1, limits.max_waiting),
        writing=Work("write", 1, limits.max_waiting),
        metrics=counters,
        originals=originals,
        openapi=to_json(openapi.document(limits, has_keys=keys.reading > 0)),
    )
    gate = Middleware(
        Gate,
        limits=limits,
        keys=keys,
        origins=origins or Origins(),
        metrics=counters,
        is_open=lambda path: path in _OPEN,
    )
    app = Starlette(
        routes=[*page.routes(), *openapi.routes()],
        middleware=[gate],
        exception_handlers={AveyBError: refuse, HTTPException: refuse},
        lifespan=_lifespan,
    )
    app.state.context = server
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    server: Context = app.state.context
    following = asyncio.create_task(_follow(server.indexes))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.to_thread(_close, server)


async def _follow(indexes: Indexes) -> None:
    while True:
        await asyncio.sleep(FOLLOW_SECONDS)
        await asyncio.to_thread(indexes.follow)


def _close(server: Context) -> None:
    server.searching.close()
    server.encoding.close()
    server.writing.close()
    server.indexes.close()
