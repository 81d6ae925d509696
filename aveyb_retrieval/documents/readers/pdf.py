"""PDF by PDFium: the text page by page (lines, divided words, raised marks, forms, notes, OCR),
labels, headings.

Headings are the lines that bookmarks name, else those in larger type.
"""

from __future__ import annotations

import cmath
import ctypes
import html
import logging
import math
import os
import re
import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.documents.readers.base import (
    LONGEST_WORD,
    FileText,
    Parts,
    Unreadable,
    about,
    check_characters,
    clean,
    last_word,
    named,
    one_line,
    shifted,
    some,
)
from aveyb_retrieval.documents.readers.ooxml import embedded
from aveyb_retrieval.documents.records import MAX_PAGES
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pypdfium2

_DIVIDED = re.compile(r"[\x02\u00ad\ufffe](?:\r?\n)?[ \t]*")  # PDFium's sign at the end of a line
_NUMBER_DIVIDED = re.compile(r"(?<=\d-)\r?\n(?=\d)")  # "2019-", "2020"
_WIDE = re.compile(r"(?<!\w)[^\W\d_]\w*(?:-\w+)+")  # words with a hyphen that no line's end divides
# What may be raised or lowered behind a letter, a digit, or a stop, maybe on a line of its own.
# Each begins with what is rare in a text, so that most of it is passed over quickly.
_MARK = re.compile(
    r"[-+\u2212\u20130-9*†‡§](?:(?<=[0-9])[0-9]{0,3}(?:,"
    r" ?[0-9]{1,3})*|(?<=[^0-9*†‡§])[0-9]{1,4}(?:, ?[0-9]{1,3})*|"
    r"(?<=[*†‡§])[*†‡§]{0,2})(?![^\W\d_])"
)
_ENDING = re.compile(r"[0-9](?:\r?\n)?(st|nd|rd|th)(?![^\W\d_])")
_LETTERS = re.compile(r",[a-z\d*†‡§](?:,[a-z\d*†‡§])*(?!\w)")  # behind a first one: "Smith", "a,b"
_MARKED = re.compile(r"[\w.,;:)\]\u201d\u2019\"](?:\r?\n)?\Z")
_NUMBER = re.compile(r"[0-9][0-9]+")
_SMALL = 0.85  # of the size of the characters before: a mark is smaller
_RAISED = 0.12  # of that size: by so much at least it stands above or below
_SAME_LINE = 0.15  # of the size: two characters of one line differ by less
_LEVEL = 0.5  # points between characters of one line
_SAMPLED = 16  # characters of a page that say how its text runs
_LONGEST_VALUE = 1 << 20  # characters of a value of a form

_TEXT_FIELDS = (4, 5, 6)  # FPDF_FORMFIELD_COMBOBOX, LISTBOX, TEXTFIELD
_BOXES = (2, 3)  # FPDF_FORMFIELD_CHECKBOX, RADIOBUTTON
_WIDGET, _FILE, _POPUP, _LINK = 20, 17, 16, 2  # FPDF_ANNOT_...
_TAG = re.compile(r"<[^<>]*>")
Rectangle = tuple[float, float, float, float]  # left, bottom, right and top, in points of a page
_HIDDEN = 2 | 32  # FPDF_ANNOT_FLAG_HIDDEN, NOVIEW


def upright(page: pypdfium2.PdfPage) -> pypdfium2.PdfTextPage:
    """Return the text of a page, turned in memory as most of it runs: PDFium finds few lines that
    do not run right.
    """
    words = page.get_textpage()
    count = words.count_chars()
    step = max(1, count // _SAMPLED)
    turns: Counter[int] = Counter(
        round(2 * _angle(words, place) / math.pi) % 4 for place in range(0, count, step)
    )
    turn = 90 * turns.most_common(1)[0][0] if turns else 0
    if not turns or turn == page.get_rotation():
        return words
    words.close()
    page.set_rotation(turn)
    return page.get_textpage()


def page_text(words: pypdfium2.PdfTextPage) -> str:
    """Return the text of a page, its lines as they stand, with PDFium's signs of divided words.

    The text whose characters can be measured also has what is off the page: it is taken where
    nothing is.
    """
    inside = words.get_text_bounded()
    whole = words.get_text_range()
    return (
        inside
        if inside != whole and _letters(inside) != _letters(whole)
        else _with_marks(words, whole)
    )


def _letters(text: str) -> str:
    return "".join(text.split()).replace("\x02", "\ufffe")


def _with_marks(words: pypdfium2.PdfTextPage, text: str) -> str:
    """Return a text with its raised and lowered digits and signs apart from the words
    before them.
    """
    if words.count_chars() != len(
        text
    ):  # a character beyond the first plane: places differ from here on
        return text
    parts: list[str] = []
    position = 0
    for start, end, break_before in sorted(
        _candidates(words, text), key=lambda one: (one[0], -one[1])
    ):
        if start < position:
            continue
        place = start - break_before
        shift = _shift(words, place - 1, start)
        if not shift:
            continue
        parts.append(text[position:place])
        parts.append(shifted("".join(parts[-2:])[-40:], text[start:end], shift))
        position = end
        after = text[end : end + 2]
        breaks = 2 if after == "\r\n" else 1 if after[:1] == "\n" else 0
        if breaks and end + breaks < len(text) and _same_line(words, place - 1, end + breaks):
            position = end + breaks  # the mark, not the line, has ended
            parts.append("" if text[position].isspace() or not text[position].isalnum() else " ")
    return "".join([*parts, text[position:]])


def _candidates(words: pypdfium2.PdfTextPage, text: str) -> Iterator[tuple[int, int, int]]:
    """Places where a mark may stand: its first and last character, and how many of a line's end are
    before it.
    """
    marks = [found.span() for found in _MARK.finditer(text)] + [
        found.span(1) for found in _ENDING.finditer(text)
    ]
    marks += [(found.start() - 1, found.end()) for found in _LETTERS.finditer(text)]
    level: set[int] = set()  # ends of numbers that stand on the line of what is before them
    for start, end in marks:
        if before := _MARKED.search(text, max(0, start - 3), start):
            if _level(words, before.start(), end - 1):
                level.add(end)
            else:
                yield start, end, start - before.start() - 1
    for number in _NUMBER.finditer(text):  # a power behind its number: 106
        first, end = number.span()
        if end not in level and not _level(words, first, end - 1):
            yield from ((start, end, 0) for start in range(first + 1, min(end, first + 9)))


def _level(words: pypdfium2.PdfTextPage, first: int, second: int) -> bool:
    """Whether two characters stand on one line across or along the page, which most do: measured
    with little work.
    """
    origin = _calls().FPDFText_GetCharOrigin
    origin(words.raw, first, *_TO_FIRST)
    origin(words.raw, second, *_TO_SECOND)
    return abs(_Y.value - _SECOND_Y.value) < _LEVEL or abs(_X.value - _SECOND_X.value) < _LEVEL


def _shift(words: pypdfium2.PdfTextPage, before: int, mark: int) -> int:
    """1 where a character is raised above the one before, -1 where it is lowered, else 0."""
    if before < 0:
        return 0
    size = font_size(words, before)
    _, height = _apart(words, before, mark)
    if (
        not 0 < _RAISED * size <= abs(height) <= 1.2 * size
        or font_size(words, mark) > _SMALL * size
    ):
        return 0
    return 1 if height > 0 else -1


def _same_line(words: pypdfium2.PdfTextPage, first: int, second: int) -> bool:
    along, height = _apart(words, first, second)
    size = font_size(words, first)
    return abs(height) < _SAME_LINE * size and 0 < along < 4 * size


def _apart(words: pypdfium2.PdfTextPage, first: int, second: int) -> tuple[float, float]:
    """How far a character stands from another one along the line of this and above it,
    in points.
    """
    _level(words, first, second)  # measures both
    turn = cmath.exp(-1j * _angle(words, first)) * complex(
        _SECOND_X.value - _X.value, _SECOND_Y.value - _Y.value
    )
    return turn.real, turn.imag


# Filled anew by each call: one process reads one file at a time.
_X, _Y, _SECOND_X, _SECOND_Y = (ctypes.c_double() for _ in range(4))
_TO_FIRST = ctypes.byref(_X), ctypes.byref(_Y)
_TO_SECOND = ctypes.byref(_SECOND_X), ctypes.byref(_SECOND_Y)


@cache
def _calls() -> Any:
    """PDFium's functions: an import at each of hundreds of thousands of calls would cost more than
    they do.
    """
    from pypdfium2 import raw

    return raw


def _matrix(words: pypdfium2.PdfTextPage, character: int) -> Any:
    """How a character is turned and enlarged; all zeros where that is not known."""
    matrix = _calls().FS_MATRIX()
    _calls().FPDFText_GetMatrix(words, character, ctypes.byref(matrix))
    return matrix


def _angle(words: pypdfium2.PdfTextPage, character: int) -> float:
    """The direction of a line's text against the x axis, in radians, counter-clockwise."""
    matrix = _matrix(words, character)
    return math.atan2(matrix.b, matrix.a)


def font_size(words: pypdfium2.PdfTextPage, character: int) -> float:
    """The size of a character, to half a point: that of its font, enlarged as the page says."""
    size, matrix = float(_calls().FPDFText_GetFontSize(words, character)), _matrix(words, character)
    scale = math.hypot(matrix.b, matrix.d)
    return round(2 * size * (scale if math.isfinite(scale) and scale > 0 else 1.0)) / 2


def join_words(text: str, known: set[str]) -> str:
    """Join words that the end of a line divides.

    The hyphen stays where a digit, a capital or a single letter stands beside it (COVID-19, AB-C77,
    X-ray), and in words that are written so elsewhere; `known` holds the words of the document with
    a hyphen, in lower case.
    """

    def join(found: re.Match[str]) -> str:
        before = last_word(text[max(0, found.start() - LONGEST_WORD) : found.start()])
        behind = "".join(takewhile(str.isalnum, text[found.end() : found.end() + LONGEST_WORD]))
        if not before or not behind:
            return ""
        kept = (
            before[-1].isdigit()
            or behind[0].isdigit()
            or before[-1].isupper()
            or behind[0].isupper()
            or len(before) == 1
            or len(behind) == 1
            or f"{before}-{behind}".lower() in known
        )
        return "-" if kept else ""

    text = _DIVIDED.sub(join, text)
    return _NUMBER_DIVIDED.sub("", text) if "-\r\n" in text or "-\n" in text else text


def words_with_hyphen(text: str) -> set[str]:
    """Return the words of a text that hold a hyphen within a line, in lower case."""
    return {word.lower() for part in text.split() if "-" in part for word in _WIDE.findall(part)}


def notes_and_fields(page: pypdfium2.PdfPage, form: Any | None, files: list[str]) -> Iterator[str]:
    """What is typed and chosen in the form on a page, and the notes on it, a line each; `files`
    gets attached ones.
    """
    raw = _calls()
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, number)
        if not annotation:
            continue
        try:
            kind = raw.FPDFAnnot_GetSubtype(annotation)
            if kind in (_POPUP, _LINK) or raw.FPDFAnnot_GetFlags(annotation) & _HIDDEN:
                continue
            if kind == _FILE and (attached := raw.FPDFAnnot_GetFileAttachment(annotation)):
                files.append(one_line(_filled(raw.FPDFAttachment_GetName, attached)))
            if kind != _WIDGET:
                plain, rich = (
                    _filled(raw.FPDFAnnot_GetStringValue, annotation, key)
                    for key in (b"Contents", b"RC")
                )
                yield clean(plain or html.unescape(_TAG.sub(" ", rich))).strip()
            elif form is not None:
                yield _field(form, annotation)
        finally:
            raw.FPDFPage_CloseAnnot(annotation)


def _field(form: Any, annotation: Any) -> str:
    """A field of a form with its name; "" where nothing is typed or chosen."""
    raw = _calls()
    kind, field, value = raw.FPDFAnnot_GetFormFieldType(form, annotation), (form, annotation), ""
    if kind in _TEXT_FIELDS:
        chosen = (
            _filled(raw.FPDFAnnot_GetOptionLabel, *field, place)
            for place in range(min(1000, raw.FPDFAnnot_GetOptionCount(*field)))
            if raw.FPDFAnnot_IsOptionSelected(*field, place)
        )
        value = ", ".join(filter(None, chosen)) or _filled(raw.FPDFAnnot_GetFormFieldValue, *field)
    elif kind in _BOXES and raw.FPDFAnnot_IsChecked(*field):
        value = _filled(raw.FPDFAnnot_GetFormFieldExportValue, *field)
        value = "yes" if value.lower() in ("", "on", "yes", "1", "true") else value
    value = clean(value).strip()
    named = _filled(raw.FPDFAnnot_GetFormFieldAlternateName, *field) or _filled(
        raw.FPDFAnnot_GetFormFieldName, *field
    )
    return f"{one_line(named)}: {value}" if named.strip() and value else value


def _filled(call: Any, *what: Any) -> str:
    """What a function of PDFium writes into a buffer of so many bytes, as UTF-16."""
    size = call(*what, None, 0)
    if not 2 < size <= 2 * _LONGEST_VALUE:
        return ""
    buffer = ctypes.create_string_buffer(size)
    call(*what, ctypes.cast(buffer, ctypes.POINTER(_calls().FPDF_WCHAR)), size)
    return buffer.raw[: size - 2].decode("utf-16-le", "replace")


ALL_SECONDS, PAGE_SECONDS = 600, 120  # for the pages of a file, and for one
_PER_POINT = 300 / 72  # pixels: 300 dots per inch, as Tesseract is trained with
_MOST_PIXELS = 25e6  # of a page: a larger one is rendered coarser


@cache
def languages() -> str | None:
    """The languages that Tesseract has data of, "deu+eng"; "" without any of them, None without
    pytesseract.
    """
    if find_spec("pytesseract") is None:
        return None
    import pytesseract

    os.environ.setdefault("OMP_THREAD_LIMIT", "1")  # its threads wait for each other by turning
    try:
        return "+".join(sorted({*pytesseract.get_languages()} - {"osd"}))
    except (OSError, RuntimeError):
        return ""


def why_none() -> str:
    """Say what would give the words of pictures, where there are none."""
    advice = {
        None: "make it searchable by OCR",
        "": "OCR needs tesseract and its data (Debian: tesseract-ocr)",
    }
    return advice.get(languages(), "OCR found no words")


def read_picture(page: pypdfium2.PdfPage) -> str:
    """Return the words of a page by OCR; "" where none are found, it takes too long, or OCR is not
    installed.
    """
    if not languages():
        return ""
    import pytesseract

    try:
        return str(
            pytesseract.image_to_string(
                _rendered(page).to_pil(), lang=languages(), timeout=PAGE_SECONDS
            )
        )
    except (OSError, RuntimeError):  # of Tesseract, or its time
        return ""


def picture_words(page: pypdfium2.PdfPage) -> list[tuple[str, Rectangle]]:
    """Return the words of a page by OCR with their places on it; none where `read_picture` finds
    none.
    """
    if not languages():
        return []
    import pytesseract

    bitmap = _rendered(page)
    place, found = bitmap.get_posconv(page), list[tuple[str, Rectangle]]()
    try:
        table = pytesseract.image_to_data(
            bitmap.to_pil(),
            lang=languages(),
            timeout=PAGE_SECONDS,
            output_type=pytesseract.Output.DICT,
        )
    except (OSError, RuntimeError):
        return []
    columns = (table[name] for name in ("text", "left", "top", "width", "height"))
    for word, left, top, width, height in zip(*columns, strict=True):
        if word.strip():
            (x, y), (z, w) = place.to_page(left, top), place.to_page(left + width, top + height)
            found.append((word, (min(x, z), min(y, w), max(x, z), max(y, w))))
    return found


def _rendered(page: pypdfium2.PdfPage) -> pypdfium2.PdfBitmap:
    scale = min(
        _PER_POINT, math.sqrt(_MOST_PIXELS / max(1.0, page.get_width() * page.get_height()))
    )
    return page.render(scale=scale, grayscale=True)


_DATE = re.compile(r"(?:D:)?(\d{4}(?:\d\d){0,5})(?:([-+]\d\d)'?(\d\d)?)?")
_SENTENCE_END = tuple(".!?:\"')”’。！？")  # stops of other scripts  # noqa: RUF001
_REASONS = {  # by FPDF_GetLastError
    3: "not a PDF file, or damaged beyond repair",
    4: "encrypted, and a password is needed to read it; save it without one",
    5: "encrypted in a way that PDFium does not know; save it without a password",
}
_LONGEST_NUMBER = (
    8  # letters and digits in front of a heading that its bookmark does not repeat: "3.2", "A.1"
)
# Headings of a file without bookmarks: short lines in larger type than most of its text.
_LARGER = 1.15  # times the size of most of the text
_LONGEST_HEADING = 120  # characters of a heading
_MOST_LARGER = 0.2  # of all characters: where more are in larger type, it is no mark of headings
_LEVELS = 4
_EDGE = 2  # lines of a page header or footer
_PAGE = (
    r"(?:(?P<apart>(?<!\w)(?:page|seite|p|s|pág|pag|página|pagina|sida|side|strona|strana|стр|страница)(?!\w)\.?\s*|第\s*"
    r"|[|·•–—-]\s+)|(?<![\w.,/-]))(?P<number>\d+)(?:\s*(?:of|von|de|di|van|av|из|/)\s*(?P<total>\d+))?\s*页?"  # noqa: RUF001
)  # and what sets it apart from a part's
_PAGE_NUMBER = re.compile(
    rf"^[^\w§№#]*?{_PAGE}(?=\s|$)|{_PAGE.replace('?P<', '?P<last_')}\W*$", re.IGNORECASE
)

_MARGIN = 0.15  # of a page's height, in which headers and footers stand

Sizes = dict[str, float]  # of type, in points, of the lines of a page, by their letters and digits


def read_pdf(data: bytes, longest: int) -> FileText:
    """Read a PDF file, whose text may have `longest` characters."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        code = getattr(error, "err_code", None)
        raise Unreadable(
            _REASONS.get(code or 0, f"not readable as PDF: {one_line(str(error))}")
        ) from None
    with closing(document):
        return _read(document, longest)


class _Page(NamedTuple):
    """What one page holds: text, forms and notes, whether it is a picture without text; of lines
    sizes and heights.
    """

    text: str
    beside: list[str]
    is_picture: bool
    sizes: Sizes
    heights: Sizes  # at which lines stand, as a share of the page's


def _read(document: pypdfium2.PdfDocument, longest: int) -> FileText:
    count = len(document)
    if not 1 <= count <= MAX_PAGES:
        raise Unreadable(f"{count:,} pages; from 1 to {MAX_PAGES:,} are read")
    bookmarks, form = _bookmarks(document), None
    if document.get_formtype():
        logging.getLogger("pypdfium2").setLevel(
            logging.ERROR
        )  # a form that it does not draw is told below
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
    pages = _without_running_lines(pages, bookmarks)
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
        raise Unreadable(
            f"no text: scanned? ({plural(len(pictures), 'page')} of pictures only; {why_none()})"
        )
    texts = texts if bookmarks else _mark_by_size(texts, [page.sizes for page in pages])
    texts = [
        "\n\n".join(filter(None, [text, *page.beside]))
        for text, page in zip(texts, pages, strict=True)
    ]
    parts = Parts("page", longest)
    for index, (text, following) in enumerate(
        pairwise([*texts, ""])
    ):  # a sentence that goes on stays one paragraph
        end = "\n\n" if text.endswith(_SENTENCE_END) or following.startswith("#") else "\n"
        parts.add(text, one_line(document.get_page_label(index)), end=end)
    title, author, created = map(document.get_metadata_value, ("Title", "Author", "CreationDate"))
    told = "; ".join(_told(document, pictures, files))
    return parts.text(named(title), told, about(author, _date(created)))


def _without_running_lines(
    pages: list[_Page], bookmarks: dict[int, list[tuple[int, str]]]
) -> list[_Page]:
    """Take page headers and footers off all pages but the first that has them.

    They are what at least three pages and a third of all begin or end with. Only the page's own
    number may differ, and that only where it is no part's: of a bookmark, of a line in larger type,
    of "Lot 4".
    """
    _, large = _type_of([page.sizes for page in pages])

    def shape(line: str, number: int) -> str:
        letters, found = _letters_of(line), _PAGE_NUMBER.search(line)
        titles = [title for _, title in bookmarks.get(number - 1, [])]
        named = pages[number - 1].sizes.get(letters, 0) >= large or any(
            map(letters.endswith, titles)
        )
        if found is None or named:
            return letters
        at = "" if found["number"] else "last_"
        rest = line[: found.start()] + line[found.end() :]
        own = {found[f"{at}number"], found[f"{at}total"]} <= {str(number), str(len(pages)), None}
        of_part = len(re.findall(r"[^\W\d]+|[§№#]", rest)) == 1 and not (
            found[f"{at}apart"] or found[f"{at}total"]
        )
        return _letters_of(rest) if own and not of_part else letters

    lines = [page.text.strip().split("\n") for page in pages]
    edges = [
        {i: shape(page[i], n) for i in _edge_of(page, pages[n - 1])}
        for n, page in enumerate(lines, start=1)
    ]
    counts = Counter(each for edge in edges for each in {*edge.values()})
    running = {each for each, count in counts.items() if count >= max(3, len(pages) / 3)}
    kept, seen = [], set[str]()
    for page, inside, edge in zip(pages, lines, edges, strict=True):
        again = (
            running & seen if len(inside) > 2 * _EDGE else set[str]()
        )  # a page of few lines may hold nothing else
        kept.append(
            page._replace(
                text="\n".join(line for i, line in enumerate(inside) if edge.get(i) not in again)
            )
        )
        seen.update(edge.values())
    return kept


def _edge_of(lines: list[str], page: _Page) -> set[int]:
    """Which lines may be a header or footer: the highest and the lowest ones, where they stand in a
    page's margin.
    """
    places = sorted(
        (height, i)
        for i, line in enumerate(lines)
        if (height := page.heights.get(_letters_of(line)))
    )
    low = {i for height, i in places[:_EDGE] if height < _MARGIN}
    return low | {i for height, i in places[-_EDGE:] if height > 1 - _MARGIN}


def _told(document: pypdfium2.PdfDocument, pictures: list[str], files: list[str]) -> Iterator[str]:
    """What is not read of a document: pages without text, embedded files, forms that
    programs draw.
    """
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
    written = found[1] + "00000101000000"[len(found[1]) :]
    zone = f"{found[2]}{found[3] or '00'}" if found[2] else "+0000"
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
) -> _Page:
    import pypdfium2

    try:
        page = document[index]
        words = upright(page)
        raw_text = page_text(words)
        whole = words.get_text_range()
        begins = _line_begins(whole)
        sizes = {line: font_size(words, place) for line, place in begins.items()} if measure else {}
        heights = {}  # not of pages that are turned, whose places are those before
        if page.get_rotation() % 180 == 0 and words.count_chars() == len(whole):
            heights = {
                line: words.get_charbox(place)[1] / page.get_height()
                for line, place in begins.items()
            }
        words.close()
        beside = list(dict.fromkeys(filter(None, notes_and_fields(page, form, files))))
        image = pypdfium2.raw.FPDF_PAGEOBJ_IMAGE
        is_picture = not raw_text.strip() and any(page.get_objects(filter=[image], max_depth=3))
        page.close()
    except pypdfium2.PdfiumError as error:
        raise Unreadable(f"page {index + 1:,} is damaged ({one_line(str(error))})") from None
    return _Page(raw_text, beside, is_picture, sizes, heights)


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
            more = len(letters[number]) - len(title)  # than its title: the number of a heading
            if letters[number].endswith(title) and (
                not more or (len(title) > 2 and more <= _LONGEST_NUMBER)
            ):
                lines[number] = f"\n{'#' * level} {lines[number].strip()}\n"
                first = number + 1
                break
    return "\n".join(lines).strip()


def _letters_of(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _line_begins(text: str) -> dict[str, int]:
    """The lines of a page's text, by their letters and digits: where the first of these stands."""
    begins: dict[str, int] = {}
    start = 0
    for line in text.split("\n"):
        letters = _letters_of(line)
        if letters:
            begins.setdefault(
                letters, start + next(i for i, character in enumerate(line) if character.isalnum())
            )
        start += len(line) + 1
    return begins


def _type_of(sizes: list[Sizes]) -> tuple[Counter[float], float]:
    """How many letters and digits of the pages have each size, and from which on type is larger
    than most of it.
    """
    lengths: Counter[float] = Counter()
    for page in sizes:
        for letters, size in page.items():
            lengths[size] += len(letters)
    return lengths, _LARGER * lengths.most_common(1)[0][0] if lengths else math.inf


def _mark_by_size(texts: list[str], sizes: list[Sizes]) -> list[str]:
    """Return the texts of pages with lines in larger type as headings in Markdown, the largest at
    level 1.
    """
    lengths, large = _type_of(sizes)
    larger = sorted((size for size in lengths if size >= large), reverse=True)
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
            if (
                level == level_before and len(lines[-1]) + len(line) <= _LONGEST_HEADING
            ):  # a heading of two lines
                lines[-1] = f"{lines[-1].rstrip()} {line.strip()}\n"
            else:
                lines.append(f"\n{'#' * level} {line.strip()}\n")
                level_before = level
            continue
        level_before = 0
        lines.append(line)
    return "\n".join(lines).strip()
