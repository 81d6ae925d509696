"""Metadata filters as conditions on the JSONB column `fields` of `documents`.

Equality is containment (`@>`), which the index on `fields` answers: a list contains its elements, and a scalar itself.
Everything else looks at each element. No condition is ever NULL.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.store.filters import NOTHING, Condition, FilterCompiler, field_keys, join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.store.filters import Filter, Scalar

_EMPTY = ("null", '""', "[]", "{}")


def compile_filter(where: Filter) -> Condition:
    """Compile a filter to SQL with `%s` in the places of its parameters.

    Raises:
        ConfigError: an operator is not known, or has a value of the wrong type.
    """
    return _PostgresFilters().compile(where)


class _PostgresFilters(FilterCompiler):
    def equal(self, field: str, value: Scalar) -> Condition:
        return self.one_of(field, [value])

    def one_of(self, field: str, values: Sequence[Scalar]) -> Condition:
        infinite = [value for value in values if isinstance(value, float) and math.isinf(value)]
        held = [self._nested(field, item) for value in values if value not in infinite for item in (value, [value])]
        # JSON has no infinity, so no field is equal to it
        return join(" OR ", [Condition("fields @> ANY(%s::jsonb[])", (held,))] if held else [], empty=NOTHING)  # type: ignore[arg-type]

    def compare(self, field: str, operator: str, value: str | int | float) -> Condition:
        found, keys = _value(field)
        if isinstance(value, str):
            test = f"jsonb_typeof(e) = 'string' AND (e #>> '{{}}') COLLATE \"C\" {operator} %s"
        else:  # nothing says in which order both sides of an AND are evaluated
            number = "CASE jsonb_typeof(e) WHEN 'number' THEN (e #>> '{}')::numeric END"
            test = f"coalesce({number} {operator} %s::numeric, false)"
        elements = (
            f"CASE jsonb_typeof({found}) WHEN 'array' THEN {found} WHEN 'object' THEN '[]' "
            f"ELSE jsonb_build_array({found}) END"
        )
        sql = f"EXISTS (SELECT FROM jsonb_array_elements({elements}) AS elements(e) WHERE {test})"  # values bound
        return Condition(sql, (*keys * 3, str(value)))

    def is_list(self, field: str) -> Condition:
        found, keys = _value(field)
        return Condition(f"(jsonb_typeof({found}) = 'array') IS TRUE", keys)

    def has_part(self, field: str, text: str) -> Condition:
        found, keys = _value(field)
        sql = f"(jsonb_typeof({found}) = 'string' AND strpos({found} #>> '{{}}', %s) > 0) IS TRUE"
        return Condition(sql, (*keys * 2, text))

    def exists(self, field: str) -> Condition:
        found, keys = _value(field)
        return Condition(f"{found} IS NOT NULL", keys)

    def is_empty(self, field: str) -> Condition:
        found, keys = _value(field)
        return Condition(f"coalesce({found} = ANY(%s::jsonb[]), true)", (*keys, list(_EMPTY)))  # type: ignore[arg-type]

    def _nested(self, field: str, value: object) -> str:
        """The JSON of an object that holds a value in a field, and nothing else."""
        for key in reversed(field_keys(field)):
            value = {key: value}
        return json.dumps(value)


def _value(field: str) -> tuple[str, tuple[str, ...]]:
    """SQL of a field's value, NULL where it is missing, and its parameters. `->` by a text never enters a list."""
    keys = tuple(field_keys(field))
    return f"(fields{' -> %s::text' * len(keys)})", keys
