"""Read what a request asks for: a bounded body of JSON, and fields of the types and ranges that are allowed."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NoReturn

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.requests import Request

    from aveyb_retrieval.server.held import Held
    from aveyb_retrieval.server.ticket import Ticket


async def read_json(request: Request, max_body: int, ticket: Ticket) -> dict[str, Any]:
    """Read a body that is a JSON object.

    Raises:
        Refusal: 413 above `max_body` bytes, 415 if it does not say that it is JSON, 429 if too many bodies arrive at
            once, 503 if it does not arrive in time.
        InputError: it is not a JSON object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a page of another site can send other kinds without asking first
        raise Refusal(415, f"Content-Type {kind or 'is missing'}: send the header Content-Type: application/json")
    try:
        data = await asyncio.wait_for(_read_body(request, max_body, ticket.held), ticket.left)
    except asyncio.TimeoutError:
        raise ticket.expire() from None
    try:
        content = json.loads(data, parse_constant=_no_such_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"the body is a JSON {_kind(content)}; an object is needed")
    return content


async def _read_body(request: Request, max_body: int, held: Held) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > max_body:
        raise _too_large(max_body)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_body:
            raise _too_large(max_body)
        held.take(len(part))
        parts.append(part)
    return b"".join(parts)


def _too_large(max_body: int) -> Refusal:
    return Refusal(413, f"the body is larger than the {max_body:,} bytes that are allowed; send less at once")


def read_parameters(request: Request, texts: Iterable[str]) -> dict[str, Any]:
    """Read the parameters of a URL: those named in `texts` as they are, others as JSON where they are JSON.

    Raises:
        InputError: a parameter is given twice.
    """
    found: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise InputError(f"{name} is given twice")
        found[name] = value if name in texts else _json_or_text(value)
    return found


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value, parse_constant=_no_such_number)
    except (ValueError, RecursionError):
        return value


def take_texts(fields: dict[str, Any], name: str, max_batch: int, max_length: int) -> tuple[list[str], bool]:
    """Take a field that is a text or a list of them; also return whether it was a single one.

    Raises:
        InputError: it is missing, something else, empty, or no valid Unicode.
        Refusal: 413 above `max_batch` texts, or where one has more than `max_length` characters.
    """
    value = fields.pop(name, None)
    if value is None:
        raise InputError(f"{name}: missing; a text or a list of texts is needed")
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise InputError(f"{name}: a {_kind(value)}; a text or a list of texts is needed")
    if not texts:
        raise InputError(f"{name}: an empty list; at least one text is needed")
    if len(texts) > max_batch:
        raise Refusal(413, f"{name}: {plural(len(texts), 'text')}; at most {max_batch:,} are allowed in one request")
    for number, text in enumerate(texts, start=1):
        where = f"{name} {number} of {len(texts)}" if isinstance(value, list) else name
        _check_text(where, text)
        check_length(where, text, max_length)
    return texts, isinstance(value, str)


def take_list(fields: dict[str, Any], name: str, max_batch: int, max_length: int) -> list[str]:
    """Take a field that is a list of texts; raises as `take_texts`."""
    texts, single = take_texts(fields, name, max_batch, max_length)
    if single:
        raise InputError(f"{name}: a string; a list of texts is needed")
    return texts


def take_text(fields: dict[str, Any], name: str) -> str | None:
    """Take a field that is a text, or None where it is missing or null.

    Raises:
        InputError: it is something else, or no valid Unicode.
    """
    value = fields.pop(name, None)
    if value is not None:
        _check_text(name, value, may_be_empty=True)
    return value


def take_needed_text(fields: dict[str, Any], name: str, max_length: int) -> str:
    """Take a field that must be a text.

    Raises:
        InputError: it is missing, empty, something else, or no valid Unicode.
        Refusal: 413 where it has more than `max_length` characters.
    """
    text = take_text(fields, name)
    if text is None or not text.strip():
        raise InputError(f"{name}: missing or empty; a text is needed")
    check_length(name, text, max_length)
    return text


def _check_text(where: str, text: object, *, may_be_empty: bool = False) -> None:
    if not isinstance(text, str):
        raise InputError(f"{where}: a {_kind(text)}; a text is needed")
    if not (text.strip() or may_be_empty):
        raise InputError(f"{where}: empty; a text is needed")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: not valid Unicode; it holds half of a surrogate pair") from None


def check_length(where: str, text: str, most: int) -> None:
    """Raise Refusal (413) where a text is too long."""
    if len(text) > most:
        raise Refusal(413, f"{where}: {len(text):,} characters; at most {most:,} are allowed")


def take_choice(fields: dict[str, Any], name: str, choices: Sequence[str]) -> str:
    """Take a field that is one of some texts; the first where it is missing or null.

    Raises:
        ConfigError: it is none of them.
        InputError: it is no text.
    """
    value = take_text(fields, name)
    if value is None:
        return choices[0]
    if value not in choices:
        raise ConfigError(f"{name}={value!r}: must be {' or '.join(map(repr, choices))}")
    return value


def take_whole(fields: dict[str, Any], name: str, default: int, *, least: int, most: int) -> int:
    """Take a field that is a whole number of a range.

    Raises:
        ConfigError: it is not.
    """
    value = fields.pop(name, default)
    check_whole(name, value, least=least, most=most)
    return int(value)


def check_whole(name: str, value: object, *, least: int, most: int) -> None:
    """Raise ConfigError where a value is not a whole number of a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name}={value!r}: must be a whole number from {least} to {most:,}")


def take_flag(fields: dict[str, Any], name: str, *, default: bool) -> bool:
    """Take a field that is true or false.

    Raises:
        ConfigError: it is neither.
    """
    value = fields.pop(name, default)
    check_flag(name, value)
    return bool(value)


def check_flag(name: str, value: object) -> None:
    """Raise ConfigError where a value is neither true nor false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: must be true or false")


def refuse_others(fields: dict[str, Any], known: Iterable[str]) -> None:
    """Raise ConfigError where fields are left that nobody took."""
    if fields:
        raise ConfigError(f"{min(fields)!r} is not a field of this request; known are {', '.join(known)}")


def _no_such_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "truth value"
    return {int: "number", float: "number", str: "string", list: "list", dict: "object"}[type(value)]
