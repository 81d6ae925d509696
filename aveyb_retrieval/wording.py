"""Words that several messages share."""

from __future__ import annotations


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: "1 document", "2,300 documents", "3 queries" for ("query", "queries")."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
