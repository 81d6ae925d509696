"""Fields of requests: read from a body or a URL, checked, and made into a request."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args, get_origin

import msgspec

from aveyb_retrieval.checks import alternatives, check_value, unwrap
from aveyb_retrieval.errors import ConfigError, InputError, plural
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.server.request_types import NOT_BLANK, Request, with_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request as HttpRequest

    from aveyb_retrieval.server.tickets import Ticket

JSON, JSON_LINES = "application/json", "application/x-ndjson"

_R = TypeVar("_R", bound=Request)

_fields_of = cache(msgspec.structs.fields)  # it looks at all annotations anew


async def read(request: HttpRequest, kind: type[_R]) -> _R:
    """Read a request from the body of a POST or PATCH, else from the URL, or raise what tells why
    it cannot be taken.
    """
    kind = with_limits(kind, context(request).limits)
    if request.method in ("POST", "PATCH"):
        return take(kind, await read_object(request))
    return take(kind, read_parameters(request, kind))


def take(kind: type[_R], fields: Mapping[str, Any]) -> _R:
    """Make a request of its fields, or raise ConfigError, InputError or Refusal (413), which name
    the field, its value and what it must be.
    """
    declared = _fields_of(kind)
    if unknown := fields.keys() - {field.name for field in declared}:
        raise ConfigError(kind.unknown(min(unknown)))
    for field in declared:
        if field.name in fields:
            _check(field.name, fields[field.name], field.type)
        elif field.required:
            raise InputError(f"{field.name}: missing")
    return msgspec.convert(fields, kind)


def _check(name: str, value: Any, annotated: Any) -> None:
    """Check a field; its type is a text, a list of texts, a union of both, or whatever
    `check_value` takes.
    """
    kinds = alternatives(annotated)
    if value is None and NoneType in kinds:
        return
    lists = [kind for kind in kinds if get_origin(unwrap(kind)[0]) is list]
    texts = _texts_among(kinds)
    if lists and (isinstance(value, list) or not texts):
        _check_list(name, value, lists[0])
    elif texts:
        _check_text(name, value, texts[0])
    else:
        check_value(name, value, annotated, in_json=True)


def _check_list(name: str, value: Any, annotated: Any) -> None:
    plain, notes = unwrap(annotated)
    if not isinstance(value, list):
        raise InputError(f"{name}: {kind_of(value)}; a list of texts is needed")
    if not value and any(note.min_length for note in notes):
        raise InputError(f"{name}: an empty list; at least one text is needed")
    most = next((note.max_length for note in notes if note.max_length is not None), len(value))
    if len(value) > most:
        raise Refusal(
            413, f"{name}: {plural(len(value), 'text')}; at most {most:,} are allowed at once"
        )
    (item,) = get_args(plain)
    (text_type,) = _texts_among(alternatives(item))
    for number, text in enumerate(value, start=1):
        _check_text(f"{name} {number} of {len(value)}", text, text_type)


def _texts_among(kinds: list[Any]) -> list[Any]:
    return [kind for kind in kinds if unwrap(kind)[0] is str]


def _check_text(name: str, value: Any, annotated: Any) -> None:
    _, notes = unwrap(annotated)
    if not isinstance(value, str):
        raise InputError(f"{name}: {kind_of(value)}; a text is needed")
    if any(note.extra_json_schema == NOT_BLANK for note in notes) and not value.strip():
        raise InputError(f"{name}: empty; a text is needed")
    for note in notes:
        if note.max_length is not None:
            check_length(name, value, note.max_length)
    if any(note.pattern for note in notes):
        check_value(name, value, annotated)


def check_length(name: str, text: str, most: int) -> None:
    """Raise Refusal (413) if a text is too long."""
    if len(text) > most:
        raise Refusal(413, f"{name}: {len(text):,} characters; at most {most:,} are allowed")


def kind_of(value: object) -> str:
    """Return what JSON calls a value of a type, with its article."""
    kinds = {
        NoneType: "null",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return kinds[type(value)]


# --- bodies and URLs


async def read_object(request: HttpRequest) -> dict[str, Any]:
    """Read a body that is a JSON object, or raise."""
    data = await read_body(request, JSON)
    try:
        content = _parse(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"the body is {kind_of(content)} in JSON; an object is needed")
    return content


async def read_body(request: HttpRequest, *kinds: str) -> bytes:
    """Read a body of one of some kinds, within the limits and the time of its request."""
    # a page of another site can send other kinds without asking first
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in kinds:
        accepted = " or ".join(kinds)
        raise Refusal(
            415, f"Content-Type {kind or 'is missing'}: send the header Content-Type: {accepted}"
        )
    ticket = request.state.ticket
    try:
        return await asyncio.wait_for(
            _read_parts(request, context(request).limits.max_body, ticket), ticket.left
        )
    except TimeoutError:
        raise ticket.expire() from None


async def _read_parts(request: HttpRequest, most: int, ticket: Ticket) -> bytes:
    too_large = Refusal(
        413, f"the body is larger than the {most:,} bytes that are allowed; send less at once"
    )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        ticket.hold(len(part))
        await ticket.pace(len(part))
        parts.append(part)
    return b"".join(parts)


def read_parameters(request: HttpRequest, kind: type[Request]) -> dict[str, Any]:
    """Read the parameters of a URL; those that may be more than a text are read as JSON if they
    are JSON.
    """
    texts = {field.name for field in _fields_of(kind) if _is_text(field.type)}
    parameters: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in parameters:
            raise InputError(f"{name} is given twice")
        parameters[name] = value
        if name not in texts:
            with suppress(ValueError, RecursionError):  # it is a text, too
                parameters[name] = _parse(value)
    return parameters


def _is_text(annotated: Any) -> bool:
    return all(unwrap(kind)[0] in (str, NoneType) for kind in alternatives(annotated))


def _parse(data: bytes | str) -> Any:
    """Parse JSON; raises ValueError or RecursionError."""
    content = json.loads(data, parse_constant=_refuse_constant)
    if b"\\u" in data if isinstance(data, bytes) else "\\u" in data:
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("not valid Unicode; it holds half of a surrogate pair") from None
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")
