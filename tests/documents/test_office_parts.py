"""Word, PowerPoint, Excel and OpenDocument: what their parts say, and parts that the text does not
need.
"""

from __future__ import annotations

import io
import re
import zipfile
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.readers.sheets import shown_number
from aveyb_retrieval.encoder.text.passages import outline
from tests.documents.written import save_office
from tests.indexes.files import make_docx, make_zip

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.documents.conftest import Read

for package in ("lxml", "docx", "pptx", "openpyxl", "odf"):
    pytest.importorskip(package)

NAMES = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
    'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
)
RELATION = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def word(body: str, parts: dict[str, str] | None = None, **related: str) -> bytes:
    """A document of Word with this body, and other parts that `related` names by their kinds."""
    relations = "".join(
        f'<Relationship Id="{kind}" Type="{RELATION}/{kind}" Target="{target}"/>'
        for kind, target in related.items()
    )
    top = (
        "<Relationships"
        ' xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}</Relationships>'
    )
    main = f'<Relationship Id="a" Type="{RELATION}/officeDocument" Target="word/document.xml"/>'
    files = {
        "_rels/.rels": top.format(main),
        "word/document.xml": f"<w:document {NAMES}><w:body>{body}</w:body></w:document>",
        "word/_rels/document.xml.rels": top.format(relations),
        **(parts or {}),
    }
    return make_zip({name: text.encode() for name, text in files.items()})


def p(text: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def edited(data: bytes, edit: Callable[[str, bytes], bytes | None]) -> bytes:
    """An archive whose files were edited; those that become None are gone."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: edit(name, archive.read(name)) for name in archive.namelist()}
    return make_zip({name: content for name, content in files.items() if content is not None})


def lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


@pytest.mark.parametrize(
    "lost", ["word/styles.xml", "word/numbering.xml", "docProps/core.xml", "word/theme/theme1.xml"]
)
def test_a_missing_or_damaged_part_costs_what_it_holds(read: Read, lost: str) -> None:
    data = make_docx([("", "about seaborgium")], title="T")
    assert (
        read("a.docx", edited(data, lambda name, content: None if name == lost else content)).text
        == "about seaborgium"
    )
    damaged = read(
        "b.docx", edited(data, lambda name, content: content[:50] if name == lost else content)
    )
    assert damaged.text == "about seaborgium"
    assert lost in damaged.warning or "theme" in lost


def test_relations_that_lead_nowhere_and_the_strict_standard(read: Read) -> None:
    rest = f'<Relationship Id="x" Type="{RELATION}/image" Target="NULL"/></Relationships>'.encode()
    data = make_docx([("Heading 1", "Head"), ("", "about seaborgium")])
    nowhere = edited(data, lambda name, content: content.replace(b"</Relationships>", rest))
    assert lines(read("a.docx", nowhere).text) == ["# Head", "about seaborgium"]

    def strict(name: str, content: bytes) -> bytes:
        pattern = (
            rb"http://schemas.openxmlformats.org/(officeDocument|wordprocessingml|drawingml)/2006/"
        )
        return re.sub(pattern, rb"http://purl.oclc.org/ooxml/\1/", content)

    assert lines(read("b.docx", edited(data, strict)).text) == ["# Head", "about seaborgium"]


def test_lists_have_the_numbers_that_word_shows(read: Read) -> None:
    levels = "".join(
        f'<w:lvl w:ilvl="{n}"><w:start w:val="1"/><w:numFmt w:val="{kind}"/><w:lvlText'
        f' w:val="{shape}"/></w:lvl>'
        for n, (kind, shape) in enumerate(
            [("decimal", "%1."), ("lowerLetter", "(%2)"), ("upperRoman", "%1-%3")]
        )
    )
    bullets = '<w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/><w:lvlText w:val="x"/></w:lvl>'
    numbering = (
        f"<w:numbering {NAMES}><w:abstractNum"
        f' w:abstractNumId="0">{levels}</w:abstractNum><w:abstractNum'
        f' w:abstractNumId="1">{bullets}</w:abstractNum><w:num w:numId="1"><w:abstractNumId'
        ' w:val="0"/></w:num><w:num w:numId="2"><w:abstractNumId w:val="1"/></w:num><w:num'
        ' w:numId="3"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0"><w:startOverride'
        ' w:val="7"/></w:lvlOverride></w:num></w:numbering>'
    )

    def item(text: str, listed: int, level: int = 0, more: str = "") -> str:
        return p(
            text, f'{more}<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{listed}"/></w:numPr>'
        )

    body = "".join(
        [
            item("Parties", 1),
            item("buyer", 1, 1),
            item("seller", 1, 1),
            item("deep", 1, 2),
            item("Price", 1),
            item("paid", 1, 1),
            item("dot", 2),
            item("again", 3),
            item("Law", 3, 0, '<w:outlineLvl w:val="0"/>'),
        ]
    )
    found = read("a.docx", word(body, {"word/numbering.xml": numbering}, numbering="numbering.xml"))
    assert lines(found.text) == [
        "1. Parties",
        "(a) buyer",
        "(b) seller",
        "1-I deep",
        "2. Price",
        "(a) paid",
        "- dot",
        "7. again",
        "# 8. Law",
    ]


def test_equations_symbols_readings_charts_and_asides_of_word(read: Read) -> None:
    fraction = (
        "<m:f><m:num><m:r><m:t>a+b</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f>"
    )
    run = "<w:r><w:t>{}</w:t></w:r>"
    ruby = f"<w:r><w:ruby><w:rt>{run}</w:rt><w:rubyBase>{run}</w:rubyBase></w:ruby></w:r>"
    body = (
        "<w:p><m:oMath><m:r><m:t>W=k"
        f" ln</m:t></m:r><m:r><m:t>Omega</m:t></m:r>{fraction}</m:oMath></w:p><w:p>{ruby.format('tou', 'A')}{ruby.format('kyou', 'B')}<w:r><w:t>"  # noqa: E501
        ' ends</w:t></w:r></w:p><w:p><w:r><w:sym w:font="Symbol" w:char="F061"/><w:t>'
        " rays</w:t></w:r></w:p><w:p><w:r><w:drawing><c:chart"
        ' r:id="chart"/></w:drawing></w:r></w:p><w:p><w:ins><w:r><w:t>kept</w:t></w:r></w:ins><w:del><w:r><w:delText>gone</w:delText></w:r></w:del></w:p><w:p><w:r><w:rPr><w:vanish/></w:rPr><w:t>secret</w:t></w:r></w:p><w:p><w:r><w:rPr><w:color'  # noqa: E501
        ' w:val="FFFFFF"/></w:rPr><w:t>white</w:t></w:r></w:p>'
    )
    series = (
        "<c:ser><c:tx><c:strRef><c:strCache><c:pt"
        " idx='0'><c:v>Sales</c:v></c:pt></c:strCache></c:strRef></c:tx><c:cat><c:strRef><c:strCache><c:pt"  # noqa: E501
        " idx='0'><c:v>North</c:v></c:pt></c:strCache></c:strRef></c:cat><c:val><c:numRef><c:numCache><c:pt"  # noqa: E501
        " idx='0'><c:v>12</c:v></c:pt></c:numCache></c:numRef></c:val></c:ser>"
    )
    parts = {
        "word/chart.xml": (
            "<c:chartSpace"
            f" {NAMES}><c:chart><c:plotArea>{series}</c:plotArea></c:chart></c:chartSpace>"
        ),
        "word/notes.xml": (
            f"<w:footnotes {NAMES}><w:footnote>{p('the note')}</w:footnote></w:footnotes>"
        ),
        "word/comments.xml": (
            f'<w:comments {NAMES}><w:comment w:author="Ines">{p("why?")}</w:comment></w:comments>'
        ),
        "word/footer.xml": f"<w:ftr {NAMES}>{p('Valid until 31 May')}</w:ftr>",
    }
    found = read(
        "a.docx",
        word(
            body,
            parts,
            chart="chart.xml",
            footnotes="notes.xml",
            comments="comments.xml",
            footer="footer.xml",
        ),
    )
    assert lines(found.text) == [
        "W=k ln Omega(a+b)/2",
        "AB(toukyou) ends",
        "\u03b1 rays",
        "Sales",
        "North | 12",
        "kept",
        "the note",
        "Comment (Ines): why?",
        "Valid until 31 May",
    ]
    assert found.warning == "hidden text left out (2 places)"


def test_page_headers_and_footers_of_word_are_no_headings(read: Read) -> None:
    parts = {
        "word/header.xml": (
            f"<w:hdr {NAMES}>{p('Nimbus Master Agreement')}{p('')}{p('Draft Two')}</w:hdr>"
        ),
        "word/footer.xml": f"<w:ftr {NAMES}>{p('Valid until 31 May')}</w:ftr>",
    }
    found = read(
        "a.docx",
        word(p("Either party may end it."), parts, header="header.xml", footer="footer.xml"),
    )
    assert lines(found.text)[1:] == ["Nimbus Master Agreement", "Draft Two", "Valid until 31 May"]
    assert not outline(found.text).headings


def test_merged_cells_of_a_table_of_word_repeat_their_value(read: Read) -> None:
    merge = '<w:tcPr><w:vMerge w:val="{}"/></w:tcPr>'
    rows = (
        f"<w:tr><w:tc>{merge.format('restart')}{p('North')}</w:tc><w:tc>{p('Bolt')}</w:tc></w:tr>"
        f"<w:tr><w:tc>{merge.format('continue')}{p('')}</w:tc><w:tc>{p('Nut')}</w:tc></w:tr>"
    )
    assert lines(read("a.docx", word(f"<w:tbl>{rows}</w:tbl>")).text) == [
        "North | Bolt",
        "North | Nut",
    ]


def test_slides_have_charts_numbers_and_comments_and_hidden_ones_are_told(read: Read) -> None:
    import pptx
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE

    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text = "Plan"
    frame = slide.placeholders[1].text_frame
    frame.text = "first"
    frame.add_paragraph().text = "second"
    for paragraph in frame.paragraphs:
        properties = paragraph._p.get_or_add_pPr()
        numbered = properties.makeelement(
            f"{{{properties.nsmap['a']}}}buAutoNum", {"type": "alphaLcParenBoth"}
        )
        properties.append(numbered)
    data = CategoryChartData()
    data.categories = ["North", "South"]
    data.add_series("Sales", (12, 15))
    slide.shapes.add_chart(XL_CHART_TYPE.BAR_CLUSTERED, 0, 0, 100, 100, data)
    hidden = show.slides.add_slide(show.slide_layouts[1])
    hidden.shapes.title.text = "secret zirconium"
    hidden._element.set("show", "0")
    found = read("a.pptx", save_office(show))
    assert lines(found.text) == [
        "# Plan",
        "(a) first",
        "(b) second",
        "Sales",
        "North | 12.0",
        "South | 15.0",
    ] or (lines(found.text)[-2:] == ["North | 12", "South | 15"])
    assert found.warning == "1 slide hidden and left out: 2"
    assert found.pages is not None and len(found.pages.starts) == 2


SHOWN = [
    (0.075, "0.0%", "7.5%"),
    (1234, "00000", "01234"),
    (2 / 3, "0.00", "0.67"),
    (1234.5, '"$"#,##0.00', "$1,234.50"),
    (-5, "0;(0)", "(5)"),
    (46053, "dd/mm/yyyy", "31/01/2026"),
    (46053.75, "yyyy-mm-dd hh:mm", "2026-01-31 18:00"),
    (0.25, "h:mm AM/PM", "6:00 AM"),
    (1.5, "[h]:mm:ss", "36:00:00"),
    (5551234, "000-0000", "555-1234"),
    (1500000, '0.0,,"M"', "1.5M"),
    (0.1 + 0.2, "General", "0.3"),
    (12.5, '0.0" kg"', "12.5 kg"),
    (3.0, "0.##", "3"),
    (46053, "mmmm yyyy", "January 2026"),
    (1e20, "0", "100000000000000000000"),
    (-1, "yyyy", "1899"),
    (46053, "dd.mm.yyyy", "31.01.2026"),
    (46053, "mmm d, yyyy", "Jan 31, 2026"),
    (46053.75, "hh:mm:ss.000", "18:00:00"),
]


@pytest.mark.parametrize(("value", "shape", "text"), SHOWN)
def test_numbers_are_written_as_their_format_shows_them(
    value: float, shape: str, text: str
) -> None:
    assert shown_number(value, shape) == text


def test_sheets_are_read_as_they_are_shown(read: Read) -> None:
    import openpyxl
    from openpyxl.comments import Comment
    from openpyxl.styles import Font

    book = openpyxl.Workbook()
    sheet = book.active
    for row in (
        ["Region", "Item", "Share", "secret"],
        ["North", "Bolt", 0.125, "yttrium"],
        ["", "Nut", 0.5, ""],
        ["South", "Cog", "=1+1", ""],
        ["hidden row", "x", 1, ""],
        ["white", "", "", ""],
    ):
        sheet.append(row)
    sheet.merge_cells("A2:A3")
    for place in ("C2", "C3"):
        sheet[place].number_format = "0.0%"
    sheet["B2"].comment = Comment("count them", "Ines")
    sheet["A6"].font = Font(color="FFFFFFFF")
    sheet.column_dimensions["D"].hidden = True
    sheet.row_dimensions[5].hidden = True
    book.create_sheet("cellar").sheet_state = "hidden"
    found = read("a.xlsx", save_office(book))
    assert lines(found.text) == [
        "# Sheet",
        "Region | Item | Share",
        "North | Bolt | 12.5%",
        "North | Nut | 50.0%",
        "South | Cog",
        "Comment on B2: count them",
    ]
    for told in (
        "1 hidden sheet left out: cellar",
        "1 hidden row left out",
        "2 cells of hidden columns left out",
        "1 cell in white on white left out",
        "1 formula without a value",
    ):
        assert told in found.warning


def test_a_long_sheet_repeats_the_names_of_its_columns(read: Read) -> None:
    rows = "".join(f"HM-{n},Bolt of kind {n},Q-{n}\n" for n in range(200))
    path = make_zip({"parts.csv": f"part,name,shelf\n{rows}".encode()})
    text = read("a.zip", path).text
    assert text.count("part | name | shelf") > 5
    blocks = text.split("part | name | shelf")
    assert max(map(len, blocks)) < 700
    assert "HM-199 | Bolt of kind 199 | Q-199" in text


def test_texts_and_sheets_of_libreoffice(read: Read) -> None:
    from odf.opendocument import OpenDocumentSpreadsheet, OpenDocumentText
    from odf.table import Table, TableCell, TableRow
    from odf.text import (
        List,
        ListItem,
        ListLevelStyleNumber,
        ListStyle,
        Note,
        NoteBody,
        NoteCitation,
        P,
    )

    document = OpenDocumentText()
    style = ListStyle(name="L")
    style.addElement(ListLevelStyleNumber(level="1", numformat="a", numsuffix=")"))
    document.automaticstyles.addElement(style)
    paragraph = P(text="The landlord")
    note = Note(noteclass="footnote")
    note.addElement(NoteCitation(text="1"))
    body = NoteBody()
    body.addElement(P(text="Wolframite."))
    note.addElement(body)
    paragraph.addElement(note)
    paragraph.addText(" pays.")
    document.text.addElement(paragraph)
    listed = List(stylename="L")
    for words in ("one", "two"):
        entry = ListItem()
        entry.addElement(P(text=words))
        listed.addElement(entry)
    document.text.addElement(listed)
    assert lines(read("a.odt", save_office(document)).text) == [
        "The landlord pays.",
        "a) one",
        "b) two",
        "Wolframite.",
    ]
    sheets = OpenDocumentSpreadsheet()
    table = Table(name="Rates")
    for cells in (("North", "7.5 %"), ("", "01234")):
        row = TableRow()
        for number, text in enumerate(cells):
            cell = TableCell(numberrowsspanned="2") if text == "North" else TableCell()
            if text:
                cell.addElement(P(text=text))
            row.addElement(cell)
            assert number < 2
        table.addElement(row)
    sheets.spreadsheet.addElement(table)
    assert lines(read("a.ods", save_office(sheets)).text) == [
        "# Rates",
        "North | 7.5 %",
        "North | 01234",
    ]
