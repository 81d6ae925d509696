"""Presentations and spreadsheets: each slide and each sheet is a page."""

from __future__ import annotations

import csv
import io
import zipfile
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.readers.table_lines import csv_rows, read_sheet
from tests.documents.conftest import label
from tests.documents.written import save_office
from tests.indexes.files import make_docx, make_pptx, make_xlsx, make_zip

if TYPE_CHECKING:
    from tests.documents.conftest import Read

for package in ("docx", "pptx", "python_calamine", "xlsxwriter"):
    pytest.importorskip(package)


def test_a_line_break_in_a_slide_separates_words(read: Read) -> None:
    import pptx

    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Annual report\vBerlin", "one\vtwo"
    assert read("a.pptx", save_office(show)).text.split("\n\n")[:2] == [
        "# Annual report Berlin",
        "one\ntwo",
    ]


def test_slides_are_pages_with_titles_tables_groups_and_notes(read: Read) -> None:
    found = read("a.pptx", make_pptx())
    assert found.title == "Training"
    assert found.text.startswith("# Pumps\n\nClose the valve\n\n# Filters\n\nWash them")
    assert [
        label(found, word)
        for word in ("valve", "Wash", "left | right", "in a group", "Say it twice")
    ] == ["slide 1", *["slide 2"] * 4]
    with pytest.raises(Unreadable, match="damaged"):
        read("b.pptx", make_docx([("", "words")]))


def test_sheets_are_pages_and_rows_are_lines(read: Read) -> None:
    found = read("a.xlsx", make_xlsx([["part", "price", ""], ["valve", 12, 3.5], [], ["", "pump"]]))
    assert found.text.startswith("# Prices\n\npart | price\nvalve | 12 | 3.5\n | pump\n\n# Last\n")
    assert label(found, "valve") == "sheet Prices"
    assert label(found, "# Last") == "sheet Last"
    with pytest.raises(Unreadable, match="not a spreadsheet"):
        read("b.xlsx", make_zip({"a": b"b"}))
    with pytest.raises(Unreadable, match="more than 1,048,576 characters"):
        read("c.xlsx", make_xlsx([["x" * 30_000] for _ in range(40)]))


@pytest.mark.parametrize(
    ("cell", "text"),
    [("_xD800_", "\ufffd"), ("_xDC00_", "\ufffd"), ("_xD83D__xDE00_", "\U0001f600")],
)
def test_half_of_a_character_in_a_cell_costs_itself_alone(read: Read, cell: str, text: str) -> None:
    made = zipfile.ZipFile(io.BytesIO(make_xlsx([["HALF", "kept"]])))
    parts = {name: made.read(name).replace(b"HALF", cell.encode()) for name in made.namelist()}
    assert f"{text} | kept" in read("a.xlsx", make_zip(parts)).text


def test_the_limit_of_fields_is_one_that_every_platform_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [131_072]

    def limit(new: int | None = None) -> int:
        if new is not None and new > 2**31 - 1:
            raise OverflowError("Python int too large to convert to C long")
        limits.append(limits[-1] if new is None else new)
        return limits[-1]

    monkeypatch.setattr(csv, "field_size_limit", limit)
    assert list(csv_rows(["a,b\n"], "x")) == [(1, ["a", "b"])]
    assert limits[-1] == 2**31 - 1


def test_quotes_in_a_table_between_tabs_are_text() -> None:
    rows = 'part\tname\n1\t"Vane" pump\n2\t5" pipe\n3\t"open\n'
    found = read_sheet(rows.encode(), Limits(1000)).text
    assert found == 'part | name\n1 | "Vane" pump\n2 | 5" pipe\n3 | "open'
    assert (
        read_sheet(b'part\tname\n1\t"two\nlines"\n', Limits(1000)).text
        == "part | name\n1 | two lines"
    )
    with pytest.raises(Unreadable, match="RFC 4180"):
        read_sheet(rows.replace("\t", ",").encode(), Limits(1000))
