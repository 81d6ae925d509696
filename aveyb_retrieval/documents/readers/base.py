"""What all readers share: the text of a file or why there is none, limits, archives, encodings,
raised characters.

Labels of encodings are those of the WHATWG (https://encoding.spec.whatwg.org/#names-and-labels, by
webencodings), which browsers and mail programs follow: a page that names "iso-8859-1" is
Windows-1252.
"""

from __future__ import annotations

import codecs
import io
import re
import zipfile
import zlib
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import takewhile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.records import LONGEST_LABEL, MAX_PAGES, Pages
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lxml.etree import _Element

# Whatever is read from a file that may be hostile is bounded by these.
MAX_FILE = 512 << 20  # bytes of a file
MAX_UNPACKED = 256 << 20  # bytes of what is packed in it
FILE_SECONDS = 120  # of processor time, for each
LONGEST_TITLE = 1000  # characters

_NO_TEXT = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f\ufffe\uffff]"
)  # control characters; tab, newline, form feed stay
# Where a word may be divided: no part of it. In scripts without blanks a zero-width one parts
# words, and stays.
_DIVISIONS = re.compile("[\u00ad\u2060\ufeff]|(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b")


class Unreadable(Exception):
    """The reason why a file has no text that could be indexed, which every reader raises (becomes
    `Rejected`).
    """


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
        warning: Which part of the file holds no text that could be read; "" where all of it was
            read.
        metadata: What the file says of itself beside its title, as JSON can hold it.
    """

    title: str
    text: str
    pages: Pages | None = None
    warning: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


class Parts:
    """A text of parts that are its pages.

    More of them, or more than `longest` characters, are Unreadable.
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

    def add(self, text: str, label: str = "", *, end: str = "\n\n") -> None:
        """Add a part, which may be empty, and what it is called: what `Hit.place` cites, its number
        where empty.
        """
        check_characters(self._length + len(text), self._longest)
        if len(self._starts) == MAX_PAGES:
            raise Unreadable(f"more than {MAX_PAGES:,} parts")
        self._starts.append(self._length)
        self._labels.append(label[:LONGEST_LABEL] or str(len(self._starts)))
        self._texts.append(text + end if text else "")
        self._length += len(self._texts[-1])

    def text(
        self, title: str, warning: str = "", metadata: dict[str, Any] | None = None
    ) -> FileText:
        """Return the whole."""
        numbered = all(label == str(number) for number, label in enumerate(self._labels, start=1))
        pages = (
            Pages(tuple(self._starts), () if numbered else tuple(self._labels), self._unit)
            if self
            else None
        )
        return FileText(title, "".join(self._texts), pages, warning, metadata or {})


def too_long(length: int, longest: int) -> str:
    """Say that a line is longer than what is read."""
    return f"{length:,} bytes, at most {longest:,} are read as one document (--max-line, max_line)"


def check_characters(count: int, longest: int) -> None:
    """Raise Unreadable where a text has more characters than are read of a file."""
    if count > longest:
        raise Unreadable(f"more than {longest:,} characters (--max-line, max_line)")


def clean(text: str) -> str:
    """Remove control characters, and end lines with a newline; what is stored as it was written
    does without.
    """
    # a vertical tab is a line break inside of a paragraph: of slides, and of mails that Word has
    # written
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\v", "\n")
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
_NOBODY = re.compile(
    r"\(?(?:anonymous|unspecified|unknown|untitled|unnamed|none|no"
    r" title|title)\)?|python-docx|openpyxl|"
    r"untitled\d*|document\d*|powerpoint presentation|microsoft word - .*|"
    r".*\.(?:dvi|tex|docx?|indd|qxd|pdf|rtf|html?|txt)",
    re.IGNORECASE,
)


def named(value: str | None) -> str:
    """A title or author as one line; "" where it is what a program writes for want of one."""
    words = one_line(value or "")
    return "" if _NOBODY.fullmatch(words) else words


def about(author: str | None, created: str | None) -> dict[str, Any]:
    """Metadata that office programs and PDF have in common; those that are missing are left out."""
    return {
        key: value
        for key, value in (("author", named(author)), ("created", one_line(created or "")))
        if value
    }


def some(names: Sequence[object], most: int = 8) -> str:
    """Return the first of some names as a list in words."""
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")


def one_line(text: str) -> str:
    """Return a text with each run of white space as one blank."""
    return " ".join(clean(text).split())


def whole(text: str | None, otherwise: int = 0, most: int = 1 << 31) -> int:
    """Return the whole number that a file has written, at most `most`; `otherwise` where it is
    none.
    """
    digits = text.strip() if text else ""
    return (
        min(int(digits), most)
        if digits.isdigit() and digits.isascii() and len(digits) < 12
        else otherwise
    )


_MAX_FILES = 1 << 16
_OLD_OFFICE = bytes.fromhex("d0cf11e0a1b11ae1")  # a compound file: an encrypted DOCX, or a DOC


def is_archive(data: bytes) -> bool:
    """Return whether a file begins as a ZIP archive does."""
    return data.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def open_archive(data: bytes) -> zipfile.ZipFile:
    """Open a ZIP archive whose contents fit into memory.

    Nothing unpacks to more than the archive says of it.
    """
    if data.startswith(_OLD_OFFICE):
        raise Unreadable(
            "encrypted, or in the format of Office 97; save it without a password in today's format"
        )
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise Unreadable(f"damaged: not a ZIP archive ({error})") from None
    total = sum(info.file_size for info in archive.infolist())
    if total > MAX_UNPACKED or len(archive.infolist()) > _MAX_FILES:
        raise Unreadable(
            f"{len(archive.infolist()):,} files of {total:,} bytes unpacked; at most"
            f" {MAX_UNPACKED:,} bytes are read"
        )
    return archive


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Unpack one file. Raises Unreadable: it is missing, damaged or encrypted."""
    try:
        return archive.read(name)
    except KeyError:
        raise Unreadable(f"damaged: the archive has no {name!r}") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        RuntimeError,
        NotImplementedError,
        EOFError,
        OSError,
    ) as error:
        raise Unreadable(f"damaged: {name!r} cannot be unpacked ({error})") from None


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


MAX_DEPTH = 3  # of files in files


class InnerFiles:
    """The text of a file that holds others, each a page under its name; `read_inner` gives None of
    an unknown kind.
    """

    def __init__(
        self, read_inner: Callable[[str, bytes, int], FileText | None], longest: int, depth: int
    ) -> None:
        self._read_inner = read_inner
        self._parts = Parts("file", longest)
        self._depth = depth
        self._left_out: list[str] = []
        self._warnings: list[str] = []

    def add(self, name: str, text: str) -> None:
        """Add a text that was read."""
        self._parts.add(f"# {name}\n\n{text}" if name else text, name)

    def read(self, name: str, load: Callable[[], bytes], otherwise: str = "") -> None:
        """Read one file, whose bytes `load` gives, or note why not; of an unknown kind as if it
        were `otherwise`.
        """
        try:
            if self._depth >= MAX_DEPTH:
                raise Unreadable(f"{MAX_DEPTH} files deep")
            data, depth = load(), self._depth + 1
            found = self._read_inner(name, data, depth)
            if found is None and otherwise:
                found = self._read_inner(otherwise, data, depth)
            if found is None:
                raise Unreadable(f"unknown kind {PurePosixPath(name).suffix}".rstrip())
        except Unreadable as reason:
            self._left_out.append(f"{name}: {reason}")
            return
        except MemoryError:  # ends the process that reads
            raise
        except (
            Exception
        ) as error:  # of a parser that a damaged file has confused: the other files are read
            self._left_out.append(
                f"{name}: not readable ({type(error).__name__}: {one_line(str(error))})"
            )
            return
        if found.text.strip():
            self.add(name, found.text)
        if found.warning:
            self._warnings.append(f"{name}: {found.warning}")

    def text(self, title: str, metadata: dict[str, Any] | None = None) -> FileText:
        """Return what was read, and which files were not."""
        left_out = (
            f"{plural(len(self._left_out), 'file')} in it left out: " if self._left_out else ""
        )
        told = [f"{left_out}{'; '.join(self._left_out)}", *self._warnings]
        return self._parts.text(title, "; ".join(filter(None, told)), metadata)


def read_zip(data: bytes, inner: InnerFiles) -> FileText:
    """Read the files of an archive, by name, as one document whose pages they are; hidden ones are
    left out.
    """
    archive = open_archive(data)
    for info in sorted(archive.infolist(), key=lambda info: info.filename):
        if info.is_dir() or any(
            part.startswith((".", "__MACOSX")) for part in PurePosixPath(info.filename).parts
        ):
            continue
        inner.read(info.filename, partial(read_member, archive, info.filename))
    return inner.text("")


# UTF-32 begins as UTF-16 does
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_LOOKED_AT = 4096  # bytes in which UTF-16 and UTF-32 show
_SIGN = (
    "\N{LATIN SMALL LETTER E WITH ACUTE}\N{CYRILLIC SMALL LETTER YA}\N{CJK UNIFIED IDEOGRAPH-65E5}"
)
_MOSTLY = (
    0.4  # of the bytes at a place of each character that are zero, in UTF-16 of a European language
)


def decode(data: bytes, encoding: str | None = None, *, declared: str | None = None) -> str:
    """Decode a text: by its byte order mark, by what it declares itself, as UTF-8, as UTF-16 or
    UTF-32, by `encoding`.

    `encoding` is what the user says of files that are not UTF-8; a false `declared` does no harm.
    Raises Unreadable: a byte does not fit, or characters are missing that no text has; the message
    names it.
    """
    mark, name = marked(data)
    if name:
        return _strict(data[len(mark) :], name, len(mark))
    if declared and (text := _tried(data, declared)) is not None:
        return text
    if encoding and is_seven_bit(encoding):
        return _strict(data, encoding)
    wide = without_mark(data)
    if wide and (text := _tried(data, wide)) is not None:
        return text
    return (
        text if (text := _tried(data, "utf-8")) is not None else _strict(data, encoding or "utf-8")
    )


def marked(data: bytes) -> tuple[bytes, str]:
    """Return the byte order mark that a text begins with, and its encoding; both empty where there
    is none.
    """
    return next(((mark, name) for mark, name in _MARKS if data.startswith(mark)), (b"", ""))


def without_mark(data: bytes) -> str:
    """The encoding of a text in UTF-16 or UTF-32 that has no mark, by the zeros of its first bytes;
    "" of others.
    """
    start = data[:_LOOKED_AT]
    if 0 not in start:
        return ""
    quarters = [start[place::4].count(0) / max(1, len(start[place::4])) for place in range(4)]
    if min(quarters[2:]) > 1 - _MOSTLY and quarters[0] < _MOSTLY:
        return "utf-32-le"
    if min(quarters[:2]) > 1 - _MOSTLY and quarters[3] < _MOSTLY:
        return "utf-32-be"
    even, odd = (start[place::2].count(0) / max(1, len(start[place::2])) for place in range(2))
    if max(even, odd) < _MOSTLY or min(even, odd) > 0.1:
        return ""
    return "utf-16-le" if odd > even else "utf-16-be"


@cache
def python_encoding(label: str) -> str | None:
    """Python's name of the encoding that browsers take a label for, or of one that only Python has;
    None of neither.
    """
    import webencodings

    found = webencodings.lookup(label)
    if found is not None and found.name not in ("replacement", "x-user-defined"):
        return "gb18030" if found.name == "gbk" else found.codec_info.name
    try:
        name = codecs.lookup(label).name
        return (
            name
            if isinstance(_SIGN.encode(name, "ignore"), bytes) and isinstance(b"".decode(name), str)
            else None
        )
    except (LookupError, ValueError):  # of "idna", "base64", a label with a zero byte
        return None


def wrong_byte(error: UnicodeDecodeError, encoding: str, position: int) -> str:
    """Say which byte does not fit into an encoding, and what to do."""
    value = f"0x{error.object[error.start]:02x}"
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        return (
            f"invalid UTF-8 at byte {position:,} ({value}); name the encoding of the files that are"
            " not UTF-8 by --encoding (encoding)"
        )
    return f"byte {position:,} ({value}) is not {encoding}; --encoding (encoding) names another one"


def _strict(data: bytes, name: str, before: int = 0) -> str:
    encoding = python_encoding(name) or name
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable(wrong_byte(error, name, before + error.start)) from None
    if "\0" in text:
        place = text.index("\0")
        raise Unreadable(
            f"character {place:,} is NUL: not a text in {name}; --encoding (encoding) names"
            " another one"
        )
    return text


def _tried(data: bytes, name: str) -> str | None:
    encoding = python_encoding(name)
    if encoding is None:
        return None
    # bytes that are no character in Python are control characters in browsers, which show nothing
    # for them
    errors = "ignore" if encoding.startswith(("cp125", "cp874")) else "strict"
    try:
        text = data.decode(encoding, errors)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


@cache
def is_seven_bit(encoding: str) -> bool:
    """Whether an encoding writes all with the bytes of ASCII, so that it cannot be told from UTF-8:
    ISO-2022-JP.
    """
    name = python_encoding(encoding) or encoding
    return any(
        (written := sign.encode(name, "ignore")) and written.isascii() and b"\0" not in written
        for sign in _SIGN
    )


LONGEST_WORD = 40  # characters of a word that are looked at
_UNITS = {"mm", "cm", "dm", "km", "ft", "in", "yd", "mi", "nm", "µm", "μm", "sec", "kg", "mc", "hm"}
_ENDINGS = {  # that stand raised behind a number or a letter and belong to it
    "st",
    "nd",
    "rd",
    "th",
    "er",
    "re",
    "e",
    "è",
    "ème",
    "eme",
    "nde",
    "o",
    "a",
    "os",
    "as",
    "º",
    "ª",
    "me",
    "mes",
    "lle",
    "lles",
    "gr",
    "r",
    "rs",
    "ra",
    "d",
    "ne",
    "to",
}
_TITLES = re.compile(r"(?:M|D|S|N|n|Dr|Mr|Mrs|Sr|Sra|Bd|Av|Ste|St|C|V)\Z")
_FORMULA = re.compile(r"(?:[A-Z][a-z]?\d*){1,12}(?<!\d)")  # of a chemical, as far as it is written
_AMOUNT = re.compile(r"[-+\u2212\u2013]?\d+(?:[.,/]\d+)*")
_SIGNS = re.compile(r"[\W_]+")


def raised(before: str, text: str) -> str:
    """Write raised text behind what stands before it on its line, of which the last
    word is enough.
    """
    stripped = text.strip()
    if not stripped or (stripped[0] in "[(" and stripped[-1] in "])"):
        return text
    word = last_word(before)
    if not word and not before.endswith(
        (")", "]", "}")
    ):  # behind a stop or a blank, or at the start: no word to spoil
        apart = stripped[:1].isalnum() and before and not before[-1].isspace()
        return f"[{stripped}]" if apart else text
    short = len(word) == 1 or word.lower() in _UNITS
    if word[-1:].isdigit():
        return (
            text if stripped.lower() in _ENDINGS or stripped in "°%" else f"^{_bracketed(stripped)}"
        )
    if _AMOUNT.fullmatch(stripped):
        return f"^{stripped}" if short or not word else f"[{stripped}]"
    if _SIGNS.fullmatch(stripped):  # "*", a dagger, "[3]", a sign of trade
        return text
    if stripped.lower() in _ENDINGS and _TITLES.search(word):
        return text
    if short:
        return f"^{_bracketed(stripped)}"
    return f"[{stripped}]" if len(stripped) <= 3 else f" {stripped}"


def lowered(before: str, text: str) -> str:
    """Write lowered text behind what stands before it on its line: numbers of a formula join,
    others are an index.
    """
    stripped = text.strip()
    word = last_word(before)
    if not stripped or not stripped[0].isalnum() or not (word or before.endswith((")", "]"))):
        return text
    if stripped.isdigit() and (not word or len(word) == 1 or _FORMULA.fullmatch(word)):
        return text
    return f"_{_bracketed(stripped)}"


def shifted(before: str, text: str, shift: int) -> str:
    """Write text that is raised (1), lowered (-1) or neither behind what stands before it."""
    return raised(before, text) if shift > 0 else lowered(before, text) if shift < 0 else text


def last_word(before: str) -> str:
    """Return the letters and digits that a text ends with, as far as they are looked at."""
    return "".join(takewhile(str.isalnum, reversed(before[-LONGEST_WORD:])))[::-1]


def _bracketed(text: str) -> str:
    return text if text.isalnum() or _AMOUNT.fullmatch(text) else f"({text})"
