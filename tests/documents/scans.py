"""Pictures of text and PDFs of them, for tests of OCR."""

from __future__ import annotations

import ctypes
import io
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from tests.indexes.files import make_pdf

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

for package, extra in (("pypdfium2", "files"), ("pytesseract", "ocr")):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[{extra}]'")
pypdfium2 = pytest.importorskip("pypdfium2")
Image, ImageDraw, ImageFont = (
    pytest.importorskip(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont")
)
NEEDS_TESSERACT = pytest.mark.skipif(
    shutil.which("tesseract") is None, reason="tesseract is not installed (Debian: tesseract-ocr)"
)
_POINTS = 72 / 200  # of a dot


def drawn(
    text: str,
    *,
    size: tuple[int, int] = (1240, 620),
    turn: int = 0,
    spacing: float = 1.4,
    height: int = 34,
    top: int = 60,
) -> Image.Image:
    """A picture of paragraphs, turned counter-clockwise by so many degrees."""
    picture = Image.new("L", size, 250)
    pen, font, y = ImageDraw.Draw(picture), ImageFont.load_default(height), top
    for paragraph in text.split("\n\n"):
        for line in textwrap.wrap(paragraph, 60):
            pen.text((90, y), line, font=font, fill=15)
            y += int(height * spacing)
        y += height
    return picture.rotate(turn, expand=True)


def saved(picture: Image.Image, kind: str, *others: Image.Image) -> bytes:
    """The bytes of a picture as a file, of a TIFF with more pages."""
    out = io.BytesIO()
    more = {"save_all": True, "append_images": list(others)} if others else {}
    picture.save(out, kind, **more)
    return out.getvalue()


def scanned_pdf(*pages: tuple[Image.Image | None, Sequence[str]], invisible: bool = False) -> bytes:
    """A PDF whose pages show a picture, or none, below lines of text, which may be invisible."""
    document = pypdfium2.PdfDocument.new()
    for picture, lines in pages:
        if picture is None:
            document.import_pages(pypdfium2.PdfDocument(make_pdf([lines])))
            continue
        width, height = (side * _POINTS for side in picture.size)
        page = document.new_page(width, height)
        image = pypdfium2.PdfImage.new(document)
        image.load_jpeg(io.BytesIO(saved(picture, "JPEG")), inline=True)
        image.set_matrix(pypdfium2.PdfMatrix().scale(width, height))
        page.insert_obj(image)
        for number, line in enumerate(lines):
            text = _write(document, page, line, height - 20 - 14 * number)
            if invisible:
                mode = pypdfium2.raw.FPDF_TEXTRENDERMODE_INVISIBLE
                pypdfium2.raw.FPDFTextObj_SetTextRenderMode(text, mode)
        page.gen_content()
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def _write(
    document: pypdfium2.PdfDocument, page: pypdfium2.PdfPage, line: str, height: float
) -> Any:
    raw = pypdfium2.raw
    font = raw.FPDFText_LoadStandardFont(document, b"Helvetica")
    text = raw.FPDFPageObj_CreateTextObj(document, font, 9)
    units = ctypes.create_string_buffer((line + "\0").encode("utf-16-le"))
    raw.FPDFText_SetText(text, ctypes.cast(units, raw.FPDF_WIDESTRING))
    raw.FPDFPageObj_Transform(text, 1, 0, 0, 1, 20, height)
    raw.FPDFPage_InsertObject(page, text)
    return text


def pretended_tesseract(folder: Path, script: str) -> str:
    """A PATH on which tesseract is a program of Python that runs `script` instead of reading.

    It has `real()`, which reads as the true one, and `sys`, `os`, `time`.
    """
    folder.mkdir(exist_ok=True)
    program = folder / "tesseract"
    true = shutil.which("tesseract")
    program.write_text(
        f"#!{sys.executable} -S\n"
        "import os, sys, time\n"
        f"def real(): os.execv({true!r}, ['tesseract', *sys.argv[1:]])\n"
        "if len(sys.argv) < 4: real()\n" + textwrap.dedent(script)
    )
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
