"""PDF by PDFium: its pages, their text by `pdf_text`, by `pdf_scans` where they are pictures."""

from __future__ import annotations

import logging
import re
from contextlib import closing
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Parts,
    Unreadable,
    Unrecognized,
    check_characters,
    clean,
    clean_name,
    embedded,
    file_metadata,
    first_few,
    one_line,
)
from aveyb_retrieval.documents.readers.ocr_text import ocr_metadata
from aveyb_retrieval.documents.readers.pdf_forms import notes_and_fields
from aveyb_retrieval.documents.readers.pdf_headings import (
    bookmarks_of,
    line_begins,
    mark_by_size,
    mark_headings,
)
from aveyb_retrieval.documents.readers.pdf_layers import remove_hidden_layers
from aveyb_retrieval.documents.readers.pdf_lines import is_turned, page_lines
from aveyb_retrieval.documents.readers.pdf_scans import (
    RecognizedPage,
    recognize_pages,
    scan_kind,
    unread_pages,
)
from aveyb_retrieval.documents.readers.pdf_text import (
    font_size,
    join_words,
    raw_page_text,
    upright,
    words_with_hyphen,
)
from aveyb_retrieval.documents.readers.running_lines import (
    PageText,
    with_whole_words,
    without_running_lines,
    without_watermarks,
)
from aveyb_retrieval.documents.records import MAX_PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pypdfium2

    from aveyb_retrieval.documents.readers.file_limits import Limits

_DATE = re.compile(r"(?:D:)?(\d{4}(?:\d\d){0,5})(?:([-+]\d\d)'?(\d\d)?)?")
_SENTENCE_END = tuple(".!?:\"')”’。！？")  # stops of other scripts  # noqa: RUF001
_REASONS = {  # by FPDF_GetLastError
    3: "not a PDF file, or damaged beyond repair",
    4: "encrypted, and a password is needed to read it; save it without one",
    5: "encrypted in a way that PDFium does not know; save it without a password",
}


def read_pdf(data: bytes, limits: Limits) -> FileText:
    """Read a PDF file."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        code = getattr(error, "err_code", None)
        raise Unreadable(
            _REASONS.get(code or 0, f"not readable as PDF: {one_line(str(error))}")
        ) from None
    with closing(document):
        return _read(document, len(data), limits)


def _read(document: pypdfium2.PdfDocument, size: int, limits: Limits) -> FileText:
    count = len(document)
    if not 1 <= count <= MAX_PAGES:
        raise Unreadable(f"{count:,} pages; from 1 to {MAX_PAGES:,} are read")
    bookmarks, form = bookmarks_of(document), None
    if document.get_formtype():
        # a form that it does not draw is told below
        logging.getLogger("pypdfium2").setLevel(logging.ERROR)
        document.init_forms()  # until the document is closed
        form = document.formenv
    pages: list[PageText] = []
    length = 0
    hyphened: set[str] = set()  # words
    files: list[str] = []  # attached to pages
    for index in range(count):
        pages.append(_page(document, index, form, files, measure=not bookmarks))
        length += sum(map(len, [pages[-1].text, *pages[-1].beside, *pages[-1].across]))
        check_characters(length, limits)
        hyphened |= words_with_hyphen(pages[-1].text)
    pages = without_running_lines(without_watermarks(pages), bookmarks)
    pages = with_whole_words(pages)
    texts = [clean(join_words(page.text, hyphened)).strip() for page in pages]
    scans = {index: page.scan for index, page in enumerate(pages) if page.scan}
    recognized = recognize_pages(document, scans, texts, size, limits) if scans else {}
    for index, scan in recognized.items():
        texts[index] = clean(join_words(scan.text, hyphened)).strip()
    unread = unread_pages(recognized, count)
    if unread and not any(texts) and not length:
        raise Unrecognized(f"no text: {unread}")
    texts = [mark_headings(text, bookmarks.get(index, [])) for index, text in enumerate(texts)]
    texts = texts if bookmarks else mark_by_size(texts, [page.sizes for page in pages])
    texts = [
        "\n\n".join(filter(None, [_with_across(text, page.across), *page.beside]))
        for text, page in zip(texts, pages, strict=True)
    ]
    parts = Parts("page", limits)
    # a sentence that goes on stays one paragraph
    for index, (text, following) in enumerate(pairwise([*texts, ""])):
        end = "\n\n" if text.endswith(_SENTENCE_END) or following.startswith("#") else "\n"
        parts.add(text, one_line(document.get_page_label(index)), end=end)
    title, author, created = map(document.get_metadata_value, ("Title", "Author", "CreationDate"))
    metadata = file_metadata(author, _date(created)) | ocr_metadata(
        {
            index + 1: scan.certainty
            for index, scan in recognized.items()
            if scan.certainty is not None
        }
    )
    lost = [*filter(None, [unread]), *_unread_parts(document, files)]
    return parts.text(
        clean_name(title),
        "; ".join([*lost, *_wordless(recognized, texts)]),
        metadata,
        is_incomplete=bool(lost),
        may_recognize_more=bool(unread),
    )


def _with_across(text: str, across: list[str]) -> str:
    """The text of a page and what is set across it: within its last paragraph, for a short line
    between blank ones would be a heading.
    """
    return "\n".join(filter(None, [text, *map(clean, across)]))


def _wordless(recognized: dict[int, RecognizedPage], texts: list[str]) -> Iterator[str]:
    """Say which pages are pictures in which OCR finds no words."""
    numbers = [
        index + 1 for index, scan in recognized.items() if not scan.reason and not texts[index]
    ]
    if numbers:
        pages = f"{len(numbers):,} of {len(texts):,} pages"
        yield f"{pages} are pictures without words: {first_few(sorted(numbers))}"


def _unread_parts(document: pypdfium2.PdfDocument, files: list[str]) -> Iterator[str]:
    """What is not read of a document beside its pages: embedded files, forms that programs draw."""
    count = min(document.count_attachments(), 1000)
    files += [one_line(document.get_attachment(number).get_name()) for number in range(count)]
    if files:
        yield embedded(files)
    if document.get_formtype() == 2:  # FORMTYPE_XFA_FULL
        yield "its form (XFA) is not read: print it to PDF"


def _date(value: str) -> str:
    """A date of PDF, D:20260131120000+01'00', as in ISO 8601; "" where it is none."""
    date = _DATE.match(value)
    if date is None:
        return ""
    written = date[1] + "00000101000000"[len(date[1]) :]
    zone = f"{date[2]}{date[3] or '00'}" if date[2] else "+0000"
    try:
        return datetime.strptime(written + zone, "%Y%m%d%H%M%S%z").astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        return ""


def _page(
    document: pypdfium2.PdfDocument,
    index: int,
    form: Any | None,
    files: list[str],
    *,
    measure: bool,
) -> PageText:
    import pypdfium2

    try:
        page = document[index]
        remove_hidden_layers(page)
        words = upright(page)
        whole, across, direction = page_lines(words)
        raw_text = raw_page_text(words, whole)
        begins: dict[str, int] = {}
        if (places := whole.places) is not None:
            begins = {line: places[at] for line, at in line_begins(whole.text).items()}
        sizes = {
            line: font_size(words, place)
            for line, place in begins.items()
            if measure and not is_turned(words, place, direction)
        }
        heights = {}  # not of pages that are turned, whose places are those before
        if page.get_rotation() % 180 == 0:
            heights = {
                line: words.get_charbox(place)[1] / page.get_height()
                for line, place in begins.items()
            }
        words.close()
        beside = list(dict.fromkeys(filter(None, notes_and_fields(page, form, files))))
        scan = scan_kind(page, "\n".join([raw_text, *across]))
        page.close()
    except pypdfium2.PdfiumError as error:
        raise Unreadable(f"page {index + 1:,} is damaged ({one_line(str(error))})") from None
    return PageText(raw_text, beside, scan, sizes, heights, across)
