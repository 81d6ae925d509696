"""Metadata in a form that filters of any database can ask for, and filters as conditions on it.

Few databases have conditions on any element of a list, and comparisons with a missing field that are false. So a row
keeps its metadata in a form that needs neither: `facts`, an array of hashes such as that of "the field `year` is 2004",
and `bounds`, a JSON object of the least and greatest number and string of each field, a list's included. Some element
is less than a value where the least one is.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.store.filters import (
    NOTHING,
    Condition,
    FilterCompiler,
    field_keys,
    is_number,
    join,
    nearest_float,
    negate,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aveyb_retrieval.indexes.store.filters import Scalar

_BEYOND = 1 << 64  # whole numbers from here on are those of floats
_EMPTY: tuple[Any, ...] = ("", [], {}, None)


def describe(metadata: Mapping[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """The facts and bounds of metadata."""
    facts: dict[int, None] = {}
    bounds: dict[str, Any] = {}
    for path, value in _fields(metadata, []):
        scalars = [item for item in _elements(value) if not isinstance(item, (list, dict))]
        kinds = {"list": isinstance(value, list), "text": isinstance(value, str)}
        kinds["empty"] = not isinstance(value, bool) and value in _EMPTY
        named = ["exists", *(name for name, holds in kinds.items() if holds)]
        facts.update(dict.fromkeys([*(_fact(path, name) for name in named), *(_equal(path, item) for item in scalars)]))
        numbers = [_number(item) for item in scalars if is_number(item)]
        for kind, held in (("n", numbers), ("s", [item for item in scalars if isinstance(item, str)])):
            if held:
                bounds |= {_bound(path, kind, "<"): min(held), _bound(path, kind, ">"): max(held)}
    return list(facts), bounds


@dataclass(frozen=True)
class FactFilters(FilterCompiler):
    """Compiles filters to conditions in the words of a database.

    Attributes:
        holds: `facts` hold one of the numbers `{}`.
        there: `bounds` have the key `{}`.
        number, text: They have the key `{key}`, under which is a number, or a string by code points, `{operator}` %s.
        part: They have the key `{}`, under which is a string that holds the text %s.
    """

    holds: str
    there: str
    number: str
    text: str
    part: str

    def equal(self, field: str, value: Scalar) -> Condition:
        """Some element of the field is this value."""
        return self.one_of(field, [value])

    def one_of(self, field: str, values: Sequence[Scalar]) -> Condition:
        """Some element of the field is one of these values."""
        path = field_keys(field)
        return self._holds(*(_equal(path, value) for value in values)) if values else NOTHING

    def compare(self, field: str, operator: str, value: str | int | float) -> Condition:
        """Some element of the field is of the value's type and <, <=, > or >= it."""
        kind, value = ("s", value) if isinstance(value, str) else ("n", _number(value))
        key = _bound(field_keys(field), kind, operator[0])
        if isinstance(value, float) and math.isinf(value):
            return Condition(self.there.format(key), ()) if (value < 0) == (operator[0] == ">") else NOTHING
        test = self.text if kind == "s" else self.number
        return Condition(test.format(key=key, operator=operator), (value,))

    def is_list(self, field: str) -> Condition:
        """The field is a list."""
        return self._holds(_fact(field_keys(field), "list"))

    def has_part(self, field: str, text: str) -> Condition:
        """The field is a string that holds this text, letter by letter."""
        path = field_keys(field)
        is_text = self._holds(_fact(path, "text"))
        part = Condition(self.part.format(_bound(path, "s", "<")), (text,))
        return join(" AND ", [is_text, part]) if text else is_text

    def exists(self, field: str) -> Condition:
        """The field is there, even if it is null."""
        return self._holds(_fact(field_keys(field), "exists"))

    def is_empty(self, field: str) -> Condition:
        """The field is "", [], {}, null or missing."""
        return join(" OR ", [negate(self.exists(field)), self._holds(_fact(field_keys(field), "empty"))])

    def _holds(self, *facts: int) -> Condition:
        return Condition(self.holds.format(", ".join(map(str, facts))), ())


def _fields(value: Mapping[str, Any], path: list[str]) -> Iterator[tuple[list[str], Any]]:
    """Every field of an object and of those inside it; those inside lists have no path."""
    for key, item in value.items():
        yield [*path, key], item
        if isinstance(item, dict):
            yield from _fields(item, [*path, key])


def _elements(value: Any) -> Iterator[Any]:
    """What conditions look at: a value, or the elements of a list and those of lists in it."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, list):
            yield from item
        else:
            yield item


def _equal(path: list[str], value: Scalar) -> int:
    if is_number(value):
        value = _number(value)
        value = int(value) if math.isfinite(value) and value == int(value) else value
    return _fact(path, "=", value)


def _fact(path: list[str], name: str, value: Any = None) -> int:
    """63 bits of a hash of what is said of a field."""
    told = json.dumps([path, name, value]).encode()
    return int.from_bytes(hashlib.sha256(told).digest()[:8], "big") >> 1


def _bound(path: list[str], kind: str, operator: str) -> str:
    """The key of the least (compared by <) or greatest number ("n") or string ("s") of a field."""
    return f"{_fact(path, kind):x}{'min' if operator == '<' else 'max'}"


def _number(value: int | float) -> int | float:
    return nearest_float(value) if isinstance(value, int) and abs(value) >= _BEYOND else value
