"""Filters: an index and a plain-Python reading of the same filter always agree; nothing of a filter
becomes syntax.
"""

from __future__ import annotations

import re
import time
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aveyb_retrieval import Index
from aveyb_retrieval.engines.database_rows import FactFilters, describe
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.store.filters import compile_filter
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, -1.5, 2.0]),
    st.sampled_from(["", "a", "b", "2", "ab", "{}", "[]"]),
)
FIELDS = ["x", "y", "n", "n.inner", "parties.name", "parties.tags"]
PARTY = st.fixed_dictionaries({}, optional={"name": SCALARS, "tags": st.lists(SCALARS, max_size=2)})
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "x": st.one_of(SCALARS, st.lists(SCALARS, max_size=3)),
        "y": SCALARS,
        "n": st.fixed_dictionaries({}, optional={"inner": SCALARS}),
        "parties": st.one_of(PARTY, st.lists(PARTY, max_size=3)),
    },
)
ORDERED = st.one_of(
    st.integers(-3, 3), st.sampled_from([0.5, -1.5]), st.sampled_from(["", "a", "b"])
)
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
    st.fixed_dictionaries({"$startsWith": st.sampled_from(["", "a", "ab", "b", "2"])}),
    st.fixed_dictionaries({"$regex": st.sampled_from(["a", "^a", "b$", "^$", "[ab]b", r"\d|\["])}),
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

# --- the same language in plain Python -----------------------------------------------------------


MISSING = object()


def value_of(metadata: Any, field: str) -> Any:
    values, through_list = [metadata], False
    for key in field.split("."):
        through_list = through_list or any(isinstance(value, list) for value in values)
        objects = [
            item for value in values for item in (value if isinstance(value, list) else [value])
        ]
        values = [item[key] for item in objects if isinstance(item, dict) and key in item]
    if not values:
        return MISSING
    return values if through_list else values[0]


def elements(value: Any) -> list[Any]:
    """What conditions on single values look at."""
    if value is MISSING or isinstance(value, dict):
        return []
    if not isinstance(value, list):
        return [value]
    return [inner for item in value for inner in (item if isinstance(item, list) else [item])]


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
        {
            "$gt": value > operand,
            "$gte": value >= operand,
            "$lt": value < operand,
            "$lte": value <= operand,
        }[operator]
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
        held = [
            isinstance(value, list) and any(compare(v, "$eq", w) for v in elements(value))
            for w in wanted
        ]
        return isinstance(value, list) and (any(held) if op == "$any" else all(held))
    found = elements(value)
    if op == "$startsWith":
        return any(isinstance(v, str) and v.startswith(operand) for v in found)
    if op == "$regex":
        return any(isinstance(v, str) and re.search(operand, v) for v in found)
    if op == "$in":
        return any(compare(v, "$eq", wanted) for v in found for wanted in operand)
    return any(compare(v, op, operand) for v in found)


# --- agreement -----------------------------------------------------------------------------------

VALUES: list[Any] = [
    None,
    True,
    False,
    -3,
    -1,
    0,
    1,
    2,
    3,
    0.5,
    -1.5,
    2.0,
    "",
    "a",
    "b",
    "2",
    "ab",
    "{}",
    "[]",
]
LISTS: list[Any] = [
    [],
    [[]],
    [{}],
    [[1, 2], ["ab", "b"]],
    ["a", 1],
    ["", None],
    [True, 2.0],
    ["ab", "b", "a"],
    [-1.5, "2"],
]
METADATAS = [
    {},
    *({field: value} for field, value in product(("x", "y"), [*VALUES, *LISTS, {}, {"inner": 1}])),
    *({"n": {"inner": value}} for value in [*VALUES, *LISTS]),
    *({"parties": [{"name": value}]} for value in VALUES),
    *({"parties": [{"name": value}, {"name": "b", "tags": ["a"]}, 7, {}]} for value in VALUES),
    *({"parties": {"name": value, "tags": [value]}} for value in VALUES),
    *({"parties": value} for value in (*VALUES, *LISTS, [[{"name": "a"}]])),
    *(
        {"x": one, "y": other, "n": {"inner": one}}
        for one, other in zip(VALUES, VALUES[::-1], strict=True)
    ),
]
Select = "Callable[[list[dict[str, Any]], Any], list[int]]"


@pytest.fixture(scope="module")
def index_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[list[dict[str, Any]]], Index]:
    """Gives the index of a list of metadata, whose ids are their places; it is built once."""
    made: dict[int, Index] = {}

    def index_of(metadata: list[dict[str, Any]]) -> Index:
        if id(metadata) not in made:
            index = Index.create(
                tmp_path_factory.mktemp("ix") / "ix",
                model=FakeEmbedder(dim=2),
                granularity="document",
            )
            index.add(
                [{"_id": f"{i}", "text": "", "metadata": each} for i, each in enumerate(metadata)]
            )
            made[id(metadata)] = index
        return made[id(metadata)]

    return index_of


@pytest.fixture(scope="module")
def select(
    index_of: Callable[[list[dict[str, Any]]], Index],
) -> Callable[[list[dict[str, Any]], Any], list[int]]:
    """Gives the places of the metadata that satisfy a filter, by an index of them."""

    def select(metadata: list[dict[str, Any]], where: Any) -> list[int]:
        index = index_of(metadata)
        found = [int(document.id) for document in index.documents(where)]
        assert index.count(where) == len(found)
        return found

    return select


@settings(max_examples=150, deadline=None)
@given(where=FILTER)
def test_an_index_agrees_with_plain_python(select: Any, where: dict[str, Any]) -> None:
    assert select(METADATAS, where) == [i for i, each in enumerate(METADATAS) if holds(where, each)]


@pytest.mark.parametrize(
    "operation", ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$contains", "$exists", "$is_empty"]
)
def test_every_operator_agrees_for_every_value(select: Any, operation: str) -> None:
    values = VALUES if operation in ("$eq", "$ne", "$contains") else [True, False]
    if operation in ("$gt", "$gte", "$lt", "$lte"):
        values = [value for value in VALUES if value is not None and not isinstance(value, bool)]
    for field, value in product(("x", "n.inner"), values):
        where = {field: {operation: value}}
        assert select(METADATAS, where) == [
            i for i, each in enumerate(METADATAS) if holds(where, each)
        ], where


# --- numbers and texts ---------------------------------------------------------------------------

NUMBERS: list[dict[str, Any]] = [
    {"x": number}
    for number in (
        -1e300,
        -1e19,
        -(1 << 63),
        -(1 << 63) + 1,
        -5,
        -0.1,
        0,
        5e-324,
        1e-300,
        1e-7,
        0.1,
        0.1 + 0.2,
        0.5,
        1,
        1.25,
        123456789.125,
        (1 << 53) + 1,
        1e16,
        (1 << 63) - 1,
        1 << 63,
        (1 << 64) - 1,
        1e19 * 3,
        1e22,
        1.7976931348623157e308,
        1 << 53,
        2.0**53,
        (1 << 53) + 2,
        2.0**53 + 2,
        (1 << 53) + 3,
        2.0**53 + 4,
        -(1 << 53) - 1,
        -(2.0**53),
        (1 << 60) + 5,
        2.0**60,
        (1 << 60) + 200,
        2.0**60 + 256,
        2.0**63,
    )
]


@pytest.mark.parametrize("operation", ["$eq", "$gt", "$gte", "$lt", "$lte", "$in", "$all"])
def test_numbers_of_every_size_compare_as_they_are(select: Any, operation: str) -> None:
    for number in [row["x"] for row in NUMBERS]:
        where = {"x": {operation: [number] if operation == "$in" else number}}
        if operation == "$all":
            where = {"$not": {"x": {"$not": {"$eq": number}}}}
        assert select(NUMBERS, where) == [
            i for i, each in enumerate(NUMBERS) if holds(where, each)
        ], where


def test_numbers_that_metadata_cannot_hold_are_still_above_or_below(select: Any) -> None:
    everything = list(range(len(NUMBERS)))
    for huge in (float("inf"), 10**400, 1 << 2000):
        assert (
            select(NUMBERS, {"x": {"$lt": huge}})
            == select(NUMBERS, {"x": {"$gt": -huge}})
            == everything
        )
        assert select(NUMBERS, {"x": {"$gte": huge}}) == select(NUMBERS, {"x": huge}) == []
    assert select(NUMBERS, {"x": {"$gt": np.float64(0.1)}}) == select(NUMBERS, {"x": {"$gt": 0.1}})


@pytest.mark.parametrize(
    "number", [1 << 64, -(1 << 63) - 1, 10**4000], ids=["above", "below", "far above"]
)
def test_whole_numbers_of_more_than_64_bits_are_refused(tmp_path: Path, number: int) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        for metadata in ({"n": number}, {"n": [{"m": number}]}):
            with pytest.raises(
                InputError, match="a whole number of more than 64 bits; write it as a string"
            ):
                index.add([{"_id": "a", "text": "w", **metadata}])
        index.add([{"_id": "a", "text": "w"}])
        with pytest.raises(InputError, match="more than 64 bits; write it as a string"):
            index.update_metadata({"n": number}, ["a"])
        assert index.get(["a"])[0].metadata == {}


HOSTILE = [
    "') OR 1=1 --",
    "x'; DROP TABLE documents; --",
    "''",
    "'",
    "a$",
    "$",
    "$[*]",
    "@",
    "? (@ > 0)",
    ")",
    "&&",
    "a[0]",
    "a' AND '1'='1",
    "%",
    "_",
    "*",
    "**",
    "\\",
    "\\n",
    "\\u0041",
    "?",
    "a\nb",
    "\t",
    "\x01",
    "\x7f",
    "\u00e9",
    "e\u0301",
    "\u4e2d\u6587",
    "\U0001f600",
    "\u2028",
    "\ufeff",
    " ",
    "  a ",
    "true",
    "null",
    "1",
    "{}",
    "x" * 5000,
]
TEXTS = [
    {"x": "other"},
    *({"x": text} for text in HOSTILE),
    *({"x": ["y", text]} for text in HOSTILE),
]
QUOTED = [{"x": text} for text in ('"', 'say "a"', '\\"', '"]', '""', "plain")]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_values_are_only_data(select: Any, text: str) -> None:
    here = [1 + HOSTILE.index(text), 1 + HOSTILE.index(text) + len(HOSTILE)]
    for where in ({"x": text}, {"x": {"$in": [text]}}):
        assert select(TEXTS, where) == here
    assert select(TEXTS, {"x": {"$any": [text]}}) == here[1:]
    for operation in ("$ne", "$gt", "$lte", "$contains", "$startsWith"):
        where = {"x": {operation: text}}
        assert select(TEXTS, where) == [i for i, each in enumerate(TEXTS) if holds(where, each)], (
            where
        )


def test_quotes_inside_a_value_are_only_data(select: Any) -> None:
    for row, operation in product(
        QUOTED, ("$eq", "$ne", "$gt", "$lte", "$contains", "$startsWith")
    ):
        where = {"x": {operation: row["x"]}}
        assert select(QUOTED, where) == [
            i for i, each in enumerate(QUOTED) if holds(where, each)
        ], where


NAMES = [text for text in HOSTILE if not text.startswith("$")]  # such a field would be an operator
KEYS: list[dict[str, Any]] = [*({text: 1} for text in NAMES), {"other": 1}]


@pytest.mark.parametrize("text", NAMES)
def test_hostile_fields_are_only_data(select: Any, text: str) -> None:
    here = NAMES.index(text)
    assert select(KEYS, {text: 1}) == select(KEYS, {text: {"$exists": True}}) == [here]
    assert select(KEYS, {text: {"$is_empty": True}}) == [i for i in range(len(KEYS)) if i != here]


PATHS: list[dict[str, Any]] = [
    {"path": "contracts/2024/lease.pdf"},
    {"path": "contracts.txt"},
    {"path": "Contracts/old.pdf"},
    {"path": "caf\N{LATIN SMALL LETTER E WITH ACUTE}/menu.pdf"},
    {"tags": ["proj/a", "law"]},
    {"tags": ["law", 7, "my proj/a"]},
]


def test_texts_and_elements_that_begin_with_a_text_are_selected(select: Any) -> None:
    assert select(PATHS, {"path": {"$startsWith": "contracts/"}}) == [0]
    assert select(PATHS, {"path": {"$startsWith": "contracts"}}) == [0, 1]
    assert select(PATHS, {"path": {"$startsWith": "cafe\N{COMBINING ACUTE ACCENT}/"}}) == [3]
    assert select(PATHS, {"tags": {"$startsWith": "proj/"}}) == [4]
    assert select(PATHS, {"tags": {"$not": {"$startsWith": "proj/"}}}) == [0, 1, 2, 3, 5]
    assert select(PATHS, {"path": {"$startsWith": "contracts", "$ne": "contracts.txt"}}) == [0]
    assert select(PATHS, {"_id": {"$startsWith": "3"}}) == [3]
    assert select(PATHS, {"title": {"$startsWith": "3"}}) == []


DOTS: list[dict[str, Any]] = [
    {"a.b": 1},
    {"a": {"b": 1}},
    {"a": [{"b": 1}]},
    {"a": [{"b": 2}, {"b": [3, 1]}]},
    {"$a": 1},
    {"a": {"$b": 1}},
    {"$and": {"$b.c": 1}},
]


def test_a_dot_descends_and_can_be_escaped(select: Any) -> None:
    assert select(DOTS, {"a\\.b": 1}) == [0]
    assert select(DOTS, {"a.b": 1}) == [1, 2, 3]


def test_fields_may_begin_with_a_dollar_sign(select: Any) -> None:
    assert select(DOTS, {"\\$a": 1}) == [4]
    assert select(DOTS, {"a.$b": 1}) == select(DOTS, {"a.\\$b": 1}) == [5]
    assert select(DOTS, {"\\$and.$b\\.c": {"$gte": 1}}) == [6]


CONTRACTS: list[dict[str, Any]] = [
    {"parties": [{"name": "Acme GmbH", "roles": ["buyer"]}, {"name": "Bolt Ltd"}]},
    {"parties": [{"name": "Bolt Ltd", "roles": ["seller", "agent"]}]},
    {"parties": {"name": "Acme GmbH"}},
    {"parties": []},
    {"deal": {"lots": [{"bids": [{"by": "Ada"}, {"by": "Bob"}]}, {"bids": [{"by": "Cy"}]}]}},
    {"parties": [[{"name": "Bolt Ltd"}], {"name": ""}]},
    {"terms": [{"codes": [["a1", "b2"], ["c3"]]}, {"codes": ["d4"]}]},
]


@pytest.mark.parametrize(
    ("where", "places"),
    [
        ({"parties.name": "Acme GmbH"}, [0, 2]),
        ({"parties.name": {"$in": ["Bolt Ltd"]}}, [0, 1]),
        ({"parties.name": {"$nin": ["Bolt Ltd"]}}, [2, 3, 4, 5, 6]),
        ({"parties.name": {"$startsWith": "Bolt"}}, [0, 1]),
        ({"parties.name": {"$all": ["Acme GmbH", "Bolt Ltd"]}}, [0]),
        ({"parties.name": {"$any": ["Bolt Ltd"]}}, [0, 1]),
        ({"parties.name": {"$contains": "Bolt Ltd"}}, [0, 1]),
        # one name is a text, the name of each of a list is an element
        ({"parties.name": {"$contains": "me G"}}, [2]),
        ({"parties.name": {"$exists": True}}, [0, 1, 2, 5]),
        ({"parties.name": {"$is_empty": True}}, [3, 4, 6]),
        ({"parties.name": ""}, [5]),
        ({"parties.roles": "agent"}, [1]),
        ({"parties.roles": {"$regex": "^(buy|sell)er$"}}, [0, 1]),
        ({"terms.codes": "c3"}, [6]),
        ({"terms.codes": {"$regex": "^c"}}, [6]),
        ({"deal.lots.bids.by": "Cy"}, [4]),
        ({"deal.lots.bids.by": {"$gt": "Bob", "$regex": "y"}}, [4]),
    ],
)
def test_a_path_leads_through_lists_of_objects(
    select: Any, where: dict[str, Any], places: list[int]
) -> None:
    assert select(CONTRACTS, where) == places


def test_values_are_counted_through_lists_of_objects(
    index_of: Callable[[list[dict[str, Any]]], Index],
) -> None:
    index = index_of(CONTRACTS)
    assert index.values("parties.name") == [("Acme GmbH", 2), ("Bolt Ltd", 2), ("", 1)]
    assert index.values("parties.roles") == [("agent", 1), ("buyer", 1), ("seller", 1)]
    assert index.values("terms.codes") == [("a1", 1), ("b2", 1), ("c3", 1), ("d4", 1)]
    assert index.values("parties.name", {"parties.name": {"$regex": "^A"}}) == [
        ("Acme GmbH", 2),
        ("Bolt Ltd", 1),
    ]


FILES: list[dict[str, Any]] = [
    {"path": "contracts/2023/Lease 4711.pdf"},
    {"path": "contracts/2024/lease.pdf", "tags": ["A-17", "law"]},
    {"path": "notes/lease.txt", "tags": "A-18"},
    {"path": 'quotes/"lease"\\new.txt'},
    {"path": "caf\N{LATIN SMALL LETTER E WITH ACUTE}/a\nb", "tags": ["B-1", ["A-99"], 17]},
    {"tags": 17},
]


@pytest.mark.parametrize(
    ("where", "places"),
    [
        ({"path": {"$regex": r"(?i)lease \d{4}"}}, [0]),
        ({"path": {"$regex": r"^contracts/\d+/lease"}}, [1]),
        ({"path": {"$not": {"$regex": "lease"}}}, [0, 4, 5]),
        ({"path": {"$regex": r'"lease"\\new'}}, [3]),
        ({"path": {"$regex": "^cafe\N{COMBINING ACUTE ACCENT}/a$"}}, [4]),
        ({"tags": {"$regex": r"^A-\d+$"}}, [1, 2, 4]),
        ({"tags": {"$regex": "17"}}, [1]),
        ({"_id": {"$regex": "^[0-2]$"}, "path": {"$regex": "txt$"}}, [2]),
        ({"$or": [{"path": {"$regex": "pdf$"}}, {"tags": {"$regex": "^B"}}]}, [0, 1, 4]),
        ({"$not": {"path": {"$regex": "pdf$"}, "tags": {"$regex": "law"}}}, [0, 2, 3, 4, 5]),
        ({"title": {"$regex": "."}}, []),
        ({"missing": {"$regex": "."}}, []),
    ],
)
def test_texts_and_elements_that_an_expression_matches(
    select: Any, where: dict[str, Any], places: list[int]
) -> None:
    assert select(FILES, where) == places


def test_changes_and_searches_take_expressions(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add([{"_id": f"{i}", "text": f"lease {i}", **each} for i, each in enumerate(FILES)])
        pdfs = {"path": {"$regex": "pdf$"}}
        assert sorted(hit.id for hit in index.search("lease", filter=pdfs)) == ["0", "1"]
        assert sorted(hit.id for hit in index.visible(pdfs).search("lease")) == ["0", "1"]
        index.update_metadata({"kind": "pdf"}, where=pdfs)
        assert index.count({"kind": "pdf"}) == 2
        index.delete(where=pdfs)
        assert sorted(document.id for document in index.documents()) == ["2", "3", "4", "5"]


@pytest.mark.parametrize("values", [["a" * 5000 + "!"], [f"{'a' * 40}{i}!" for i in range(3000)]])
def test_an_expression_that_explodes_is_stopped(tmp_path: Path, values: list[str]) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add([{"_id": "a", "text": "w", "x": values}])
        start = time.process_time()
        with pytest.raises(ConfigError, match=r"\$regex on 'x'.*took longer than 1.* s; simplify"):
            index.count({"x": {"$regex": "^(a|aa)+$"}})
        assert time.process_time() - start < 10  # a second of its own, and what else runs
        assert index.count({"x": {"$regex": "^a+"}}) == 1


def test_a_filter_may_have_many_parts_and_levels(select: Any) -> None:
    here = [i for i, each in enumerate(METADATAS) if holds({"x": 2}, each)]
    many = [{"x": f"nothing {i}"} for i in range(900)]
    assert select(METADATAS, {"$or": [*many, {"x": 2}]}) == here
    assert (
        select(METADATAS, {"$and": [*({"x": {"$ne": part["x"]}} for part in many), {"x": 2}]})
        == here
    )
    assert select(METADATAS, {"x": {"$in": [*range(100, 10_099), 2]}}) == here
    deep: dict[str, Any] = {"x": 2}
    for level in range(18):
        deep = (
            {"$or": [deep, {"x": f"level {level}"}]}
            if level % 2
            else {"$and": [deep, {"x": {"$exists": True}}]}
        )
    assert select(METADATAS, deep) == here


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("x", "not a mapping"),
        ({"x": {}}, "empty"),
        ({"x": {"$search": "a"}}, r"'\$search'.*not known"),
        ({"x": {"$regex": "("}}, r"filter: \$regex on 'x': pattern '\('.*not a regular expression"),
        ({"x": {"$regex": ""}}, "must have 1 to 1,000"),
        ({"x": {"$regex": "a" * 1001}}, "must have 1 to 1,000"),
        ({"x": {"$regex": 3}}, r"\$regex on 'x' needs a string, not 3"),
        ({"$or": [{"x": {"$regex": letter}} for letter in "abcde"]}, r"more than 4.*\$regex.*a\|b"),
        ({"$nor": []}, r"\$nor is not known"),
        ({"$price": 3}, r"\$price is not known.*a field of that name is written \\\$price"),
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
        ({"x": {"$startsWith": 3}}, r"\$startsWith on 'x' needs a string, not 3"),
        ({"x": {"$startsWith": ["a"]}}, "needs a string"),
        ({"x": {"$startsWith": "a\0b"}}, "NUL"),
        ({"x": {"$startsWith": "\ud800"}}, "Unicode"),
        ({"": 1}, "cannot be a field"),
        ({'a"b': 1}, "double quote"),
        ({1: 1}, "not a string"),
        ({"x": "\ud800"}, "Unicode"),
        ({"x": "a\0b"}, "NUL"),
        ({"x": {"$in": list(range(40_000))}}, "at most"),
        (reduce(lambda inner, _: {"$not": inner}, range(200), {"x": 1}), "nested"),
    ],
)
def test_a_filter_that_means_nothing_is_an_error(where: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compile_filter(where)


def test_a_database_refuses_what_its_rows_do_not_hold() -> None:
    filters = FactFilters(*[""] * 5)
    with pytest.raises(ConfigError, match=r"\$startsWith on 'x'.*\"\$gte\": 'ab'"):
        filters.compile({"$not": {"x": {"$startsWith": "ab"}}})
    with pytest.raises(ConfigError, match=r"\$regex on 'x': only for index directories"):
        filters.compile({"$not": {"x": {"$regex": "ab"}}})


def test_elements_of_lists_in_a_list_count_as_its_own() -> None:
    """In the rows of an engine, as in an index."""
    flat, nested = describe({"m": [1, 2, "a"]}), describe({"m": [[1, 2], ["a"]]})
    assert (set(nested[0]), nested[1]) == (set(flat[0]), flat[1])
    deeper = describe({"m": [[[1]]]})
    assert set(deeper[0]) < set(describe({"m": [1]})[0])
    assert deeper[1] == {}
    within = describe({"m": [{"n": [["a"], [2]]}, {"n": "b"}]})
    assert set(describe({"m": {"n": ["a", 2, "b"]}})[0]) <= set(within[0])


def test_advice_looks_into_lists(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"tags": ["law", 17], "parties": [{"name": "A"}, {"name": 3}], "years": [1, 2]},
        {"words": ["a", "b"]},
    ]
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add([{"_id": f"{i}", "text": "w", **row} for i, row in enumerate(rows)])
        for where in ({"tags": "tax"}, {"tags": 18}, {"parties.name": "B"}, {"parties.name": 4}):
            assert index.advice(where) == []
        assert "'years' holds numbers" in index.advice({"years": "1"})[0]
        assert "'words' holds texts" in index.advice({"words": 1})[0]
