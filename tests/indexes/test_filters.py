"""Filters: SQL and a plain-Python reading of the same filter always agree, indexed or not; nothing becomes syntax."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.store.filters import compile_filter, json_path

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, -1.5, 2.0]),
    st.sampled_from(["", "a", "b", "2", "ab", "{}", "[]"]),
)
FIELDS = ["x", "y", "n", "n.inner"]
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "x": st.one_of(SCALARS, st.lists(SCALARS, max_size=3)),
        "y": SCALARS,
        "n": st.fixed_dictionaries({}, optional={"inner": SCALARS}),
    },
)
ORDERED = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, -1.5]), st.sampled_from(["", "a", "b"]))
CONDITION = st.one_of(
    SCALARS,
    st.fixed_dictionaries({"$eq": SCALARS}),
    st.fixed_dictionaries({"$ne": SCALARS}),
    *(st.fixed_dictionaries({op: ORDERED}) for op in ("$gt", "$gte", "$lt", "$lte")),
    st.fixed_dictionaries({"$gte": ORDERED, "$lt": ORDERED}),
    st.fixed_dictionaries({"$in": st.lists(SCALARS, max_size=3)}),
    st.fixed_dictionaries({"$nin": st.lists(SCALARS, max_size=3)}),
    st.fixed_dictionaries({"$exists": st.booleans()}),
    st.fixed_dictionaries({"$is_empty": st.booleans()}),
    st.fixed_dictionaries({"$contains": SCALARS}),
    st.fixed_dictionaries({"$any": st.lists(SCALARS, max_size=3)}),
    st.fixed_dictionaries({"$all": st.lists(SCALARS, max_size=3)}),
    st.fixed_dictionaries({"$not": st.fixed_dictionaries({"$all": st.lists(SCALARS, max_size=2)})}),
    st.fixed_dictionaries({"$not": st.fixed_dictionaries({"$eq": SCALARS})}),
)
FILTER = st.recursive(
    st.dictionaries(st.sampled_from(FIELDS), CONDITION, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$and": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"$or": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"$not": inner}),
    ),
    max_leaves=4,
)

# --- the same language in plain Python --------------------------------------------------------------------------------


MISSING = object()


def value_of(metadata: Any, field: str) -> Any:
    for key in field.split("."):
        if not isinstance(metadata, dict) or key not in metadata:
            return MISSING
        metadata = metadata[key]
    return metadata


def elements(value: Any) -> list[Any]:
    """What conditions on single values look at."""
    if value is MISSING or isinstance(value, dict):
        return []
    return value if isinstance(value, list) else [value]


def kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else "list or object"


def compare(value: Any, operator: str, operand: Any) -> bool:
    if kind(value) != kind(operand):
        return False
    if operator == "$eq":
        return bool(value == operand)
    if kind(value) not in ("number", "text"):
        return False
    return bool(
        {"$gt": value > operand, "$gte": value >= operand, "$lt": value < operand, "$lte": value <= operand}[operator]
    )


def holds(where: dict[str, Any], metadata: dict[str, Any]) -> bool:
    return all(entry(key, value, metadata) for key, value in where.items())


def entry(key: str, value: Any, metadata: dict[str, Any]) -> bool:
    if key == "$and":
        return all(holds(part, metadata) for part in value)
    if key == "$or":
        return any(holds(part, metadata) for part in value)
    if key == "$not":
        return not holds(value, metadata)
    conditions = value if isinstance(value, dict) else {"$eq": value}
    return all(operator(value_of(metadata, key), op, operand) for op, operand in conditions.items())


def operator(value: Any, op: str, operand: Any) -> bool:
    if op == "$exists":
        return (value is not MISSING) == operand
    if op == "$is_empty":
        return (value is MISSING or value is None or value in ("", [], {})) == operand
    if op == "$not":
        return not all(operator(value, inner, wanted) for inner, wanted in operand.items())
    if op in ("$ne", "$nin"):
        return not operator(value, {"$ne": "$eq", "$nin": "$in"}[op], operand)
    if op in ("$contains", "$any", "$all"):
        if isinstance(value, str):
            return op == "$contains" and isinstance(operand, str) and operand in value
        wanted = [operand] if op == "$contains" else operand
        held = [isinstance(value, list) and any(compare(v, "$eq", w) for v in value) for w in wanted]
        return isinstance(value, list) and (any(held) if op == "$any" else all(held))
    found = elements(value)
    if op == "$in":
        return any(compare(v, "$eq", wanted) for v in found for wanted in operand)
    return any(compare(v, op, operand) for v in found)


# --- agreement --------------------------------------------------------------------------------------------------------


def select(metadata: list[dict[str, Any]], where: Any, indexed: list[str]) -> list[int]:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE documents(doc INTEGER PRIMARY KEY, metadata TEXT)")
    db.execute("CREATE TABLE fields(field, type, value, doc)")
    for doc, row in enumerate(metadata):
        text = json.dumps(row, ensure_ascii=False)
        db.execute("INSERT INTO documents VALUES (?, ?)", (doc, text))
        for field in indexed:
            db.execute(
                "INSERT INTO fields SELECT ?, type, coalesce(value, ''), ? FROM json_each(?, ?) "
                "WHERE type NOT IN ('object', 'array') AND typeof(key) <> 'text'",
                (field, doc, text, json_path(field)),
            )
    sql, parameters = compile_filter(where, {field: json_path(field) for field in indexed})
    found = [row[0] for row in db.execute(f"SELECT doc FROM documents WHERE {sql} ORDER BY doc", parameters)]
    db.close()
    return found


@given(st.lists(METADATA, max_size=6), FILTER, st.sets(st.sampled_from(FIELDS)))
def test_sql_agrees_with_plain_python(metadata: list[dict[str, Any]], where: dict[str, Any], indexed: set[str]) -> None:
    expected = [doc for doc, row in enumerate(metadata) if holds(where, row)]
    assert select(metadata, where, sorted(indexed)) == expected


HOSTILE = [
    "') OR 1=1 --", "x'; DROP TABLE documents; --",
    "a$", "a[0]", "a' AND '1'='1", "%", "*", "\\", "?", "a\nb", "\u00e9",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_fields_and_values_are_only_data(text: str) -> None:
    metadata: list[dict[str, Any]] = [{"x": "other"}, {text: 1}, {"x": text}]
    assert select(metadata, {"x": text}, []) == [2]
    assert select(metadata, {"x": {"$in": [text]}}, ["x"]) == [2]
    assert select(metadata, {text: 1}, []) == [1]


def test_a_dot_in_a_key_can_be_escaped() -> None:
    assert select([{"a.b": 1}, {"a": {"b": 1}}], {"a\\.b": 1}, []) == [0]
    assert select([{"a.b": 1}, {"a": {"b": 1}}], {"a.b": 1}, []) == [1]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("x", "not a mapping"),
        ({"x": {}}, "empty"),
        ({"x": {"$regex": "a"}}, r"'\$regex'.*not known"),
        ({"$nor": []}, r"\$nor is not known"),
        ({"$and": []}, "not empty"),
        ({"$or": "x"}, "list of filters"),
        ({"x": {"$in": "abc"}}, "needs a list"),
        ({"x": {"$gt": None}}, "string or a number"),
        ({"x": {"$gt": float("nan")}}, "string or a number"),
        ({"x": {"$eq": [1]}}, "string or a number"),
        ({"x": {"$exists": 1}}, "true or false"),
        ({"x": {"$is_empty": "yes"}}, "true or false"),
        ({"x": {"$any": "abc"}}, "needs a list"),
        ({"x": {"$all": 3}}, "needs a list"),
        ({"x": {"$contains": ["a"]}}, "string or a number"),
        ({"": 1}, "cannot be a field"),
        ({'a"b': 1}, "double quote"),
        ({1: 1}, "not a string"),
        ({"x": "\ud800"}, "Unicode"),
        ({"x": "a\0b"}, "NUL"),
        ({"x": {"$in": list(range(40_000))}}, "at most"),
    ],
)
def test_a_filter_that_means_nothing_is_an_error(where: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compile_filter(where)


def test_endless_nesting_is_an_error() -> None:
    where: dict[str, Any] = {"x": 1}
    for _ in range(200):
        where = {"$not": where}
    with pytest.raises(ConfigError, match="nested"):
        compile_filter(where)
