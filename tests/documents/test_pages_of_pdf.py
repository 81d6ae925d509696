"""Pages of PDF: turned ones, forms, notes, embedded files, words that the end of a line divides."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval.documents.readers.pdf_text import join_words

if TYPE_CHECKING:
    from tests.documents.conftest import Read

for package in ("pypdfium2", "reportlab"):
    pytest.importorskip(package)


def drawn(draw: Any, **options: Any) -> bytes:
    """A PDF of one page, on which `draw` draws."""
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, pageCompression=0, **options)
    draw(canvas)
    canvas.save()
    return out.getvalue()


def _turned(canvas: Any, angle: int) -> None:
    canvas.setPageSize((842, 842))
    canvas.translate(421, 421)
    canvas.rotate(angle)
    canvas.translate(-421, -421)
    canvas.setFont("Helvetica", 20)
    canvas.drawString(60, 700, "Method of counting")
    canvas.setFont("Helvetica", 10)
    for number in range(12):
        canvas.drawString(60, 650 - 15 * number, f"Row {number} of the table goes on here")
        canvas.drawString(500, 650 - 15 * number, f"B{number}")


@pytest.mark.parametrize("angle", [0, 90, 180, 270])
@pytest.mark.parametrize("page", [0, 90, 270])
def test_lines_and_headings_of_turned_text(read: Read, angle: int, page: int) -> None:
    def draw(canvas: Any) -> None:
        canvas.setPageRotation(page)
        _turned(canvas, angle)

    lines = [line for line in read("a.pdf", drawn(draw)).text.split("\n") if line]
    assert lines[0] == "# Method of counting"
    assert lines[1:] == [
        f"Row {number} of the table goes on here B{number}" for number in range(12)
    ]


def test_forms_are_read_with_their_names(read: Read) -> None:
    def draw(canvas: Any) -> None:
        canvas.drawString(72, 700, "Application")
        form = canvas.acroForm
        form.textfield(name="who", tooltip="Applicant", value="Praseodymium Smith", x=200, y=690)
        form.textfield(name="empty", x=200, y=660)
        form.choice(name="town", options=["Paris", "Lutetia"], value="Lutetia", x=200, y=630)
        form.listbox(name="sizes", options=["S", "M"], value="M", x=200, y=560)
        form.checkbox(name="member", checked=True, x=200, y=540)
        form.checkbox(name="other", checked=False, x=200, y=520)

    text = read("a.pdf", drawn(draw)).text
    assert (
        "Applicant: Praseodymium Smith" in text and "town: Lutetia" in text and "sizes: M" in text
    )
    assert "member: yes" in text
    assert "other" not in text and "empty" not in text and "Paris" not in text


def test_notes_on_a_page_are_read_and_files_in_it_are_told(read: Read) -> None:
    def draw(canvas: Any) -> None:
        canvas.drawString(72, 700, "A page")
        canvas.freeTextAnnotation(
            "Check the wolfram valve", "/Helv 12 Tf", Rect=[72, 600, 200, 640]
        )
        canvas.textAnnotation("Thulium note", Rect=[72, 500, 100, 520])
        canvas.highlightAnnotation("Erbium remark", Rect=[72, 700, 100, 712])

    text = read("a.pdf", drawn(draw)).text
    assert text.startswith("A page")
    assert all(words in text for words in ("wolfram valve", "Thulium note", "Erbium remark"))
    import pypdfium2

    document = pypdfium2.PdfDocument(drawn(draw))
    document.new_attachment("bill.xml").set_data(b"<a/>")
    out = io.BytesIO()
    document.save(out)
    assert read("b.pdf", out.getvalue()).warning == "1 embedded file not read: bill.xml"


def test_a_hyphen_at_the_end_of_a_line(read: Read) -> None:
    lines = [
        "The deduction is permit-",
        "ted in COVID-",
        "19 and X-",
        "ray rooms of AB-",
        "C77, in 2019-",
        "2020.",
    ]
    text = read(
        "a.pdf",
        drawn(lambda canvas: [canvas.drawString(72, 700 - 15 * n, w) for n, w in enumerate(lines)]),
    ).text
    assert (
        text.strip()
        == "The deduction is permitted in COVID-19 and X-ray rooms of AB-C77, in 2019-2020."
    )
    assert join_words("well\x02known", {"well-known"}) == "well-known"
    assert join_words("well\x02known", set()) == "wellknown"


def test_who_made_it_is_metadata_unless_nobody_says(read: Read) -> None:
    def draw(canvas: Any) -> None:
        canvas.drawString(72, 700, "words")
        canvas.setAuthor("Ines Moreau")
        canvas.setTitle("(anonymous)")

    found = read("a.pdf", drawn(draw))
    assert (found.title, found.metadata["author"]) == ("", "Ines Moreau")
    assert found.metadata["created"].endswith("+00:00")
    assert (
        "author"
        not in read("b.pdf", drawn(lambda canvas: canvas.drawString(72, 700, "words"))).metadata
    )
