"""What a reader gives: the text of a file, or the reason why there is none."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from aveyb_retrieval.documents.pages import MAX_PAGES, Pages, short_label

# Whatever is read from a file that may be hostile is bounded by these.
MAX_FILE = 512 << 20  # bytes of a file
MAX_UNPACKED = 256 << 20  # bytes of what is packed in it
FILE_SECONDS = 120  # of processor time, for each
LONGEST_TITLE = 1000  # characters

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1f\x7f\ufffe\uffff]")  # control characters; tab, newline, form feed stay


class Unreadable(Exception):
    """The reason why a file has no text that could be indexed (internal: becomes `Rejected`)."""


@dataclass(frozen=True)
class FileText:
    """The text of one file.

    Attributes:
        title: What the file calls itself; "" where it does not.
        text: Headings are lines that begin with "#", as in Markdown, where the format marks headings.
            `encoder/text/outline.py` finds these again, with underlined lines and short ones that stand alone and look
            like one (end such a line of a reader's own with a stop); a listing between fences ("~~~~") holds none.
        pages: Where its pages begin in the text; None where the format has none.
        warning: Which part of the file holds no text that could be read; "" where all of it was read.
    """

    title: str
    text: str
    pages: Pages | None = None
    warning: str = ""


class Parts:
    """A text of parts that are its pages: slides, sheets, cues, files. `longest` bounds its characters.

    Raises:
        Unreadable: it became longer, or has more parts than pages can be.
    """

    def __init__(self, unit: str, longest: int) -> None:
        self._unit = unit
        self._longest = longest
        self._texts: list[str] = []
        self._starts: list[int] = []
        self._labels: list[str] = []
        self._length = 0

    def __bool__(self) -> bool:
        return bool(self._starts)

    def check(self, more: int) -> None:
        """Raise Unreadable where so many more characters would be too many."""
        check_characters(self._length + more, self._longest)

    def add(self, text: str, label: str = "", *, end: str = "\n\n") -> None:
        """Add a part, which may be empty, and what it is called: what `Hit.place` cites, its number where empty."""
        self.check(len(text))
        if len(self._starts) == MAX_PAGES:
            raise Unreadable(f"more than {MAX_PAGES:,} parts")
        self._starts.append(self._length)
        self._labels.append(short_label(label) or str(len(self._starts)))
        self._texts.append(text + end if text else "")
        self._length += len(self._texts[-1])

    def text(self, title: str, warning: str = "") -> FileText:
        """Return the whole."""
        numbered = all(label == str(number) for number, label in enumerate(self._labels, start=1))
        pages = Pages(tuple(self._starts), () if numbered else tuple(self._labels), self._unit) if self else None
        return FileText(title, "".join(self._texts), pages, warning)


def decode(data: bytes, encoding: str | None, errors: str = "strict") -> str:
    """Decode a text file: by its byte order mark, else by `encoding`, else as UTF-8; `errors` as Python has it.

    Raises:
        Unreadable: a byte does not fit; the message names it.
    """
    mark, name = next(((mark, name) for mark, name in _BOMS if data.startswith(mark)), (b"", encoding or "utf-8"))
    try:
        return data[len(mark) :].decode(name, errors)
    except UnicodeDecodeError as error:
        raise Unreadable(wrong_byte(error, name, len(mark) + error.start)) from None


def wrong_byte(error: UnicodeDecodeError, encoding: str, position: int) -> str:
    """Say which byte does not fit into an encoding, and what to do."""
    value = f"0x{error.object[error.start]:02x}"
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        return f"invalid UTF-8 at byte {position:,} ({value}); name its encoding by --encoding (encoding)"
    return f"byte {position:,} ({value}) is not {encoding}; --encoding (encoding) names another one"


def too_long(length: int, longest: int) -> str:
    """Say that a line is longer than what is read."""
    return f"{length:,} bytes, at most {longest:,} are read as one document (--max-line, max_line)"


def check_characters(count: int, longest: int) -> None:
    """Raise Unreadable where a text has more characters than are read of a file."""
    if count > longest:
        raise Unreadable(f"more than {longest:,} characters (--max-line, max_line)")


def clean(text: str) -> str:
    """Remove control characters, and end lines with a newline; what is stored as it was written does without."""
    # a vertical tab is a line break inside of a paragraph: of slides, and of mails that Word has written
    return _NO_TEXT.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\v", "\n"))


def one_line(text: str) -> str:
    """Return a text with each run of white space as one blank."""
    return " ".join(clean(text).split())
