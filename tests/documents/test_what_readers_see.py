# ruff: noqa: RUF001
"""Readers say what a person sees: signs, numbers, equations, captions, outputs, odd bytes."""

from __future__ import annotations

import json
import zipfile
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.readers.equations import grouped, matrix, root, scripts
from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.readers.html import page_text
from aveyb_retrieval.documents.readers.list_numbers import number_as
from aveyb_retrieval.documents.readers.markdown import read_markdown
from aveyb_retrieval.documents.readers.sheets import shown_number
from aveyb_retrieval.documents.readers.symbol_fonts import UNKNOWN, in_symbol_font, sign_of
from aveyb_retrieval.documents.readers.table_lines import separator_of
from aveyb_retrieval.encoder.text.passages import outline

if TYPE_CHECKING:
    from tests.documents.conftest import Read

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
MATH = "http://schemas.openxmlformats.org/officeDocument/2006/math"


def docx(body: str, numbering: str = "") -> bytes:
    """A document of Word with this body and these lists."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        root = f'<w:document xmlns:w="{W}" xmlns:m="{MATH}"><w:body>{body}</w:body></w:document>'
        archive.writestr("word/document.xml", root)
        if numbering:
            lists = f'<w:numbering xmlns:w="{W}">{numbering}</w:numbering>'
            archive.writestr("word/numbering.xml", lists)
    return out.getvalue()


def paragraph(text: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


DELETED = "<w:rPr><w:del/></w:rPr>"


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (f"<w:sdt><w:sdtContent>{paragraph('kept', DELETED)}</w:sdtContent></w:sdt>", ["kept"]),
        (paragraph("one ", DELETED) + paragraph("two"), ["one two"]),
        (
            paragraph("above", DELETED)
            + f"<w:tbl><w:tr><w:tc>{paragraph('cell', DELETED)}</w:tc></w:tr></w:tbl>"
            + paragraph("last", DELETED),
            ["above", "cell", "last"],
        ),
    ],
)
def test_a_paragraph_whose_end_is_deleted_keeps_its_place(
    read: Read, body: str, lines: list[str]
) -> None:
    assert read("a.docx", docx(body)).text.split("\n\n") == lines


def test_rows_of_word_keep_their_columns_and_are_no_headings(read: Read) -> None:
    heading = '<w:outlineLvl w:val="0"/>'
    late = '<w:trPr><w:gridBefore w:val="1"/></w:trPr>'
    cells = [f"<w:tc>{paragraph(text, heading)}</w:tc>" for text in ("Item", "Price")]
    table = (
        f"<w:tbl><w:tr>{''.join(cells)}</w:tr><w:tr>{late}<w:tc>{paragraph('7')}</w:tc></w:tr>"
        "</w:tbl>"
    )
    assert read("a.docx", docx(table)).text == "Item | Price\n | 7"


def test_boxes_of_an_old_form_say_whether_they_are_ticked(read: Read) -> None:
    def box(inside: str) -> str:
        field = f"<w:ffData><w:checkBox>{inside}</w:checkBox></w:ffData>"
        return f"<w:r><w:fldChar>{field}</w:fldChar></w:r>"

    ticked = '<w:default w:val="1"/>'
    emptied = f'{ticked}<w:checked w:val="0"/>'
    body = f"<w:p>{box(ticked)}{box(emptied)}</w:p>"
    assert read("a.docx", docx(body)).text == "☒☐"


def test_clauses_are_numbered_in_words(read: Read) -> None:
    shape = '<w:start w:val="21"/><w:numFmt w:val="{}"/><w:lvlText w:val="{}"/>'
    level = f'<w:lvl w:ilvl="0">{shape}</w:lvl>'
    lists = "".join(
        f'<w:abstractNum w:abstractNumId="{n}">{level.format(kind, text)}</w:abstractNum>'
        f'<w:num w:numId="{n}"><w:abstractNumId w:val="{n}"/></w:num>'
        for n, (kind, text) in enumerate(
            [("ordinalText", "%1 Clause"), ("chineseCountingThousand", "第%1条")], 1
        )
    )
    body = "".join(
        paragraph("Rent", f'<w:numPr><w:ilvl w:val="0"/><w:numId w:val="{n}"/></w:numPr>')
        for n in (1, 2)
    )
    assert read("a.docx", docx(body, lists)).text.split("\n") == [
        "twenty-first Clause Rent",
        "第二十一条 Rent",
    ]


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        ("lowerRoman", 1994, "mcmxciv"),
        ("upperLetter", 28, "BB"),
        ("ordinal", 112, "112th"),
        ("ordinal", 23, "23rd"),
        ("cardinalText", 340, "three hundred forty"),
        ("ordinalText", 12, "twelfth"),
        ("chineseCounting", 105, "一百〇五"),
        ("chineseLegalSimplified", 10, "壹拾"),
        ("ideographDigital", 2024, "二〇二四"),
        ("decimalEnclosedCircleChinese", 3, "③"),
        ("aiueo", 2, "イ"),
        ("thaiNumbers", 15, "๑๕"),
        ("somethingElse", 4, "4"),
        ("lowerLetter", 0, "0"),
    ],
)
def test_numbers_of_lists(kind: str, number: int, text: str) -> None:
    assert number_as(kind, number) == text


def test_symbol_fonts_draw_signs(read: Read) -> None:
    assert in_symbol_font("Symbol", "a\uf0a3") == "α≤"
    assert sign_of("Wingdings 2", 0x52) == "☑"
    assert sign_of("Wingdings", 0x21) == UNKNOWN
    run = (
        '<w:p><w:r><w:rPr><w:rFonts w:ascii="Symbol"/></w:rPr><w:t>b\uf0b3</w:t></w:r>'
        '<w:r><w:t> 5 </w:t><w:sym w:font="Wingdings" w:char="F0FC"/></w:r></w:p>'
    )
    assert read("a.docx", docx(run)).text == "β≥ 5 ✓"
    pytest.importorskip("striprtf")
    rtf = rb"{\rtf1{\fonttbl{\f0 Arial;}{\f1\fcharset2 Symbol;}}{\f0 x {\f1\'a3} 5 {\f1 a}}}"
    assert read("a.rtf", rtf).text == "x ≤ 5 α"


def test_equations_say_the_same_as_a_line() -> None:
    assert (root("a+b", "3"), root("2"), root("x", "5")) == ("∛(a+b)", "√2", "√[5]x")
    assert (grouped("(a)"), grouped("(a)(b)"), grouped("12")) == ("(a)", "((a)(b))", "12")
    assert scripts("a+b", above="2") == "(a+b)^2"
    assert matrix([["1", "2"], ["3", "4"]]) == "[1, 2; 3, 4]"


@pytest.mark.parametrize(
    ("mathml", "text"),
    [
        ("<mn>3</mn><mfrac><mn>1</mn><mn>4</mn></mfrac>", "3 1/4"),
        ("<mroot><mn>8</mn><mn>3</mn></mroot>", "∛8"),
        ("<mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mi>c</mi></mfrac>", "(a+b)/c"),
        ("<munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover><mi>x</mi>", "∑_i^nx"),
        ("<mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr></mtable>", "[1, 2]"),
        ("<mi>sin</mi><mi>x</mi>", "sin x"),
    ],
)
def test_mathml(mathml: str, text: str) -> None:
    assert page_text(f"<p><math>{mathml}</math></p>")[1] == text


@pytest.mark.parametrize(
    ("omml", "text"),
    [
        (
            "<m:rad><m:deg><m:r><m:t>4</m:t></m:r></m:deg><m:e><m:r><m:t>x</m:t></m:r></m:e></m:rad>",
            "∜x",
        ),
        (
            '<m:d><m:dPr><m:begChr m:val="|"/><m:endChr m:val="|"/></m:dPr><m:e>'
            "<m:r><m:t>x</m:t></m:r></m:e></m:d>",
            "|x|",
        ),
        (
            '<m:nary><m:naryPr><m:chr m:val="∏"/></m:naryPr><m:sub><m:r><m:t>i=1'
            "</m:t></m:r></m:sub>"
            "<m:sup><m:r><m:t>n</m:t></m:r></m:sup><m:e><m:r><m:t>i</m:t></m:r></m:e></m:nary>",
            "∏_(i=1)^n i",
        ),
    ],
)
def test_equations_of_word(read: Read, omml: str, text: str) -> None:
    body = f"<w:p><m:oMath>{omml}</m:oMath></w:p>"
    assert read("a.docx", docx(body)).text == text


def test_xhtml_is_xml(read: Read) -> None:
    page = (
        '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body><div hidden="x"/>'
        "<canvas/><p>a &lt; b&nbsp;<![CDATA[< c]]></p></body></html>"
    )
    assert read("a.xhtml", page.encode()).text == "a < b < c"
    assert read("b.xhtml", b"<p>not <br> closed").text == "not\nclosed"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ('<x-y><template shadowrootmode="closed"><p>in</p></template></x-y>', "in"),
        ("<template><p>never</p></template><p>shown</p>", "shown"),
        (
            "<a-b><template shadowrootmode=open><template>no</template><p>yes</p></template></a-b>",
            "yes",
        ),
        ('<h2>F# <a href="#f">#</a></h2>', "## F#"),
        ('<h2>Rent<a href="#r">#</a></h2>', "## Rent"),
    ],
)
def test_pages_as_browsers_show_them(page: str, text: str) -> None:
    assert page_text(page)[1] == text


def epub(items: str, spine: str, members: dict[str, str]) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(
            "META-INF/container.xml",
            '<container><rootfiles><rootfile full-path="b.opf"/></rootfiles></container>',
        )
        package = f"<package><manifest>{items}</manifest><spine>{spine}</spine></package>"
        archive.writestr("b.opf", package)
        for name, text in members.items():
            archive.writestr(name, text)
    return out.getvalue()


def test_a_book_is_read_but_for_what_is_missing(read: Read) -> None:
    items = (
        '<item id="1" href="a.xhtml#top" media-type="application/xhtml+xml; charset=utf-8"/>'
        '<item id="2" href="gone.xhtml" media-type="application/xhtml+xml"/>'
        '<item id="3" href="old.htm" media-type="text/x-oeb1-document"/>'
        '<item id="4" href="x.pdf" media-type="application/pdf"/>'
    )
    spine = "".join(f'<itemref idref="{n}"/>' for n in "12345")
    members = {"a.xhtml": "<html><p>storks</p></html>", "old.htm": "<p>cranes</p>", "x.pdf": "x"}
    found = read("a.epub", epub(items, spine, members))
    assert found.text == "storks\n\ncranes"
    assert found.warning.startswith("3 chapters not read: ")
    assert all(name in found.warning for name in ("gone.xhtml", "'5'", "x.pdf"))
    with pytest.raises(Unreadable, match=r"gone\.xhtml"):
        read("b.epub", epub(items, '<itemref idref="2"/>', {}))


def test_outputs_of_a_notebook(read: Read) -> None:
    outputs = [
        {"data": {"text/plain": "<sympy.Eq object>", "text/latex": "$p = 5$"}},
        {"data": {"text/plain": "   a\n0  1", "text/html": "<table><td>1</td></table>"}},
        {"text": "\x1b[1;32mgreen\x1b[0m \x1b]0;title\x07done"},
        {"data": {"text/plain": "<Figure size 640x480>"}},
    ]
    cells = [{"cell_type": "code", "source": "", "outputs": outputs}]
    text = read("a.ipynb", json.dumps({"cells": cells, "metadata": {}}).encode()).text
    assert "$p = 5$" in text
    assert "sympy.Eq" not in text
    assert "0  1" in text
    assert "green done" in text
    assert "<Figure" in text


def test_captions_that_roll_are_read_once(read: Read) -> None:
    lines = ["the lease", "ends in May", "and the deposit", "is paid back"]
    cues = [lines[:1], lines[:2], lines[1:2], lines[1:3], lines[2:3], lines[2:4]]
    text = "WEBVTT\n\n" + "\n".join(
        f"00:0{n}.000 --> 00:0{n + 1}.000\n" + "\n".join(cue) + "\n" for n, cue in enumerate(cues)
    )
    assert " ".join(read("a.vtt", text.encode()).text.split()) == " ".join(lines)
    said = "1\n00:00:01,000 --> 00:00:02,000\nNo.\n\n2\n00:00:03,000 --> 00:00:04,000\nNo.\n"
    assert read("b.srt", said.encode()).text.split() == ["No.", "No."]


def test_a_calendar_in_any_letters_and_folds(read: Read) -> None:
    lines = [
        "begin:vcalendar",
        "begin:vevent",
        "summary:Prüfung der Brücke",
        "duration:P1DT2H",
        "attendee;cn=Jens;partstat=TENTATIVE:MAILTO:j@example.org",
        "end:vevent",
        "end:vcalendar",
    ]
    data = "\r\n".join(lines).encode().replace("ü".encode(), b"\xc3\r\n \xbc")
    text = read("a.ics", data).text
    assert text.split("\n") == [
        "# Prüfung der Brücke",
        "Duration: 1 day 2 hours",
        "Attendee: Jens (j@example.org), tentative",
    ]


@pytest.mark.parametrize(
    ("header", "body", "text"),
    [
        (
            "text/plain; charset=utf-8",
            "Größe und Maß für \xe9".encode("latin-1"),
            "Größe und Maß für é",
        ),
        (
            "text/plain; charset=utf-8",
            "Größe und Maß ".encode() + b"\xe9 ende",
            "Größe und Maß � ende",
        ),
        (
            "text/plain; charset=gb2312",
            "合同于五月结束".encode("gb2312") + b"\xff",
            "合同于五月结束",
        ),
        ("text/plain; charset=iso-8859-1", "Kündigung".encode(), "Kündigung"),
        ("text/plain; charset=iso-8859-1", "Kündigung".encode("latin-1"), "Kündigung"),
    ],
)
def test_bytes_of_a_mail(read: Read, header: str, body: bytes, text: str) -> None:
    mail = f"From: a@b\nSubject: s\nContent-Type: {header}\nContent-Transfer-Encoding: 8bit \n\n"
    assert text in read("a.eml", mail.encode() + body).text


def test_an_archive_with_two_files_of_one_name_has_both(read: Read) -> None:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive, pytest.warns(UserWarning):
        archive.writestr("a.txt", "first")
        archive.writestr("a.txt", "second")
        archive.writestr("logo.ICO", "x")
    found = read("z.zip", out.getvalue())
    assert (found.text.count("first"), found.text.count("second")) == (1, 1)
    assert not found.warning


@pytest.mark.parametrize(
    ("heading", "title"),
    [
        ("# Learn C#", "Learn C#"),
        ("# A \t ##\t", "A"),
        ("# A # B #  # ", "A # B #"),
        ("# A  ", "A"),
        ("# A" + " " * 20_000 + "b", "A b"),  # in linear time
    ],
    ids=range(5),
)
def test_signs_that_close_a_heading_are_not_of_the_title(heading: str, title: str) -> None:
    data = f"{heading}\n\ntext here".encode()
    assert read_markdown(data, Limits()).title == title


@pytest.mark.parametrize(
    ("text", "headings"),
    [
        ("# F# and C# #\n\ntext here", ["F# and C#"]),
        ("# Learn C#\n\ntext here", ["Learn C#"]),
        ("<!--\n# old\n-->\n\n# New\n\ntext", ["New"]),
        ("Use it::\n\n   # install\n   run\n\n# Then\n\ntext", ["Then"]),
        (".. code:: sh\n\n   # install\n\nEnd\n===\n\nmore text", ["End"]),
    ],
)
def test_headings_that_are_none(text: str, headings: list[str]) -> None:
    assert [heading.words for heading in outline(text).headings] == headings


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ('[$-411]ggge"年"m"月"d"日"', "令和6年5月6日"),
        ("[$-411]ge.m.d", "R6.5.6"),
        ("[$-ja-JP]gg ee", "令 06"),
        ("[$-41E]d mmm bbbb", "6 May 2567"),
        ("[$-107041E]d/m/yyyy", "6/5/2567"),
        ("[$-409]e", "2024"),
        ("0.00E+00", "4.54E+04"),
    ],
)
def test_dates_of_other_calendars(shape: str, shown: str) -> None:
    assert shown_number(45418, shape) == shown


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ("Kunde;Preis, netto;Menge, Stk\nAdler;1,50;2\n", ";"),
        ("name,note\nAda,a;b;c\nBob,d;e\n", ","),
        ("a;b;c\n", ";"),
        ("one\ntwo\n", ","),
        ("id\tprice, net\n1\t2,5\n", "\t"),
    ],
)
def test_the_separator_of_a_table_is_that_of_its_rows(text: str, separator: str) -> None:
    assert separator_of(text) == separator
