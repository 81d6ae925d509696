"""PPTX by python-pptx: slide by slide, with tables, grouped shapes and notes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.input.readers.archive import open_archive
from aveyb_retrieval.indexes.input.readers.base import FileText, Parts, Unreadable, clean, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator


def read_pptx(data: bytes, longest: int) -> FileText:
    """Read a presentation: its titles are headings, its slides pages.

    Raises:
        Unreadable: it is damaged, encrypted, or too long.
    """
    import pptx
    from lxml.etree import LxmlError
    from pptx.exc import PythonPptxError

    open_archive(data).close()
    parts = Parts("slide", longest)
    try:
        show = pptx.Presentation(io.BytesIO(data))
        for slide in show.slides:
            parts.add("\n\n".join(filter(None, _slide(slide))))
        title = show.core_properties.title
    except (PythonPptxError, LxmlError, KeyError, ValueError, AttributeError) as error:
        raise Unreadable(f"damaged: not a presentation ({one_line(str(error))})") from None
    return parts.text(one_line(title or ""))


def _slide(slide: Any) -> Iterator[str]:
    title = slide.shapes.title
    if title is not None and title.text_frame.text.strip():
        yield f"# {one_line(title.text_frame.text)}"
    for shape in slide.shapes:
        if title is None or shape.shape_id != title.shape_id:
            yield from _shape(shape)
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        yield clean(slide.notes_slide.notes_text_frame.text).strip()


def _shape(shape: Any) -> Iterator[str]:
    if getattr(shape, "shapes", None) is not None:  # a group
        for inner in shape.shapes:
            yield from _shape(inner)
    elif getattr(shape, "has_table", False):
        rows = (" | ".join(one_line(cell.text) for cell in row.cells) for row in shape.table.rows)
        yield "\n".join(rows)
    elif shape.has_text_frame:
        yield clean(shape.text_frame.text).strip()
