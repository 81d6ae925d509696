"""TNEF, in which Exchange sends mails as a file `winmail.dat`: the text of the mail and its files.

The format is [MS-OXTNEF], compressed RTF in it [MS-OXRTFCP]. The package tnefparse reads both; its
last release is of 2021.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.file_limits import MAX_UNPACKED_BYTES
from aveyb_retrieval.documents.readers.filetext import Unreadable, clean, one_line
from aveyb_retrieval.documents.readers.html import page_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.documents.readers.archives import InnerFiles
    from aveyb_retrieval.documents.readers.file_limits import Limits
    from aveyb_retrieval.documents.readers.filetext import FileText

SIGNATURE = struct.pack("<I", 0x223E9F78)
_BODY, _CODEPAGE, _PROPERTIES = 0x0002800C, 0x00069007, 0x00069003
_NEW_FILE, _FILE_TITLE, _FILE_DATA = 0x00069002, 0x00018010, 0x0006800F
_FILE_PROPERTIES = 0x00069005
_TEXT, _RTF, _HTML = 0x1000, 0x1009, 0x1013  # properties of a mail
_DATA, _FILE_NAME, _LONG_FILE_NAME = 0x3701, 0x3704, 0x3707  # of a file in it
_FIRST_NAMED_ID = 0x8000
_MULTIPLE_FLAG = 0x1000  # of a property's type
_SIZES = {2: 4, 3: 4, 4: 4, 5: 8, 6: 8, 7: 8, 10: 4, 11: 4, 20: 8, 64: 8, 72: 16}
_UNICODE, _OBJECT = 0x1F, 0x0D
_OBJECT_HEAD_BYTES = 16  # bytes of an object in front of its data: what it is
# what the dictionary of compressed RTF holds at first
_RTF_START = (
    b"{\\rtf1\\ansi\\mac\\deff0\\deftab720{\\fonttbl;}{\\f0\\fnil \\froman \\fswiss \\fmodern "
    b"\\fscript \\fdecor MS Sans SerifSymbolArialTimes New RomanCourier{\\colortbl\\red0\\green0"
    b"\\blue0\r\n\\par \\pard\\plain\\f0\\fs20\\b\\i\\u\\tab\\tx"
)
_WINDOW_BYTES = 4096
_PLAIN_RTF, _COMPRESSED_RTF = b"MELA", b"LZFu"


@dataclass
class _File:
    """A file that the mail holds."""

    name: str = ""
    data: bytes = b""


@dataclass
class _Mail:
    """What is found in a file of TNEF."""

    encoding: str = "cp1252"
    text: str = ""
    page: str = ""  # HTML
    rtf: bytes = b""
    files: list[_File] = field(default_factory=list)


def read_tnef(data: bytes, limits: Limits, inner: InnerFiles) -> FileText:
    """Read the text and the files of a mail that Exchange has packed."""
    if not data.startswith(SIGNATURE):
        raise Unreadable("not a file of TNEF (winmail.dat)")
    mail = _Mail(limits.encoding or "cp1252")
    try:
        for name, value in _attributes(data):
            _take_attribute(mail, name, value)
    except (struct.error, IndexError, LookupError, ValueError) as error:
        raise Unreadable(f"damaged: not a file of TNEF ({error})") from None
    if text := mail.text or page_text(mail.page)[1]:
        inner.add("", text)
    elif mail.rtf:
        inner.read("message.rtf", partial(bytes, mail.rtf))
    for number, file in enumerate(mail.files, start=1):
        inner.read(file.name or f"file {number}", partial(bytes, file.data), may_be_text=True)
    return inner.text("")


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of a file: what each is, and its value; of a file that is cut, those
    before.
    """
    position = len(SIGNATURE) + 2
    while position + 9 <= len(data):
        name, size = struct.unpack_from("<II", data, position + 1)
        value = data[position + 9 : position + 9 + size]
        if len(value) < size:
            raise ValueError("it ends in the middle")
        yield name, value
        position += 9 + size + 2  # with the sum of its bytes


def _take_attribute(mail: _Mail, name: int, value: bytes) -> None:
    if name == _CODEPAGE and len(value) >= 4:
        mail.encoding = f"cp{struct.unpack_from('<I', value)[0]}"
    elif name == _BODY:
        mail.text = mail.text or _string(value, mail.encoding)
    elif name == _PROPERTIES:
        _take_properties(mail, value)
    elif name == _NEW_FILE:
        mail.files.append(_File())
    elif mail.files and name == _FILE_TITLE:
        mail.files[-1].name = mail.files[-1].name or one_line(_string(value, mail.encoding))
    elif mail.files and name == _FILE_DATA:
        mail.files[-1].data = value
    elif mail.files and name == _FILE_PROPERTIES:
        _take_file_properties(mail.files[-1], value, mail.encoding)


def _take_properties(mail: _Mail, data: bytes) -> None:
    for name, kind, value in _properties(data):
        if name == _TEXT:
            mail.text = _property_text(kind, value, mail.encoding) or mail.text
        elif name == _HTML:
            mail.page = _property_text(kind, value, mail.encoding)
        elif name == _RTF:
            mail.rtf = unpacked_rtf(value)


def _take_file_properties(file: _File, data: bytes, encoding: str) -> None:
    for name, kind, value in _properties(data):
        if name == _LONG_FILE_NAME or (name == _FILE_NAME and not file.name):
            file.name = one_line(_property_text(kind, value, encoding))
        elif name == _DATA and not file.data:
            file.data = value[_OBJECT_HEAD_BYTES:] if kind == _OBJECT else value


def _properties(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the properties of a mail or of a file in it: which one, its type, its (first) value."""
    (count,) = struct.unpack_from("<I", data)
    position = 4
    for _ in range(count):
        kind, name = struct.unpack_from("<HH", data, position)
        position += 4
        if name >= _FIRST_NAMED_ID:
            position = _behind_name(data, position)
        values, base = 1, kind & ~_MULTIPLE_FLAG
        if kind & _MULTIPLE_FLAG or base not in _SIZES:
            (values,) = struct.unpack_from("<I", data, position)
            position += 4
        for number in range(values):
            size = _SIZES.get(base)
            if size is None:
                (size,) = struct.unpack_from("<I", data, position)
                position += 4
            if position + size > len(data):
                raise ValueError("a property goes beyond the end")
            if number == 0:
                yield name, base, data[position : position + size]
            position += size + -size % 4


def _behind_name(data: bytes, position: int) -> int:
    """Where a property's name ends: a number, or a text."""
    (is_text,) = struct.unpack_from("<I", data, position + 16)
    position += 20
    if not is_text:
        return position + 4
    (size,) = struct.unpack_from("<I", data, position)
    return position + 4 + size + -size % 4


def _property_text(kind: int, value: bytes, encoding: str) -> str:
    if kind == _UNICODE:
        return clean(value.decode("utf-16-le", "replace")).strip("\0 \n")
    return _string(value, encoding)


def _string(value: bytes, encoding: str) -> str:
    return clean(decode(value.rstrip(b"\0"), declared=encoding)).strip()


def unpacked_rtf(data: bytes) -> bytes:
    """Return the RTF that a mail holds in compressed form."""
    packed_size, size = struct.unpack_from("<II", data)
    kind, packed = data[8:12], data[16 : packed_size + 4]
    if kind == _PLAIN_RTF:
        return packed[:size]
    if kind != _COMPRESSED_RTF or size > MAX_UNPACKED_BYTES:
        raise ValueError("RTF in a form that is not known")
    window = bytearray(_RTF_START.ljust(_WINDOW_BYTES, b"\0"))
    out, at, position = bytearray(), len(_RTF_START), 0
    while position < len(packed) and len(out) < size:
        flags, position = packed[position], position + 1
        for bit in range(8):
            if position >= len(packed) or len(out) >= size:
                break
            if not flags >> bit & 1:
                run = packed[position : position + 1]
                position += 1
            else:
                (reference,) = struct.unpack_from(">H", packed, position)
                position += 2
                if reference >> 4 == at % _WINDOW_BYTES:  # the end
                    return bytes(out[:size])
                run = None
            length = 1 if run else (reference & 15) + 2
            for step in range(length):
                byte = run[0] if run else window[((reference >> 4) + step) % _WINDOW_BYTES]
                window[at % _WINDOW_BYTES] = byte
                out.append(byte)
                at += 1
    return bytes(out[:size])
