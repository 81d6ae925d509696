"""Where a hit is in its document, in the words that all adapters use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aveyb_retrieval import Hit


def place(hit: Hit) -> dict[str, Any]:
    """Return the title of a hit's document and the heading over its passage; of a PDF also the page.

    `page` is counted from 1, `page_label` is what the document calls that page, such as "iv", `page_unit` what it is
    ("page", "slide"), and `pages` are the first and the last of the passage.
    """
    found: dict[str, Any] = {"title": hit.title, "heading": hit.heading}
    if hit.page is not None:
        found |= {"page": hit.page, "page_label": hit.page_label, "page_unit": hit.page_unit}
        found["pages"] = list(hit.pages or ())
    return found
