"""Text that people's tools write in other ways than the first examples of a kind: marks, hidden
text, rows, notes.
"""

from __future__ import annotations

import io
import json
import re
from email.message import EmailMessage
from typing import TYPE_CHECKING

import pytest

from tests.documents.test_office_parts import NAMES, edited, lines, p, word
from tests.documents.written import save_office
from tests.indexes.files import make_zip

if TYPE_CHECKING:
    from collections.abc import Callable

    from reportlab.pdfgen.canvas import Canvas

    from tests.documents.conftest import Read

for package in (
    "lxml",
    "docx",
    "pptx",
    "openpyxl",
    "odf",
    "selectolax",
    "striprtf",
    "pypdfium2",
    "reportlab",
):
    pytest.importorskip(package)


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def opendocument(body: str, styles: str = "", kind: str = "text") -> bytes:
    short = {"fo": "xsl-fo-compatible", "draw": "drawing"}
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{short.get(name, name)}:1.0"'
        for name in ("office", "text", "table", "style", "fo", "draw")
    )
    content = (
        "<office:document-content"
        f" {names}><office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>"
    )
    return make_zip(
        {
            "mimetype": f"application/vnd.oasis.opendocument.{kind}".encode(),
            "content.xml": content.encode(),
        }
    )


def pdf(draw: Callable[[Canvas], None]) -> bytes:
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(595, 842))
    canvas.setFont("Helvetica", 11)
    draw(canvas)
    canvas.save()
    return out.getvalue()


MARK_STYLE = (
    f'<w:styles {NAMES}><w:style w:styleId="M"><w:name w:val="Mark"/><w:rPr><w:vertAlign'
    ' w:val="superscript"/></w:rPr></w:style><w:style w:styleId="H"><w:name'
    ' w:val="Hidden"/><w:rPr><w:vanish/></w:rPr></w:style></w:styles>'
)


def test_a_style_of_word_raises_or_hides(read: Read) -> None:
    body = (
        run("tenant") + run("3", '<w:rStyle w:val="M"/>') + run(" secret", '<w:rStyle w:val="H"/>')
    )
    found = read(
        "a.docx", word(f"<w:p>{body}</w:p>", {"word/styles.xml": MARK_STYLE}, styles="styles.xml")
    )
    assert lines(found.text) == ["tenant[3]"]
    assert "hidden text" in found.warning


def test_a_number_that_somebody_has_moved_up_is_a_power_or_a_mark(read: Read) -> None:
    moved = '<w:position w:val="8"/><w:sz w:val="12"/>'
    body = (
        run("10")
        + run("6", moved)
        + run(" cells of a tenant")
        + run("4", moved)
        + run(" in form")
        + run("ula")
    )
    assert lines(read("a.docx", word(f"<w:p>{body}</w:p>")).text) == [
        "10^6 cells of a tenant[4] in formula"
    ]


def test_inserted_and_moved_text_is_read_and_deleted_text_is_not(read: Read) -> None:
    body = (
        f'{run("alpha ")}<w:ins w:id="1">{run("beta ")}</w:ins><w:moveTo'
        f' w:id="2">{run("moved")}</w:moveTo><w:moveFrom w:id="3">{run("was")}</w:moveFrom><w:del'
        ' w:id="4"><w:r><w:delText>gone</w:delText></w:r></w:del>'
    )
    assert lines(read("a.docx", word(f"<w:p>{body}</w:p>")).text) == ["alpha beta moved"]


def test_fields_links_and_controls_are_text(read: Read) -> None:
    body = (
        f'{run("see ")}<w:fldSimple w:instr="REF'
        f' a">{run("Clause 9")}</w:fldSimple><w:hyperlink>{run(" link")}'
        f"</w:hyperlink><w:sdt><w:sdtPr/><w:sdtContent>{run(' chosen')}</w:sdtContent></w:sdt>"
        f"{run(' Verord')}<w:r><w:softHyphen/><w:t>nung A</w:t><w:noBreakHyphen/><w:t>7</w:t></w:r>"
    )
    assert lines(read("a.docx", word(f"<w:p>{body}</w:p>")).text) == [
        "see Clause 9 link chosen Verordnung A-7"
    ]


def test_numbers_of_three_levels(read: Read) -> None:
    shapes = (("upperRoman", "%1."), ("decimal", "%1.%2"), ("lowerLetter", "(%3)"))
    levels = "".join(
        f'<w:lvl w:ilvl="{depth}"><w:numFmt w:val="{kind}"/><w:lvlText w:val="{shape}"/></w:lvl>'
        for depth, (kind, shape) in enumerate(shapes)
    )
    numbering = (
        f'<w:numbering {NAMES}><w:abstractNum w:abstractNumId="0">{levels}</w:abstractNum>'
        '<w:num w:numId="5"><w:abstractNumId w:val="0"/></w:num></w:numbering>'
    )
    body = "".join(
        p(text, f'<w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="5"/></w:numPr>')
        for depth, text in ((0, "one"), (0, "two"), (1, "sub"), (2, "x"), (2, "y"), (0, "three"))
    )
    found = read("a.docx", word(body, {"word/numbering.xml": numbering}, numbering="numbering.xml"))
    assert lines(found.text) == ["I. one", "II. two", "II.1 sub", "(a) x", "(b) y", "III. three"]


def test_a_style_above_raises_in_opendocument(read: Read) -> None:
    styles = (
        '<style:style style:name="Up"><style:text-properties style:text-position="super'
        ' 58%"/></style:style><style:style style:name="T1"'
        ' style:parent-style-name="Up"><style:text-properties/></style:style><style:style'
        ' style:name="T2" style:parent-style-name="T2"/>'
    )
    raised, circular = (
        f'<text:span text:style-name="{name}">{text}</text:span>'
        for name, text in [("T1", 3), ("T2", 0)]
    )
    body = f"<text:p>tenant{raised} {circular}</text:p>"
    assert lines(read("a.odt", opendocument(body, styles)).text) == ["tenant[3] 0"]


@pytest.mark.parametrize("kind", ["text", "spreadsheet"])
def test_values_over_some_rows_stand_in_each(read: Read, kind: str) -> None:
    def cell(text: str, attributes: str = "") -> str:
        return f"<table:table-cell {attributes}><text:p>{text}</text:p></table:table-cell>"

    spanned = 'table:number-rows-spanned="2"'
    table = (
        f"<table:table><table:table-row>{cell('Region')}{cell('Part')}</table:table-row>"
        f"<table:table-row>{cell('North', spanned)}{cell('Nut')}</table:table-row>"
        f"<table:table-row><table:covered-table-cell/>{cell('7.50%')}</table:table-row>"
        f"<table:table-row>{cell('South')}{cell('Bolt')}</table:table-row></table:table>"
    )
    found = read("a.odt" if kind == "text" else "a.ods", opendocument(table, kind=kind))
    assert lines(found.text)[-4:] == [
        "Region | Part",
        "North | Nut",
        "North | 7.50%",
        "South | Bolt",
    ]


def test_notes_boxes_and_deletions_of_opendocument(read: Read) -> None:
    deleted = "<text:tracked-changes><text:deletion><text:p>gone</text:p></text:deletion></text:tracked-changes>"  # noqa: E501
    note = "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>wolframite</text:p>"  # noqa: E501
    box = "<draw:frame><draw:text-box><text:p>boxed</text:p></draw:text-box></draw:frame>"
    body = f"{deleted}<text:p>landlord{note}</text:note-body></text:note> pays{box}</text:p>"
    assert lines(read("a.odt", opendocument(body)).text) == ["landlord pays", "boxed", "wolframite"]


def test_strict_presentations_and_sheets(read: Read) -> None:
    import openpyxl
    import pptx

    def strict(name: str, data: bytes) -> bytes:
        known = rb"http://schemas.openxmlformats.org/(officeDocument|presentationml|spreadsheetml|drawingml)/2006/"
        return (
            re.sub(known, rb"http://purl.oclc.org/ooxml/\1/", data)
            if name.endswith((".xml", ".rels"))
            else data
        )

    book = openpyxl.Workbook()
    book.active.append(["cobalt", 0.5])
    assert "cobalt | 0.5" in read("a.xlsx", edited(save_office(book), strict)).text
    slides = pptx.Presentation()
    slides.slides.add_slide(slides.slide_layouts[1]).shapes.title.text = "About neon"
    assert "# About neon" in read("a.pptx", edited(save_office(slides), strict)).text


def test_formats_of_cells(read: Read) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    shapes = (
        (0.075, "0.0%"),
        (45000, "dd/mm/yyyy"),
        (7, "00000"),
        (-5, "0;(0)"),
        (0.5, "h:mm"),
        (1e-5, "0.00E+00"),
        (5551234, "(###) ###-####"),
        (12.5, '"EUR" 0.00'),
        (-1.5, "[$€-407] 0.00"),
    )
    for column, (value, shape) in enumerate(shapes, start=1):
        book.active.cell(1, column, value).number_format = shape
    wanted = (
        "7.5% | 15/03/2023 | 00007 | (5) | 12:00 | 1.00E-05 | () 555-1234 | EUR 12.50 | -€ 1.50"
    )
    assert lines(read("a.xlsx", save_office(book)).text)[1] == wanted


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        (
            'tenant<span style="font-size: 8pt; vertical-align: super">12</span> pays',
            "tenant[12] pays",
        ),
        ('tenant<a epub:type="noteref" href="#n">1</a> pays', "tenant[1] pays"),
        ('tenant<sup><a role="doc-noteref" href="#n">4</a></sup> pays', "tenant[4] pays"),
        ('H<span style="vertical-align:sub">2</span>O', "H2O"),
        ("super<wbr>cali<output>7</output>", "supercali 7"),
        ("<details><summary>More</summary>osmium</details>", "More\nosmium"),
        ("<dialog>secret</dialog><p style='DISPLAY : none'>gone</p>seen", "seen"),
        (
            "<select multiple><option selected>one<option>two<option selected>three</select>",
            "one\nthree",
        ),
        (
            "<table><tr><td rowspan=2><p>a</p><td>b<br>c<tr><td><ul><li>d</ul></table>",
            "a | b c\na | d",
        ),
        (
            "<table><tr><th colspan=2>Item<th>Price<tr><td>a<td><td>b</table>",
            "Item | Price\na |  | b",
        ),
    ],
)
def test_pages_of_html(read: Read, page: str, wanted: str) -> None:
    found = read("a.html", f"<!doctype html><meta charset=utf-8><body>{page}".encode())
    assert re.sub(r"\n\n+", "\n\n", found.text) == wanted


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (rb"tenant{\up6 3} pays 10{\up6 6}\par H{\dn4 2}O", ["tenant[3] pays 10^6", "H2O"]),
        (rb"tenant\up6 3\up0  pays", ["tenant[3] pays"]),
        (
            rb"\trowd\cellx1\cellx2 a\cell b\cell\row c\cell d\cell\row after",
            ["a | b", "c | d", "after"],
        ),
        (
            rb"\u322?\'f3d\'9f{\footnote about ytterbium}",
            ["\u0142\u00f3d\u017a", "about ytterbium"],
        ),
    ],
)
def test_rtf(read: Read, source: bytes, wanted: list[str]) -> None:
    found = read("a.rtf", rb"{\rtf1\ansi\ansicpg1250 " + source + b"}")
    assert [line.strip() for line in lines(found.text)] == wanted


def test_who_speaks_is_read(read: Read) -> None:
    first = "00:01.000 --> 00:02.000\n<v Roger Bingham>We are <i>here</i>."
    cues = f"WEBVTT\n\n{first}\n\n00:02.000 --> 00:03.000\n<v.loud Mary>Yes.\n".encode()
    assert lines(read("a.vtt", cues).text) == ["Roger Bingham: We are here.", "Mary: Yes."]


def test_errors_and_pages_that_a_notebook_shows(read: Read) -> None:
    outputs = [
        {"output_type": "error", "ename": "ValueError", "evalue": "bad thorium", "traceback": []},
        {"output_type": "display_data", "data": {"text/markdown": ["**actinium**"]}},
        {
            "output_type": "execute_result",
            "data": {"text/html": "<table><tr><td>polonium<td>2</table>"},
        },
    ]
    cell = {"cell_type": "code", "source": "x", "outputs": outputs}
    text = read("a.ipynb", json.dumps({"cells": [cell], "metadata": {}}).encode()).text
    assert [
        word for word in ("bad thorium", "**actinium**", "polonium | 2") if word not in text
    ] == []


def test_text_that_runs_upwards_or_upside_down(read: Read) -> None:
    def draw(canvas: Canvas, angle: int) -> None:
        canvas.translate(595 * (angle == 180), 842 * (angle == 180))
        canvas.rotate(angle)
        for row in range(12):
            place = (60, 700 - 16 * row) if angle == 180 else (60, -100 - 16 * row)
            canvas.drawString(*place, f"row{row} alpha{row} beta{row}")

    wanted = [f"row{row} alpha{row} beta{row}" for row in range(12)]
    for angle in (90, 180):
        assert [
            line.strip()
            for line in lines(read("a.pdf", pdf(lambda canvas: draw(canvas, angle))).text)  # noqa: B023
        ] == wanted


def test_hyphens_at_the_ends_of_lines(read: Read) -> None:
    written = (
        "a well-known rule and the e-",
        "mail of MS-",
        "DOSE shows a govern-",
        "ment of 2019-",
        "2020, a well-",
        "known B-",
        "52",
    )

    def draw(canvas: Canvas) -> None:
        for row, text in enumerate(written):
            canvas.drawString(60, 700 - 14 * row, text)

    words = " ".join(read("a.pdf", pdf(draw)).text.split())
    assert (
        words == "a well-known rule and the e-mail of MS-DOSE shows a government of 2019-2020, a"
        " well-known B-52"
    )


def test_fields_of_a_form(read: Read) -> None:
    def draw(canvas: Canvas) -> None:
        form = canvas.acroForm
        canvas.drawString(60, 720, "Form")
        form.textfield(
            name="more",
            value="first\nholmium",
            x=60,
            y=600,
            width=200,
            height=60,
            fieldFlags="multiline",
        )
        form.checkbox(name="agree", checked=True, x=60, y=560)
        form.checkbox(name="refuse", checked=False, x=60, y=540)
        form.choice(
            name="town",
            value="Lutetia",
            options=["Roma", "Lutetia"],
            x=60,
            y=500,
            width=100,
            height=20,
        )
        form.radio(name="size", value="big", selected=True, x=60, y=470)
        form.radio(name="size", value="small", selected=False, x=90, y=470)
        canvas.freeTextAnnotation("about zirconia", Rect=[60, 60, 200, 90], DA="/Helv 10 Tf")

    assert lines(read("a.pdf", pdf(draw)).text) == [
        "Form",
        "more: first",
        "holmium",
        "agree: yes",
        "town: Lutetia",
        "size: big",
        "about zirconia",
    ]


def test_parts_of_mails_by_type(read: Read) -> None:
    mail = EmailMessage()
    mail["From"], mail["Subject"] = "a@b.c", "S"
    mail.set_content("See the other version.")
    mail.add_alternative('<p>palladium <img src="cid:x"> invoice</p>', subtype="html")
    mail.add_attachment("a,b\n1,europium\n", subtype="csv", filename="daten \u00fc")
    mail.add_attachment(
        word(p("yttrium")), maintype="application", subtype="octet-stream", filename="noname"
    )
    mail.add_attachment("+promethium\n", subtype="x-patch", filename="fix.patch")
    mail.add_attachment(
        b"\0\1\2", maintype="application", subtype="ms-tnef", filename="winmail.dat"
    )
    found = read("a.eml", mail.as_bytes())
    wanted = ("palladium invoice", "1 | europium", "yttrium", "promethium")
    assert [word for word in wanted if word not in found.text] == []
    assert "winmail.dat" in found.warning


@pytest.mark.parametrize(
    "encoding", ["utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le", "utf-16", "utf-32"]
)
def test_wide_text_with_and_without_a_mark(read: Read, encoding: str) -> None:
    text = "The antimony works of \u00c9vora. " * 3
    assert read("a.txt", text.encode(encoding)).text == text


@pytest.mark.parametrize(
    ("label", "encoding", "text"),
    [
        ("iso-8859-9", "cp1254", "\u0131\u011fd\u0131r"),
        ("tis-620", "cp874", "\u0e2a\u0e27\u0e31\u0e2a"),
        ("ks_c_5601-1987", "cp949", "\ud55c\uad6d"),
        ("x-mac-cyrillic", "mac-cyrillic", "\u044f\u0437\u044b\u043a"),
    ],
)
def test_labels_that_browsers_know(read: Read, label: str, encoding: str, text: str) -> None:
    page = f'<meta http-equiv="Content-Type" content="text/html; charset={label}"><p>{text}</p>'
    assert read("a.html", page.encode(encoding)).text == text
