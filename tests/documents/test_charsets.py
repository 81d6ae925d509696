"""Characters: the labels of browsers, UTF-16 and UTF-32 with and without a mark, one old file among
new ones.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.readers.encodings import decode, python_encoding
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.reading import Reading, transcode
from aveyb_retrieval.documents.records import Record

if TYPE_CHECKING:
    from pathlib import Path

    from tests.documents.conftest import Read

LABELS = {
    "iso-8859-8-i": "\u05e9\u05dc\u05d5\u05dd",
    "x-sjis": "\u65e5\u672c\u8a9e",
    "windows-31j": "\u65e5\u672c",
    "ks_c_5601-1987": "\ud55c\uad6d",
    "x-mac-cyrillic": "\u041c\u0438\u0440",
    "gb2312": "\u4e2d\u6587",
    "big5-hkscs": "\u4e2d\u6587",
    "macintosh": "caf\u00e9",
    "tis-620": "\u0e44\u0e17\u0e22",
    "latin1": "\u20ac 5",
    "dos-874": "\u0e44\u0e17\u0e22",
    "csiso2022jp": "\u65e5\u672c",
}


@pytest.mark.parametrize("label", LABELS)
def test_labels_of_browsers_in_pages_mails_and_texts(read: Read, label: str) -> None:
    name = python_encoding(label)
    assert name is not None
    data = LABELS[label].encode(name)
    page = b"<html><head><meta charset=" + label.encode() + b"></head><p>" + data
    assert read("a.html", page).text == LABELS[label]
    mail = b"From: a@b\nSubject: =?" + label.encode() + b"?B?" + base64.b64encode(data)
    mail += b"?=\nContent-Type: text/plain; charset=" + label.encode() + b"\n\n" + data
    found = read("a.eml", mail)
    assert (found.title, found.text.split("\n\n")[1]) == (LABELS[label], LABELS[label])
    assert decode(data, label) == LABELS[label]


@pytest.mark.parametrize(
    "name", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "utf-16", "utf-32"]
)
def test_wide_characters_with_and_without_a_mark(read: Read, tmp_path: Path, name: str) -> None:
    text = "Plain text about antimony.\nSecond line: caf\u00e9.\n"
    assert read("a.txt", text.encode(name)).text == text
    assert read("a.html", f"<p>{text}".encode(name)).text == " ".join(text.split())
    assert b"".join(transcode([text.encode(name)], None, "a")).decode("utf-8-sig") == text
    table = tmp_path / "a.csv"
    table.write_bytes("id,text\na,antimony\n".encode(name))
    (record,) = read_corpus(table)
    assert isinstance(record, Record)
    assert record.text == "antimony"


@pytest.mark.parametrize(
    "data", [b"a\0b and more text that is plain ASCII", b"\0" * 10 + b"text" * 50]
)
def test_nul_is_told_never_indexed(data: bytes) -> None:
    with pytest.raises(Unreadable, match="NUL"):
        decode(data)


def test_raw_bytes_in_headers_of_a_mail(read: Read) -> None:
    for text in ("Gr\u00fc\u00dfe".encode(), "Gr\u00fc\u00dfe".encode("cp1252")):
        found = read("a.eml", b"From: a@b\nSubject: " + text + b"\n\nbody")
        assert (found.title, found.metadata["subject"]) == ("Gr\u00fc\u00dfe", "Gr\u00fc\u00dfe")


def test_an_encoding_is_for_what_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, data in (
        ("new.txt", "Schl\u00fcssel".encode()),
        ("old.txt", "Gr\u00f6\u00dfe".encode("cp1252")),
        ("page.html", '<meta charset="koi8-r"><p>\u041c\u0438\u0440'.encode("koi8-r")),
        ("jp.txt", "\u65e5\u672c".encode()),
    ):
        (folder / name).write_bytes(data)
    found = {
        item.id: item.text
        for item in read_corpus(folder, Reading(encoding="windows-1252"))
        if isinstance(item, Record)
    }
    assert found == {
        "jp.txt": "\u65e5\u672c",
        "new.txt": "Schl\u00fcssel",
        "old.txt": "Gr\u00f6\u00dfe",
        "page.html": "\u041c\u0438\u0440",
    }
    assert decode("\u65e5\u672c".encode("iso2022_jp"), "iso-2022-jp") == "\u65e5\u672c"
    for name, data in (
        ("a.csv", "id,text\na,caf\u00e9\n".encode()),
        ("b.csv", "id,text\nb,caf\u00e9\n".encode("cp1252")),
    ):
        (tmp_path / name).write_bytes(data)
        assert [
            item.text
            for item in read_corpus(tmp_path / name, Reading(encoding="cp1252"))
            if isinstance(item, Record)
        ] == ["caf\u00e9"]


def test_soft_hyphens_and_zero_width_blanks_are_no_part_of_words(read: Read) -> None:
    text = "Ver\u00adord\u00adnung zero\u200bwidth \u0e44\u0e17\u0e22\u200b\u0e44\u0e17\u0e22"
    whole = (  # there it parts words
        "Verordnung zerowidth \u0e44\u0e17\u0e22\u200b\u0e44\u0e17\u0e22"
    )
    for name in ("a.txt", "a.md", "a.html", "a.srt"):
        data = f"1\n00:00:01,000 --> 00:00:02,000\n{text}" if name == "a.srt" else text
        assert read(name, data.encode()).text.strip() == whole
