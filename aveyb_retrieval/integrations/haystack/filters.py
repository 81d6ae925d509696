"""Haystack's filters as filters of an index."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from haystack.errors import FilterError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ORDER = {">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte"}
_NOTHING: dict[str, Any] = {"$not": {}}


def translate(filters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Translate filters; None where there are none.

    Raises:
        FilterError: they are not what Haystack defines, or name something else than metadata.
    """
    if not filters:
        return None
    return _comparison(filters) if "field" in filters else _logic(filters)


def field_name(name: str) -> str:
    """Return the metadata field of a filter's `meta.name`, which may also be written without `meta.`."""
    return name.removeprefix("meta.")


def _logic(filters: Mapping[str, Any]) -> dict[str, Any]:
    operator, conditions = _part(filters, "operator"), _part(filters, "conditions")
    parts = [translate(each) or {} for each in conditions]
    if operator not in ("AND", "OR", "NOT"):
        raise FilterError(f"the operator {operator!r} joins no conditions; known are AND, OR, NOT")
    if not parts:
        raise FilterError(f"{operator} has no conditions")
    return {"$not": {"$and": parts}} if operator == "NOT" else {f"${operator.lower()}": parts}


def _comparison(filters: Mapping[str, Any]) -> dict[str, Any]:
    operator, value = _part(filters, "operator"), _part(filters, "value")
    name = filters["field"]
    if name in ("id", "content", "score", "embedding", "blob"):
        raise FilterError(f"the field {name!r} cannot be filtered on; metadata can, as 'meta.{name}'")
    field = field_name(name)
    if operator in _ORDER:
        return _ordered(field, operator, value)
    if operator in ("==", "!="):
        equal = _equal(field, value)
        return equal if operator == "==" else {"$not": equal}
    if operator in ("in", "not in"):
        if not isinstance(value, list):
            raise FilterError(f"{operator!r} on {name!r} needs a list, not {value!r}")
        found = {"$or": [_equal(field, each) for each in value]} if value else _NOTHING
        return found if operator == "in" else {"$not": found}
    raise FilterError(f"the operator {operator!r} is not known; known are ==, !=, {', '.join(_ORDER)}, in, not in")


def _equal(field: str, value: Any) -> dict[str, Any]:
    if value is None:  # also where the field is missing
        return {"$or": [{field: {"$exists": False}}, {field: None}]}
    if isinstance(value, (list, dict)):
        raise FilterError(f"{field!r} cannot be compared with {value!r}; a list meets a condition if an element does")
    return {field: value.isoformat() if isinstance(value, datetime) else value}


def _ordered(field: str, operator: str, value: Any) -> dict[str, Any]:
    if value is None:  # nothing is above or below nothing
        return _NOTHING
    if isinstance(value, datetime):
        value = value.isoformat()
    elif isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError as error:
            raise FilterError(
                f"{operator} on {field!r}: {value!r} is not an ISO date; other strings have no order"
            ) from error
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FilterError(f"{operator} on {field!r} needs a number or an ISO date, not {value!r}")
    return {field: {_ORDER[operator]: value}}


def _part(filters: Mapping[str, Any], key: str) -> Any:
    if key not in filters:
        raise FilterError(f"the filter {dict(filters)!r} has no {key!r}")
    return filters[key]
