"""Further ways to write what readers know: numbers of lists, objects, forms, hidden and deleted
text, other files.
"""

from __future__ import annotations

import zipfile
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from tests.documents.test_office_parts import NAMES, lines, p, word
from tests.documents.test_variants import opendocument, pdf, run
from tests.indexes.files import make_zip

if TYPE_CHECKING:
    from reportlab.pdfgen.canvas import Canvas

    from tests.documents.conftest import Read

for package in ("lxml", "docx", "pptx", "selectolax", "striprtf", "pypdfium2", "reportlab"):
    pytest.importorskip(package)

_MORE = (
    " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("form", "chart")
    )
    + ' xmlns:xlink="http://www.w3.org/1999/xlink"'
)
_NUMBERED = '<text:list-level-style-number style:num-format="1" style:num-suffix="." text:level='


def odf(body: str, own: str = "", kind: str = "text", **parts: str) -> bytes:
    """A file of OpenDocument with further parts, of the same names."""
    data = opendocument(body, own, kind)
    with zipfile.ZipFile(BytesIO(data)) as archive:
        content = (
            archive.read("content.xml")
            .decode()
            .replace(" xmlns:office", f" {_MORE} xmlns:office", 1)
        )
    head = content[: content.index(">") + 1]
    others = {
        name: f"{head}{text}</office:document-content>" if text.startswith("<office") else text
        for name, text in parts.items()
    }
    files = {
        "content.xml": content,
        **{f"{name.replace('_', ' ')}/content.xml": text for name, text in others.items()},
    }
    if "styles" in parts:
        files["styles.xml"] = others["styles"]
    return make_zip({name: text.encode() for name, text in files.items()})


def _object(name: str, tag: str = "object") -> str:
    return f'<draw:frame><draw:{tag} xlink:href="./{name}"/></draw:frame>'


MATH = (
    "<math"
    ' xmlns="http://www.w3.org/1998/Math/MathML"><semantics><mrow><mi>E</mi><mo>=</mo><msup><mi>c</mi><mn>2</mn></msup><mi>Omega</mi></mrow><annotation'
    ' encoding="StarMath 5.0">%OMEGA</annotation></semantics></math>'
)
CHART = (
    "<office:body><office:chart><chart:chart><chart:title><text:p>Sales of"
    " hafnium</text:p></chart:title><table:table>"
    "<table:table-rows><table:table-row><table:table-cell><text:p>North</text:p></table:table-cell><table:table-cell>"
    "<text:p>4.3</text:p></table:table-cell></table:table-row></table:table-rows></table:table></chart:chart>"
    "</office:chart></office:body>"
)


def test_equations_charts_and_boxes_of_opendocument(read: Read) -> None:
    shapes = f"<draw:custom-shape><text:p>cerium</text:p></draw:custom-shape>{_object('Object 2')}"
    body = (
        f"<text:p>energy {_object('Object 1')}"
        f" holds{shapes}{_object('Object 9', 'object-ole')}</text:p>"
    )
    found = read("a.odt", odf(body, Object_1=MATH, Object_2=CHART))
    assert lines(found.text) == [
        "energy E=c^2 Omega holds",
        "cerium",
        "Sales of hafnium",
        "North | 4.3",
    ]
    assert found.warning == "1 embedded file not read: Object 9"
    empty = '<table:table-cell table:formula="of:=1+1"/>'
    cells = f'<table:table-row><table:table-cell office:value="4711"/>{empty}</table:table-row>'
    sheet = (
        f'<table:table table:name="S"><table:shapes>{shapes}</table:shapes>{cells}</table:table>'
    )
    found = read("a.ods", odf(sheet, kind="spreadsheet", Object_2=CHART))
    assert lines(found.text) == ["# S", "4711", "cerium", "Sales of hafnium", "North | 4.3"]
    assert found.warning.startswith("1 formula without a value")


def test_numbers_of_lists_and_headings_of_opendocument(read: Read) -> None:
    def listed(inside: str, attributes: str = "") -> str:
        return (
            '<text:list text:style-name="L"'
            f" {attributes}><text:list-item>{inside}</text:list-item></text:list>"
        )

    levels = f'{_NUMBERED}"1"/>{_NUMBERED}"2" text:display-levels="2"/>'
    own, goes_on = (
        f'<text:list-style style:name="L">{levels}</text:list-style>',
        'text:continue-numbering="true"',
    )
    body = (
        '<text:h text:outline-level="1">Scope</text:h><text:h text:outline-level="2">Terms</text:h>'
        f"{listed('<text:p>one</text:p>')}<text:p>between</text:p>"
        f"{listed('<text:p>two</text:p>' + listed('<text:p>sub</text:p>'), goes_on)}"
    )
    outline = "".join(
        f'<text:outline-level-style text:level="{level}" style:num-format="1"'
        f' text:display-levels="{level}"/>'
        for level in (1, 2)
    )
    around = "<style:header><text:p>head</text:p></style:header>"
    around += "<style:footer-first><text:p>foot</text:p></style:footer-first>"
    parts = (
        f"<office:styles><text:outline-style>{outline}</text:outline-style></office:styles>{around}"
    )
    found = lines(read("a.odt", odf(body, own, styles=parts)).text)
    assert found == [
        "# 1 Scope",
        "## 1.1 Terms",
        "1. one",
        "between",
        "2. two",
        "2.1. sub",
        "head",
        "foot",
    ]


def test_forms_and_hidden_text_of_opendocument(read: Read) -> None:
    form = (
        '<office:forms><form:form><form:text form:name="City"'
        ' form:current-value="Lutetia"/><form:listbox form:name="L"><form:option'
        ' form:label="no"/><form:option form:label="yes"'
        ' form:current-selected="true"/></form:listbox><form:checkbox form:label="Agree"'
        ' form:current-state="checked"/></form:form></office:forms>'
    )
    hidden = (
        '<text:section text:display="none"><text:p>secret</text:p></text:section>'
        '<text:p text:style-name="H">secret</text:p>'
        '<text:p>shown<text:hidden-text text:is-hidden="true">secret</text:hidden-text></text:p>'
    )
    style = '<style:style style:name="H"><style:text-properties text:display="none"/></style:style>'
    found = read("a.odt", odf(form + hidden, style))
    assert lines(found.text) == ["shown", "City: Lutetia", "L: yes", "Agree: yes"]
    assert found.warning == "hidden text left out (3 places)"


def test_deleted_rows_and_ends_of_paragraphs_of_word(read: Read) -> None:
    gone = '<w:rPr><w:del w:id="1"/></w:rPr>'
    row = f'<w:tr><w:trPr><w:del w:id="2"/></w:trPr><w:tc>{p("gone")}</w:tc></w:tr>'
    body = (
        f"{p('pay', gone)}{p('ment due')}<w:tbl><w:tr><w:tc>{p('stays')}</w:tc></w:tr>{row}</w:tbl>"
    )
    assert lines(read("a.docx", word(body)).text) == ["payment due", "stays"]


def test_forms_styles_and_embedded_files_of_word(read: Read) -> None:
    styles = (
        f'<w:styles {NAMES}><w:style w:styleId="M"><w:name w:val="m"/><w:rPr><w:vertAlign'
        ' w:val="superscript"/></w:rPr></w:style><w:style w:styleId="N"><w:name'
        ' w:val="n"/><w:basedOn w:val="M"/></w:style><w:style w:styleId="H"><w:name'
        ' w:val="h"/><w:rPr><w:vanish/></w:rPr></w:style></w:styles>'
    )
    entries = '<w:result w:val="1"/><w:listEntry w:val="Roma"/><w:listEntry w:val="Lutetia"/>'
    field = f"<w:r><w:fldChar><w:ffData><w:ddList>{entries}</w:ddList></w:ffData></w:fldChar></w:r>"
    mark = run("3", '<w:rStyle w:val="N"/>')
    secret = p("secret", '<w:pStyle w:val="H"/>')
    body = f"<w:p>{run('tenant')}{mark}{run(' of ')}{field}</w:p>{secret}"
    related = {"styles": "styles.xml", "package": "embeddings/budget.xlsx"}
    found = read("a.docx", word(body, {"word/styles.xml": styles}, **related))
    assert lines(found.text) == ["tenant[3] of Lutetia"]
    assert found.warning == "hidden text left out (1 place); 1 embedded file not read: budget.xlsx"


def test_categories_of_a_chart_at_two_levels(read: Read) -> None:
    levels = "".join(
        f'<c:lvl><c:pt idx="0"><c:v>{name}</c:v></c:pt></c:lvl>' for name in ("Q1", "2026")
    )
    series = f"<c:ser><c:cat><c:multiLvlStrCache>{levels}</c:multiLvlStrCache></c:cat></c:ser>"
    chart = {
        "word/c.xml": (
            "<c:chartSpace"
            f" {NAMES}><c:chart><c:barChart>{series}</c:barChart></c:chart></c:chartSpace>"
        )
    }
    body = '<w:p><w:r><w:drawing><c:chart r:id="chart"/></w:drawing></w:r></w:p>'
    assert "2026 Q1" in read("a.docx", word(body, chart, chart="c.xml")).text


def test_an_embedded_file_of_a_slide_is_told(read: Read) -> None:
    import pptx

    from tests.documents.written import save_office

    show = pptx.Presentation()
    show.slides.add_slide(show.slide_layouts[5]).shapes.add_ole_object(
        BytesIO(b"PK"), "Excel.Sheet.12", 0, 0
    )
    assert read("a.pptx", save_office(show)).warning.startswith("1 embedded file not read: ")


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        (
            "<ol><li>a<ol type=i><li><p>x<li><p>y</ol><li value=7>b<li>c</ol>",
            "1. a i. x ii. y 7. b 8. c",
        ),
        ("<ol reversed><li>a<li>b</ol><ol type=A start=3><li>c</ol>", "2. a 1. b C. c"),
        ("<ol><li>a<ul><li>b</ul></ol>", "1. a - b"),
        (
            "<section id=navigation><h2>Navigation</h2><p>By the compass</section>",
            "## Navigation By the compass",
        ),
        ("<p>a<aside epub:type=footnote><a href=x>Smith osmium</a></aside>", "a Smith osmium"),
        ("<div class=nav><a href=a>Home</a></div><p>b", "b"),
        (
            "<math><mi>sin</mi><mi>x</mi><msubsup><mi>y</mi><mi>i</mi><mn>3</mn></msubsup></math>",
            "sin xy_i^3",
        ),
    ],
)
def test_lists_sections_and_names_of_pages(read: Read, page: str, wanted: str) -> None:
    assert " ".join(read("a.html", f"<!doctype html><body>{page}".encode()).text.split()) == wanted


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (rb"a {\deleted gone }{\v secret }b \v secret\v0  c{\b \deleted gone} d", "a b  c d"),
        (rb"{\pntext\f0 (a)\tab}item", "(a) item"),
        (rb"a {\shp{\*\shpinst{\shptxt boxed\par}}} b", "a  b boxed"),
        (rb"a {\object{\*\objdata 0105}{\result shown}} b", "a  b shown"),
    ],
)
def test_hidden_deleted_boxed_and_numbered_text_of_rtf(
    read: Read, source: bytes, wanted: str
) -> None:
    found = read("a.rtf", rb"{\rtf1\ansi " + source + b"}")
    assert found.text.replace("\t", " ").replace("\n\n", " ") == wanted
    assert found.warning == ("hidden text left out (2 places)" if b"secret" in source else "")


def test_signs_of_comparison_in_subtitles(read: Read) -> None:
    cue = b"1\n00:00:01,000 --> 00:00:02,000\n<i>if</i> a < b and c > d\n"
    assert read("a.srt", cue).text.strip() == "if a < b and c > d"


@pytest.mark.parametrize(
    ("kind", "body", "wanted"),
    [
        ("text/x-amp-html", "<style>gone</style><p>amp</p>", "amp"),
        ("application/xhtml+xml", "<html><body><p>rhodium</p></body></html>", "rhodium"),
        ("text/rtf", r"{\rtf1 rich}", "rich"),
        ("text/plain; format=flowed; delsp=yes", "Verord \nnung", "Verordnung"),
        ("text/plain; format=flowed; delsp=yes", "> Verord \n> nung", "> Verordnung"),
        ("text/plain; format=flowed; delsp=yes", "Ana\n-- \nQuay", "Ana\n-- \nQuay"),
    ],
)
def test_bodies_of_other_types(read: Read, kind: str, body: str, wanted: str) -> None:
    text = read("a.eml", f"From: a@b\nContent-Type: {kind}\n\n{body}".encode()).text
    assert wanted in text
    assert "gone" not in text and "rtf1" not in text


def test_attached_files_rich_notes_and_marks_of_letters(read: Read) -> None:
    def draw(canvas: Canvas) -> None:
        canvas.drawString(60, 700, "Smith")
        canvas.setFont("Helvetica", 7)
        canvas.drawString(60 + canvas.stringWidth("Smith", "Helvetica", 11), 704, "a,b")
        canvas.freeTextAnnotation("plain", "/Helv 12 Tf", Rect=[72, 600, 200, 640])
        canvas.textAnnotation("see it", Rect=[72, 500, 100, 520])

    data = pdf(draw)
    assert "Smith[a,b]" in read("a.pdf", data).text
    file = b"/FileAttachment /FS <</Type /Filespec /F (budget.xlsx) /EF <</F 1 0 R>>>>"
    changed = data.replace(b"/Subtype /Text", b"/Subtype " + file).replace(
        b"/Contents (plain)", b"/RC (<p>rich</p>)"
    )
    found = read("b.pdf", changed)
    assert "rich" in found.text and "see it" in found.text
    assert found.warning == "1 embedded file not read: budget.xlsx"
