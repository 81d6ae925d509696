"""Encodings of text: byte order marks, what a text declares, UTF-8, UTF-16, what the user names.

Labels of encodings are those of the WHATWG (https://encoding.spec.whatwg.org/#names-and-labels, by
webencodings), which browsers and mail programs follow: a page that names "iso-8859-1" is
Windows-1252.
"""

from __future__ import annotations

import codecs
from functools import cache

from aveyb_retrieval.documents.readers.filetext import Unreadable

# UTF-32 begins as UTF-16 does
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE_BYTES = 4096  # bytes in which UTF-16 and UTF-32 show
_SIGN = (
    "\N{LATIN SMALL LETTER E WITH ACUTE}\N{CYRILLIC SMALL LETTER YA}\N{CJK UNIFIED IDEOGRAPH-65E5}"
)
_MOSTLY_SHARE = (
    0.4  # of the bytes at a place of each character that are zero, in UTF-16 of a European language
)


def decode(data: bytes, encoding: str | None = None, *, declared: str | None = None) -> str:
    """Decode a text: by its byte order mark, by what it declares itself, as UTF-8, as UTF-16 or
    UTF-32, by `encoding`.

    `encoding` is what the user says of files that are not UTF-8. A text that is UTF-8 though it
    declares an encoding of one byte a character is read as UTF-8.
    Raises Unreadable: a byte does not fit, or characters are missing that no text has; the message
    names it.
    """
    mark, name = marked(data)
    if name:
        return _strict(data[len(mark) :], name, len(mark))
    if declared and has_one_byte_characters(declared) and not data.isascii():
        # any bytes fit such an encoding, but hardly any other text is valid UTF-8
        declared = "utf-8" if _tried(data, "utf-8") is not None else declared
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
    start = data[:_SAMPLE_BYTES]
    if 0 not in start:
        return ""
    quarters = [start[place::4].count(0) / max(1, len(start[place::4])) for place in range(4)]
    if min(quarters[2:]) > 1 - _MOSTLY_SHARE and quarters[0] < _MOSTLY_SHARE:
        return "utf-32-le"
    if min(quarters[:2]) > 1 - _MOSTLY_SHARE and quarters[3] < _MOSTLY_SHARE:
        return "utf-32-be"
    even, odd = (start[place::2].count(0) / max(1, len(start[place::2])) for place in range(2))
    if max(even, odd) < _MOSTLY_SHARE or min(even, odd) > 0.1:
        return ""
    return "utf-16-le" if odd > even else "utf-16-be"


@cache
def python_encoding(label: str) -> str | None:
    """Python's name of the encoding that browsers take a label for, or of one that only Python has;
    None of neither.
    """
    import webencodings

    codec = webencodings.lookup(label)
    if codec is not None and codec.name not in ("replacement", "x-user-defined"):
        return "gb18030" if codec.name == "gbk" else codec.codec_info.name
    try:
        name = codecs.lookup(label).name
        return (
            name
            if isinstance(_SIGN.encode(name, "ignore"), bytes) and isinstance(b"".decode(name), str)
            else None
        )
    except (LookupError, ValueError):  # of "idna", "base64", a label with a zero byte
        return None


@cache
def has_one_byte_characters(label: str) -> bool:
    """Whether an encoding writes every character as one byte, so that nearly any bytes fit it."""
    name = python_encoding(label)
    if name is None or name.startswith("utf"):
        return False
    return all(len(sign.encode(name, "ignore")) <= 1 for sign in _SIGN) and (
        len(bytes(range(0xA1, 0xFF)).decode(name, "ignore")) > 60
    )


def decoded_mostly(data: bytes, label: str) -> str | None:
    """Decode a text in which few bytes are damaged; None where more characters beyond ASCII are
    wrong than right, or the encoding is unknown. A damaged one becomes U+FFFD.
    """
    name = python_encoding(label)
    if name is None:
        return None
    text = data.decode(name, "replace")
    wrong = text.count("\N{REPLACEMENT CHARACTER}")
    right = sum(not character.isascii() for character in text) - wrong
    return text if wrong < right and "\0" not in text else None


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
