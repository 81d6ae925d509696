"""XML from files that may be hostile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.filetext import Unreadable

if TYPE_CHECKING:
    from lxml.etree import _Element


def parse_xml(data: bytes, name: str) -> _Element:
    """Parse XML: entities stay unresolved, nothing is loaded. Raises Unreadable: it is not XML."""
    from lxml import etree

    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
    )
    try:
        return etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise Unreadable(f"damaged: {name!r} is not XML ({error})") from None
