"""Presentations of PowerPoint: slides are pages, their titles headings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Parts,
    clean,
    first_few,
    one_line,
)
from aveyb_retrieval.documents.readers.ocr_text import ocr_metadata
from aveyb_retrieval.documents.readers.office_pictures import OfficePictures, read_office_pictures
from aveyb_retrieval.documents.readers.ooxml import (
    FALLBACK,
    GRAPHICS,
    PICTURES,
    A,
    Package,
    R,
    graphic_lines,
    is_true,
    paragraphs_of_drawing,
    picture_part,
    words_of_drawing,
)
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.documents.readers.file_limits import Limits

P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_TITLES = ("title", "ctrTitle")
_BESIDE = ("notesSlide", "comments", "comment")  # parts that belong to a slide
# placeholders of a page of notes that are no notes
_NOTES_AROUND = ("sldNum", "hdr", "ftr", "dt", "sldImg")


def read_pptx(data: bytes, limits: Limits) -> FileText:
    """Read a presentation: titles are headings, slides pages; hidden slides are left
    out and told.
    """
    package = Package(data)
    name, root = package.main("a presentation", "ppt/presentation.xml", f"{P}presentation")
    relations = package.relations(name)
    parts, hidden, missing = Parts("slide", limits), [], []
    identities = [slide.get(f"{R}id") or "" for slide in root.iter(f"{P}sldId")]
    slides = [relations.get(identity, ("", ""))[1] for identity in identities]
    pictures = read_office_pictures(package, _picture_names(package, slides), len(data), limits)
    texts: list[str] = []
    certainties: dict[int, float] = {}
    for number, target in enumerate(slides, start=1):
        slide = package.part(target) if target else None
        texts.append("")
        if slide is None:
            missing.append(number)
        elif _is_hidden(slide):
            hidden.append(number)
        else:
            texts[-1] = "\n\n".join(filter(None, _slide(slide, target, package, pictures)))
            certainty = pictures.certainty(package.related(target, "image"))
            if certainty is not None:
                certainties[number] = certainty
        parts.add(texts[-1])
    pictures.check_text("".join(texts))
    title, metadata = package.properties()
    notes = [
        f"{plural(len(numbers), 'slide')} {why}: {first_few(numbers)}"
        for numbers, why in ((hidden, "hidden and left out"), (missing, "missing in the file"))
        if numbers
    ]
    return parts.text(
        title,
        package.warning(*notes, pictures.warning),
        metadata | ocr_metadata(certainties),
        is_incomplete=bool(missing) or package.is_incomplete or pictures.is_incomplete,
        may_recognize_more=pictures.may_recognize_more,
    )


def _picture_names(package: Package, slides: list[str]) -> Iterator[str]:
    """The parts of the pictures on slides that are shown."""
    for target in slides:
        names = package.related(target, "image") if target else []
        # looked at once more: all slides at once might not fit into memory
        slide = package.part(target) if names else None
        if slide is not None and not _is_hidden(slide):
            yield from names


def _is_hidden(slide: Any) -> bool:
    return slide.get("show") in ("0", "false")


def _slide(slide: Any, name: str, package: Package, pictures: OfficePictures) -> Iterator[str]:
    relations = package.relations(name)
    shapes = slide.find(f"{P}cSld/{P}spTree")
    shapes = () if shapes is None else shapes
    title = next(
        (shape for top in shapes for shape in top.iter(f"{P}sp") if _kind(shape) in _TITLES), None
    )
    if title is not None and (words := one_line(" ".join(_texts(title)))):
        yield f"# {words}"
    else:
        title = None
    for shape in shapes:
        yield from _shape(shape, title, relations, package, pictures)
    for kind, target in relations.values():
        if kind not in _BESIDE or (root := package.part(target)) is None:
            continue
        if kind == "notesSlide":
            notes = (shape for shape in root.iter(f"{P}sp") if _kind(shape) not in _NOTES_AROUND)
            yield "\n".join(text for shape in notes for text in _texts(shape)).strip()
        else:
            for text in root.iter(f"{P}text"):
                yield f"Comment: {one_line(clean(text.text or ''))}"
            for body in root.iter("{*}txBody"):  # with threads
                yield f"Comment: {words_of_drawing(body)}"


def _shape(
    shape: Any,
    title: Any | None,
    relations: dict[str, tuple[str, str]],
    package: Package,
    pictures: OfficePictures,
) -> Iterator[str]:
    if shape is title or not isinstance(shape.tag, str) or shape.tag == FALLBACK:
        return
    properties = shape.find(f"*/{P}cNvPr")
    if properties is not None and is_true(properties, "hidden"):
        return
    if shape.tag in (f"{P}sp", f"{P}pic"):
        if _kind(shape) != "sldNum":
            yield "\n".join(_texts(shape)).strip()
        for reference in shape.iter(*PICTURES):
            yield pictures.text(picture_part(reference, relations)).strip()
    elif shape.tag == f"{P}graphicFrame":
        for table in shape.iter(f"{A}tbl"):
            yield "\n".join(_rows(table))
        for reference in shape.iter(*GRAPHICS):
            yield "\n".join(graphic_lines(reference, relations, package))
    else:  # a group, or alternatives of which the first one is read
        for inner in shape:
            yield from _shape(inner, title, relations, package, pictures)


def _rows(table: Any) -> Iterator[str]:
    """The rows of a table; a value that is merged over some rows stands in each of them."""
    above: dict[int, str] = {}
    for row in table.iter(f"{A}tr"):
        cells = []
        for column, cell in enumerate(row.iter(f"{A}tc")):
            text = one_line(" ".join(_texts(cell)))
            if is_true(cell, "vMerge"):
                text = text or above.get(column, "")
            elif is_true(cell, "hMerge"):
                continue
            else:
                above[column] = text
            cells.append(text)
        yield " | ".join(cells)


def _texts(shape: Any) -> Iterator[str]:
    for body in shape.iter(f"{P}txBody", f"{A}txBody"):
        yield from filter(None, paragraphs_of_drawing(body))


def _kind(shape: Any) -> str:
    """The kind of a placeholder: "title" and the like; "" of another shape."""
    placeholder = shape.find(f"{P}nvSpPr/{P}nvPr/{P}ph")
    return "" if placeholder is None else (placeholder.get("type") or "body")
