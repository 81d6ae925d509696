"""What routes of one index share: the request with its index, and the answer of a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from aveyb_retrieval.server.context import Context, context, json_answer
from aveyb_retrieval.server.fields import read
from aveyb_retrieval.server.request_types import OfIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.indexes.search.retriever import Retriever
    from aveyb_retrieval.server.answer_types import Answer
    from aveyb_retrieval.server.tickets import Ticket

_F = TypeVar("_F", bound=OfIndex, covariant=True)


@dataclass(frozen=True)
class Call(Generic[_F]):
    """A request about one index: its fields, and the index `name` as its key sees it."""

    server: Context
    ticket: Ticket
    fields: _F
    name: str
    index: Retriever


async def read_call(request: Request, kind: type[_F]) -> Call[_F]:
    """Read a request about one index, or raise what tells why it cannot be taken."""
    server, ticket = context(request), request.state.ticket
    fields = await read(request, kind)
    name, index = server.indexes.named(fields.index, ticket.only)
    return Call(server, ticket, fields, name, index)


async def answer(server: Context, ticket: Ticket, work: Callable[[], Answer]) -> Response:
    """Answer with what a thread that searches makes and writes as JSON."""
    written = await server.searching.run(lambda: msgspec.json.encode(work()), ticket)
    ticket.answer(len(written))
    return json_answer(written)
