"""Values checked against annotated types, and messages that say what a value must be.

A type such as `Annotated[int, Meta(ge=1, le=100)]` is the one definition of a limit: what Python
checks, what the server refuses, and what its OpenAPI document declares are read from it.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import numpy as np

from aveyb_retrieval.errors import ConfigError


def check_value(name: str, value: Any, annotated: Any, *, in_json: bool = False) -> None:
    """Raise ConfigError if a value is not of a type, or out of its bounds.

    Numbers and flags of NumPy are taken as those of Python. `in_json` says whether the message is
    for somebody who writes JSON.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    try:
        msgspec.convert(plain, annotated)
    except msgspec.ValidationError:
        words = must_be(annotated, in_json=in_json)
        raise ConfigError(f"{name}={value!r}: must be {words}") from None


def check_attributes(source: object, types: type[msgspec.Struct]) -> None:
    """Raise ConfigError if an attribute of an object does not fit the field of its name, as
    `check_value` does.
    """
    try:
        msgspec.convert(source, types, from_attributes=True)
    except msgspec.ValidationError:  # or it is a number of NumPy
        for field in msgspec.structs.fields(types):
            check_value(field.name, getattr(source, field.name), field.type)


def unwrap(annotated: Any) -> tuple[Any, list[msgspec.Meta]]:
    """Return a type without its annotations, and those of msgspec."""
    if get_origin(annotated) is not Annotated:
        return annotated, []
    plain, *notes = get_args(annotated)
    return plain, [note for note in notes if isinstance(note, msgspec.Meta)]


def alternatives(annotated: Any) -> list[Any]:
    """Return the types that a union joins, None among them as NoneType; of another type, itself."""
    plain, _ = unwrap(annotated)
    return list(get_args(plain)) if get_origin(plain) in (Union, UnionType) else [annotated]


def must_be(annotated: Any, *, in_json: bool = False) -> str:
    """Say what a value of a type must be: "a whole number from 1 to 100".

    The entry `must_be` of `Meta(extra=...)` takes the place of these words.
    """
    plain, notes = unwrap(annotated)
    for note in reversed(notes):
        if note.extra and "must_be" in note.extra:
            return str(note.extra["must_be"])
    joined = alternatives(annotated)
    if len(joined) > 1:
        first = next(member for member in joined if member is not NoneType)
        words = must_be(first, in_json=in_json)
        if get_origin(unwrap(first)[0]) is Literal and NoneType in joined:
            words += ", null" if in_json else ", None"
        return words
    if get_origin(plain) is Literal:
        return f"one of {', '.join(map(repr, get_args(plain)))}"
    if plain is bool:
        return "true or false" if in_json else "True or False"
    if plain in (int, float):
        return _number(plain, notes)
    if get_origin(plain) is dict:
        return "an object"
    return "a text" if plain is str else "a list of texts"


def _number(kind: type, notes: list[msgspec.Meta]) -> str:
    least = next((note.ge for note in notes if note.ge is not None), None)
    most = next((note.le for note in notes if note.le is not None), None)
    name = "a whole number" if kind is int else "a number"
    if least is None:
        return name
    if most is None:
        return f"{name} of at least {least}"
    return f"{name} from {least:,} to {most:,}"
