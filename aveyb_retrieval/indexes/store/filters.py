r"""Metadata filters: a small MongoDB-like language compiled to SQL.

    {"year": {"$gte": 2020}, "lang": {"$in": ["en", "de"]}, "$or": [{"draft": False},
    {"author.name": "Ada"}]}

A field is a path of keys joined by dots (`\.` is a dot inside a key, `\$` a dollar sign at its
beginning). A path leads through lists of objects: `parties.name` is the list of the names of all
parties. A condition on a list holds when it holds for any of its elements; `$ne` and `$nin` hold
when `$eq` and `$in` do not, so also where the field is missing. A condition on a value of another
type is false. `$contains`, `$any` and `$all` look at the field as a whole. `_id` and `title` are
the document's own, whatever its metadata say. Nothing of a filter is syntax of SQL: paths and
values are bound parameters, or literals where there are none.

Expressions (`$regex`) are no part of the SQL: `compile_filter` takes which of them hold.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from aveyb_retrieval.documents.records import to_plain
from aveyb_retrieval.errors import ConfigError, shortened
from aveyb_retrieval.indexes.store.expressions import compile_expression

if TYPE_CHECKING:
    from collections.abc import Collection

    import regex

    from aveyb_retrieval.indexes.store.tables import Tables

Filter = Mapping[str, Any]
Scalar = str | int | float | bool | None

_COMPARE = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_OPERATORS = (
    "$eq",
    "$ne",
    *_COMPARE,
    "$in",
    "$nin",
    "$startsWith",
    "$regex",
    "$contains",
    "$any",
    "$all",
    "$exists",
    "$is_empty",
    "$not",
)
OWN = {"_id": "id", "title": "title"}  # fields that are not metadata, and their columns in Lance
_MAX_DEPTH = 20
_MAX_VALUES = 10_000
MAX_EXPRESSIONS = 4  # of a filter: each doubles what is computed


class FilterCondition(NamedTuple):
    """SQL of a condition on the table `documents`, and its parameters."""

    sql: str
    parameters: tuple[Scalar, ...]


ALL, NOTHING = FilterCondition("1 = 1", ()), FilterCondition("1 = 0", ())


def field_keys(field: str) -> list[str]:
    """The keys that a field's path is made of: `author.name` has two."""
    try:
        field.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"filter: the field {field!r} is not valid Unicode") from error
    keys = [_unescaped(key) for key in re.split(r"(?<!\\)\.", field)]
    if not all(keys) or '"' in field:
        raise ConfigError(
            f"filter: {field!r} cannot be a field; a key must not be empty or hold a double"
            " quote; write a dot in a key as \\."
        )
    return keys


def _unescaped(key: str) -> str:
    key = key.replace("\\.", ".")
    return key[1:] if key.startswith("\\$") else key


def value_at(metadata: Mapping[str, Any], field: str) -> Any:
    """Return the value at a field's path, None if there is none; the list of all values, if the
    path leads through a list of objects.
    """
    return value_at_keys(metadata, field_keys(field))


def value_at_keys(metadata: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return what `value_at` does, by the keys that the path is made of."""
    values, is_list = _values_at(metadata, keys)
    if not values:
        return None
    return values if is_list else values[0]


def elements_at(metadata: Mapping[str, Any], keys: Sequence[str]) -> Iterator[Any]:
    """What conditions on a field look at, by the keys that its path is made of."""
    values, _ = _values_at(metadata, keys)
    return chain.from_iterable(map(elements, values))


def _values_at(metadata: Mapping[str, Any], keys: Sequence[str]) -> tuple[list[Any], bool]:
    """The values at a field's path, and whether the path leads through a list of objects."""
    values: list[Any] = [metadata]
    is_list = False
    for key in keys:
        is_list = is_list or any(isinstance(value, list) for value in values)
        objects = [item for value in values for item in items_of(value)]
        values = [item[key] for item in objects if isinstance(item, Mapping) and key in item]
    return values, is_list


def items_of(value: Any) -> list[Any]:
    """The elements of a list, or a value that is none as the only one."""
    return value if isinstance(value, list) else [value]


def elements(value: Any) -> Iterator[Any]:
    """What conditions look at: a value, or the elements of a list and those of lists in it."""
    for item in items_of(value):
        yield from items_of(item)


def json_path(field: str) -> str:
    """The JSON path of a field: `author.name` becomes `$."author"[*]."name"`, where `[*]` is each
    element of a list, or what is no list.
    """
    return json_path_of(field_keys(field))


def json_path_of(keys: Sequence[str]) -> str:
    """The JSON path of a field, by the keys that its path is made of."""
    return "$." + "[*].".join(json.dumps(key, ensure_ascii=False) for key in keys)


class Expression(NamedTuple):
    """A condition `$regex` of a filter."""

    field: str
    pattern: str

    def compile(self) -> regex.Pattern[str]:
        """Compile the pattern, or raise ConfigError."""
        return compile_expression(self.pattern, what=self.what)

    @property
    def what(self) -> str:
        """What it is called in messages."""
        return f"filter: $regex on {self.field!r}: pattern"


def compile_filter(where: Filter, holding: Collection[Expression] = ()) -> FilterCondition:
    """Compile a filter into a condition of Lance's SQL on the table `documents`, for documents of
    which some of its expressions hold and the others do not.
    """
    return _compiler(holding).compile(where)


def expressions_of(where: Filter) -> list[Expression]:
    """Return the expressions of a filter, each once; ConfigError if the filter means nothing."""
    compiler = _compiler(())
    compiler.compile(where)
    return list(compiler.expressions)


def _compiler(holding: Collection[Expression]) -> LanceFilters:
    expressions: dict[Expression, None] = {}
    compiler = LanceFilters(holding, expressions)
    # conditions on what is a document's own, too
    compiler.own = _OwnFilters(holding, expressions)
    return compiler


def filter_key(where: Filter) -> str:
    """A text that is the same for the same filter, to remember results by.

    Raises ConfigError where a key is no string: as JSON, 1 and "1" are one.
    """
    try:
        _check_keys(where)
        return json.dumps(where, sort_keys=True, default=to_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"filter: {error}; it must be what JSON can hold") from error


def _check_keys(part: object) -> None:
    if isinstance(part, Mapping):
        for key, value in part.items():
            if not isinstance(key, str):
                raise _not_a_key(key)
            _check_keys(value)
    elif isinstance(part, Sequence) and not isinstance(part, str):
        for value in part:
            _check_keys(value)


def _not_a_key(key: object) -> ConfigError:
    return ConfigError(f"filter: the key {key!r} is not a string")


class FilterCompiler(ABC):
    """Turns a filter into a condition of one database, true or false for every document, never
    unknown.

    The abstract methods write it; `own` compiles conditions on `_id` and `title`, and None refuses
    them.
    """

    own: FilterCompiler | None = None

    def compile(self, where: object) -> FilterCondition:
        return self._all_of(where, 0)

    def equal(self, field: str, value: Scalar) -> FilterCondition:
        """Some element of the field is this value."""
        return self.one_of(field, [value])

    @abstractmethod
    def one_of(self, field: str, values: Sequence[Scalar]) -> FilterCondition:
        """Some element of the field is one of these values."""

    @abstractmethod
    def compare(self, field: str, operator: str, value: str | int | float) -> FilterCondition:
        """Some element of the field is of the value's type and <, <=, > or >= it."""

    @abstractmethod
    def starts_with(self, field: str, text: str) -> FilterCondition:
        """Some element of the field is a string that begins with this text, letter by letter."""

    @abstractmethod
    def matches(self, expression: Expression) -> FilterCondition:
        """Some element of its field is a string that an expression matches."""

    @abstractmethod
    def is_list(self, field: str) -> FilterCondition:
        """The field is a list."""

    @abstractmethod
    def has_part(self, field: str, text: str) -> FilterCondition:
        """The field is a string that holds this text, letter by letter."""

    @abstractmethod
    def exists(self, field: str) -> FilterCondition:
        """The field is there, even if it is null."""

    @abstractmethod
    def is_empty(self, field: str) -> FilterCondition:
        """The field is "", [], {}, null or missing."""

    def _all_of(self, where: object, depth: int) -> FilterCondition:
        if not isinstance(where, Mapping):
            raise ConfigError(f"filter: {where!r} is not a mapping of fields to conditions")
        if depth > _MAX_DEPTH:
            raise ConfigError(f"filter: nested more than {_MAX_DEPTH} levels deep")
        return join(" AND ", [self._entry(key, value, depth) for key, value in where.items()])

    def _entry(self, key: object, value: object, depth: int) -> FilterCondition:
        if not isinstance(key, str):
            raise _not_a_key(key)
        if key in ("$and", "$or"):
            if not isinstance(value, Sequence) or isinstance(value, str) or not value:
                raise ConfigError(
                    f"filter: {key} needs a list of filters that is not empty, not {value!r}"
                )
            return join(
                " AND " if key == "$and" else " OR ",
                [self._all_of(part, depth + 1) for part in value],
            )
        if key == "$not":
            return negate(self._all_of(value, depth + 1))
        if key.startswith("$"):
            raise ConfigError(
                f"filter: {key} is not known in place of a field; known are $and, $or, $not"
                f" (a field of that name is written \\{key})"
            )
        if key not in OWN:
            return self._field(key, value, depth)
        if self.own is None:
            raise ConfigError(
                f"filter: {key!r}: only for index directories; engines filter by metadata"
            )
        return self.own._field(key, value, depth)

    def _field(self, field: str, value: object, depth: int) -> FilterCondition:
        if not isinstance(value, Mapping):
            return self._operator(field, "$eq", value, depth)
        if depth > _MAX_DEPTH:
            raise ConfigError(f"filter: nested more than {_MAX_DEPTH} levels deep")
        if not value:
            raise ConfigError(f"filter: the condition on {field!r} is empty")
        return join(
            " AND ", [self._operator(field, op, operand, depth) for op, operand in value.items()]
        )

    def _operator(
        self, field: str, operator: object, operand: object, depth: int
    ) -> FilterCondition:
        operand = _as_stored(field, operand)
        if operator == "$eq":
            return self.equal(field, _scalar(field, operand))
        if operator == "$ne":
            return negate(self.equal(field, _scalar(field, operand)))
        if operator in ("$in", "$nin"):
            condition = self.one_of(
                field, [_scalar(field, value) for value in _list(field, operator, operand)]
            )
            return condition if operator == "$in" else negate(condition)
        if operator in ("$exists", "$is_empty"):
            return self._presence(field, operator, operand)
        if operator in ("$startsWith", "$regex"):
            return self._text_condition(field, operator, _text(field, operator, operand))
        if operator == "$contains":
            return self._contains(field, operand)
        if operator in ("$any", "$all"):
            return self._elements(field, operator, operand)
        if operator == "$not":
            return negate(self._field(field, operand, depth + 1))
        if isinstance(operator, str) and operator in _COMPARE:
            return self.compare(field, _COMPARE[operator], _ordered(field, operator, operand))
        raise ConfigError(
            f"filter: the operator {operator!r} on {field!r} is not known; known are"
            f" {', '.join(_OPERATORS)}"
        )

    def _text_condition(self, field: str, operator: object, text: str) -> FilterCondition:
        """The field begins with a text, or an expression matches it."""
        if operator == "$startsWith":
            return self.starts_with(field, text)
        expression = Expression(field, text)
        expression.compile()  # only for its errors
        return self.matches(expression)

    def _contains(self, field: str, operand: object) -> FilterCondition:
        """The field is a list with an element, or a string with a part, letter by letter."""
        element = self._elements(field, "$contains", [operand])
        if not isinstance(operand, str):
            return element
        return join(" OR ", [element, self.has_part(field, operand)])

    def _elements(self, field: str, operator: object, operand: object) -> FilterCondition:
        """The field is a list that has one (`$any`) or each of some values as elements."""
        conditions = [
            self.equal(field, _scalar(field, value)) for value in _list(field, operator, operand)
        ]
        elements = (
            join(" OR ", conditions, empty=NOTHING)
            if operator == "$any"
            else join(" AND ", conditions)
        )
        return join(" AND ", [self.is_list(field), elements])

    def _presence(self, field: str, operator: object, operand: object) -> FilterCondition:
        if not isinstance(operand, bool):
            raise ConfigError(
                f"filter: {operator} on {field!r} needs true or false, not {operand!r}"
            )
        condition = self.exists(field) if operator == "$exists" else self.is_empty(field)
        return condition if operand else negate(condition)


class _StoredFilters(FilterCompiler):
    """Conditions on columns of the table `documents`.

    `expressions` gets those that the filter has; `holding` are those that hold.
    """

    def __init__(
        self, holding: Collection[Expression], expressions: dict[Expression, None]
    ) -> None:
        self._holding = holding
        self.expressions = expressions

    def matches(self, expression: Expression) -> FilterCondition:
        self.expressions[expression] = None
        if len(self.expressions) > MAX_EXPRESSIONS:
            raise ConfigError(
                f"filter: more than {MAX_EXPRESSIONS} conditions with $regex; join the"
                " alternatives of a field in one expression, as a|b"
            )
        return ALL if expression in self._holding else NOTHING


class _OwnFilters(_StoredFilters):
    """Conditions on columns of texts, as SQL."""

    def one_of(self, field: str, values: Sequence[Scalar]) -> FilterCondition:
        listed = ", ".join(_quoted_text(field, value) for value in values)
        return FilterCondition(f"{OWN[field]} IN ({listed})", ()) if listed else NOTHING

    def compare(self, field: str, operator: str, value: str | int | float) -> FilterCondition:
        return FilterCondition(f"{OWN[field]} {operator} {_quoted_text(field, value)}", ())

    def starts_with(self, field: str, text: str) -> FilterCondition:
        return FilterCondition(f"starts_with({OWN[field]}, {quoted(text)})", ())

    def is_list(self, field: str) -> FilterCondition:
        return NOTHING

    def has_part(self, field: str, text: str) -> FilterCondition:
        return FilterCondition(f"strpos({OWN[field]}, {quoted(text)}) > 0", ())

    def exists(self, field: str) -> FilterCondition:
        return ALL

    def is_empty(self, field: str) -> FilterCondition:
        return self.equal(field, "")


class LanceFilters(_StoredFilters):
    """Conditions on the column `metadata` of the table `documents`, as SQL/JSON paths, which look
    into lists.

    Keys and values are JSON strings inside the path, and the path is one literal of SQL.
    """

    def equal(self, field: str, value: Scalar) -> FilterCondition:
        return _element_matches(field, "==", value)

    def one_of(self, field: str, values: Sequence[Scalar]) -> FilterCondition:
        parts = []
        # a path that compares one element with values of two types finds nothing
        kinds: dict[str, list[Scalar]] = {}
        for value in values:
            kind = "number" if is_number(value) else type(value).__name__
            kinds.setdefault(kind, []).append(value)
        for members in kinds.values():
            for start in range(0, len(members), 100):
                tests = " || ".join(
                    f"({_test('==', value)})" for value in members[start : start + 100]
                )
                parts.append(_exists(f"{json_path(field)}[*] ? ({tests})"))
        return join(" OR ", parts, empty=NOTHING)

    def compare(self, field: str, operator: str, value: str | int | float) -> FilterCondition:
        if value == "" and operator == "<":
            return NOTHING
        return _element_matches(field, operator, value)

    def starts_with(self, field: str, text: str) -> FilterCondition:
        if not text:  # a path cannot hold an empty text, and every text begins with it
            return self.compare(field, ">=", "")
        return _exists(f"{json_path(field)}[*] ? (@ starts with {_json(text)})")

    def is_list(self, field: str) -> FilterCondition:
        through = [self.exists(field), _leads_through_list(field)]
        return join(" OR ", [_as_text(field, "LIKE '[%'"), join(" AND ", through)])

    def has_part(self, field: str, text: str) -> FilterCondition:
        # it is stored as JSON: a part may not begin inside of an escape
        part = re.escape(json.dumps(text, ensure_ascii=False)[1:-1])
        pattern = quoted(rf'^"(\\u[0-9a-f]{{4}}|\\[^u]|[^\\])*{part}')
        has_part = FilterCondition(
            f"coalesce(regexp_like(json_extract(metadata, {quoted(json_path(field))}), {pattern}),"
            " false)",
            (),
        )
        return _and_is_one_value(field, has_part)

    def exists(self, field: str) -> FilterCondition:
        return _exists(json_path(field))

    def is_empty(self, field: str) -> FilterCondition:
        is_empty = _as_text(field, "IN ('\"\"', '[]', '{}', 'null')")
        return join(" OR ", [negate(self.exists(field)), _and_is_one_value(field, is_empty)])


# A path cannot hold an empty text: it is the one text that is less than a NUL.
_EMPTY_TEXT_TESTS = {
    "==": r'@ < "\u0000"',
    "<=": r'@ < "\u0000"',
    ">": r'@ >= "\u0000"',
    ">=": r'@ < "\u0000" || @ >= "\u0000"',
}


def _quoted_text(field: str, value: Scalar) -> str:
    if not isinstance(value, str):
        raise ConfigError(
            f"filter: {field!r} is text and never equals {value!r}; compare it with text"
        )
    return quoted(value)


def _exists(path: str) -> FilterCondition:
    return FilterCondition(f"json_exists(metadata, {quoted(path)})", ())


def _element_matches(field: str, operator: str, value: Scalar) -> FilterCondition:
    return _exists(f"{json_path(field)}[*] ? ({_test(operator, value)})")


def _test(operator: str, value: Scalar) -> str:
    """A comparison with an element `@`, as a path of Lance's can hold it.

    Whole numbers compare with each other as they are, but with a decimal as floats. One that no
    float is equal to lies between two, and is rounded to the `lower` or the upper one of these:
    decimals are then compared with its neighbor on the other side, which is rounded to the same
    one, and with which whole numbers compare alike.
    """
    if value == "":
        return _EMPTY_TEXT_TESTS[operator]
    if not is_number(value) or isinstance(value, float) or not -(1 << 63) <= value < (1 << 64) - 1:
        return f"@ {operator} {_json(value)}"
    if (rounded := int(float(value))) == value:
        return f"@ {operator} {value}"
    lower = rounded < value
    neighbor = value - 1 if lower else value + 1
    if operator == "==":
        return f"@ == {value} && @ {'>' if lower else '<'} {neighbor}"
    turned = {("<", True): "<=", (">=", True): ">", ("<=", False): "<", (">", False): ">="}.get(
        (operator, lower)
    )
    return f"@ {operator} {value}" if turned is None else f"@ {turned} {neighbor}"


def _as_text(field: str, test: str) -> FilterCondition:
    """What is stored under a field, written as JSON, satisfies a test; not so where the field is
    missing.
    """
    return _as_json(field_keys(field), test)


def _leads_through_list(field: str) -> FilterCondition:
    """Some object on the way to a field is an element of a list."""
    keys = field_keys(field)
    # where none before it is a list, each of these paths leads to one value
    parts = [_as_json(keys[:count], "LIKE '[%'") for count in range(1, len(keys))]
    return join(" OR ", parts, empty=NOTHING)


def _and_is_one_value(field: str, condition: FilterCondition) -> FilterCondition:
    """A condition holds, and the path does not lead through a list."""
    if len(field_keys(field)) == 1:
        return condition
    return join(" AND ", [condition, negate(_leads_through_list(field))])


def _as_json(keys: Sequence[str], test: str) -> FilterCondition:
    path = quoted(json_path_of(keys))
    return FilterCondition(f"coalesce(json_extract(metadata, {path}) {test}, false)", ())


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number, which a truth value is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _json(value: Scalar) -> str:
    """A value as a path of Lance's can hold it."""
    if not is_number(value):
        return json.dumps(value, ensure_ascii=False)
    if -(1 << 63) <= value < 1 << 64 and (
        isinstance(value, int) or (abs(value) >= 1 << 53 and value.is_integer())
    ):
        return str(int(value))
    # its parser takes the digits before a point for a whole number, and then knows no point: there
    # are none before it
    sign, digits, exponent = Decimal(repr(nearest_float(value))).as_tuple()
    if not isinstance(exponent, int):  # infinity
        digits, exponent = (1,), 999
    return f"{'-' if sign else ''}.{''.join(map(str, digits))}e{exponent + len(digits)}"


def quoted(text: str) -> str:
    """A text as a literal of SQL: nothing in it is syntax."""
    return "'" + text.replace("'", "''") + "'"


def _list(field: str, operator: object, operand: object) -> Sequence[object]:
    if not isinstance(operand, Sequence) or isinstance(operand, str):
        raise ConfigError(f"filter: {operator} on {field!r} needs a list, not {operand!r}")
    if len(operand) > _MAX_VALUES:
        raise ConfigError(
            f"filter: {len(operand):,} values of {field!r}; at most {_MAX_VALUES:,} fit into one"
            " filter"
        )
    return operand


def _as_stored(field: str, operand: object) -> object:
    """What a condition on a path compares: names of files are kept composed (NFC)."""
    if field != "path":
        return operand
    if isinstance(operand, list):
        return [_as_stored(field, value) for value in operand]
    return unicodedata.normalize("NFC", operand) if isinstance(operand, str) else operand


def _scalar(field: str, value: object) -> Scalar:
    value = _plain(value)
    return value if value is None or isinstance(value, bool) else _ordered(field, "$eq", value)


def _plain(value: object) -> object:
    """A value as it would be stored; as it is where nothing like it is stored."""
    try:
        return to_plain(value)
    except TypeError:
        return value


def _ordered(field: str, operator: object, value: object) -> str | int | float:
    value = _plain(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"filter: {operator} on {field!r}: {value!r} is not valid Unicode"
            ) from error
        if "\0" in value:
            raise ConfigError(
                f"filter: {operator} on {field!r}: {value!r} holds a NUL, which paths cannot"
                " express"
            )
        return value
    if is_number(value) and value == value:
        return value
    raise ConfigError(f"filter: {operator} on {field!r} needs a string or a number, not {value!r}")


def _text(field: str, operator: object, operand: object) -> str:
    value = _plain(operand)
    if not isinstance(value, str):
        raise ConfigError(f"filter: {operator} on {field!r} needs a string, not {operand!r}")
    _ordered(field, operator, value)
    return value


def nearest_float(value: int | float) -> float:
    """A number as a float, infinite where there is none so large."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def join(
    word: str, parts: Sequence[FilterCondition], *, empty: FilterCondition = ALL
) -> FilterCondition:
    """Join conditions by " AND " or " OR "; `empty` stands for none of them."""
    if not parts:
        return empty
    sql = word.join(f"({part.sql})" for part in parts) if len(parts) > 1 else parts[0].sql
    return FilterCondition(sql, tuple(p for part in parts for p in part.parameters))


def negate(condition: FilterCondition) -> FilterCondition:
    """The opposite of a condition."""
    return FilterCondition(f"NOT ({condition.sql})", condition.parameters)


logger = logging.getLogger(__name__)

_NAMED_FIELDS = 20  # fields that a message names
_READ_DOCUMENTS = 1000  # documents whose fields are looked at
_SHOWN_CHARACTERS = 300  # characters of a filter


def warn_of_filter(tables: Tables, where: Filter) -> None:
    """Log a warning where a filter that nothing matches names a field that no document has, or
    compares other types.
    """
    for advice in advice_on(tables, where):
        logger.warning(
            "filter %s: no document matches; %s", shortened(repr(where), _SHOWN_CHARACTERS), advice
        )


def advice_on(tables: Tables, where: Filter) -> list[str]:
    """Say why a filter may match nothing, in a sentence for each of its conditions that names what
    is not there.
    """
    return list(dict.fromkeys(_advice(tables, where)))


def _advice(tables: Tables, where: Filter) -> Iterator[str]:
    for field, operand in _conditions(where):
        if field in OWN:
            continue
        numbers = _exists(f"{json_path(field)}[*] ? (@ >= 0 || @ < 0)").sql
        texts = _element_matches(field, ">=", "").sql
        if missing := no_such_field(tables, field):
            yield missing
        elif is_number(operand) and not _any(tables, numbers) and _any(tables, texts):
            yield (f"the field {field!r} holds texts, and the condition has the number {operand!r}")
        elif isinstance(operand, str) and not _any(tables, texts) and _any(tables, numbers):
            yield (f"the field {field!r} holds numbers, and the condition has the text {operand!r}")


def no_such_field(tables: Tables, field: str) -> str | None:
    """Say that no document has a field, and which ones there are; None: one has it."""
    if _any(tables, f"json_exists(metadata, {quoted(json_path(field))})"):
        return None
    rows = tables.documents.scan(["metadata"], limit=_READ_DOCUMENTS)["metadata"].to_pylist()
    names = list(dict.fromkeys(_escaped(name) for row in rows for name in json.loads(row)))
    near = next(iter(difflib.get_close_matches(field, names, 1)), None)
    hint = f"did you mean {near!r}? The" if near else "the"
    listed = ", ".join(sorted(repr(name)[:_SHOWN_CHARACTERS] for name in names[:_NAMED_FIELDS])) + (
        ", ..." if len(names) > _NAMED_FIELDS else ""
    )
    return f"none has the field {field!r}; {hint} fields are {listed or 'none at all'}"


def _escaped(key: str) -> str:
    escaped = key.replace(".", "\\.")
    return f"\\{escaped}" if escaped.startswith("$") else escaped


def _any(tables: Tables, condition: str) -> bool:
    return bool(tables.documents.scan(["doc"], condition, limit=1).num_rows)


def _conditions(where: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a filter, each with a value that it is compared with (None where there is
    none).
    """
    if not isinstance(where, Mapping):
        return
    for key, value in where.items():
        if key in ("$and", "$or") and isinstance(value, Sequence):
            for part in value:
                yield from _conditions(part)
        elif key == "$not":
            yield from _conditions(value)
        else:
            operand = next(iter(value.values()), None) if isinstance(value, Mapping) else value
            yield key, next(iter(operand), None) if isinstance(operand, (list, tuple)) else operand
