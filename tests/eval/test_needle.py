"""Needles in an index: texts as asked for, shares as defined, the script and its heat maps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from needle import main
from needles import FORMS, SYSTEMS, Cell, heat_maps, make_haystack, run_needles

from aveyb_retrieval.errors import ConfigError
from tests.indexes.fake import FakeEmbedder
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["Herons fish at dawn. They stand still. Then they strike.", "Boats\nneed paint."]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("texts", [(), TEXTS], ids=["made up", "given"])
def test_every_question_has_one_document_and_one_place(form: str, texts: list[str]) -> None:
    count = len
    rows, needles = make_haystack(
        900, [0, 50, 100], seeds=2, distractors=3, form=form, count=count, texts=texts
    )
    assert len(rows) == 9 and len({row["_id"] for row in rows}) == 9
    assert [needle.depth for needle in needles] == [0, 0, 50, 50, 100, 100]
    text_of = {row["_id"]: row["text"] for row in rows}
    for needle in needles:
        text = text_of[needle.document]
        start, end = needle.span
        name = needle.query.removesuffix("?").split()[-1]
        assert text[start:end].startswith(f"The special {form} for {name} is ")
        assert [key for key, other in text_of.items() if name in other] == [needle.document]
        assert start / len(text) == pytest.approx(needle.depth / 100, abs=0.1)
        assert 900 < len(text) < 1200
        assert {0: start == 0, 50: True, 100: end == len(text)}[needle.depth]
        assert ("Herons" in text) == bool(texts)
    assert sum(f"special {form}" in text for text in text_of.values()) == 6
    again, _ = make_haystack(
        900, [0, 50, 100], seeds=2, distractors=3, form=form, count=count, texts=texts
    )
    assert again == rows


@refusals(
    {
        ConfigError: {
            "form is 'name'; choose one of number, word": lambda: make_haystack(
                100, [0], seeds=1, distractors=0, form="name", count=len
            ),
            "depth is 101": lambda: make_haystack(
                100, [0, 101], seeds=1, distractors=0, form="word", count=len
            ),
        },
    }
)
def test_what_cannot_be_hidden_is_refused(refused: Refusal) -> None:
    refused()


def test_words_find_every_needle_and_a_blind_model_finds_them_by_chance() -> None:
    """The name stands nowhere else, so that words alone must answer; equal vectors know nothing."""

    class Blind(FakeEmbedder):
        def encode_queries(self, queries: list[str]) -> np.ndarray:
            return np.full((len(queries), self.dim), self.dim**-0.5, dtype=np.float32)

    cells = run_needles(Blind(), lengths=[600], depths=[10, 90], seeds=3, distractors=4)
    assert {cell.system for cell in cells} == set(SYSTEMS)
    of = {(cell.system, cell.depth): cell for cell in cells}
    for depth in (10, 90):
        words = of["words", depth]
        assert (words.length, words.document_first, words.document_in_few) == (600, 1, 1)
        assert (words.passage_first, words.passage_in_few) == (1, 1)
        documents = of["document vectors", depth]
        assert documents.passage_first is None
        assert documents.document_first <= documents.document_in_few < 1


def test_the_script_writes_its_cells_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        "needle.py",
        "--lengths",
        "300",
        "--depths",
        "0",
        "100",
        "--seeds",
        "1",
        "--distractors",
        "1",
        "--json",
    ]
    monkeypatch.setattr("sys.argv", [*asked, str(tmp_path / "needles.json")])
    main()
    cells = json.loads((tmp_path / "needles.json").read_text())["cells"]
    assert len(cells) == 2 * len(SYSTEMS)
    assert all(cell["document_first"] == 1 for cell in cells if cell["system"] == "words")
    assert (tmp_path / "needles.png").read_bytes().startswith(b"\x89PNG")
    maps = heat_maps([Cell(**cell) for cell in cells])
    assert len(maps) == 2 * len(SYSTEMS) - 1
    assert ("words: document first", [0, 100], {300: [1.0, 1.0]}) in maps
