"""winmail.dat: the text of a mail and its files, as Exchange packs them."""

from __future__ import annotations

import struct
from email.message import EmailMessage
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.readers.tnef import SIGNATURE, unpacked_rtf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.documents.conftest import Read

BODY, PROPERTIES, FILE_PROPERTIES = 0x0002800C, 0x00069003, 0x00069005
NEW_FILE, TITLE, DATA = 0x00069002, 0x00018010, 0x0006800F
HTML, RTF, LONG_NAME, FILE_DATA = 0x1013, 0x1009, 0x3707, 0x3701
STRING, UNICODE, BINARY, OBJECT, LONG = 0x1E, 0x1F, 0x102, 0x0D, 3
COMPRESSED = bytes.fromhex(  # the example of [MS-OXRTFCP], 3.1
    "2d0000002b0000004c5a4675f1c5c7a703000a00726370673132354232"
    "0af32068656c090020627705b06c647d0a800fa0"
)


def attribute(name: int, value: bytes) -> bytes:
    return b"\1" + struct.pack("<II", name, len(value)) + value + struct.pack("<H", 0)


def properties(*listed: tuple[int, int, bytes]) -> bytes:
    parts = [struct.pack("<I", len(listed))]
    for kind, name, value in listed:
        named = bytes(16) + struct.pack("<II", 0, 7) if name >= 0x8000 else b""
        size = b"" if kind == LONG else struct.pack("<II", 1, len(value))
        parts += [struct.pack("<HH", kind, name), named, size, value, bytes(-len(value) % 4)]
    return b"".join(parts)


def packed(*attributes: bytes) -> bytes:
    return SIGNATURE + struct.pack("<H", 1) + b"".join(attributes)


def mail(data: bytes, kind: str = "ms-tnef") -> bytes:
    message = EmailMessage()
    message["From"], message["Subject"] = "ada@example.org", "Stone"
    message.set_content("\n")
    message.add_attachment(data, maintype="application", subtype=kind, filename="winmail.dat")
    return message.as_bytes()


TABLE = attribute(NEW_FILE, bytes(14)) + attribute(TITLE, b"T~1.CSV\0")


CODEPAGE = attribute(0x00069007, struct.pack("<II", 1251, 0))
WEB_PAGE = (BINARY, HTML, b"<p>Sand &amp; clay</p>")
WORDS = (UNICODE, 0x1000, "Größe 4\0".encode("utf-16-le"))
FILE = (
    (STRING, LONG_NAME, b"Table of metals.csv\0"),
    (OBJECT, FILE_DATA, bytes(16) + b"m\nlead\n"),
)


def samples() -> list[bytes]:
    """Attributes of a mail with a page and two files."""
    return [
        CODEPAGE,
        attribute(PROPERTIES, properties((LONG, 0x8001, bytes(4)), WEB_PAGE)),
        *(TABLE, attribute(DATA, b"metal,price\ntin,40\n")),
        *(TABLE, attribute(FILE_PROPERTIES, properties(*FILE))),
    ]


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ([CODEPAGE, attribute(BODY, "Камень\0".encode("cp1251"))], ["Камень"]),
        ([attribute(PROPERTIES, properties((LONG, 0x8001, bytes(4)), WEB_PAGE))], ["Sand & clay"]),
        ([attribute(PROPERTIES, properties(WORDS))], ["Größe 4"]),
        ([attribute(PROPERTIES, properties((BINARY, RTF, COMPRESSED)))], ["hello world"]),
        ([TABLE, attribute(DATA, b"metal,price\ntin,40\n")], ["tin", "40"]),
        ([TABLE, attribute(FILE_PROPERTIES, properties(*FILE))], ["Table of metals.csv", "lead"]),
    ],
)
def test_text_and_files_are_read(
    read: Read, attributes: Sequence[bytes], words: Sequence[str]
) -> None:
    for kind in ("ms-tnef", "octet-stream"):
        found = read("a.eml", mail(packed(*attributes), kind))
        assert all(word in found.text for word in words), found.text
        assert not found.warning


@pytest.mark.parametrize("cut", [7, 12, 25, 60])
def test_a_damaged_file_is_named(read: Read, cut: int) -> None:
    data = packed(TABLE, attribute(DATA, b"metal,price\ntin,40\n"))[:-cut]
    found = read("a.eml", mail(data))
    assert "winmail.dat: " in found.warning
    assert "From: ada@example.org" in found.text


def test_rtf_unpacks_as_the_standard_has_it() -> None:
    assert unpacked_rtf(COMPRESSED) == b"{\\rtf1\\ansi\\ansicpg1252\\pard hello world}\r\n"
    plain = b"{\\rtf1 x}"
    head = struct.pack("<II", len(plain) + 12, len(plain)) + b"MELA" + bytes(4)
    assert unpacked_rtf(head + plain) == plain
