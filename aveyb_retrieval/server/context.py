"""The parts of a running server, which every route gets from its request, and answers in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from aveyb_retrieval.server.counters import Metrics
    from aveyb_retrieval.server.indexes import Indexes
    from aveyb_retrieval.server.limits import ServerLimits
    from aveyb_retrieval.server.processes import Processes
    from aveyb_retrieval.server.work import Work


@dataclass(frozen=True)
class Context:
    """The parts of a running server.

    One thread encodes texts (`encoding`), since the model uses all processors by itself: long
    requests wait there, and searches do not wait for them. One thread changes indexes (`writing`).
    `openapi` is the document of `/openapi.json`; `originals` says whether files are given out.
    """

    indexes: Indexes
    limits: ServerLimits
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


def json_answer(content: bytes) -> Response:
    """Answer with content that is JSON already."""
    return Response(content, media_type="application/json")


def raw_list(elements: Iterable[bytes]) -> Any:
    """Return a list whose elements are JSON already, as a field of an answer holds it."""
    return msgspec.Raw(b"[" + b",".join(elements) + b"]")
