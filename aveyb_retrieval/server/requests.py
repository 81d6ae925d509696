"""Fields of requests: what they are, what they mean, and how a body is read into them.

What a route declares is what it reads, and what `/openapi.json` tells of it. What they mean stands
in `meanings.json` by the path of a request ("" is for all that have no meaning of their own), or in
the docstrings of Python's classes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import cleandoc
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn

from aveyb_retrieval.errors import ConfigError, InputError, plural
from aveyb_retrieval.indexes.search.options import SearchOptions
from aveyb_retrieval.server.http import Refusal, context

if TYPE_CHECKING:
    from starlette.requests import Request

    from aveyb_retrieval.server.http import Context
    from aveyb_retrieval.server.work import Ticket

Schema = dict[str, Any]
Take = Callable[[str, Any], Any]

NEEDED: Any = object()  # in place of a default: the field must be given
ABSENT: Any = object()  # in place of a default: what is not given is not there


@dataclass(frozen=True)
class Field:
    """A field: what it takes, what returns the value given under its name or raises, what stands
    for it otherwise.
    """

    schema: Schema
    take: Take
    default: Any = NEEDED


Fields = Mapping[str, Field]


def take_fields(given: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return the values of fields by name, or raise what tells why one cannot be taken."""
    if unknown := given.keys() - fields.keys():
        raise ConfigError(
            f"{min(unknown)!r} is not a field of this request; known are {', '.join(fields)}"
        )
    taken = {}
    for name, field in fields.items():
        if name in given:
            taken[name] = field.take(name, given[name])
        elif field.default is NEEDED:
            raise InputError(f"{name}: missing")
        elif field.default is not ABSENT:
            taken[name] = field.default
    return taken


def schema_of(fields: Fields) -> Schema:
    """Describe an object that has these fields and no others."""
    return {
        "type": "object",
        "properties": {name: field.schema for name, field in fields.items()},
        "required": [name for name, field in fields.items() if field.default is NEEDED],
        "additionalProperties": False,
    }


def text(most: int) -> Field:
    """A text that is not empty, of at most so many characters."""
    return Field(
        {"type": "string", "pattern": r"\S", "maxLength": most}, partial(_taken_text, most=most)
    )


def texts(max_batch: int, most: int) -> Field:
    """A list of such texts."""

    def take(name: str, value: Any) -> list[str]:
        if not isinstance(value, list):
            raise InputError(f"{name}: a {kind_of(value)}; a list of texts is needed")
        if not value:
            raise InputError(f"{name}: an empty list; at least one text is needed")
        if len(value) > max_batch:
            raise Refusal(
                413,
                f"{name}: {plural(len(value), 'text')}; at most {max_batch:,} are allowed at once",
            )
        return [
            _taken_text(f"{name} {i} of {len(value)}", each, most)
            for i, each in enumerate(value, start=1)
        ]

    return Field(
        {"type": "array", "items": text(most).schema, "minItems": 1, "maxItems": max_batch}, take
    )


def text_or_texts(max_batch: int, most: int) -> Field:
    """One such text, or a list of them; taken is a list."""
    one, several = text(most), texts(max_batch, most)

    def take(name: str, value: Any) -> Any:
        return several.take(name, value) if isinstance(value, list) else [one.take(name, value)]

    return Field({"anyOf": [one.schema, several.schema]}, take)


def word() -> Field:
    """A text of any kind, or null."""

    def take(name: str, value: Any) -> str | None:
        return None if value is None else _taken_text(name, value, may_be_empty=True)

    return Field({"type": ["string", "null"]}, take, None)


def choice(*values: str) -> Field:
    """One of some texts; null and nothing are the first."""

    def take(name: str, value: Any) -> str:
        if value is not None and value not in values:
            raise ConfigError(f"{name}={value!r}: must be {' or '.join(map(repr, values))}")
        return values[0] if value is None else value

    return Field({"enum": [*values, None]}, take, values[0])


def whole(least: int, most: int, default: Any, *, or_null: bool = False) -> Field:
    """A whole number of a range."""

    def take(name: str, value: Any) -> int | None:
        if value is None and or_null:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(f"{name}={value!r}: must be a whole number from {least} to {most:,}")
        return value

    return Field(
        {"type": ["integer", "null"] if or_null else "integer", "minimum": least, "maximum": most},
        take,
        default,
    )


def flag(default: Any) -> Field:
    """True or false."""

    def take(name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{name}={value!r}: must be true or false")
        return value

    return Field({"type": "boolean"}, take, default)


def passed_on(schema: Schema) -> Field:
    """A field that whoever gets it checks."""
    return Field(schema, lambda name, value: value, ABSENT)


def check_length(where: str, value: str, most: int) -> None:
    """Raise Refusal (413) where a text is too long."""
    if len(value) > most:
        raise Refusal(413, f"{where}: {len(value):,} characters; at most {most:,} are allowed")


def _taken_text(
    where: str, value: object, most: int | None = None, *, may_be_empty: bool = False
) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: a {kind_of(value)}; a text is needed")
    if not (value.strip() or may_be_empty):
        raise InputError(f"{where}: empty; a text is needed")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: not valid Unicode; it holds half of a surrogate pair") from None
    if most is not None:
        check_length(where, value, most)
    return value


def kind_of(value: object) -> str:
    """What JSON calls the type of a value, in messages."""
    kinds = {
        NoneType: "null",
        bool: "truth value",
        int: "number",
        float: "number",
        str: "string",
        list: "list",
    }
    return (kinds | {dict: "object"})[type(value)]


JSON, JSON_LINES = "application/json", "application/x-ndjson"
_TEXTS = ("query", "index")  # parameters of a URL that are never JSON


async def read_json(request: Request) -> tuple[Context, Ticket, dict[str, Any]]:
    """Read a body that is a JSON object, or raise; also return the server that was asked, and the
    request's ticket.
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
    """Read a body of one of some kinds, within the limits and the time of its request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in kinds:  # a page of another site can send other kinds without asking first
        wanted = " or ".join(kinds)
        raise Refusal(
            415, f"Content-Type {kind or 'is missing'}: send the header Content-Type: {wanted}"
        )
    ticket = request.state.ticket
    try:
        return await asyncio.wait_for(
            _read(request, context(request).limits.max_body, ticket), ticket.left
        )
    except TimeoutError:
        raise ticket.expire() from None


async def _read(request: Request, most: int, ticket: Ticket) -> bytes:
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


def read_parameters(request: Request) -> dict[str, Any]:
    """Read the parameters of a URL: queries and names as they are, others as JSON where they are
    JSON.
    """
    found: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise InputError(f"{name} is given twice")
        found[name] = value
        if name not in _TEXTS:
            with suppress(ValueError, RecursionError):  # it is a text, too
                found[name] = json.loads(value, parse_constant=_no_such_number)
    return found


def _no_such_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")


_IN_JSON = {"None": "null", "True": "true", "False": "false"}
_TOLD: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("meanings.json").read_text(encoding="utf-8")
)


def attributes(described: type) -> dict[str, str]:
    """Return what the docstring of a class says of its attributes, by name."""
    _, _, listed = cleandoc(described.__doc__ or "").partition("Attributes:\n")
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE)
    in_json = {
        name: re.sub("None|True|False", lambda word: _IN_JSON[word[0]], meaning)
        for name, meaning in found
    }
    return {name: " ".join(meaning.split()).removesuffix(".") for name, meaning in in_json.items()}


MEANINGS = _TOLD | {
    "/search": attributes(SearchOptions) | _TOLD["/search"],
    "/v2/rerank": _TOLD["/v1/rerank"],
}


def meaning(name: str, of: str) -> str:
    """Return what a field of a request means, "" where nothing is said of it."""
    return MEANINGS.get(of, {}).get(name) or MEANINGS[""].get(name, "")


def explain(schema: Any, of: str) -> Any:
    """Return a schema of a request in which each field has its meaning."""
    if isinstance(schema, list):
        return [explain(each, of) for each in schema]
    if not isinstance(schema, dict):
        return schema
    explained = {key: explain(value, of) for key, value in schema.items()}
    for name, field in explained.get("properties", {}).items():
        field["description"] = meaning(name, of)
    return explained
