"""Equations, charts, forms, tables, mails and metadata that somebody has made to cost much: bounded
time and memory.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.readers.kinds import kind_of, read_file
from tests.documents.test_office_parts import NAMES, word
from tests.indexes.files import make_pdf, make_zip

if TYPE_CHECKING:
    from pathlib import Path

for package in ("lxml", "selectolax", "pypdfium2", "docx", "pptx", "openpyxl", "odf"):
    pytest.importorskip(package)

_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_CELL = '<c r="{}"><v>1</v></c>'


def _workbook(sheet: str) -> bytes:
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    book = (
        f'<workbook xmlns="{_SHEET}" xmlns:r="{relation}"><sheets><sheet name="s"'
        ' r:id="a"/></sheets></workbook>'
    )
    top = (
        "<Relationships"
        ' xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}</Relationships>'
    )
    link = f'<Relationship Id="a" Type="{relation}/{{}}" Target="{{}}"/>'
    files = {
        "_rels/.rels": top.format(link.format("officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": book,
        "xl/_rels/workbook.xml.rels": top.format(link.format("worksheet", "s.xml")),
        "xl/s.xml": f'<worksheet xmlns="{_SHEET}">{sheet}</worksheet>',
    }
    return make_zip({name: text.encode() for name, text in files.items()})


def _ods(inside: str) -> bytes:
    names = " ".join(
        f'xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{prefix}:1.0"'
        for prefix in ("office", "text", "table")
    )
    body = f"<office:body><office:spreadsheet><table:table>{inside}</table:table></office:spreadsheet></office:body>"  # noqa: E501
    return make_zip(
        {
            "content.xml": (
                f"<office:document-content {names}>{body}</office:document-content>".encode()
            )
        }
    )


def _odt(inside: str, *others: str) -> bytes:
    """A text of LibreOffice; the other parts are the same text, so that each refers to itself."""
    names = " ".join(
        f'xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for prefix, name in {
            "office": "office",
            "text": "text",
            "form": "form",
            "draw": "drawing",
        }.items()
    )
    body = f"<office:body><office:text>{inside}</office:text></office:body>"
    link = 'xmlns:xlink="http://www.w3.org/1999/xlink"'
    content = f"<office:document-content {names} {link}>{body}</office:document-content>".encode()
    return make_zip(dict.fromkeys(("content.xml", *others), content))


_STYLED = "<w:p><w:pPr><w:pStyle w:val='5000'/></w:pPr><w:r><w:t>x</w:t></w:r></w:p>" * 2_000
_STYLES = (
    f"<w:style w:styleId='{n}'><w:basedOn w:val='{(n + 1) % 9999}'/></w:style>" for n in range(9999)
)
_CHAIN = f"<w:styles {NAMES}>{''.join(_STYLES)}</w:styles>"
_WIDE = "<w:tr><w:tc><w:tcPr><w:gridSpan w:val='999999999'/></w:tcPr><w:p/></w:tc></w:tr>"
_SAME = "<w:p><w:r><w:drawing><c:chart r:id='chart'/></w:drawing></w:r></w:p>"
_REPEAT = (
    '<table:table-row table:number-rows-repeated="1048576"><table:table-cell'
    ' table:number-columns-repeated="16384"><text:p>x</text:p></table:table-cell></table:table-row>'
)
COSTLY = {
    "deep.docx": word(
        "<w:p>" + "<m:oMath>" * 200 + "<m:r><m:t>Omega</m:t></m:r>" + "</m:oMath>" * 200 + "</w:p>"
    ),
    "deeper.docx": word("<w:p>" + "<m:e>" * 100_000 + "</m:e>" * 100_000 + "</w:p>"),
    "charts.docx": word(_SAME * 300, {"word/c.xml": f"<c:chartSpace {NAMES}/>"}, chart="c.xml"),
    "spans.docx": word(f"<w:tbl>{_WIDE * 999}</w:tbl>"),
    "corner.xlsx": _workbook(
        f"<sheetData><row r='1048576'>{_CELL.format('XFD1048576')}</row></sheetData>"
    ),
    "merged.xlsx": _workbook(
        "<sheetData>"
        + "".join(f"<row>{_CELL.format('A' + str(n))}</row>" for n in range(1, 500))
        + "</sheetData><mergeCells>"
        + '<mergeCell ref="A1:XFD1048576"/>' * 50_000
        + "</mergeCells>"
    ),
    "repeated.ods": _ods(_REPEAT * 50),
    "spans.html": b"<table>" + b"<tr><td rowspan=1000 colspan=1000>x<td>y" * 300 + b"</table>",
    "sup.html": b"<sup>" * 20_000 + b"x",
    "ruby.html": b"<ruby>" * 20_000 + b"x<rt>y",
    "tables.html": b"<table><tr><td>" * 3_000 + b"x",
    "alternatives.eml": (
        b"From: a@b\nContent-Type: multipart/alternative; boundary=b\n\n"
        + b"".join(
            b"--b\nContent-Type: text/plain\n\n" + b"word%d " % n * 50 + b"\n" for n in range(300)
        )
        + b"--b--"
    ),
    "boundary.eml": (
        b"From: a@b\nContent-Type: multipart/mixed; boundary=x\n\n--y"
        + b" " * 100_000
        + b"z\n" * 1000
    ),
    "super.rtf": b"{\\rtf1 " + b"{\\super 1" * 5_000 + b"}" * 5_000 + b"}",
    "hidden.rtf": b"{\\rtf1 " + b"{\\v x\\deleted y" * 20_000 + b"}" * 20_000 + b"}",
    "boxes.rtf": b"{\\rtf1 " + b"{\\shp{\\shptxt x}}" * 300 + b"}",
    "lists.html": b"<ol reversed><li>" * 10_000 + b"x",
    "items.html": b"<ol reversed>" + b"<li value=999999999999>x" * 50_000,
    "objects.odt": _odt(
        "<draw:frame><draw:object xlink:href='./A'/></draw:frame>" * 3_000, "A/content.xml"
    ),
    "lists.odt": _odt(
        "<text:list><text:list-item>" * 100 + "<text:p/>" + "</text:list-item></text:list>" * 100
    ),
    "forms.odt": _odt(
        "<office:forms>" + "<form:text form:current-value='x'/>" * 50_000 + "</office:forms>"
    ),
    "styles.docx": word(_STYLED, {"word/styles.xml": _CHAIN}, styles="styles.xml"),
    "notes.rtf": b"{\\rtf1 " + b"{\\footnote x}" * 300 + b"}",
    "times.srt": b"1\n00:00:01,000 --> 00:00:02,000\n" * 5_000,
    "quote.csv": b'a,"' + b"x\n" * 200_000,
    "fold.ics": b"BEGIN:VCALENDAR\nDESCRIPTION:" + b"a\n " * 100_000,
    "digits.pdf": make_pdf([["1" * 90] * 30] * 10),
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_file_is_read_or_refused_in_seconds(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(COSTLY[name])
    kind = kind_of(path, in_folder=True)
    assert kind is not None
    began = time.process_time()
    # the process that reads files tells the latter as "nested too deeply"
    with suppress(Unreadable, RecursionError):
        assert len(read_file(path, kind, Limits(1 << 20))[0].text) <= 1 << 20
    assert time.process_time() - began < 10
