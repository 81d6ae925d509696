"""Metadata filters as expressions of Milvus.

Milvus has no conditions on any element of a list, and its comparisons with a missing field are neither true nor
false. So a row keeps its metadata in a form that needs neither: `facts`, an array of hashes such as that of "the field
`year` is 2004", and `bounds`, a JSON object of the least and greatest number and string of each field, a list's
included.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError
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

    from aveyb_retrieval.indexes.store.filters import Filter, Scalar

_BEYOND = 1 << 64  # whole numbers from here on are those of floats
_EMPTY: tuple[Any, ...] = ("", [], {}, None)


def compile_filter(where: Filter) -> str:
    """Compile a filter to an expression on `facts` and `bounds`.

    Raises:
        ConfigError: the filter means nothing, or Milvus cannot say it.
    """
    sql, parameters = _MilvusFilters().compile(where)
    # what a user wrote stands in the parameters alone
    sql = sql.replace("1 = 1", "number >= 0").replace("1 = 0", "number < 0")
    return sql % tuple(json.dumps(value, ensure_ascii=False) for value in parameters)


def describe(metadata: Mapping[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """The facts and bounds of metadata."""
    facts: dict[int, None] = {}
    bounds: dict[str, Any] = {}
    for path, value in _fields(metadata, ()):
        elements = value if isinstance(value, list) else [value]
        scalars = [item for item in elements if not isinstance(item, (list, dict))]
        kinds = {"list": isinstance(value, list), "text": isinstance(value, str)}
        named = ["exists", *(name for name, holds in kinds.items() if holds)]
        if not isinstance(value, bool) and value in _EMPTY:
            named.append("empty")
        facts.update(dict.fromkeys([*(_fact(path, name) for name in named), *(_equal(path, item) for item in scalars)]))
        numbers = [_number(item) for item in scalars if is_number(item)]
        for kind, held in (("n", numbers), ("s", [item for item in scalars if isinstance(item, str)])):
            if held:
                bounds |= {_bound(path, kind, "<"): min(held), _bound(path, kind, ">"): max(held)}
    return list(facts), bounds


class _MilvusFilters(FilterCompiler):
    def equal(self, field: str, value: Scalar) -> Condition:
        return _has(_equal(_path(field), value))

    def one_of(self, field: str, values: Sequence[Scalar]) -> Condition:
        path = _path(field)
        found = ", ".join(str(_equal(path, value)) for value in values)
        return Condition(f"array_contains_any(facts, [{found}])", ()) if found else NOTHING

    def compare(self, field: str, operator: str, value: str | int | float) -> Condition:
        kind = "s" if isinstance(value, str) else "n"
        key = f'bounds["{_bound(_path(field), kind, operator[0])}"]'
        if isinstance(value, float) and math.isinf(value):
            return Condition(f"exists {key}", ()) if (value < 0) == (operator[0] == ">") else NOTHING
        number = value if isinstance(value, str) else _number(value)
        return Condition(f"(exists {key} AND {key} {operator} %s)", (number,))

    def is_list(self, field: str) -> Condition:
        return _has(_fact(_path(field), "list"))

    def has_part(self, field: str, text: str) -> Condition:
        if any(letter in text for letter in "%_\\"):
            raise ConfigError(f"filter: $contains on {field!r}: Milvus cannot look for {text!r}, of %, _ and \\")
        path = _path(field)
        is_text = _has(_fact(path, "text"))
        if not text:
            return is_text
        key = f'bounds["{_bound(path, "s", "<")}"]'
        return join(" AND ", [is_text, Condition(f"{key} like %s", (f"%{text}%",))])

    def exists(self, field: str) -> Condition:
        return _has(_fact(_path(field), "exists"))

    def is_empty(self, field: str) -> Condition:
        return join(" OR ", [negate(self.exists(field)), _has(_fact(_path(field), "empty"))])


def _fields(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every field of an object and of those inside it; those inside lists have no path."""
    for key, item in value.items():
        yield (*path, key), item
        if isinstance(item, dict):
            yield from _fields(item, (*path, key))


def _path(field: str) -> tuple[str, ...]:
    return tuple(field_keys(field))


def _has(fact: int) -> Condition:
    return Condition(f"array_contains(facts, {fact})", ())


def _equal(path: tuple[str, ...], value: Scalar) -> int:
    if is_number(value):
        value = _number(value)
        value = int(value) if math.isfinite(value) and value == int(value) else value
    return _fact(path, "=", value)


def _fact(path: tuple[str, ...], name: str, value: Any = None) -> int:
    """63 bits of a hash of what is said of a field."""
    told = json.dumps([path, name, value]).encode()
    return int.from_bytes(hashlib.sha256(told).digest()[:8], "big") >> 1


def _bound(path: tuple[str, ...], kind: str, operator: str) -> str:
    """The key of the least (compared by <) or greatest number ("n") or string ("s") of a field."""
    return f"{_fact(path, kind):x}{'min' if operator == '<' else 'max'}"


def _number(value: int | float) -> int | float:
    return nearest_float(value) if isinstance(value, int) and abs(value) >= _BEYOND else value
