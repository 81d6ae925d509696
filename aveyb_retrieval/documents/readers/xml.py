"""XML from files that may be hostile: the parser, and the text of any XML file's elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Unreadable,
    check_characters,
    one_line,
    paragraphs,
)
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from lxml.etree import _Element

    from aveyb_retrieval.documents.readers.file_limits import Limits


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


def read_xml(data: bytes, limits: Limits) -> FileText:
    """Read the text of a file's elements; tags, attributes and comments are not read.

    An element with text of its own is a line, with all that is in it; a blank line follows the
    others, which only hold elements.
    """
    from lxml import etree

    lines: list[str] = []
    length = entities = 0
    waiting: list[_Element | None] = [parse_xml(data, "the file")]
    while waiting:
        element = waiting.pop()
        if element is None:  # the end of a part
            lines.append("")
            continue
        if element.tag is etree.Entity:
            entities += 1
        if not isinstance(element.tag, str):  # a comment, an instruction
            continue
        if not len(element) or _has_text(element):
            words = one_line("".join(_texts(element)))
            entities += sum(1 for _ in element.iter(etree.Entity))
            if words:
                lines.append(words)
                length += len(words)
                check_characters(length, limits)
            continue
        waiting.append(None)
        waiting.extend(reversed(element))
    text = paragraphs(lines)
    warning = f"{plural(entities, 'reference')} to an entity not resolved" if entities else ""
    return FileText("", text, None, warning)


def _has_text(element: _Element) -> bool:
    """Whether an element holds text beside other elements."""
    own = [element.text, *(child.tail for child in element)]
    return any(text and text.strip() for text in own)


def _texts(element: _Element) -> list[str]:
    """The pieces of text in an element and all below it, in order, without comments."""
    pieces: list[str] = []
    waiting: list[_Element | str] = [element]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            pieces.append(node)
        elif isinstance(node.tag, str):
            pieces.append(node.text or "")
            for child in reversed(node):
                waiting += [child.tail or "", child]
    return pieces
