"""Readers of slides, sheets, mails, archives, notebooks, transcripts and source code: text, headings and positions."""

from __future__ import annotations

import io
import json
from email.message import EmailMessage
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.indexes.input.corpus import read_corpus
from aveyb_retrieval.indexes.input.documents import Record, Rejected
from aveyb_retrieval.indexes.input.readers import formats
from aveyb_retrieval.indexes.input.readers.base import FileText, Unreadable
from aveyb_retrieval.indexes.input.readers.code import LANGUAGES
from aveyb_retrieval.indexes.input.readers.ocr import why_none
from tests.indexes.fake import FakeEmbedder
from tests.indexes.files import make_docx, make_pdf, make_zip

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

for package in ("pptx", "python_calamine", "striprtf", "oxmsg", "tree_sitter", "xlsxwriter"):
    pytest.importorskip(package)

Read = "Callable[[str, bytes], FileText]"


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str, bytes], FileText]:
    def read(name: str, data: bytes) -> FileText:
        path = tmp_path / name
        path.write_bytes(data)
        kind = formats.kind_of(path)
        assert kind is not None
        return formats.read_file(path, kind, None, 1 << 20)[0]

    return read


def label(found: FileText, word: str) -> str:
    """The page of a word, as it is cited."""
    assert found.pages is not None
    return str(found.pages.at(found.text.index(word)))


def make_pptx() -> bytes:
    import pptx
    from pptx.util import Inches

    show = pptx.Presentation()
    show.core_properties.title = "Training"
    for title, text in (("Pumps", "Close the valve"), ("Filters", "Wash them")):
        slide = show.slides.add_slide(show.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = text
    slide.notes_slide.notes_text_frame.text = "Say it twice"
    table = slide.shapes.add_table(1, 2, Inches(1), Inches(1), Inches(2), Inches(1)).table
    table.cell(0, 0).text, table.cell(0, 1).text = "left", "right"
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, Inches(1), Inches(1)).text_frame.text = "in a group"
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()


def make_xlsx(rows: list[list[object]], name: str = "Prices") -> bytes:
    import xlsxwriter

    out = io.BytesIO()
    with xlsxwriter.Workbook(out) as book:
        for sheet_name in (name, "Empty", "Last"):
            sheet = book.add_worksheet(sheet_name)
            for number, row in enumerate(rows if sheet_name != "Empty" else []):
                sheet.write_row(number, 0, row)
    return out.getvalue()


def test_slides_are_pages_with_titles_tables_groups_and_notes(read: Callable[[str, bytes], FileText]) -> None:
    found = read("a.pptx", make_pptx())
    assert found.title == "Training"
    assert found.text.startswith("# Pumps\n\nClose the valve\n\n# Filters\n\nWash them")
    assert [label(found, word) for word in ("valve", "Wash", "left | right", "in a group", "Say it twice")] == [
        "slide 1", *["slide 2"] * 4
    ]  # fmt: skip
    with pytest.raises(Unreadable, match="damaged"):
        read("b.pptx", make_docx([("", "words")]))


def test_sheets_are_pages_and_rows_are_lines(read: Callable[[str, bytes], FileText]) -> None:
    found = read("a.xlsx", make_xlsx([["part", "price", ""], ["valve", 12, 3.5], [], ["", "pump"]]))
    assert found.text.startswith("# Prices\n\npart | price\nvalve | 12 | 3.5\n | pump\n\n# Last\n")
    assert label(found, "valve") == "sheet Prices"
    assert label(found, "# Last") == "sheet Last"
    with pytest.raises(Unreadable, match="not a spreadsheet"):
        read("b.xlsx", make_zip({"a": b"b"}))
    with pytest.raises(Unreadable, match="more than 1,048,576 characters"):
        read("c.xlsx", make_xlsx([["x" * 30_000] for _ in range(40)]))


ODT = """<?xml version="1.0"?><office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"
 xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0">
<office:body><office:text><text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>
<text:h text:outline-level="2">Pumps</text:h><text:p>Close<text:s/>the <text:span>valve</text:span>.</text:p>
<text:list><text:list-item><text:p>one</text:p></text:list-item></text:list>
<table:table><table:table-row><table:table-cell><text:p>a</text:p></table:table-cell><table:table-cell><text:p>b</text:p>
</table:table-cell></table:table-row></table:table></office:text></office:body></office:document-content>"""


def test_text_documents_of_libreoffice_and_rtf(read: Callable[[str, bytes], FileText]) -> None:
    meta = b'<m xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Manual</dc:title></m>'
    found = read("a.odt", make_zip({"content.xml": ODT.encode(), "meta.xml": meta}))
    lines = [line for line in found.text.split("\n") if line]
    assert (found.title, lines) == ("Manual", ["## Pumps", "Close the valve.", "- one", "a | b"])
    rtf = read("a.rtf", rb"{\rtf1\ansi\ansicpg1252 Caf\'e9 {\b bold}\par next}")
    assert rtf.text.split("\n")[:2] == ["Caf\u00e9 bold", "next"]
    with pytest.raises(Unreadable, match="not an RTF file"):
        read("b.rtf", b"words")


def test_a_mail_has_its_attachments(read: Callable[[str, bytes], FileText]) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "a@example.org", "b@example.org", "The pump"
    mail.set_content("See the page.")
    mail.add_alternative("<p>not this one</p>", subtype="html")
    mail.add_attachment(make_pdf([["close the valve"]]), maintype="application", subtype="pdf", filename="m.pdf")
    mail.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="logo.png")
    found = read("a.eml", mail.as_bytes())
    assert found.title == "The pump"
    assert found.text.startswith("From: a@example.org\nTo: b@example.org\n\nSee the page.")
    assert "not this one" not in found.text
    assert label(found, "valve") == "file m.pdf"
    assert found.warning == "1 file in it left out: logo.png: unknown kind .png"
    forwarded = EmailMessage()
    forwarded["From"], forwarded["Subject"] = "c@example.org", "Fwd"
    forwarded.add_attachment(mail)
    assert "close the valve" in read("b.eml", forwarded.as_bytes()).text
    with pytest.raises(Unreadable, match="not a mail"):
        read("c.eml", b"words")
    with pytest.raises(Unreadable, match="not a mail of Outlook"):
        read("d.msg", b"words")


def test_an_archive_is_one_document_whose_pages_are_its_files(read: Callable[[str, bytes], FileText]) -> None:
    inside = make_zip({"deep.txt": b"deep words"})
    for _ in range(4):
        inside = make_zip({"in.zip": inside})
    data = {"b/m.pdf": make_pdf([["close the valve"]]), "a.md": b"# T\n\nmarkdown", "bad.pdf": b"x", "n.zip": inside,
            "__MACOSX/x.txt": b"no", ".h.txt": b"no", "c.txt.gz": __import__("gzip").compress(b"packed")}  # fmt: skip
    found = read("a.zip", make_zip(data))
    assert label(found, "valve") == "file b/m.pdf"
    assert label(found, "packed") == "file c.txt.gz"
    assert found.text.startswith("# a.md\n\n# T\n\nmarkdown\n\n# b/m.pdf\n\nclose")
    assert found.warning == "1 file in it left out: bad.pdf: not a PDF file, or damaged beyond repair"
    assert "no\n" not in found.text
    assert "deep words" not in found.text


def test_notebooks_keep_code_and_what_it_printed(read: Callable[[str, bytes], FileText]) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Valves\n", "text"]},
        {"cell_type": "code", "source": "# no heading\nprint(1)", "outputs": [{"text": ["1\n"]},
         {"data": {"image/png": "AAAA" * 100, "text/plain": ["<Figure>"]}}]},
    ]  # fmt: skip
    data = {"nbformat": 4, "metadata": {"kernelspec": {"language": "python"}}, "cells": cells}
    found = read("a.ipynb", json.dumps(data).encode())
    assert found.text == "# Valves\ntext\n\n```python\n# no heading\nprint(1)\n```\n\n```\n1\n```\n\n```\n<Figure>\n```"
    for bad in (b"{}", b"[]", b"nothing", b'{"cells": [{"source": 5}]}'):
        with pytest.raises(Unreadable, match="not a Jupyter notebook"):
            read("b.ipynb", bad)


def test_transcripts_have_times(read: Callable[[str, bytes], FileText]) -> None:
    srt = "1\n00:00:01,000 --> 00:00:04,000\nClose the\nvalve.\n\n2\n01:02:03,500 --> 01:02:05,000\n<i>Then</i> wait"
    found = read("a.srt", srt.encode())
    assert found.text == "Close the valve.\nThen wait "
    assert (label(found, "valve"), label(found, "wait")) == ("time 0:00:01", "time 1:02:03")
    vtt = "WEBVTT\n\nNOTE made here\n\nintro\n00:05.000 --> 00:07.000 align:start\n{\\an8}Hello\n"
    assert label(read("a.vtt", vtt.encode()), "Hello") == "time 0:00:05"
    with pytest.raises(Unreadable, match="no cues"):
        read("b.srt", b"words")


SOURCES = {
    "python": ("import os\n# why\n@cache\ndef first(a):\n    return 1\n\n\nclass B:\n    def m(self):\n        pass\n",
               ["first", "B", "B.m"]),
    "javascript": ("export class A {\n  m() {\n  }\n}\nfunction f() {\n}\n", ["A", "A.m", "f"]),
    "typescript": ("interface I {\n a: number\n}\nabstract class C {\n m(): void {\n }\n}\n", ["I", "C", "C.m"]),
    "tsx": ("function f() {\n return <a/>\n}\n", ["f"]),
    "java": ("class A {\n /** d */\n void m() {\n }\n}\n", ["A", "A.m"]),
    "go": ("package x\n\n// Foo\nfunc Foo() {\n}\n\ntype T struct {\n}\nfunc (t *T) Bar() {\n}\n", ["Foo", "T", "Bar"]),
    "rust": ("/// doc\npub fn a() {\n}\nimpl Foo {\n  fn b(&self) {\n  }\n}\n", ["a", "Foo", "Foo.b"]),
    "c": ("int main(void)\n{\n}\nstruct s {\n int a;\n};\n", ["main", "s"]),
    "cpp": ("namespace n {\nclass A {\n  int m() {\n  }\n};\nint A::q() {\n}\n}\n", ["n", "n.A", "n.A.m", "n.A::q"]),
    "csharp": ("namespace N {\n class A {\n  void M() {\n  }\n }\n}\n", ["N", "N.A", "N.A.M"]),
    "ruby": ("module M\n class A\n  def x\n   1\n  end\n end\nend\n", ["M", "M.A", "M.A.x"]),
    "php": ("<?php\nfunction a() {\n}\nclass B {\n function c() {\n }\n}\n", ["a", "B", "B.c"]),
    "shell": ("a() {\n echo\n}\n", ["a"]),
}  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_code_is_cut_at_definitions_and_keeps_its_lines(read: Callable[[str, bytes], FileText], language: str) -> None:
    if package := LANGUAGES[language].package:
        pytest.importorskip(package)
        source, names = SOURCES[language]
    else:  # without a grammar there are no headings, and comments are none, either
        source, names = "#comment\nx <- 1\n\ny <- 2\n", []
    found = read(f"a{LANGUAGES[language].suffixes[0]}", source.encode())
    assert [line[2:] for line in found.text.split("\n") if line.startswith("# ") and "why" not in line] == names
    lines = [line for line in found.text.split("\n") if line and not line.startswith(("~~~~", "# "))]
    assert lines == [line for line in source.split("\n") if line and not line.startswith("# ")]
    assert found.pages is not None
    for number, line in enumerate(source.split("\n"), start=1):
        start = found.pages.starts[number - 1]
        assert line in found.text[start : found.pages.starts[number] if number < len(found.pages.starts) else None]


def test_a_folder_of_all_kinds_is_one_index(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "show.pptx").write_bytes(make_pptx())
    (folder / "prices.xlsx").write_bytes(make_xlsx([["valve", 12]]))
    (folder / "tool.py").write_text("def close_valve():\n    # the valve\n    return 1\n")
    (folder / "talk.srt").write_text("1\n00:00:01,000 --> 00:00:04,000\ncherries are red\n")
    (folder / "lies.docx").write_bytes(make_pdf([["I am a PDF file"]]))
    report = build_index(folder, tmp_path / "ix", model=FakeEmbedder())
    assert (report.documents, report.rejected) == (4, 1)
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder(), verify=True) as retriever:
        hit = retriever.search("cherries", k=1, mode="lexical")[0]
        assert (hit.id, hit.page_label, hit.metadata["type"]) == ("talk.srt", "0:00:01", "subtitles")


def test_a_scanned_file_is_listed_as_such(tmp_path: Path) -> None:
    (tmp_path / "scan.pdf").write_bytes(make_pdf([[], []], images=[0, 1]))
    (left,) = [item for item in read_corpus(tmp_path) if isinstance(item, Rejected)]
    assert left.reason == f"no text: scanned? (2 pages of pictures only; {why_none()})"  # by what is installed here
    assert not [item for item in read_corpus(tmp_path) if isinstance(item, Record)]
