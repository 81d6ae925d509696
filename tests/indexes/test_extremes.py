"""What nobody would write and somebody gives: an answer, or one line, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

NOTE = {"_id": "note", "text": "A plain note about valves."}
MODES: list[dict[str, Any]] = [
    {},
    {"mode": "lexical"},
    {"mode": "dense"},
    {"unit": "passage"},
    {"operators": True},
]


@pytest.mark.parametrize("letters", ["x", "aB1"])
@pytest.mark.parametrize("count", [2_000_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_a_document_of_millions_of_letters_without_a_space(
    tmp_path: Path, letters: str, count: int
) -> None:
    drawn = np.random.default_rng(0).integers(len(letters), size=count, dtype=np.uint8)
    text = np.frombuffer(letters.encode(), np.uint8)[drawn].tobytes().decode()
    model = FakeEmbedder()
    report = build_index([{"_id": "giant", "text": text}, NOTE], tmp_path / "ix", model=model)
    assert report.passages == 2
    with Retriever.load(tmp_path / "ix", model=model) as retriever:
        for options in MODES:
            hits = retriever.search("plain valves", k=2, **options)
            assert hits[0].id == "note"
        asked = [f"plain {text[:9]}{sign}" for sign in "*~"]
        assert [retriever.search(query, operators=True).unmet for query in asked] == [
            (each[6:],) for each in asked
        ]
        (giant,) = (
            hit for hit in retriever.search("plain", k=2, mode="dense") if hit.id == "giant"
        )
        assert giant.text == text
        assert giant.span == (0, len(text))


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_document_of_very_many_passages(tmp_path: Path, count: int) -> None:
    model = FakeEmbedder()
    text = "\n".join(f"Pump {i % 977} of hall {i % 89} is closed at noon." for i in range(count))
    text = f"{text[:400_000]} The turquoise valve leaks near the pier now. {text[400_000:]}"
    report = build_index([{"_id": "long", "text": text}, NOTE], tmp_path / "ix", model=model)
    assert report.passages > count
    with Retriever.load(tmp_path / "ix", model=model) as retriever:
        for options in MODES:
            hits = retriever.search("the turquoise valve leaks", k=2, **options)
            best = next(hit for hit in hits if hit.id == "long")
            assert "turquoise" in (best.passage or "")
            assert best.text == text


@pytest.mark.parametrize(
    "query",
    [" ".join(f"w{i}" for i in range(10_000)), " ".join(["valves"] * 10_000), "y" * 1_000_000],
)
def test_a_query_of_ten_thousand_words(tmp_path: Path, query: str) -> None:
    model = FakeEmbedder()
    rows = [
        NOTE,
        *(
            {"_id": f"d{i}", "text": f"Number w{i} is closed, the others stay open."}
            for i in range(50)
        ),
    ]
    build_index(rows, tmp_path / "ix", model=model)
    with Retriever.load(tmp_path / "ix", model=model) as retriever:
        for options in MODES:
            hits = retriever.search(query, k=3, **options)
            assert len(hits) == 3 or options == {"mode": "lexical"}
            assert all(isinstance(hit.highlights, tuple) for hit in hits)
            assert len(hits.suggestions) <= 50
