"""Pages of PDF: turned ones, forms, notes, embedded files, words that the end of a line divides."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval.documents.readers.pdf_text import join_words
from tests.indexes.files import make_pdf

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


@pytest.mark.parametrize("sign", ["Z", "\U0001f600", "\U00020000", "\u4e00"])
def test_signs_beyond_the_first_plane_move_no_place(read: Read, sign: str) -> None:
    """PDFium counts each of these as two characters."""
    lines = [f"The {'Z' * n} of line {n} goes on for a while." for n in range(1, 9)]
    page = ["ZZ ZZ ZZ ZZ", "Method", *lines, "Results", *lines[:4]]
    data = make_pdf([page], sizes={"Method": 20, "Results": 20}, read_as={"Z": sign})
    text = read("a.pdf", data).text
    found = [line for line in text.split("\n") if line.startswith("#")]
    assert found == ["# Method", "# Results"]
    assert f"The {sign * 8} of line 8 goes on" in text and "\ufffd" not in text


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


def _written(canvas: Any, *lines: tuple[float, float, str], size: float = 11) -> None:
    canvas.setFont("Helvetica", size)
    for x, y, words in lines:
        canvas.drawString(x, y, words)


@pytest.mark.parametrize("by_column", [False, True])
def test_cells_of_one_character_stay_in_their_rows(read: Read, by_column: bool) -> None:
    rows = [("Team", "Won", "Lost"), ("Otters", "7", "x"), ("Herons", "2", "3"), ("Bees", "9", "4")]
    cells = [(60 + 90 * x, 500 - 16 * y, row[x]) for y, row in enumerate(rows) for x in range(3)]
    if by_column:
        cells.sort()
    text = read("a.pdf", drawn(lambda canvas: _written(canvas, *cells))).text
    if by_column:
        assert not {"72", "29", "729", "279", "34", "x34"} & set(text.split())
        return
    assert text.split("\n")[:4] == [" ".join(row) for row in rows]


_LINES = ["n otter lives in rivers and on", "coasts, and eats fish and crabs", "all year."]


@pytest.mark.parametrize("drawn_at", [0, 2, 3])
@pytest.mark.parametrize("cap_lines", [2, 3])
def test_a_drop_cap_begins_its_word(read: Read, drawn_at: int, cap_lines: int) -> None:
    def draw(canvas: Any) -> None:
        _written(canvas, (72, 720, "Animals of the river"), size=16)
        size = (13 * (cap_lines - 1) + 8) / 0.72
        for number in range(4):
            if number == drawn_at:
                _written(canvas, (72, 680 - 13 * (cap_lines - 1), "A"), size=size)
            if number < len(_LINES):
                x = 75 + 0.67 * size if number < cap_lines else 72
                _written(canvas, (x, 680 - 13 * number, _LINES[number]))
        rest = [
            (72, 600 - 13 * number, "It sleeps on land by day and is shy.") for number in range(9)
        ]
        _written(canvas, *rest)

    text = read("a.pdf", drawn(draw)).text
    assert text.startswith("# Animals of the river\n\nAn otter lives in rivers")
    assert text.count("#") == 1 and text.split().count("A") == 0


def test_a_heading_of_one_letter_stays(read: Read) -> None:
    def draw(canvas: Any) -> None:
        for y, letter in ((700, "A"), (500, "B")):
            _written(canvas, (72, y, letter), size=20)
            entries = [(72, y - 20 - 13 * number, f"{letter}ntry {number}") for number in range(9)]
            _written(canvas, *entries)

    text = read("a.pdf", drawn(draw)).text
    assert "# A\n" in text and "# B\n" in text


@pytest.mark.parametrize(("angle", "last"), [(45, False), (30, True), (-40, False), (0, True)])
def test_a_word_across_each_page_is_no_heading(read: Read, angle: int, last: bool) -> None:
    topics = ["Rent", "Repairs", "Pets", "Keys"]

    def mark(canvas: Any) -> None:
        canvas.saveState()
        canvas.translate(150, 350)
        canvas.rotate(angle)
        _written(canvas, (0, 0, "COPY ONLY"), size=70)
        canvas.restoreState()

    def draw(canvas: Any) -> None:
        for topic in topics:
            if not last:
                mark(canvas)
            _written(canvas, (72, 600, f"{topic} of the house"), size=16)
            lines = [f"Rule {number} says what {topic} are, in full." for number in range(9)]
            _written(canvas, *((72, 580 - 14 * n, line) for n, line in enumerate(lines)))
            if last:
                mark(canvas)
            canvas.showPage()

    text = read("a.pdf", drawn(draw)).text
    headings = [line for line in text.split("\n") if line.startswith("#")]
    assert headings == [f"# {topic} of the house" for topic in topics]
    assert text.count("COPY ONLY") == 1 and "\n\nCOPY ONLY" not in text


@pytest.mark.parametrize(
    ("end", "begin", "expected"),
    [
        ("the obser-", "vatory, which opens", "the observatory,\nwhich opens"),
        ("the well-", "known house", "the well-known\nhouse"),
        ("rows A -", "here they end", "rows A -\nhere"),
        ("the Smith-", "Jones house", "the Smith-\nJones"),
    ],
)
def test_a_word_divided_by_the_end_of_a_page(
    read: Read, end: str, begin: str, expected: str
) -> None:
    def draw(canvas: Any) -> None:
        _written(canvas, (72, 700, "A well-known fact."), (72, 80, f"They go to {end}"))
        canvas.showPage()
        _written(canvas, (72, 700, f"{begin} at nine."))

    assert expected in read("a.pdf", drawn(draw)).text


@pytest.mark.parametrize("state", ["OFF", "ON"])
def test_text_of_a_hidden_layer_is_left_out(read: Read, state: str) -> None:
    content = (
        b"BT /F1 12 Tf 72 700 Td (The shop opens at nine.) Tj ET\n"
        b"/OC /L1 BDC BT /F1 12 Tf 72 660 Td (Closed on Mondays.) Tj ET EMC"
    )
    objects = [
        f"<</Type/Catalog/Pages 2 0 R/OCProperties<</OCGs[3 0 R]/D<</{state}[3 0 R]>>>>>>".encode(),
        b"<</Type/Pages/Kids[4 0 R]/Count 1>>",
        b"<</Type/OCG/Name(Notes)>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 5 0 R/Resources<</Font<</F1"
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>/Properties<</L1 3 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(content), content),
    ]
    body = b"".join(b"%d 0 obj%s endobj\n" % pair for pair in enumerate(objects, start=1))
    text = read("a.pdf", b"%PDF-1.5\n" + body + b"trailer<</Root 1 0 R/Size 6>>\n%%EOF").text
    assert "opens at nine" in text
    assert ("Mondays" in text) is (state == "ON")
