"""What the adapters share: documents and hits in the same words, and methods that run in a thread."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aveyb_retrieval import Hit


def row(document_id: str, text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Make a document for the index; the metadata field `title` is its title, too.

    Raises:
        InputError: `title` or `_id` of the metadata is not what a filter would find, which looks at the document's own.
    """
    title = metadata.get("title")
    if not (title is None or isinstance(title, str)):
        raise InputError(
            f"document {document_id!r}: the metadata field 'title' is of type {type(title).__name__}, and a document's "
            "title is a text; write it as one, or under another name"
        )
    if metadata.get("_id", document_id) != document_id:
        raise InputError(
            f"document {document_id!r}: the metadata field '_id' is {metadata['_id']!r}, and the id of the document is "
            "another; write it under another name"
        )
    return {"_id": document_id, "title": title or "", "text": text, "metadata": dict(metadata)}


def place(hit: Hit) -> dict[str, Any]:
    """Return the title of a hit's document, the heading over its best sentence and all of its passage, and its copies.

    Of a file with pages also the page:     `page` is counted from 1, `page_label` is what the document calls
    that page, such as "iv", `page_unit` what it is ("page", "slide"), and `pages` are the first and the last of the
    passage.
    """
    found: dict[str, Any] = {"title": hit.title, "heading": hit.heading, "headings": list(hit.headings)}
    found["duplicates"] = list(hit.duplicates)
    if hit.page is not None:
        found |= {"page": hit.page, "page_label": hit.page_label, "page_unit": hit.page_unit}
        found["pages"] = list(hit.pages or ())
    return found


def in_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make the asynchronous twin of a method: it runs in a thread."""

    @functools.wraps(method)
    async def run(*arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(method, *arguments, **options)

    return run
