"""Pictures in documents of Word and on slides: large ones are read by OCR, or counted."""

from __future__ import annotations

import io
import os
import re
import zipfile
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval import Retriever, build_index, sync_index
from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.readers import pictures
from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.records import Notice, Record, Rejected
from tests.documents.scans import NEEDS_TESSERACT, drawn, pretended_tesseract, saved
from tests.documents.test_scans import PATIENT, read_one
from tests.documents.written import save_office
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

docx, pptx = pytest.importorskip("docx"), pytest.importorskip("pptx")
WORDS = "The tenant may leave the house in March"
SCAN = saved(drawn(WORDS, size=(1000, 200)), "PNG")
LOGO = saved(drawn("Ltd", size=(390, 190), height=40), "PNG")
NEEDED = "OCR needs tesseract and its data, Debian: tesseract-ocr"


def letter(*contents: str | bytes) -> bytes:
    """A document of Word of paragraphs and pictures."""
    document = docx.Document()
    for content in contents:
        if isinstance(content, str):
            document.add_paragraph(content)
        else:
            document.add_picture(io.BytesIO(content))
    return save_office(document)


def slides(*contents: list[str | bytes]) -> bytes:
    """A presentation of slides of texts and pictures."""
    show = pptx.Presentation()
    for items in contents:
        slide = show.slides.add_slide(show.slide_layouts[6])
        for item in items:
            if isinstance(item, str):
                slide.shapes.add_textbox(0, 0, 100, 100).text_frame.text = item
            else:
                slide.shapes.add_picture(io.BytesIO(item), 0, 0)
    return save_office(show)


@NEEDS_TESSERACT
def test_a_scanned_page_in_a_letter_is_read_where_it_is(tmp_path: Path) -> None:
    item = read_one(tmp_path, "a.docx", letter("Dear Ada,", SCAN, "Yours, Bob", LOGO))
    assert isinstance(item, Record)
    assert item.text.split("\n\n") == ["Dear Ada,", WORDS, "Yours, Bob"]
    assert "not_read" not in item.metadata


@NEEDS_TESSERACT
def test_a_picture_in_a_cell_is_read_in_its_row(tmp_path: Path) -> None:
    document = docx.Document()
    row = document.add_table(1, 2).rows[0].cells
    row[0].text = "Clause"
    row[1].paragraphs[0].add_run().add_picture(io.BytesIO(SCAN))
    item = read_one(tmp_path, "a.docx", save_office(document))
    assert isinstance(item, Record) and item.text.strip() == f"Clause | {WORDS}"


@NEEDS_TESSERACT
def test_pictures_on_slides_are_read_with_their_certainty_but_not_on_hidden_ones(
    tmp_path: Path,
) -> None:
    hidden = drawn("It snows in the harbour", size=(1000, 200))
    data = slides(["Leases", SCAN], ["Harbour", saved(hidden, "PNG")], [LOGO, "End"], [SCAN])
    show = pptx.Presentation(io.BytesIO(data))
    show.slides[1]._element.set("show", "0")
    (tmp_path / "a.pptx").write_bytes(save_office(show))
    notice, item = read_corpus(tmp_path, PATIENT)
    assert isinstance(item, Record) and isinstance(notice, Notice)
    assert notice.reason == "1 slide hidden and left out: 2"
    assert item.text.count(WORDS) == 2 and "snows" not in item.text
    assert item.metadata["ocr_pages"] == [1, 4]
    assert all(certainty > 80 for certainty in item.metadata["ocr_certainty"])


@pytest.mark.parametrize("kind", ["docx", "pptx"])
def test_without_the_program_pictures_are_counted_and_documents_of_them_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    write = {"docx": letter, "pptx": lambda *items: slides([*items])}[kind]
    folder = tmp_path / "docs"
    folder.mkdir()
    other = saved(drawn("It snows in the harbour", size=(1000, 200)), "PNG")
    (folder / f"a.{kind}").write_bytes(write("Dear Ada,", SCAN, other, LOGO))
    (folder / f"b.{kind}").write_bytes(write(SCAN))
    (folder / f"c.{kind}").write_bytes(write("Dear Bob,", LOGO))
    notice, letter_item, scan, plain = read_corpus(folder)
    assert isinstance(notice, Notice) and not notice.is_loss and notice.ocr_try is not None
    assert notice.reason == f"2 of 2 pictures not read ({NEEDED})"
    assert isinstance(letter_item, Record) and "not_read" not in letter_item.metadata
    assert isinstance(scan, Rejected) and scan.ocr_try is not None
    assert scan.reason == f"no text: 1 of 1 picture not read ({NEEDED})"
    assert isinstance(plain, Record) and "Dear Bob" in plain.text


@NEEDS_TESSERACT
def test_a_sync_reads_pictures_once_tesseract_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = tmp_path / "docs", os.environ["PATH"]
    folder.mkdir()
    (folder / "a.docx").write_bytes(letter("Dear Ada,", SCAN))
    monkeypatch.setenv("PATH", str(tmp_path))
    build_index(folder, tmp_path / "i", model=FakeEmbedder())
    assert sync_index(folder, tmp_path / "i", model=FakeEmbedder()).unchanged == 1
    monkeypatch.setenv("PATH", path)
    assert sync_index(folder, tmp_path / "i", model=FakeEmbedder()).replaced == 1
    with Retriever.load(tmp_path / "i", model=FakeEmbedder()) as retriever:
        (document,) = retriever.documents()
    assert WORDS in document.text


IMAGE_IN_VML = (
    b'<w:p><w:r><w:pict><v:shape xmlns:v="urn:schemas-microsoft-com:vml">'
    b'<v:imagedata r:id="%s"/></v:shape></w:pict></w:r></w:p>'
)


@NEEDS_TESSERACT
def test_a_picture_of_an_old_document_is_read_and_a_link_is_none(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(letter("Dear Ada,", SCAN))) as archive:
        identity = re.findall(rb'r:embed="(\w+)"', archive.read("word/document.xml"))[0]
        with zipfile.ZipFile(out, "w") as copy:
            for name in archive.namelist():
                data = archive.read(name)
                if name == "word/document.xml":
                    old = IMAGE_IN_VML % identity + IMAGE_IN_VML % b"rId999"
                    data = data.replace(b"r:embed", b"r:link").replace(
                        b"<w:sectPr", old + b"<w:sectPr"
                    )
                copy.writestr(name, data)
    item = read_one(tmp_path, "a.docx", out.getvalue())
    assert isinstance(item, Record) and item.text.split("\n\n") == ["Dear Ada,", WORDS]


@NEEDS_TESSERACT
def test_a_picture_on_which_tesseract_fails_is_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", pretended_tesseract(tmp_path / "bin", "sys.exit(3)"))
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.docx").write_bytes(letter("Dear Ada,", SCAN))
    notice, record = read_corpus(folder)
    assert isinstance(notice, Notice) and notice.is_loss
    assert notice.reason == "1 of 1 picture not read (tesseract failed: 3)"
    assert isinstance(record, Record) and record.metadata["not_read"] == notice.reason


def test_a_file_shows_no_more_pictures_than_its_size_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pictures, "why_unavailable", lambda _limits: "")
    monkeypatch.setattr(pictures, "most_pictures", lambda _size: 1)
    monkeypatch.setattr(
        pictures, "read_pictures", lambda pages, *_: [page().size for page in pages]
    )
    contents = {"a.png": SCAN, "b.png": SCAN, "c.png": LOGO, "d.png": b"no picture" * 30}
    outcomes = pictures.read_inner_pictures(contents, 5000, Limits())
    assert outcomes.pop("a.png") == (1000, 200)
    assert {name: str(outcome) for name, outcome in outcomes.items()} == {
        "b.png": "a file of 5,000 bytes shows more than 1 pictures",
        "d.png": "damaged, or not a picture of its kind",
    }
