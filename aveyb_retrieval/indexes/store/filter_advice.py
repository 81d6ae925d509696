"""Why a filter lets no document through: a field that none has, or one of another type."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.store import filters

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.store.tables import Tables

logger = logging.getLogger(__name__)

_NAMED = 20  # fields that a message names
_READ = 1000  # documents whose fields are looked at
_SHOWN = 300  # characters of a filter


def warn_of_filter(tables: Tables, where: Filter) -> None:
    """Log a warning where a filter that nothing matches names a field that no document has, or compares other types."""
    for advice in dict.fromkeys(_advice(tables, where)):
        shown = repr(where)
        logger.warning(
            "filter %s: no document matches; %s", shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}...", advice
        )


def _advice(tables: Tables, where: Filter) -> Iterator[str]:
    for field, operand in _conditions(where):
        if field in filters.OWN:
            continue
        path = filters.quoted(filters.json_path(field))
        numbers = f"json_exists(metadata, {filters.quoted(filters.json_path(field) + ' ? (@ >= 0 || @ < 0)')})"
        texts = f"coalesce(json_extract(metadata, {path}) LIKE '\"%', false)"
        if missing := no_such_field(tables, field):
            yield missing
        elif filters.is_number(operand) and not _any(tables, numbers) and _any(tables, texts):
            yield f"the field {field!r} holds texts, which are never equal to or above the number {operand!r}"
        elif isinstance(operand, str) and not _any(tables, texts) and _any(tables, numbers):
            yield f"the field {field!r} holds numbers, which are never equal to or above the text {operand!r}"


def no_such_field(tables: Tables, field: str) -> str | None:
    """Say that no document has a field, and which ones there are; None: one has it."""
    if _any(tables, f"json_exists(metadata, {filters.quoted(filters.json_path(field))})"):
        return None
    return f"none has the field {field!r}; the fields are {_fields(tables)}"


def _any(tables: Tables, condition: str) -> bool:
    return bool(tables.documents.scan(["doc"], condition, limit=1).num_rows)


def _conditions(where: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a filter, each with a value that it is compared with (None where there is none)."""
    if not isinstance(where, Mapping):
        return
    for key, value in where.items():
        if key in ("$and", "$or") and isinstance(value, Sequence):
            for part in value:
                yield from _conditions(part)
        elif key == "$not":
            yield from _conditions(value)
        else:
            yield key, _operand(value)


def _operand(condition: Any) -> Any:
    if isinstance(condition, Mapping):
        condition = next(iter(condition.values()), None)
    if isinstance(condition, (list, tuple)):
        condition = next(iter(condition), None)
    return condition


def _fields(tables: Tables) -> str:
    """The fields of the first documents."""
    rows = tables.documents.scan(["metadata"], limit=_READ)["metadata"].to_pylist()
    names = [repr(name)[:_SHOWN] for name in dict.fromkeys(name for row in rows for name in json.loads(row))]
    more = ", ..." if len(names) > _NAMED else ""
    return ", ".join(sorted(names[:_NAMED])) + more if names else "none at all"
