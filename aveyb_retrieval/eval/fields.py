"""Read a dataclass from JSON: every field there, none other, each of its declared type."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from aveyb_retrieval.errors import InputError

T = TypeVar("T")


def from_fields(cls: type[T], data: Any, where: str) -> T:
    """Build a dataclass from the fields that `dataclasses.asdict` and JSON made of it.

    Lists become tuples where the class has tuples. Numbers must be finite, and texts encodable as UTF-8.

    Raises:
        InputError: a field is missing, unknown, or of another type; the message begins with `where`.
    """
    if not isinstance(data, dict):
        raise InputError(f"{where}: {type(data).__name__} where the fields of {cls.__name__} belong")
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # a dataclass
    if unknown := sorted(set(data) - set(fields)):
        raise InputError(f"{where}: {cls.__name__} has no field {unknown[0]!a}")
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _value(data[name], hints[name], f"{where}, {name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InputError(f"{where}: the field {name!r} of {cls.__name__} is missing")
    return cls(**values)


def _value(value: Any, hint: Any, where: str) -> Any:
    """The value, as what the type hint says."""
    if dataclasses.is_dataclass(hint):
        return from_fields(hint, value, where)  # type: ignore[arg-type]  # a class, not an object
    if get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):  # JSON has lists, `asdict` keeps tuples
            raise InputError(f"{where}: {type(value).__name__} where a list belongs")
        return tuple(_value(item, get_args(hint)[0], where) for item in value)
    if not _fits(value, hint):
        shown = ascii(value) if not isinstance(value, int) else "a number"
        raise InputError(f"{where}: {shown[:60]} is not {getattr(hint, '__name__', hint)}")
    return value


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if hint is type(None):
        return value is None
    if origin is dict:
        return isinstance(value, dict) and all(_is_text(k) and _fits(v, arguments[1]) for k, v in value.items())
    if hint is str:
        return _is_text(value)
    if hint is int:
        return type(value) is int and abs(value) < 1 << 63
    if hint is float:
        return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
    return True  # Any


def _is_text(value: Any) -> bool:
    """Whether a value is a text without lone surrogates, which no file can hold."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)
