"""The text of a file, or the reason why it has none; how readers clean, join and bound it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.records import MAX_LABEL_CHARACTERS, MAX_PAGES, Pages
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aveyb_retrieval.documents.readers.file_limits import Limits

# control characters; tab, newline, form feed stay
_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1f\x7f\ufffe\uffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character, as UTF-16 writes it
# Where a word may be divided: no part of it. In scripts without blanks a zero-width one parts
# words, and stays.
_DIVISIONS = re.compile("[\u00ad\u2060\ufeff]|(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b")


class Unreadable(Exception):
    """The reason why a file has no text that could be indexed, on one line, which every reader
    raises (becomes `Rejected`).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(one_line(reason))  # a library's own words may have several


class Unrecognized(Unreadable):
    """The reason why the words of a picture are not read, which may be another time: the program is
    missing, or the time was short.

    `sha256` is that of the file's bytes; "" of a part of a file.
    """

    def __init__(self, reason: str, sha256: str = "") -> None:
        super().__init__(reason)
        self.sha256 = sha256


@dataclass(frozen=True)
class FileText:
    """The text of one file.

    Attributes:
        title: What the file calls itself; "" where it does not.
        text: Headings are lines that begin with "#", where the format marks headings.
            `encoder/text/passages.py` finds these again, with underlined lines and short ones that
            stand alone and look like one (end such a line of a reader's own with a stop); a listing
            between fences ("~~~~") holds none.
        pages: Where its pages begin in the text; None where the format has none.
        warning: Which part of the file is not read; "" where all of it was.
        is_incomplete: Whether a search could have found that part: it is not one that is hidden.
        may_recognize_more: Whether a picture in it was not read that may be another time.
        metadata: What the file says of itself beside its title, as JSON can hold it.
        keywords: What a search finds the file by beside its title and text.
    """

    title: str
    text: str
    pages: Pages | None = None
    warning: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    keywords: str = ""
    is_incomplete: bool = False
    may_recognize_more: bool = False


class Parts:
    """A text of parts that are its pages.

    More of them, or more characters than `limits` has bytes, are Unreadable.
    """

    def __init__(self, unit: str, limits: Limits) -> None:
        self._unit = unit
        self._limits = limits
        self._texts: list[str] = []
        self._starts: list[int] = []
        self._labels: list[str] = []
        self._length = 0

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, text: str, label: str = "", *, end: str = "\n\n") -> None:
        """Add a part, which may be empty, and what it is called: what `Hit.place` cites, its number
        where empty.
        """
        check_characters(self._length + len(text), self._limits)
        if len(self._starts) == MAX_PAGES:
            raise Unreadable(f"more than {MAX_PAGES:,} parts")
        self._starts.append(self._length)
        self._labels.append(label[:MAX_LABEL_CHARACTERS] or str(len(self._starts)))
        self._texts.append(text + end if text else "")
        self._length += len(self._texts[-1])

    def text(
        self,
        title: str,
        warning: str = "",
        metadata: dict[str, Any] | None = None,
        *,
        is_incomplete: bool = False,
        may_recognize_more: bool = False,
    ) -> FileText:
        """Return the whole, with what `FileText` says of it."""
        return FileText(
            title,
            "".join(self._texts),
            self._pages() if self else None,
            warning,
            metadata or {},
            is_incomplete=is_incomplete,
            may_recognize_more=may_recognize_more,
        )

    def _pages(self) -> Pages:
        numbered = all(label == str(number) for number, label in enumerate(self._labels, start=1))
        labels = () if numbered else tuple(self._labels)
        return Pages(tuple(self._starts), labels, self._unit)


def too_long(length: int, longest: int) -> str:
    """Say that a line is longer than what is read."""
    return f"{length:,} bytes, at most {longest:,} are read as one document (--max-line, max_line)"


def check_characters(count: int, limits: Limits) -> None:
    """Raise Unreadable where a text has more characters than are read of a file."""
    if count > limits.longest:
        raise Unreadable(f"more than {limits.longest:,} characters (--max-line, max_line)")


def clean(text: str) -> str:
    """Remove control characters, join characters that are written as two halves, and end lines with
    a newline; what is stored as it was written does without.
    """
    # a vertical tab is a line break inside of a paragraph: of slides, and of mails that Word has
    # written
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\v", "\n")
    if not text.isascii() and _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole_words(_NO_TEXT.sub("", text))


def whole_words(text: str) -> str:
    """Remove the characters that only say where a word may be divided: soft hyphens, zero-width
    blanks.
    """
    return text if text.isascii() else _DIVISIONS.sub("", text)


def paragraphs(lines: Iterable[str]) -> str:
    """Return lines as a text, of several blank ones in a row one."""
    return _BLANK_LINES.sub("\n\n", clean("\n".join(lines))).strip()


_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){2,}")
_NO_NAME = re.compile(
    r"\(?(?:anonymous|unspecified|unknown|untitled|unnamed|none|no"
    r" title|title)\)?|python-docx|openpyxl|"
    r"untitled\d*|document\d*|powerpoint presentation|microsoft word - .*|"
    r".*\.(?:dvi|tex|docx?|indd|qxd|pdf|rtf|html?|txt)",
    re.IGNORECASE,
)


def clean_name(value: str | None) -> str:
    """A title or author as one line; "" where it is what a program writes for want of one."""
    words = one_line(value or "")
    return "" if _NO_NAME.fullmatch(words) else words


def file_metadata(author: str | None, created: str | None) -> dict[str, Any]:
    """Metadata that office programs and PDF have in common; those that are missing are left out."""
    return {
        key: value
        for key, value in (("author", clean_name(author)), ("created", one_line(created or "")))
        if value
    }


def first_few(names: Sequence[object], most: int = 8) -> str:
    """Return the first of some names as a list in words."""
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")


def embedded(names: Sequence[str]) -> str:
    """Say which files that a file holds are not read; "" where there are none."""
    return f"{plural(len(names), 'embedded file')} not read: {first_few(names)}" if names else ""


def hidden_text(places: int) -> str:
    """Say in how many places text is hidden, which is not read; "" where it is in none."""
    return f"hidden text left out ({plural(places, 'place')})" if places else ""


def one_line(text: str) -> str:
    """Return a text with each run of white space as one blank."""
    return " ".join(clean(text).split())


def whole_number(text: str | None, otherwise: int = 0, most: int = 1 << 31) -> int:
    """Return the whole number that a file has written, at most `most`; `otherwise` where it is
    none.
    """
    digits = text.strip() if text else ""
    return (
        min(int(digits), most)
        if digits.isdigit() and digits.isascii() and len(digits) < 12
        else otherwise
    )
