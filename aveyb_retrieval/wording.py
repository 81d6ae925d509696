"""Words that several messages share."""

from __future__ import annotations


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: "1 document", "2,300 documents", "3 queries" for ("query", "queries")."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def shortened(text: str, most: int = 600) -> str:
    """Return a message of at most `most` characters; its middle, likely a value that was sent, is left out."""
    if len(text) <= most:
        return text
    begin, end = most * 2 // 3, most // 3 - 5
    return f"{text[:begin]} ... {text[-end:]}"
