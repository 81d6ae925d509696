"""Texts of other frameworks as documents of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def row(document_id: str, text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Make a document for the index; a metadata field `title` that is a text is its title, too."""
    title = metadata.get("title")
    return {
        "_id": document_id,
        "title": title if isinstance(title, str) else "",
        "text": text,
        "metadata": dict(metadata),
    }
