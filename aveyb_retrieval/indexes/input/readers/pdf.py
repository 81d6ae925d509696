"""PDF by PDFium: the text page by page, page labels, and the headings: those that its bookmarks name, else by size."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.input.readers.base import FileText, Unreadable, clean, one_line
from aveyb_retrieval.indexes.input.readers.pdf_headings import Sizes, letters_of, line_sizes, mark_by_size
from aveyb_retrieval.indexes.pages import MAX_PAGES, Pages, short_label
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    import pypdfium2

_HYPHEN = re.compile(r"[\x02\u00ad\ufffe]\s*")  # PDFium's sign of a word that is divided at the end of a line
_FILE_NAME = re.compile(r"(?i)untitled|.*\.(?:dvi|tex|docx?|indd|qxd|pdf|rtf|html?|txt)$|microsoft word - .*")
_SENTENCE_END = tuple(".!?:\"')”’。！？")  # noqa: RUF001  # stops of other scripts
_FORMAT, _PASSWORD, _SECURITY = 3, 4, 5  # FPDF_GetLastError
_LONGEST_NUMBER = 8  # letters and digits in front of a heading that its bookmark does not repeat: "3.2", "A.1"
_NAMED = 8  # pages that a warning names


def read_pdf(data: bytes, longest: int) -> FileText:
    """Read a PDF file: `longest` bounds the characters of its text.

    Raises:
        Unreadable: it is encrypted, damaged, too long, or pictures of text only.
    """
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        raise Unreadable(_reason(getattr(error, "err_code", None), str(error))) from None
    try:
        return _read(document, longest)
    finally:
        document.close()


def _reason(code: int | None, message: str) -> str:
    if code == _PASSWORD:
        return "encrypted, and a password is needed to read it; save it without one"
    if code == _SECURITY:
        return "encrypted in a way that PDFium does not know; save it without a password"
    if code == _FORMAT:
        return "not a PDF file, or damaged beyond repair"
    return f"not readable as PDF: {one_line(message)}"


def _read(document: pypdfium2.PdfDocument, longest: int) -> FileText:
    count = len(document)
    if not 1 <= count <= MAX_PAGES:
        raise Unreadable(f"{count:,} pages; from 1 to {MAX_PAGES:,} are read")
    bookmarks = _bookmarks(document)
    texts: list[str] = []
    sizes: list[Sizes] = []
    pictures: list[int] = []  # numbers of pages that show pictures and hold no text
    length = 0
    for index in range(count):
        text, is_picture, page_sizes = _page(document, index, measure=not bookmarks)
        if is_picture:
            pictures.append(index + 1)
        texts.append(_mark_headings(text, bookmarks.get(index, [])))
        sizes.append(page_sizes)
        length += len(text)
        if length > longest:
            raise Unreadable(f"more than {longest:,} characters (--max-line, max_line)")
    if pictures and not length:
        raise Unreadable(
            f"no text: scanned? ({plural(len(pictures), 'page')} of pictures only; make it searchable by OCR)"
        )
    labels = tuple(short_label(one_line(document.get_page_label(index))) for index in range(count))
    if all(label in ("", str(number)) for number, label in enumerate(labels, start=1)):
        labels = ()
    text, starts = _join(texts if bookmarks else mark_by_size(texts, sizes))
    return FileText(_title(document), text, Pages(starts, labels), _warning(pictures, count))


def _page(document: pypdfium2.PdfDocument, index: int, *, measure: bool) -> tuple[str, bool, Sizes]:
    """The text of one page, whether it is a picture without text, and the sizes of its lines."""
    import pypdfium2

    try:
        page = document[index]
        words = page.get_textpage()
        text = clean(_HYPHEN.sub("", words.get_text_bounded())).strip()
        sizes = line_sizes(words) if measure else {}
        words.close()
        image = pypdfium2.raw.FPDF_PAGEOBJ_IMAGE
        is_picture = not text and any(page.get_objects(filter=[image], max_depth=3))
        page.close()
    except pypdfium2.PdfiumError as error:
        raise Unreadable(f"page {index + 1:,} is damaged ({one_line(str(error))})") from None
    return text, is_picture, sizes


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


def _title(document: pypdfium2.PdfDocument) -> str:
    title = one_line(document.get_metadata_value("Title"))
    return "" if _FILE_NAME.fullmatch(title) else title


def _warning(pictures: list[int], count: int) -> str:
    if not pictures:
        return ""
    named = ", ".join(map(str, pictures[:_NAMED])) + (", ..." if len(pictures) > _NAMED else "")
    return f"{len(pictures):,} of {count:,} pages are pictures without text, probably scanned: {named}"


def _bookmarks(document: pypdfium2.PdfDocument) -> dict[int, list[tuple[int, str]]]:
    """The bookmarks of each page, by its index: (level from 1, title)."""
    found: dict[int, list[tuple[int, str]]] = {}
    for bookmark in document.get_toc():
        target: Any = bookmark.get_dest()
        index = target.get_index() if target is not None else None
        title = letters_of(bookmark.get_title())
        if index is not None and title:
            found.setdefault(index, []).append((min(bookmark.level + 1, 6), title))
    return found


def _mark_headings(text: str, bookmarks: list[tuple[int, str]]) -> str:
    """The text of a page, the lines that its bookmarks name as headings in Markdown."""
    if not bookmarks:
        return text
    lines = text.split("\n")
    letters = [letters_of(line) for line in lines]
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
