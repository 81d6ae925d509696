"""PDF by PDFium: the text page by page, page labels, and the headings: those that its bookmarks name, else by size."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from contextlib import closing
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.documents.readers.base import (
    FileText,
    Unreadable,
    about,
    check_characters,
    clean,
    named,
    one_line,
    some,
)
from aveyb_retrieval.documents.readers.ooxml import embedded
from aveyb_retrieval.documents.readers.pdf_page import (
    ALL_SECONDS,
    font_size,
    join_words,
    notes_and_fields,
    page_text,
    read_picture,
    upright,
    why_none,
    words_with_hyphen,
)
from aveyb_retrieval.documents.records import MAX_PAGES, Pages, short_label
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pypdfium2

_DATE = re.compile(
    r"(?:D:)?(\d{4})(\d\d)?(\d\d)?(\d\d)?(\d\d)?(\d\d)?(?:(?P<sign>[-+])(?P<hours>\d\d)'?(?P<minutes>\d\d)?)?"
)
_SENTENCE_END = tuple(".!?:\"')”’。！？")  # noqa: RUF001  # stops of other scripts
_REASONS = {  # by FPDF_GetLastError
    3: "not a PDF file, or damaged beyond repair",
    4: "encrypted, and a password is needed to read it; save it without one",
    5: "encrypted in a way that PDFium does not know; save it without a password",
}
_LONGEST_NUMBER = 8  # letters and digits in front of a heading that its bookmark does not repeat: "3.2", "A.1"
# Headings of a file without bookmarks: short lines in larger type than most of its text.
_LARGER = 1.15  # times the size of most of the text
_LONGEST_HEADING = 120  # characters of a heading
_MOST_LARGER = 0.2  # of all characters: where more are in larger type, it is no mark of headings
_LEVELS = 4

Sizes = dict[str, float]
"""The size of type, in points, of the lines of a page, by their letters and digits."""


def read_pdf(data: bytes, longest: int) -> FileText:
    """Read a PDF file: `longest` bounds the characters of its text.

    Raises:
        Unreadable: it is encrypted, damaged, too long, or pictures of text only that OCR does not read.
    """
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        code = getattr(error, "err_code", None)
        raise Unreadable(_REASONS.get(code or 0, f"not readable as PDF: {one_line(str(error))}")) from None
    with closing(document):
        return _read(document, longest)


class _Page(NamedTuple):
    """What one page holds: text, forms and notes, whether it is a picture without text, and the sizes of lines."""

    text: str
    beside: list[str]
    is_picture: bool
    sizes: Sizes


def _read(document: pypdfium2.PdfDocument, longest: int) -> FileText:
    count = len(document)
    if not 1 <= count <= MAX_PAGES:
        raise Unreadable(f"{count:,} pages; from 1 to {MAX_PAGES:,} are read")
    bookmarks, form = _bookmarks(document), None
    if document.get_formtype():
        logging.getLogger("pypdfium2").setLevel(logging.ERROR)  # a form that it does not draw is told below
        document.init_forms()  # until the document is closed
        form = document.formenv
    pages: list[_Page] = []
    length = 0
    hyphened: set[str] = set()  # words
    files: list[str] = []  # attached to pages
    for index in range(count):
        pages.append(_page(document, index, form, files, measure=not bookmarks))
        length += len(pages[-1].text) + sum(map(len, pages[-1].beside))
        check_characters(length, longest)
        hyphened |= words_with_hyphen(pages[-1].text)
    texts: list[str] = []
    pictures: list[str] = []  # numbers of pages that show pictures and hold no text
    enough = time.monotonic() + ALL_SECONDS
    for index, page in enumerate(pages):
        text = clean(join_words(page.text, hyphened)).strip()
        if page.is_picture and time.monotonic() < enough:
            text = clean(read_picture(document[index])).strip()
        if page.is_picture and not text:
            pictures.append(str(index + 1))
        texts.append(_mark_headings(text, bookmarks.get(index, [])))
    if pictures and not any(texts) and not length:
        raise Unreadable(f"no text: scanned? ({plural(len(pictures), 'page')} of pictures only; {why_none()})")
    labels = tuple(short_label(one_line(document.get_page_label(index))) for index in range(count))
    if all(label in ("", str(number)) for number, label in enumerate(labels, start=1)):
        labels = ()
    texts = texts if bookmarks else _mark_by_size(texts, [page.sizes for page in pages])
    texts = ["\n\n".join(filter(None, [text, *page.beside])) for text, page in zip(texts, pages, strict=True)]
    text, starts = _join(texts)
    check_characters(len(text), longest)
    title, author, created = map(document.get_metadata_value, ("Title", "Author", "CreationDate"))
    told = "; ".join(_told(document, pictures, files))
    return FileText(named(title), text, Pages(starts, labels), told, about(author, _date(created)))


def _told(document: pypdfium2.PdfDocument, pictures: list[str], files: list[str]) -> Iterator[str]:
    """What is not read of a document: pages without text, embedded files, forms that programs draw."""
    if pictures:
        pages = f"{len(pictures):,} of {len(document):,} pages"
        yield f"{pages} are pictures without text, probably scanned: {some(pictures)}"
    count = min(document.count_attachments(), 1000)
    files += [one_line(document.get_attachment(number).get_name()) for number in range(count)]
    if files:
        yield embedded(files)
    if document.get_formtype() == 2:  # FORMTYPE_XFA_FULL
        yield "its form (XFA) is not read: print it to PDF"


def _date(value: str) -> str:
    """A date of PDF, D:20260131120000+01'00', as in ISO 8601; "" where it is none."""
    found = _DATE.match(value)
    if found is None:
        return ""
    year, month, day, hour, minute, second = (
        int(part or least) for part, least in zip(found.groups()[:6], "111000", strict=True)
    )
    zone = f"{found['sign']}{found['hours']}{found['minutes'] or '00'}" if found["sign"] else "+0000"
    try:
        date = datetime.strptime(f"{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}{zone}", "%Y%m%d%H%M%S%z")
        return date.astimezone(timezone.utc).isoformat()
    except (ValueError, OverflowError):
        return ""


def _page(document: pypdfium2.PdfDocument, index: int, form: Any | None, files: list[str], *, measure: bool) -> _Page:
    """Read one page."""
    import pypdfium2

    try:
        page = document[index]
        words = upright(page)
        raw_text = page_text(words)
        sizes = _line_sizes(words) if measure else {}
        words.close()
        beside = list(dict.fromkeys(filter(None, notes_and_fields(page, form, files))))
        image = pypdfium2.raw.FPDF_PAGEOBJ_IMAGE
        is_picture = not raw_text.strip() and any(page.get_objects(filter=[image], max_depth=3))
        page.close()
    except pypdfium2.PdfiumError as error:
        raise Unreadable(f"page {index + 1:,} is damaged ({one_line(str(error))})") from None
    return _Page(raw_text, beside, is_picture, sizes)


def _join(texts: list[str]) -> tuple[str, tuple[int, ...]]:
    """All pages as one text, and where each begins. A sentence that goes on over a page break stays one paragraph."""
    parts, starts, position = [], [], 0
    for text, following in pairwise([*texts, ""]):
        starts.append(position)
        end = "\n\n" if text.endswith(_SENTENCE_END) or following.startswith("#") else "\n"
        part = text + end if text else ""
        parts.append(part)
        position += len(part)
    return "".join(parts), tuple(starts)


def _bookmarks(document: pypdfium2.PdfDocument) -> dict[int, list[tuple[int, str]]]:
    """The bookmarks of each page, by its index: (level from 1, title)."""
    found: dict[int, list[tuple[int, str]]] = {}
    for bookmark in document.get_toc():
        target: Any = bookmark.get_dest()
        index = target.get_index() if target is not None else None
        title = _letters_of(bookmark.get_title())
        if index is not None and title:
            found.setdefault(index, []).append((min(bookmark.level + 1, 6), title))
    return found


def _mark_headings(text: str, bookmarks: list[tuple[int, str]]) -> str:
    """The text of a page, the lines that its bookmarks name as headings in Markdown."""
    if not bookmarks:
        return text
    lines = text.split("\n")
    letters = [_letters_of(line) for line in lines]
    first = 0
    for level, title in bookmarks:
        for number in range(first, len(lines)):
            if _names(title, letters[number]):
                lines[number] = f"\n{'#' * level} {lines[number].strip()}\n"
                first = number + 1
                break
    return "\n".join(lines).strip()


def _names(title: str, line: str) -> bool:
    if not line.endswith(title):
        return False
    return len(line) == len(title) or (len(title) > 2 and len(line) - len(title) <= _LONGEST_NUMBER)


def _letters_of(text: str) -> str:
    """Return the letters and digits of a text, without case."""
    return "".join(filter(str.isalnum, text.casefold()))


def _line_sizes(words: pypdfium2.PdfTextPage) -> Sizes:
    """Measure the lines of a page, each by its first letter or digit."""
    sizes: Sizes = {}
    start = 0
    for line in words.get_text_range().split("\n"):
        letters = _letters_of(line)
        if letters:
            first = next(number for number, character in enumerate(line) if character.isalnum())
            sizes.setdefault(letters, font_size(words, start + first))
        start += len(line) + 1
    return sizes


def _mark_by_size(texts: list[str], sizes: list[Sizes]) -> list[str]:
    """Return the texts of pages with lines in larger type as headings in Markdown, the largest at level 1."""
    lengths: Counter[float] = Counter()
    for page in sizes:
        for letters, size in page.items():
            lengths[size] += len(letters)
    if not lengths:
        return texts
    body = lengths.most_common(1)[0][0]
    larger = sorted((size for size in lengths if size >= _LARGER * body), reverse=True)
    if not larger or sum(map(lengths.__getitem__, larger)) > _MOST_LARGER * lengths.total():
        return texts
    levels = {size: min(rank, _LEVELS) for rank, size in enumerate(larger, start=1)}
    return [_marked(text, page, levels) for text, page in zip(texts, sizes, strict=True)]


def _marked(text: str, sizes: Sizes, levels: dict[float, int]) -> str:
    lines: list[str] = []
    level_before = 0
    for line in text.split("\n"):
        level = levels.get(sizes.get(_letters_of(line), 0.0), 0)
        if level and any(map(str.isalpha, line)) and len(line) <= _LONGEST_HEADING:
            if level == level_before and len(lines[-1]) + len(line) <= _LONGEST_HEADING:  # a heading of two lines
                lines[-1] = f"{lines[-1].rstrip()} {line.strip()}\n"
            else:
                lines.append(f"\n{'#' * level} {line.strip()}\n")
                level_before = level
            continue
        level_before = 0
        lines.append(line)
    return "\n".join(lines).strip()
