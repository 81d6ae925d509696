"""Why a filter lets no document through: a field that none has, or one of another type."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.store import filters

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.store.store import Store

logger = logging.getLogger(__name__)

_NAMED = 20  # fields that a message names
_NUMBERS = {"integer", "real"}


def warn_of_filter(store: Store, where: Filter) -> None:
    """Log a warning where a filter that nothing matches names a field that no document has, or compares other types."""
    for advice in dict.fromkeys(_advice(store, where)):
        logger.warning("filter %s: no document matches; %s", where, advice)


def _advice(store: Store, where: Filter) -> Iterator[str]:
    for field, operand in _conditions(where):
        rows = store.db.execute(
            "SELECT DISTINCT json_type(metadata, ?) FROM documents WHERE json_type(metadata, ?) IS NOT NULL",
            (filters.json_path(field),) * 2,
        )
        types = {name for (name,) in rows}
        if not types:
            yield f"none has the field {field!r}; the fields are {_fields(store)}"
        elif types <= {"text", "null"} and _is_number(operand):
            yield f"the field {field!r} holds texts, which are never equal to or above the number {operand!r}"
        elif types <= {*_NUMBERS, "null"} and isinstance(operand, str):
            yield f"the field {field!r} holds numbers, which are never equal to or above the text {operand!r}"


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


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _fields(store: Store) -> str:
    rows = store.db.execute("SELECT DISTINCT key FROM documents, json_each(metadata) LIMIT ?", (_NAMED + 1,))
    names = [repr(name) for (name,) in rows]
    more = ", ..." if len(names) > _NAMED else ""
    return ", ".join(sorted(names[:_NAMED])) + more if names else "none at all"
