"""Which values a field has, and in how many documents."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.store.filter_advice import no_such_field
from aveyb_retrieval.indexes.store.filters import OWN, compile_filter, json_path, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aveyb_retrieval.indexes.store.filters import Filter, Scalar
    from aveyb_retrieval.indexes.store.tables import Tables

MOST_COUNTED = 100_000  # different values of a field, and so what they take in memory
MOST_GIVEN = 10_000


def count_values(tables: Tables, field: str, where: Filter) -> list[tuple[Scalar, int]]:
    """Count the documents that satisfy a filter by the values of a field: the most frequent ones first.

    Raises:
        ConfigError: no document has the field, it has too many values, or the filter means nothing.
    """
    column = OWN.get(field) or f"json_extract(metadata, {quoted(json_path(field))})"
    rows = tables.documents.scan({"value": column}, compile_filter(where).sql)
    found: Counter[tuple[bool, Scalar]] = Counter()
    for each in rows["value"].value_counts().to_pylist():
        text, count = each["values"], each["counts"]
        value = text if field in OWN or text is None else json.loads(text)
        items = value if isinstance(value, list) else [value]
        # true is equal to 1 in Python alone
        scalars = {(isinstance(item, bool), item) for item in items if isinstance(item, (str, int, float))}
        found.update(dict.fromkeys(scalars, count))
        if len(found) > MOST_COUNTED:
            raise ConfigError(
                f"the field {field!r} has more than {MOST_COUNTED:,} values; ask for another field, or under a filter "
                "that leaves fewer"
            )
    if not found and field not in OWN and (told := no_such_field(tables, field)) and len(tables.documents):
        raise ConfigError(f"no document can be counted: {told}")
    return most_frequent((value, count) for (_, value), count in found.items())


def most_frequent(counted: Iterable[tuple[Scalar, int]]) -> list[tuple[Scalar, int]]:
    """Add up counts of values, the most frequent first."""
    found: Counter[tuple[bool, Scalar]] = Counter()
    for value, count in counted:
        found[isinstance(value, bool), value] += count
    best = sorted(found.items(), key=lambda each: (-each[1], isinstance(each[0][1], str), each[0]))
    return [(value, count) for (_, value), count in best]
