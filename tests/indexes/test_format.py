"""Indexes of format 1, made by the first release, still open, verify, search and change."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aveyb_retrieval import Hit, Retriever, compact_index, verify_index
from aveyb_retrieval.indexes.store.store import content_digest
from aveyb_retrieval.indexes.changes.maintain import upgrade_index
from tests.faults.test_hostile import rehash

DATA = Path(__file__).parents[1] / "data" / "format1"
ANSWERS = json.loads((DATA / "answers.json").read_text(encoding="utf-8"))


@pytest.fixture(params=["flat", "hnsw"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an old index that was built, upserted and (flat) deleted from."""
    return Path(shutil.copytree(DATA / request.param, tmp_path / request.param))


def rows(hits: list[Hit]) -> list[list[Any]]:
    return [[hit.id, pytest.approx(hit.score, abs=2e-5), list(hit.span or ())] for hit in hits]


def test_it_verifies(index: Path) -> None:
    assert verify_index(index).problems == []


def test_it_finds_documents_by_vectors_and_by_words_as_it_did(index: Path) -> None:
    expected = ANSWERS[index.name]
    with Retriever.load(index) as retriever:
        vectors = np.array(ANSWERS["vectors"], dtype=np.float32)
        found = retriever.search_vectors(vectors, k=4)
        assert [rows(hits) for hits in found] == expected["search_vectors"]
        lexical = [
            [(hit.id, round(hit.score, 5)) for hit in retriever.search(query, k=4, mode="lexical")]
            for query in ANSWERS["queries"]
        ]
        assert lexical == [[(name, score) for name, score, _ in hits] for hits in expected["lexical"]]


def test_it_is_compacted_and_says_the_same(index: Path) -> None:
    compact_index(index)
    assert verify_index(index).problems == []
    with Retriever.load(index) as retriever:
        found = retriever.search_vectors(np.array(ANSWERS["vectors"], dtype=np.float32), k=4)
        assert [rows(hits) for hits in found] == ANSWERS[index.name]["search_vectors"]


def test_upgraded_words_are_those_of_the_present_rules(index: Path) -> None:
    """Among them, pairs of characters where a script has no spaces: format 1 did not know them."""
    (version,) = index.glob("v*")
    with sqlite3.connect(version / "store.sqlite") as db:
        doc, title, text = db.execute("SELECT doc, title, text FROM texts ORDER BY doc LIMIT 1").fetchone()
        japanese = "\u6771\u4eac\u90fd\u306b\u884c\u304f " + text
        db.execute("INSERT INTO fulltext(fulltext, rowid, title, text) VALUES ('delete', ?, ?, ?)", (doc, title, text))
        db.execute("UPDATE texts SET text = ? WHERE doc = ?", (japanese, doc))
        db.execute("UPDATE documents SET digest = ? WHERE doc = ?", (content_digest(title, japanese), doc))
        db.execute("INSERT INTO fulltext(rowid, title, text) VALUES (?, ?, ?)", (doc, title, japanese))
    db.close()
    rehash(index, "store.sqlite")
    assert verify_index(index, deep=True).problems == []
    upgrade_index(index)
    assert verify_index(index, deep=True).problems == []
    with Retriever.load(index) as retriever:
        (hit,) = retriever.search("\u6771\u4eac", mode="lexical")
        assert hit.text == japanese
