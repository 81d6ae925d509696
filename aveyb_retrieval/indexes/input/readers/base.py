"""What a reader gives: the text of a file, or the reason why there is none."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.pages import Pages

# Whatever is read from a file that may be hostile is bounded by these.
MAX_FILE = 512 << 20  # bytes of a file
MAX_UNPACKED = 256 << 20  # bytes of what is packed in it

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ufffe\uffff]")  # control characters; tab, newline, form feed stay


class Unreadable(Exception):
    """The reason why a file has no text that could be indexed (internal: becomes `Rejected`)."""


@dataclass(frozen=True)
class FileText:
    """The text of one file.

    Attributes:
        title: What the file calls itself; "" where it does not.
        text: Headings are lines that begin with "#", as in Markdown, where the format marks headings.
        pages: Where its pages begin in the text; None where the format has none.
        warning: Which part of the file holds no text that could be read; "" where all of it was read.
    """

    title: str
    text: str
    pages: Pages | None = None
    warning: str = ""


def decode(data: bytes, encoding: str | None) -> str:
    """Decode a text file: by its byte order mark, else by `encoding`, else as UTF-8.

    Raises:
        Unreadable: a byte does not fit; the message names it.
    """
    mark, name = next(((mark, name) for mark, name in _BOMS if data.startswith(mark)), (b"", encoding or "utf-8"))
    try:
        return data[len(mark) :].decode(name)
    except UnicodeDecodeError as error:
        raise Unreadable(wrong_byte(error, name, len(mark) + error.start)) from None


def wrong_byte(error: UnicodeDecodeError, encoding: str, position: int) -> str:
    """Say which byte does not fit into an encoding, and what to do."""
    value = f"0x{error.object[error.start]:02x}"
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        return f"invalid UTF-8 at byte {position:,} ({value}); name its encoding by --encoding (encoding)"
    return f"byte {position:,} ({value}) is not {encoding}; --encoding (encoding) names another one"


def clean(text: str) -> str:
    """Remove control characters, and end lines with a newline."""
    return _NO_TEXT.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def one_line(text: str) -> str:
    """Return a text with each run of white space as one blank."""
    return " ".join(clean(text).split())
