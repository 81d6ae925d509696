"""Dates in metadata: what boosts, sorting and conversations take for one."""

from __future__ import annotations

from datetime import UTC, datetime


def instant(value: object) -> datetime | None:
    """Return the instant of a text in ISO 8601, in UTC where it names no zone; None where it is
    none.
    """
    if not isinstance(value, str):
        return None
    try:
        date = datetime.fromisoformat(value)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
