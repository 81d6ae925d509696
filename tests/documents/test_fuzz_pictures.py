"""Pictures at random: the words of each page are read, or the page is named; damage costs no more
than its file.

`AVEYB_FUZZ_SECONDS=3600 pytest tests/documents/test_fuzz_pictures.py` shares an hour among the
kinds; without it each has a few examples.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.filetext import FileText, Unreadable
from aveyb_retrieval.documents.readers.kinds import kind_of, read_file
from rigs.fuzz.mutate import mutate_bytes
from tests.documents.scans import NEEDS_TESSERACT, Image, drawn, saved, scanned_pdf

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = float(os.environ.get("AVEYB_FUZZ_SECONDS", "0"))
FORMATS = {"tif": "TIFF", "png": "PNG", "jpg": "JPEG", "webp": "WEBP", "bmp": "BMP", "gif": "GIF"}
KINDS = [*FORMATS, "pdf"]
STAMPS = [[], ["HL-000117"], ["Received 12 May", "Page 2 of 8"]]
_WORDS = """
harbour tenant notice bridge water letter engineer station survey ground winter market railway
garden school morning paper window council income stone river channel contract pressure valve summer
report teacher village silver yellow between
"""
_SIZE, _BELOW_STAMPS = (1240, 760), 120  # pixels: no line is cut, nor printed over by a stamp
READ_SHARE = 0.9  # of the words of a page that OCR may be asked for, of clean type


def random_page(rng: random.Random) -> str:
    """A page of some paragraphs of ordinary words."""
    paragraphs = [
        " ".join(rng.choices(_WORDS.split(), k=rng.randint(6, 24))).capitalize() + "."
        for _ in range(rng.randint(1, 2))
    ]
    return "\n\n".join(paragraphs)


def random_file(rng: random.Random, kind: str) -> tuple[bytes, list[str]]:
    """A file of pictures of text, and the texts of its pages."""
    count = rng.randint(1, 2) if kind in ("tif", "pdf") else 1
    texts = [random_page(rng) for _ in range(count)]
    turns = (0, 0, 90, 180, 270) if kind == "pdf" else (0,)
    pictures = [
        drawn(
            text,
            size=_SIZE,
            top=_BELOW_STAMPS,
            turn=rng.choice(turns),
            spacing=rng.choice((1.3, 1.5, 1.9)),
            height=rng.choice((26, 30, 34)),
        )
        for text in texts
    ]
    if kind == "pdf":
        return scanned_pdf(*[(picture, rng.choice(STAMPS)) for picture in pictures]), texts
    return saved(pictures[0], FORMATS[kind], *pictures[1:]), texts


def read(folder: Path, kind: str, data: bytes) -> FileText:
    path = folder / f"a.{kind}"
    path.write_bytes(data)
    known = kind_of(path)
    assert known is not None
    return read_file(path, known, Limits(ocr_seconds=600))[0]


@NEEDS_TESSERACT
@pytest.mark.parametrize("kind", ["tif", "png", "pdf"] if not SECONDS else KINDS)
def test_the_words_of_each_page_are_read_or_the_page_is_named(kind: str, tmp_path: Path) -> None:
    end = time.monotonic() + SECONDS / len(KINDS)
    rng = random.Random(7 if not SECONDS else None)
    while True:
        data, texts = random_file(rng, kind)
        found = read(tmp_path, kind, data)
        assert found.pages is not None and len(found.pages.starts) == len(texts)
        words = Counter(re.findall(r"\w+", " ".join(texts).lower()))
        lost = words - Counter(re.findall(r"\w+", found.text.lower()))
        if not found.is_incomplete:
            assert lost.total() <= (1 - READ_SHARE) * words.total(), (kind, lost, found.text)
        if time.monotonic() >= end:
            return


@pytest.mark.parametrize("kind", FORMATS)
def test_a_damaged_picture_is_read_or_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without tesseract: pictures are only decoded
    end = time.monotonic() + SECONDS / len(FORMATS)
    rng = random.Random(11 if not SECONDS else None)
    small = Image.effect_noise((420, 220), 50)
    sound = saved(small, FORMATS[kind], *([small] * 3 if kind == "tif" else []))
    tries = 0
    while tries < 40 or time.monotonic() < end:
        tries += 1
        try:
            found = read(tmp_path, kind, mutate_bytes(rng, sound))
        except Unreadable as reason:
            assert str(reason)
        else:
            assert found.warning and not found.text
