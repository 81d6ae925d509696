r"""Metadata filters: a small MongoDB-like language compiled to parameterised SQL.

    {"year": {"$gte": 2020}, "lang": {"$in": ["en", "de"]}, "$or": [{"draft": False}, {"author.name": "Ada"}]}

A field is a path of keys joined by dots (a dot inside a key is written `\.`). A condition on a list holds when it
holds for any of its elements; `$ne` and `$nin` hold when `$eq` and `$in` do not, so also where the field is missing.
Numbers compare with numbers and strings with strings: a condition on another type is simply false.
`$contains` (an element of a list, or a part of a string), `$any` and `$all` (one or all of some values are elements of
a list) look at the field as a whole: they are false where it is neither. `$is_empty` holds for "", [], {}, null and a
missing field.
Nothing of a filter becomes SQL text: paths and values are bound parameters.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aveyb_retrieval.errors import ConfigError

Filter = Mapping[str, Any]
Scalar = str | int | float | bool | None

_COMPARE = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_OPERATORS = (
    "$eq", "$ne", *_COMPARE, "$in", "$nin", "$contains", "$any", "$all", "$exists", "$is_empty", "$not",
)  # fmt: skip
_ELEMENT = "typeof(key) <> 'text'"  # json_each also walks through objects; a condition is not on an object's members
_TYPE = "coalesce(json_type(documents.metadata, ?), 'missing')"
_IS_EMPTY = f"""CASE {_TYPE}
    WHEN 'missing' THEN 1
    WHEN 'null' THEN 1
    WHEN 'text' THEN json_extract(documents.metadata, ?) = ''
    WHEN 'array' THEN json_array_length(documents.metadata, ?) = 0
    WHEN 'object' THEN json_extract(documents.metadata, ?) = '{{}}'
    ELSE 0 END"""
_MAX_DEPTH = 50
_MAX_VALUES = 30_000  # SQLite takes at most 32,766 parameters (as compiled by default)


class Condition(NamedTuple):
    """SQL of a condition on the table `documents`, and its parameters."""

    sql: str
    parameters: tuple[Scalar, ...]


ALL, NOTHING = Condition("1 = 1", ()), Condition("1 = 0", ())


def field_keys(field: str) -> list[str]:
    """The keys that a field's path is made of: `author.name` has two.

    Raises:
        ConfigError: the field is empty, or has a part that SQLite's paths cannot express.
    """
    try:
        field.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"filter: the field {field!r} is not valid Unicode") from error
    keys = [key.replace("\\.", ".") for key in re.split(r"(?<!\\)\.", field)]
    if not all(keys) or '"' in field:
        raise ConfigError(f"filter: {field!r} cannot be a field; keys must not be empty or hold a double quote")
    return keys


def json_path(field: str) -> str:
    """The SQLite JSON path of a field: `author.name` becomes `$."author"."name"`.

    Raises:
        ConfigError: the field is empty, or has a part that SQLite's paths cannot express.
    """
    # SQLite compares keys as they are written in the JSON text, escapes included
    return "$" + "".join(f".{json.dumps(key, ensure_ascii=False)}" for key in field_keys(field))


def compile_filter(where: Filter, index_fields: Mapping[str, str] | None = None) -> Condition:
    """Compile a filter; `index_fields` (field to JSON path) are answered from their database index.

    Raises:
        ConfigError: an operator is not known, or has a value of the wrong type.
    """
    condition = _SQLiteFilters(index_fields or {}).compile(where)
    if len(condition.parameters) > _MAX_VALUES:
        raise ConfigError(f"filter: {len(condition.parameters):,} values; at most {_MAX_VALUES:,} fit into one")
    return condition


def filter_key(where: Filter) -> str:
    """A text that is the same for the same filter, to remember results by."""
    try:
        return json.dumps(where, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"filter: {error}; it must be what JSON can hold") from error


class FilterCompiler(ABC):
    """Turns a filter into a condition of one database, whose words the abstract methods write.

    Every condition is true or false for every document, never unknown.
    """

    def compile(self, where: object) -> Condition:
        """Compile a filter.

        Raises:
            ConfigError: an operator is not known, or has a value of the wrong type.
        """
        return self._all_of(where, 0)

    @abstractmethod
    def equal(self, field: str, value: Scalar) -> Condition:
        """Some element of the field is this value."""

    @abstractmethod
    def one_of(self, field: str, values: Sequence[Scalar]) -> Condition:
        """Some element of the field is one of these values."""

    @abstractmethod
    def compare(self, field: str, operator: str, value: str | int | float) -> Condition:
        """Some element of the field is of the value's type and <, <=, > or >= it."""

    @abstractmethod
    def is_list(self, field: str) -> Condition:
        """The field is a list."""

    @abstractmethod
    def has_part(self, field: str, text: str) -> Condition:
        """The field is a string that holds this text, letter by letter."""

    @abstractmethod
    def exists(self, field: str) -> Condition:
        """The field is there, even if it is null."""

    @abstractmethod
    def is_empty(self, field: str) -> Condition:
        """The field is "", [], {}, null or missing."""

    # --- the language ------------------------------------------------------------------------------------------------

    def _all_of(self, where: object, depth: int) -> Condition:
        if not isinstance(where, Mapping):
            raise ConfigError(f"filter: {where!r} is not a mapping of fields to conditions")
        if depth > _MAX_DEPTH:
            raise ConfigError(f"filter: nested more than {_MAX_DEPTH} levels deep")
        return join(" AND ", [self._entry(key, value, depth) for key, value in where.items()])

    def _entry(self, key: object, value: object, depth: int) -> Condition:
        if not isinstance(key, str):
            raise ConfigError(f"filter: the key {key!r} is not a string")
        if key in ("$and", "$or"):
            if not isinstance(value, Sequence) or isinstance(value, str) or not value:
                raise ConfigError(f"filter: {key} needs a list of filters that is not empty, not {value!r}")
            return join(" AND " if key == "$and" else " OR ", [self._all_of(part, depth + 1) for part in value])
        if key == "$not":
            return negate(self._all_of(value, depth + 1))
        if key.startswith("$"):
            raise ConfigError(f"filter: {key} is not known where a field is expected; known are $and, $or, $not")
        return self._field(key, value, depth)

    def _field(self, field: str, value: object, depth: int) -> Condition:
        if not isinstance(value, Mapping):
            return self._operator(field, "$eq", value, depth)
        if not value:
            raise ConfigError(f"filter: the condition on {field!r} is empty")
        return join(" AND ", [self._operator(field, op, operand, depth) for op, operand in value.items()])

    def _operator(self, field: str, operator: object, operand: object, depth: int) -> Condition:
        if depth > _MAX_DEPTH:
            raise ConfigError(f"filter: nested more than {_MAX_DEPTH} levels deep")
        if operator == "$eq":
            return self.equal(field, _scalar(field, operand))
        if operator == "$ne":
            return negate(self.equal(field, _scalar(field, operand)))
        if operator in ("$in", "$nin"):
            found = self.one_of(field, [_scalar(field, value) for value in _list(field, operator, operand)])
            return found if operator == "$in" else negate(found)
        if operator in ("$exists", "$is_empty"):
            return self._presence(field, operator, operand)
        if operator == "$contains":
            return self._contains(field, operand)
        if operator in ("$any", "$all"):
            return self._elements(field, operator, operand)
        if operator == "$not":
            return negate(self._field(field, operand, depth + 1))
        if isinstance(operator, str) and operator in _COMPARE:
            return self.compare(field, _COMPARE[operator], _ordered(field, operator, operand))
        raise ConfigError(
            f"filter: the operator {operator!r} on {field!r} is not known; known are {', '.join(_OPERATORS)}"
        )

    def _contains(self, field: str, operand: object) -> Condition:
        """The field is a list with this element, or a string with this part (compared letter by letter)."""
        element = self._elements(field, "$contains", [operand])
        return join(" OR ", [element, self.has_part(field, operand)]) if isinstance(operand, str) else element

    def _elements(self, field: str, operator: object, operand: object) -> Condition:
        """The field is a list that has one (`$any`) or each of some values as elements."""
        found = [self.equal(field, _scalar(field, value)) for value in _list(field, operator, operand)]
        some = join(" OR ", found, empty=NOTHING) if operator == "$any" else join(" AND ", found)
        return join(" AND ", [self.is_list(field), some])

    def _presence(self, field: str, operator: object, operand: object) -> Condition:
        if not isinstance(operand, bool):
            raise ConfigError(f"filter: {operator} on {field!r} needs true or false, not {operand!r}")
        found = self.exists(field) if operator == "$exists" else self.is_empty(field)
        return found if operand else negate(found)


class _SQLiteFilters(FilterCompiler):
    """Conditions on the table `documents` of a store."""

    def __init__(self, index_fields: Mapping[str, str]) -> None:
        self._indexed = index_fields

    def equal(self, field: str, value: Scalar) -> Condition:
        return self._any(field, *_equal(value))

    def one_of(self, field: str, values: Sequence[Scalar]) -> Condition:
        groups: dict[str, list[Scalar]] = {}
        for value in values:
            sql, parameters = _equal(value)
            groups.setdefault(sql, []).extend(parameters)
        parts = []
        for sql, some in groups.items():
            many = sql.replace("value = ?", f"value IN ({','.join('?' * len(some))})")
            parts.append(self._any(field, many, tuple(some)))
        return join(" OR ", parts, empty=NOTHING)

    def compare(self, field: str, operator: str, value: str | int | float) -> Condition:
        types, parameter = _typed(value)
        return self._any(field, f"type IN ({types}) AND value {operator} ?", (parameter,))

    def is_list(self, field: str) -> Condition:
        return Condition(f"{_TYPE} = 'array'", (json_path(field),))

    def has_part(self, field: str, text: str) -> Condition:
        path = json_path(field)
        sql = f"{_TYPE} = 'text' AND instr(json_extract(documents.metadata, ?), ?) > 0"
        return Condition(sql, (path, path, text))

    def exists(self, field: str) -> Condition:
        return Condition(f"{_TYPE} <> 'missing'", (json_path(field),))

    def is_empty(self, field: str) -> Condition:
        return Condition(_IS_EMPTY, (json_path(field),) * _IS_EMPTY.count("?"))

    def _any(self, field: str, predicate: str, parameters: tuple[Scalar, ...]) -> Condition:
        """Some element of the field satisfies a predicate on `type` and `value`."""
        if field in self._indexed:
            sql = f"doc IN (SELECT doc FROM fields WHERE field = ? AND {predicate})"  # noqa: S608  # of this file's words
            return Condition(sql, (field, *parameters))
        source = "SELECT 1 FROM json_each(documents.metadata, ?)"
        return Condition(f"EXISTS ({source} WHERE {_ELEMENT} AND {predicate})", (json_path(field), *parameters))


def _list(field: str, operator: object, operand: object) -> Sequence[object]:
    if not isinstance(operand, Sequence) or isinstance(operand, str):
        raise ConfigError(f"filter: {operator} on {field!r} needs a list, not {operand!r}")
    return operand


def _scalar(field: str, value: object) -> Scalar:
    return value if value is None or isinstance(value, bool) else _ordered(field, "$eq", value)


def _ordered(field: str, operator: str, value: object) -> str | int | float:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"filter: {operator} on {field!r}: {value!r} is not valid Unicode") from error
        if "\0" in value:
            raise ConfigError(f"filter: {operator} on {field!r}: {value!r} holds a NUL, where SQLite's JSON texts end")
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
        return value
    raise ConfigError(f"filter: {operator} on {field!r} needs a string or a number, not {value!r}")


def _equal(value: Scalar) -> tuple[str, tuple[Scalar, ...]]:
    if value is None:
        return "type = 'null'", ()
    if isinstance(value, bool):
        return f"type = '{'true' if value else 'false'}'", ()
    types, parameter = _typed(value)
    return f"type IN ({types}) AND value = ?", (parameter,)


def _typed(value: str | int | float) -> tuple[str, str | int | float]:
    if isinstance(value, str):
        return "'text'", value
    exact = isinstance(value, float) or -(1 << 63) <= value < 1 << 63
    return "'integer','real'", value if exact else _nearest_float(value)


def _nearest_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def join(word: str, parts: Sequence[Condition], *, empty: Condition = ALL) -> Condition:
    """Join conditions by " AND " or " OR "; `empty` stands for none of them."""
    if not parts:
        return empty
    sql = word.join(f"({part.sql})" for part in parts) if len(parts) > 1 else parts[0].sql
    return Condition(sql, tuple(p for part in parts for p in part.parameters))


def negate(condition: Condition) -> Condition:
    """The opposite of a condition."""
    return Condition(f"NOT ({condition.sql})", condition.parameters)
