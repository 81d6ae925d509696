"""The pages of a document: which holds a character, and what is none."""

from __future__ import annotations

import json

import pytest

from aveyb_retrieval.documents.records import Pages


def test_pages_are_checked() -> None:
    pages = Pages((0, 5, 5, 9), ("i", "ii", "1", "2"))
    assert [pages.at(i) for i in (0, 4, 5, 8, 100)] == [
        (1, "i", "page"), (1, "i", "page"), (3, "1", "page"), (3, "1", "page"), (4, "2", "page")
    ]  # fmt: skip
    for unit in ("page", "slide"):
        same = Pages((0, 5), (), unit)
        assert Pages.from_json(json.loads(same.to_json())) == same
    assert "unit" not in pages.to_json()
    assert Pages((0, 3)).at(3) == (2, "2", "page")
    assert [page.number for page in pages.range(3, 6)] == [1, 3]
    assert (
        [page.number for page in pages.range(4, 5)]
        == [page.number for page in pages.range(4, 4)]
        == [1, 1]
    )
    assert str(Pages((0, 3), ("0:01", "0:02"), "time").at(3)) == "time 0:02"
    assert Pages.from_json(json.loads(pages.to_json())) == pages
    for bad in (
        {"starts": [], "labels": []},
        {"starts": [1], "labels": []},
        {"starts": [0, 5, 2], "labels": []},
        {"starts": [0], "labels": ["a", "b"]},
        {"starts": [0, True], "labels": []},
        {"starts": 0, "labels": []},
        {"starts": [0], "labels": [5]},
        {"starts": [0]},
        [],
        None,
        {"starts": [0], "labels": [], "unit": "chapter"},
        {"starts": [0], "labels": [], "x": 1},
    ):
        with pytest.raises(ValueError, match="page"):
            Pages.from_json(bad)
