"""Random changes against a plain-Python model of the index: the two never disagree
(exact index).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.changes.verify import verify_index
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import assert_best, true_scores
from tests.indexes.fake import FakeEmbedder

IDS = st.sampled_from(
    ["a", "b", "c", "d", "\u4e2d", "id with spaces", "'; DROP TABLE documents; --", "0"]
)
TEXTS = st.lists(st.sampled_from([f"w{i}" for i in range(12)]), max_size=20).map(" ".join)
ROW = st.fixed_dictionaries(
    {
        "_id": IDS,
        "text": TEXTS,
        "title": st.sampled_from(["", "w1", "w2 w3"]),
        "year": st.integers(2000, 2004),
    }
)
ROWS = st.lists(ROW, min_size=1, max_size=6)
UNIQUE_ROWS = st.lists(ROW, min_size=1, max_size=6, unique_by=lambda row: row["_id"])


class IndexMachine(RuleBasedStateMachine):
    """`self.model` is what the index must hold: id to row."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.root = self.folder / "ix"
        self.embedder = FakeEmbedder(dim=8, split_size=4)
        self.model: dict[str, dict[str, Any]] = {}
        self.reader: Retriever

    def teardown(self) -> None:
        if hasattr(self, "reader"):
            self.reader.close()
            assert problems_of(self.root) == []
        shutil.rmtree(self.folder)

    @initialize(rows=UNIQUE_ROWS, index=st.sampled_from(["Flat", "IVF1,Flat", "SQ8"]))
    def build(self, rows: list[dict[str, Any]], index: str) -> None:
        build_index(rows, self.root, model=self.embedder, index=index)
        self.model = {row["_id"]: row for row in rows}
        self.reader = Retriever.load(self.root, model=self.embedder)

    @rule(rows=UNIQUE_ROWS)
    def add(self, rows: list[dict[str, Any]]) -> None:
        if any(row["_id"] in self.model for row in rows):
            with pytest.raises(InputError, match="already in use"):
                one_change.add(rows, self.root, model=self.embedder)
            return
        one_change.add(rows, self.root, model=self.embedder)
        self.model.update({row["_id"]: row for row in rows})

    @rule(rows=ROWS)
    def upsert(self, rows: list[dict[str, Any]]) -> None:
        one_change.upsert(rows, self.root, model=self.embedder)
        self.model.update({row["_id"]: row for row in rows})

    @precondition(lambda self: self.model)
    @rule(data=st.data(), tail=TEXTS)
    def grow(self, data: st.DataObject, tail: str) -> None:
        row = self.model[data.draw(st.sampled_from(sorted(self.model)))]
        longer = {**row, "text": f"{row['text']} {tail}"}
        one_change.upsert([longer], self.root, model=self.embedder)
        self.model[row["_id"]] = longer

    @rule(ids=st.sets(IDS, min_size=1, max_size=3))
    def delete_by_id(self, ids: set[str]) -> None:
        if not ids <= set(self.model):
            with pytest.raises(InputError, match="no document has the id"):
                one_change.delete(self.root, sorted(ids))
            return
        one_change.delete(self.root, sorted(ids))
        self.model = {k: v for k, v in self.model.items() if k not in ids}

    @rule(year=st.integers(2000, 2004))
    def delete_by_filter(self, year: int) -> None:
        one_change.delete(self.root, where={"year": {"$lt": year}})
        self.model = {k: v for k, v in self.model.items() if v["year"] >= year}

    @rule(old=st.integers(2000, 2004), new=st.integers(2000, 2004))
    def change_metadata(self, old: int, new: int) -> None:
        encoded = self.embedder.encoded_words
        one_change.update_metadata(self.root, {"year": new}, where={"year": old})
        self.model = {
            k: {**v, "year": new} if v["year"] == old else v for k, v in self.model.items()
        }
        assert self.embedder.encoded_words == encoded

    @rule()
    def compact(self) -> None:
        one_change.compact(self.root)

    @rule()
    def load_again(self) -> None:
        self.reader.close()
        self.reader = Retriever.load(self.root, model=self.embedder)

    @rule(
        query=TEXTS,
        k=st.integers(1, 9),
        granularity=st.sampled_from(["document", "passage", "both"]),
    )
    def search(self, query: str, k: int, granularity: str) -> None:
        if query:
            self.reader.reopen()
            truth = true_scores(list(self.model.values()), self.embedder, query, granularity)
            assert_best(
                self.reader.search(query, k=k, mode="dense", granularity=granularity, fold=False),
                truth,
                k,
            )

    @rule(query=TEXTS, year=st.integers(2000, 2004))
    def filtered_search(self, query: str, year: int) -> None:
        if query:
            self.reader.reopen()
            rows = [row for row in self.model.values() if row["year"] in (year, 2002)]
            hits = self.reader.search(
                query, k=9, mode="dense", filter={"year": {"$in": [year, 2002]}}, fold=False
            )
            assert_best(hits, true_scores(rows, self.embedder, query), 9)

    @rule(word=st.sampled_from([f"w{i}" for i in range(12)]))
    def lexical_search(self, word: str) -> None:
        self.reader.reopen()
        found = {hit.id for hit in self.reader.search(word, k=20, mode="lexical", fold=False)}
        assert found == {
            k for k, v in self.model.items() if word in f"{v['title']} {v['text']}".split()
        }

    @invariant()
    def contents_agree(self) -> None:
        if hasattr(self, "reader"):
            self.reader.reopen()
            assert len(self.reader) == self.reader.count() == len(self.model)
            for hit in self.reader.search("w1 w2 w3", k=50, mode="dense", granularity="document"):
                row = self.model[hit.id]
                assert (hit.text, hit.title, hit.metadata) == (
                    row["text"],
                    row["title"],
                    {"year": row["year"]},
                )
            for year in range(2000, 2005):
                listed = {
                    document.id: document for document in self.reader.documents({"year": year})
                }
                assert listed.keys() == {k for k, v in self.model.items() if v["year"] == year}
                assert self.reader.get(list(listed)) == list(listed.values())

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "reader"):
            assert verify_index(self.root).problems == []


class TestIndex(IndexMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(
        max_examples=4,
        stateful_step_count=15,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow
class TestIndexForLong(IndexMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(TestIndex.settings, max_examples=100, stateful_step_count=30)
