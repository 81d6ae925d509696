"""Pages of PDF that are pictures are read by Tesseract, in the limited process, and what is missing
for it is named.
"""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.readers.originals import boxes_in_file
from aveyb_retrieval.documents.records import Notice, Record, Rejected
from tests.indexes.files import make_pdf

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("pytesseract", reason="pytesseract is not installed: pip install '.[ocr]'")
pypdfium2 = pytest.importorskip(
    "pypdfium2", reason="pypdfium2 is not installed: pip install '.[files]'"
)
WORDS = "The tenant may leave the house in March"


def scanned(*pages: list[str]) -> bytes:
    """The pages of a PDF as pictures; one of no lines stays as it is, with text."""
    document = pypdfium2.PdfDocument(
        make_pdf([lines or ["This page holds a text"] for lines in pages])
    )
    out = pypdfium2.PdfDocument.new()
    for index, lines in enumerate(pages):
        if not lines:
            out.import_pages(document, [index])
            continue
        picture = io.BytesIO()
        document[index].render(scale=3).to_pil().save(picture, "PDF")
        out.import_pages(pypdfium2.PdfDocument(picture.getvalue()))
    written = io.BytesIO()
    out.save(written)
    return written.getvalue()


@pytest.mark.skipif(
    shutil.which("tesseract") is None, reason="tesseract is not installed (Debian: tesseract-ocr)"
)
def test_only_pages_without_text_are_read_by_ocr(tmp_path: Path) -> None:
    (tmp_path / "scan.pdf").write_bytes(scanned([WORDS], [], ["It snows.", WORDS]))
    (found,) = read_corpus(tmp_path)
    assert isinstance(found, Record) and found.origin and found.origin.pages
    first, second, third = found.origin.pages.starts
    assert found.text[first:second].split() == WORDS.split()
    assert found.text[second:third].strip() == "This page holds a text"
    assert found.text[third:].split() == ["It", "snows.", *WORDS.split()]


@pytest.mark.skipif(
    shutil.which("tesseract") is None, reason="tesseract is not installed (Debian: tesseract-ocr)"
)
def test_boxes_of_a_scanned_page_are_those_of_its_words(tmp_path: Path) -> None:
    (tmp_path / "scan.pdf").write_bytes(scanned(["It snows.", WORDS]))
    (found,) = read_corpus(tmp_path)
    assert isinstance(found, Record)
    start = found.text.index("tenant")
    (box,) = boxes_in_file("scan.pdf", found.text, (start, len(found.text)), found.origin)
    (whole,) = boxes_in_file(
        "scan.pdf", found.text, (found.text.index("The"), len(found.text)), found.origin
    )
    assert box.page == 1 and whole.left < box.left < box.right <= whole.right
    # a page of three times the size
    assert abs(box.top - whole.top) < 3 and 15 < box.top - box.bottom < 90


@pytest.mark.skipif(
    shutil.which("tesseract") is None, reason="tesseract is not installed (Debian: tesseract-ocr)"
)
def test_a_picture_without_words_stays_one(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(make_pdf([["words"], []], images=[1]))
    (tmp_path / "b.pdf").write_bytes(make_pdf([[]], images=[0]))
    notice, record, left = read_corpus(tmp_path)
    assert (
        isinstance(notice, Notice)
        and notice.reason == "1 of 2 pages are pictures without text, probably scanned: 2"
    )
    assert isinstance(record, Record) and record.text.strip() == "words"
    assert isinstance(left, Rejected) and left.reason.endswith(
        "(1 page of pictures only; OCR found no words)"
    )


def test_without_the_program_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "scan.pdf").write_bytes(scanned([WORDS]))
    (left,) = read_corpus(tmp_path)
    assert isinstance(left, Rejected)
    assert left.reason.endswith("OCR needs tesseract and its data (Debian: tesseract-ocr))")
