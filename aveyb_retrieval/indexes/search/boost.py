"""Boosts: fields of numbers or dates that move candidates after all that scores them.

docs/ranking.md has the formula. A document without a value gets nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.dates import instant
from aveyb_retrieval.indexes.store.filters import OWN, is_number, value_at

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.engine import EngineView
    from aveyb_retrieval.indexes.store.tables import StoredDocument

_RANGES = {"weight": (-100.0, 100.0), "half_life": (0.001, 1e6)}  # half_life in days


def read_boost(boost: Any) -> dict[str, dict[str, Any]]:
    """Return the weight of each field, and its half-life if any; raises ConfigError where the boost
    means nothing.
    """
    if not isinstance(boost, Mapping):
        raise ConfigError(f"boost={boost!r}: must map fields to weights, as {{'stars': 0.2}}")
    rules = {
        field: dict(how) if isinstance(how, Mapping) else {"weight": how}
        for field, how in boost.items()
    }
    for field, how in rules.items():
        if field in OWN:
            raise ConfigError(
                f"boost: {field!r} is a text of each document; give a field of numbers or dates"
            )
        if (
            not isinstance(field, str)
            or not field
            or not {"weight"} <= how.keys() <= _RANGES.keys()
        ):
            raise ConfigError(
                f"boost: {field!r}: {boost[field]!r}: must be a weight, or a weight and a half_life"
            )
        for name, (least, most) in _RANGES.items():
            value = how.get(name, most)
            if not (is_number(value) and least <= value <= most):
                raise ConfigError(
                    f"boost: {name}={value!r} of {field!r}: must be a number from {least:g} to"
                    f" {most:g}"
                )
    return rules


def gains(
    boost: Any, documents: Mapping[int, StoredDocument], view: EngineView
) -> dict[int, float]:
    """What each candidate gains, as a share of the best score; raises ConfigError where a value is
    of another type.
    """
    total = dict.fromkeys(documents, 0.0)
    for field, how in read_boost(boost).items():
        parts = {
            doc: part
            for doc, metadata in documents.items()
            if (part := _part(metadata, field, how)) is not None
        }
        if not parts and not len(view.matching(view.select({field: {"$exists": True}}))):
            raise ConfigError(f"boost: no document has the field {field!r}")
        largest = 1.0 if "half_life" in how else max(map(abs, parts.values()), default=0.0) or 1.0
        for doc, part in parts.items():
            total[doc] += how["weight"] * part / largest
    return total


def _part(document: StoredDocument, field: str, how: dict[str, Any]) -> float | None:
    value: Any = value_at(document.metadata, field)
    is_date = "half_life" in how
    if value is None or (is_number(value) and not is_date):
        return value
    date = instant(value) if is_date else None
    if date is None:
        needed = "a date such as 2024-05-06" if is_date else "a number"
        raise ConfigError(
            f"boost: {field!r} of document {document.id!r} is {value!r}; {needed} is needed"
        )
    days = max((datetime.now(UTC) - date) / timedelta(days=1), 0.0)
    return float(0.5 ** (days / how["half_life"]))
