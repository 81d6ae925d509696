"""Files that cannot be read, and readers that crash or are not installed: one line each, within
bounds.
"""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.readers import kinds, process
from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.readers.kinds import kind_of
from aveyb_retrieval.documents.readers.ocr import installed_languages, why_no_ocr
from aveyb_retrieval.documents.readers.process import FileReader
from aveyb_retrieval.documents.records import FieldNames, Rejected
from aveyb_retrieval.errors import OptionalDependencyError
from tests.documents.conftest import reason
from tests.indexes.files import make_pdf, make_zip

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.documents.conftest import Read

for package in ("pypdfium2", "selectolax", "docx"):
    pytest.importorskip(package)


DEEP_XML = b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "' + b"y" * 1000 + b'">' + b"".join(
    b'<!ENTITY x%d "%s">' % (i, (b"&x%d;" % (i - 1) if i else b"&x;") * 10) for i in range(9)
) + b"]><a>&x8;</a>"  # fmt: skip


def changed_zip(sign: bytes, place: int, value: bytes) -> bytes:
    """An archive of one file, in whose first head with this sign some bytes are others."""
    data = bytearray(make_zip({"content.xml": b"<a/>"}))
    start = data.index(sign) + place
    data[start : start + len(value)] = value
    return bytes(data)


LISTED, LISTS_END = b"PK\x01\x02", b"PK\x05\x06"
# Made where they are read: a bomb takes a second to make.
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "garbage.pdf": (lambda: b"%PDF-1.4 nothing", "not a PDF file"),
    "cut.pdf": (lambda: make_pdf([["words"]])[:300], "not a PDF file"),
    "empty.pdf": (lambda: b"", "empty"),
    "garbage.docx": (lambda: b"PK\x03\x04 nothing", "not a ZIP archive"),
    "office97.docx": (
        lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"x" * 600,
        "encrypted, or in the format of Office 97",
    ),
    "other.docx": (lambda: make_zip({"a.txt": b"x"}), "not a document of Word"),
    "bomb.docx": (
        lambda: make_zip({"word/document.xml": b" " * (257 << 20)}),
        "at most 268,435,456 bytes are read",
    ),
    "bomb.zip": (
        lambda: make_zip({"a.txt": b" " * (257 << 20)}),
        "at most 268,435,456 bytes are read",
    ),
    "later.zip": (
        lambda: changed_zip(LISTED, 6, b"\x54\x00"),
        "not a ZIP archive (zip file version 8.4)",
    ),
    "before.ods": (
        lambda: changed_zip(LISTS_END, 16, b"\xff\x0f\x00\x00"),
        "damaged: 'content.xml' cannot be unpacked (negative seek value",
    ),
    "control.xml": (lambda: b"<a>\0</a>", "damaged: 'the file' is not XML ("),
    "many.zip": (
        lambda: make_zip({f"{number}.txt": b"" for number in range((1 << 16) + 1)}),
        "65,537 files in an archive; at most 65,536 are read",
    ),
    "entities.epub": (lambda: make_zip({"META-INF/container.xml": DEEP_XML}), "damaged"),
    "no-opf.epub": (
        lambda: make_zip({"mimetype": b"application/epub+zip"}),
        "no 'META-INF/container.xml'",
    ),
    "long.txt": (lambda: b"x" * ((1 << 20) + 1), "1,048,577 bytes, at most 1,048,576"),
    "bomb.html.gz": (lambda: gzip.compress(b" " * (2 << 20)), "more than 1,048,576 bytes unpacked"),
    "cut.txt.gz": (lambda: gzip.compress(os.urandom(5000))[:-9], "ends in the middle"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_ends_in_one_line(read: Read, name: str) -> None:
    make, words = HOSTILE[name]
    assert words in reason(read, name, make())


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (rb"tin \u9999999999?40", "tin \ufffd40"),
        (rb"tin \u-70000?40", "tin \ufffd40"),
        (rb"tin \uc lead", "tin lead"),
        (rb"tin \u-10179?40", "tin \ufffd40"),
        (rb"tin \u-10179?\u-8704?40", "tin \U0001f60040"),
        (rb"tin \u8364?40", "tin \u20ac40"),
    ],
)
def test_a_character_of_rtf_that_is_none_costs_no_more_than_itself(
    read: Read, written: bytes, text: str
) -> None:
    assert read("a.rtf", b"{\\rtf1\\ansi " + written + b"}").text == text


def test_a_file_without_a_name_in_an_archive_is_read(read: Read) -> None:
    data = make_zip({"nameless": b"tin 40", "b.txt": b"lead 12"})
    text = read("a.zip", data.replace(b"nameless", b"\0ameless")).text
    assert "tin 40" in text and "lead 12" in text


def test_broken_references_and_three_thousand_pages_end(read: Read) -> None:
    broken = make_pdf([["words of a page"]]).replace(b"startxref\n", b"startxref\n9")
    assert "words" in read("xref.pdf", broken).text  # PDFium finds the objects by itself
    many = read("many.pdf", make_pdf([[f"page {n}"] for n in range(1, 3_001)]))
    assert many.pages is not None
    assert many.pages.at(many.text.index("page 2999\n")).number == 2999
    deep = read("deep.html", b"<div>" * 20_000 + b"bottom")
    assert deep.text == "bottom"


def test_a_scanned_file_without_ocr_is_listed_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without tesseract
    (tmp_path / "scan.pdf").write_bytes(make_pdf([[], []], images=[0, 1]))
    (left,) = read_corpus(tmp_path)
    assert isinstance(left, Rejected)
    why = why_no_ocr(Limits(), installed_languages())  # by what is installed here
    assert left.reason == f"no text: 2 of 2 pages are pictures that are not read ({why}): 1, 2"
    assert left.ocr_try is not None and left.ocr_try.languages == ""


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, None], ids=["pipe", "folder", "nothing"])
def test_what_is_no_plain_file_is_not_waited_for(
    reader: FileReader, tmp_path: Path, make: Callable[[Path], None] | None
) -> None:
    path = tmp_path / "a.txt"
    if make is not None:
        make(path)
    kind = kind_of(path)
    assert kind is not None
    with pytest.raises(Unreadable, match=r"not a plain file|cannot be read"):
        reader.read(path, kind)


def test_a_reader_that_crashes_or_takes_too_long_costs_one_file(
    reader: FileReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(make_pdf([["words"]]))
    kind = kind_of(path)
    assert kind is not None
    reader.read(path, kind)
    assert reader._process is not None
    os.kill(reader._process.pid, 24)  # SIGXCPU, as the limit of processor time sends it
    reader._process.wait()
    assert reader.read(path, kind)[0].text == "words\n"  # another process was started
    monkeypatch.setattr(
        process, "_START", "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 24)"
    )
    with (
        FileReader(Limits(100)) as other,
        pytest.raises(Unreadable, match=r"more than 120 s of processor time"),
    ):
        other.read(path, kind)
    monkeypatch.setattr(process, "_START", "import os, sys; sys.stdin.readline(); os.abort()")
    with FileReader(Limits(100)) as other, pytest.raises(Unreadable, match="crashed"):
        other.read(path, kind)
    monkeypatch.setattr(process, "_START", "import time; time.sleep(60)")
    monkeypatch.setattr(process, "WALL_SECONDS", 0.2)
    with FileReader(Limits(100)) as other, pytest.raises(Unreadable, match="took more than"):
        other.read(path, kind)


def test_answers_that_arrive_together_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = '{"rows": [{"row": 1, "reason": "bad", "raw": ""}]}\n{"rows": null}\n'
    start = (
        f"import sys; sys.stdin.readline(); sys.stdout.write({answers!r}); sys.stdout.flush();"
        " sys.stdin.readline()"
    )
    monkeypatch.setattr(process, "_START", start)
    with FileReader(Limits(1000)) as reader:
        (rejected,) = reader.read_rows(tmp_path / "a.parquet", FieldNames())
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "bad"


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(make_pdf([["words"]]))
    kind = kind_of(path)
    assert kind is not None
    monkeypatch.setattr(kinds, "PACKAGES", {"pdf": ("no_such_package", "files")})
    with (
        FileReader(Limits(100)) as reader,
        pytest.raises(OptionalDependencyError, match=r"pip install .*\[files\]"),
    ):
        reader.read(path, kind)
