"""LlamaIndex's metadata filters as filters of an index."""

from __future__ import annotations

from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from aveyb_retrieval import ConfigError

_OPERATORS = {
    FilterOperator.EQ: "$eq",
    FilterOperator.NE: "$ne",
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
    FilterOperator.IN: "$in",
    FilterOperator.NIN: "$nin",
    FilterOperator.ANY: "$any",
    FilterOperator.ALL: "$all",
    FilterOperator.CONTAINS: "$contains",
    FilterOperator.TEXT_MATCH: "$contains",
}


def translate(filters: MetadataFilters | None) -> dict[str, Any] | None:
    """Translate filters; None where there are none.

    Raises:
        ConfigError: an operator or a condition has no equal.
    """
    if filters is None or not filters.filters:
        return None
    parts = [translate(each) if isinstance(each, MetadataFilters) else _one(each) for each in filters.filters]
    found = [part for part in parts if part is not None]
    if filters.condition in (None, FilterCondition.AND):
        return {"$and": found}
    if filters.condition == FilterCondition.OR:
        return {"$or": found}
    return {"$not": {"$or": found}}


def _one(condition: MetadataFilter) -> dict[str, Any]:
    field = condition.key.replace(".", "\\.")  # LlamaIndex's keys are not paths
    if condition.operator == FilterOperator.IS_EMPTY:
        return {field: {"$is_empty": True}}
    if condition.operator not in _OPERATORS:
        raise ConfigError(f"filter: the operator {condition.operator.value!r} on {condition.key!r} has no equal here")
    return {field: {_OPERATORS[condition.operator]: condition.value}}
