"""Raised and lowered characters: in every format that has them, a note's mark is apart and a power
is a power.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.readers.superscripts import lowered, raised
from tests.documents.written import save_office
from tests.indexes.files import make_zip

if TYPE_CHECKING:
    from tests.documents.conftest import Read

for package in (
    "pypdfium2",
    "selectolax",
    "lxml",
    "striprtf",
    "docx",
    "pptx",
    "reportlab",
    "openpyxl",
):
    pytest.importorskip(package)


@pytest.mark.parametrize(
    ("before", "text", "written"),
    [
        ("the tenant", "3", "tenant[3]"),
        ("the tenant", "a", "tenant[a]"),
        ("the tenant", "*", "tenant*"),
        ("the tenant", "[3]", "tenant[3]"),
        ("deposit.", "4", "deposit.[4]"),
        ("10", "6", "10^6"),
        ("10", "-3", "10^-3"),
        ("5 m", "2", "m^2"),
        ("2", "n+1", "2^(n+1)"),
        ("x", "n", "x^n"),
        ("the 1", "st", "1st"),
        ("M", "me", "Mme"),
        ("20", "°", "20°"),
        ("Acme", "TM", "Acme[TM]"),
    ],
)
def test_what_is_raised(before: str, text: str, written: str) -> None:
    assert (before + raised(before, text)).endswith(written)


@pytest.mark.parametrize(
    ("before", "text", "written"),
    [
        ("H", "2", "H2"),
        ("NaHCO", "3", "NaHCO3"),
        ("Ca(OH)", "2", "(OH)2"),
        ("x", "i", "x_i"),
        ("log", "10", "log_10"),
    ],
)
def test_what_is_lowered(before: str, text: str, written: str) -> None:
    assert (before + lowered(before, text)).endswith(written)


def _html() -> bytes:
    return b"<p>The tenant<sup>3</sup> pays 10<sup>6</sup> for H<sub>2</sub>O.</p>"


def _mail() -> bytes:
    return b"Subject: a\nFrom: a@example.org\nContent-Type: text/html\n\n" + _html()


def _docx() -> bytes:
    import docx

    document = docx.Document()
    paragraph = document.add_paragraph("The tenant")
    for text, kind in (
        ("3", "superscript"),
        (" pays 10", ""),
        ("6", "superscript"),
        (" for H", ""),
        ("2", "subscript"),
        ("O.", ""),
    ):
        run = paragraph.add_run(text)
        if kind:
            setattr(run.font, kind, True)
    return save_office(document)


def _pptx() -> bytes:
    import pptx

    show = pptx.Presentation()
    frame = show.slides.add_slide(show.slide_layouts[1]).placeholders[1].text_frame
    for text, shift in (
        ("The tenant", ""),
        ("3", "30000"),
        (" pays 10", ""),
        ("6", "30000"),
        (" for H", ""),
        ("2", "-25000"),
        ("O.", ""),
    ):
        run = frame.paragraphs[0].add_run()
        run.text = text
        if shift:
            run.font._element.set("baseline", shift)
    return save_office(show)


def _odt() -> bytes:
    names = " ".join(
        f'xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for prefix, name in (("office", "office"), ("text", "text"), ("style", "style"))
    )
    shift = (
        '<style:style style:name="{}"><style:text-properties style:text-position="{}'
        ' 58%"/></style:style>'
    )
    span = '<text:span text:style-name="{}">{}</text:span>'
    words = (
        f"The tenant{span.format('U', 3)} pays 10{span.format('U', 6)} for H{span.format('D', 2)}O."
    )
    content = (
        f"<office:document-content {names}><office:automatic-styles>{shift.format('U', 'super')}"
        f"{shift.format('D', 'sub')}</office:automatic-styles><office:body><office:text><text:p>{words}</text:p>"  # noqa: E501
        "</office:text></office:body></office:document-content>"
    )
    return make_zip({"content.xml": content.encode()})


def _rtf() -> bytes:
    return rb"{\rtf1\ansi The tenant{\super 3} pays 10\super 6\nosupersub  for H{\sub 2}O.\par}"


def _pdf() -> bytes:
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out)
    text = canvas.beginText(72, 700)
    for words, size, rise in (
        ("The tenant", 12, 0),
        ("3", 7, 4),
        (" pays 10", 12, 0),
        ("6", 7, 4),
        (" for H", 12, 0),
        ("2", 7, -3),
        ("O.", 12, 0),
    ):
        text.setFont("Helvetica", size)
        text.setRise(rise)
        text.textOut(words)
    canvas.drawText(text)
    canvas.save()
    return out.getvalue()


MAKERS = {
    "a.html": _html,
    "a.eml": _mail,
    "a.docx": _docx,
    "a.pptx": _pptx,
    "a.odt": _odt,
    "a.rtf": _rtf,
    "a.pdf": _pdf,
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_format_writes_them_alike(read: Read, name: str) -> None:
    assert "The tenant[3] pays 10^6 for H2O." in " ".join(read(name, MAKERS[name]()).text.split())
