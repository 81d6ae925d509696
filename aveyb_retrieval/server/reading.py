"""Read what a request sends: a bounded body of JSON, or the parameters of a URL."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NoReturn

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.fields import kind_of
from aveyb_retrieval.server.refusals import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request

    from aveyb_retrieval.server.context import Context
    from aveyb_retrieval.server.ticket import Ticket

JSON, JSON_LINES = "application/json", "application/x-ndjson"
_TEXTS = ("query", "index")  # parameters of a URL that are never JSON


async def read_json(request: Request) -> tuple[Context, Ticket, dict[str, Any]]:
    """Read a body that is a JSON object; also return the server that was asked, and the request's ticket.

    Raises:
        Refusal: as `read_body`.
        InputError: it is not a JSON object.
    """
    data = await read_body(request, JSON)
    try:
        content = json.loads(data, parse_constant=_no_such_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"the body is a JSON {kind_of(content)}; an object is needed")
    return context(request), request.state.ticket, content


async def read_body(request: Request, *kinds: str) -> bytes:
    """Read a body of one of some kinds.

    Raises:
        Refusal: 413 where the body is too large, 415 if it does not say that it is of one of them, 429 if too many
            bodies arrive at once, 503 if it does not arrive in time.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in kinds:  # a page of another site can send other kinds without asking first
        wanted = " or ".join(kinds)
        raise Refusal(415, f"Content-Type {kind or 'is missing'}: send the header Content-Type: {wanted}")
    ticket = request.state.ticket
    try:
        return await asyncio.wait_for(_read(request, context(request).limits.max_body, ticket), ticket.left)
    except asyncio.TimeoutError:
        raise ticket.expire() from None


async def _read(request: Request, most: int, ticket: Ticket) -> bytes:
    too_large = Refusal(413, f"the body is larger than the {most:,} bytes that are allowed; send less at once")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        ticket.hold(len(part))
        parts.append(part)
    return b"".join(parts)


def read_parameters(request: Request) -> dict[str, Any]:
    """Read the parameters of a URL: queries and names as they are, others as JSON where they are JSON.

    Raises:
        InputError: a parameter is given twice.
    """
    found: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise InputError(f"{name} is given twice")
        found[name] = value if name in _TEXTS else _json_or_text(value)
    return found


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value, parse_constant=_no_such_number)
    except (ValueError, RecursionError):
        return value


def _no_such_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")
