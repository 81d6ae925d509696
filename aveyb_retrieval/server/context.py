"""What every route works with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from starlette.requests import Request

    from aveyb_retrieval.server.indexes import Indexes
    from aveyb_retrieval.server.limits import Limits
    from aveyb_retrieval.server.metrics import Metrics
    from aveyb_retrieval.server.work import Work


@dataclass(frozen=True)
class Context:
    """The parts of a running server.

    Attributes:
        indexes: What is searched, and the model.
        limits: What a request may ask for.
        searching: Where searches run.
        encoding: Where texts are encoded: one thread, since the model uses all processors by itself. Long requests wait
            there, and searches do not wait for them.
        writing: Where indexes are changed, one change after the other.
        metrics: What is counted.
        openapi: The document of /openapi.json.
        originals: Whether files are given out that documents were read from.
    """

    indexes: Indexes
    limits: Limits
    searching: Work
    encoding: Work
    writing: Work
    metrics: Metrics
    openapi: bytes
    originals: bool


def context(request: Request) -> Context:
    """Return the parts of the server that a request came to."""
    return cast("Context", request.app.state.context)
