"""Files of every kind at random: each word that was put in is found, in order, and once.

`AVEYB_FUZZ_SECONDS=3600 pytest tests/documents/test_fuzz_readers.py` shares an hour among the
kinds; without it each has a few examples.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.kinds import kind_of, read_file
from tests.documents.written import WRITERS, Block

if TYPE_CHECKING:
    from pathlib import Path

for package in (
    "pypdfium2",
    "selectolax",
    "lxml",
    "striprtf",
    "docx",
    "pptx",
    "openpyxl",
    "odf",
    "ebooklib",
    "reportlab",
):
    pytest.importorskip(package)

SECONDS = float(os.environ.get("AVEYB_FUZZ_SECONDS", "0"))
_LATIN = ("ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu")
_OTHERS = (
    "\u0431\u0430",
    "\u043a\u0435",
    "\u05d0\u05d1",
    "\u03b1\u03b2",
    "\u00e4\u00f6",
    "\u00e9\u00e8",
)
_ONLY_LATIN = ("pdf",)  # whose fonts here have no other letters


def _word(number: int, script: int) -> str:
    """A word of its own for each number; no word begins with another one."""
    syllables = (
        _LATIN if script == 0 else _OTHERS[script - 1 :] + _OTHERS[: script - 1] + _LATIN[:4]
    )
    return "".join(syllables[int(digit)] for digit in f"{number:04}") + "x"


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[tuple[str, list[list[int]]]], int]:
    """Blocks, of whose cells the numbers of words are given, and a script."""
    blocks = []
    for kind in draw(
        st.lists(st.sampled_from(["heading", "text", "list", "table"]), min_size=1, max_size=8)
    ):
        rows = draw(st.integers(1, 4)) if kind in ("list", "table") else 1
        columns = draw(st.integers(2, 4)) if kind == "table" else 1
        most = 3 if kind in ("table", "heading") else 40
        blocks.append(
            (kind, [[draw(st.integers(1, most)) for _ in range(columns)] for _ in range(rows)])
        )
    return blocks, draw(st.integers(0, len(_OTHERS)))


def _made(
    document: tuple[list[tuple[str, list[list[int]]]], int], kind: str
) -> tuple[list[Block], list[str]]:
    counter, (blocks, script) = itertools.count(1), document
    words: list[str] = []

    def cell(count: int) -> str:
        new = [_word(next(counter), 0 if kind in _ONLY_LATIN else script) for _ in range(count)]
        words.extend(new)
        return " ".join(new)

    return [
        Block(name, tuple(tuple(map(cell, row)) for row in rows)) for name, rows in blocks
    ], words


def check(kind: str, document: tuple[list[tuple[str, list[list[int]]]], int], folder: Path) -> None:
    blocks, words = _made(document, kind)
    path = folder / f"a.{kind}"
    path.write_bytes(WRITERS[kind](blocks))
    known = kind_of(path, in_folder=True)
    assert known is not None
    found = read_file(path, known, Limits(1 << 24))[0]
    wanted = set(words)
    read = [word for word in re.findall(r"\w+", found.text) if word in wanted]
    if kind in ("xlsx", "ods", "csv"):  # the names of columns are repeated in long ones
        read = list(dict.fromkeys(read))
    assert read == words, (kind, found.warning)


@pytest.mark.parametrize("kind", WRITERS)
def test_every_word_is_read_in_order_and_once(kind: str, tmp_path: Path) -> None:
    end = time.monotonic() + SECONDS / len(WRITERS)

    @settings(
        max_examples=8 if not SECONDS else 200,
        deadline=None,
        database=None,
        derandomize=not SECONDS,
        suppress_health_check=list(HealthCheck),
    )
    @given(documents())
    def run(document: tuple[list[tuple[str, list[list[int]]]], int]) -> None:
        check(kind, document, tmp_path)

    run()
    rounds = 0
    while time.monotonic() < end:  # Hypothesis starts from another seed each time
        random.seed()
        run()
        rounds += 1
