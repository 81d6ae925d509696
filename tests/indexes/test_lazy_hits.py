"""What of a hit is read when it is asked for: from the version that was searched, or one clear
error.
"""

from __future__ import annotations

import copy
import pickle
import shutil
from dataclasses import FrozenInstanceError, asdict
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Result, Retriever, build_index
from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.search.evidence import MAX_DOCUMENTS_HELD
from aveyb_retrieval.indexes.search.hit import HIT_FIELDS, PASSAGE_FIELDS
from aveyb_retrieval.indexes.store.rows import RowTable
from aveyb_retrieval.indexes.store.tables import Tables
from tests import one_change
from tests.indexes.fake import FakeEmbedder
from tests.recorder import record_calls

if TYPE_CHECKING:
    from pathlib import Path

LONG = " ".join(f"The pump number {i} is closed, but the valve stays open." for i in range(300))
ROWS: list[dict[str, Any]] = [
    {"_id": "long", "title": "Manual", "text": LONG, "year": 2001},
    *({"_id": f"d{i}", "text": f"Note {i}: a pump.", "year": 1990 + i} for i in range(20)),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_index(ROWS, tmp_path / "ix", model=FakeEmbedder())
    return tmp_path / "ix"


def load(root: Path) -> Retriever:
    return Retriever.load(root, model=FakeEmbedder())


def test_a_search_reads_no_texts_and_all_of_them_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = record_calls(monkeypatch, Tables, "read_documents")
    texts = record_calls(monkeypatch, RowTable, "encoded_texts")

    def documents_read() -> list[tuple[int, tuple[str, ...]]]:
        return [(len(call["docs"]), call["parts"]) for call in reads]

    with load(root) as retriever:
        hits = retriever.search("the pump that is closed", k=5, passages=2, context=1)
        assert documents_read() == [(5, ("title",))]
        assert [hit.passage for hit in hits] == [hit.passages[0].text for hit in hits]
        assert all(hit.highlights for hit in hits), "found in what is shown"
        assert len(reads) == 1
        assert "heading" not in [call["column"] for call in texts]
        assert [hit.heading for hit in hits] == [""] * len(hits)
        columns = [call["column"] for call in texts]
        assert columns.count("heading") <= columns.count("text") < len(hits), (
            "of all that were read together"
        )
        for hit in hits:
            assert hit.context == hit.text[slice(*hit.context_span)]  # type: ignore[misc]
            assert all(passage.text == hit.text[slice(*passage.span)] for passage in hit.passages)
            assert hit.metadata["year"] > 1989
        assert documents_read()[1:] == [(5, ("text",)), (5, ("metadata",))]
        again = retriever.search("the pump that is closed", k=5)
        assert [(hit.id, hit.title) for hit in again] == [(hit.id, hit.title) for hit in hits]
        assert len(reads) == 3, "titles are kept"


def test_documents_of_a_long_list_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = MAX_DOCUMENTS_HELD + 40
    rows = [{"_id": f"d{i}", "text": f"Note {i} of a pump."} for i in range(count)]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder())
    with load(tmp_path / "ix") as retriever:
        reads = record_calls(monkeypatch, Tables, "read_documents")
        assert len(retriever.search("pump", k=count, mode="lexical")) == count
        docs = [doc for call in reads for doc in call["docs"]]
        assert len(docs) == len(set(docs)) == count


def test_copies_have_all_of_a_hit(root: Path) -> None:
    with load(root) as retriever:
        (hit,), (twin,), (third,) = (retriever.search("closed pump", k=1) for _ in range(3))
        copied = pickle.loads(pickle.dumps(hit)), copy.copy(twin)
        fields = third.to_dict(text=True)
        assert asdict(third)["id"] == "long"
    assert copied == (hit, hit)
    assert [each.metadata for each in copied] == [{"year": 2001}] * 2
    assert (fields["text"], fields["metadata"]) == (LONG, {"year": 2001})
    assert hit.to_dict() == {name: value for name, value in fields.items() if name != "text"}
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = hit.colour  # type: ignore[attr-defined]


def test_a_hit_stays_with_the_version_that_was_searched(root: Path) -> None:
    changes: list[Any] = [
        lambda: one_change.upsert(
            [{**ROWS[0], "text": "Another text."}], root, model=FakeEmbedder()
        ),
        lambda: one_change.delete(root, ["long", "d1"]),
        lambda: one_change.compact(root),
        lambda: build_index(
            [{"_id": "long", "text": "Third."}], root, model=FakeEmbedder(), overwrite=True
        ),
    ]
    with load(root) as retriever:
        found = [retriever.search("closed pump", k=3) for _ in changes]
        for hits, change in zip(found, changes, strict=True):
            change()
            texts = {row["_id"]: row["text"] for row in ROWS}
            assert [hit.text for hit in hits] == [texts[hit.id] for hit in hits]
        hits = retriever.search("closed pump", k=3)
        retriever.reopen()
        assert hits[0].text == LONG


@pytest.mark.parametrize("lost", ["closed", "deleted", "made again"])
def test_what_cannot_be_read_any_more_is_one_clear_error(root: Path, lost: str) -> None:
    retriever = load(root)
    (hit,) = retriever.search("closed pump", k=1)
    if lost == "closed":
        retriever.close()
    else:
        shutil.rmtree(root)
    if lost == "made again":
        build_index([{"_id": "long", "text": "Another text."}], root, model=FakeEmbedder())
    assert (hit.id, hit.title, hit.passages[0].text) == ("long", "Manual", hit.passage)
    for name in ("text", "metadata"):
        try:
            value = getattr(hit, name)
        except AveyBError as error:
            assert str(root) in str(error)
            assert "\n" not in str(error)
        else:  # what the system still has open can be read
            assert lost != "closed"
            assert value == {"text": LONG, "metadata": {"year": 2001}}[name]


def test_hits_are_values(root: Path) -> None:
    with load(root) as retriever:
        hits = retriever.search("closed pump", k=3, fold=False)
        same = retriever.search("closed pump", k=3, fold=False)
        names = {*HIT_FIELDS, "place"}
        assert names <= {*dir(hits[0])}, "before anything was read"
        assert {*PASSAGE_FIELDS, "place", "best_sentence"} <= {*dir(hits[0].passages[0])}
    assert {*hits} == {*same}
    assert len({*hits}) == 3
    assert hits[0] in {*same}
    assert {hits[0].passages[0]: 1}[same[0].passages[0]] == 1
    with load(root) as retriever:
        assert {*retriever.documents()} == {*retriever.documents()}
        assert {*retriever.grep("pump")} == {*retriever.grep("pump")}
        assert {*retriever.check_quotes('It says "the pump is closed".')}
    with pytest.raises(FrozenInstanceError):
        hits[0].score = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "copied", [Result.detach, copy.deepcopy, lambda hits: pickle.loads(pickle.dumps(hits))]
)
def test_detached_hits_outlive_the_retriever_and_its_files(root: Path, copied: Any) -> None:
    with load(root) as retriever:
        hits = retriever.search("closed pump", k=3)
        kept = copied(hits)
        shown = [hit.to_dict(text=True) for hit in hits]
        cited = [hit.citation() for hit in hits]
    shutil.rmtree(root)
    assert [hit.to_dict(text=True) for hit in kept] == shown
    assert [hit.citation() for hit in kept] == cited
    assert (kept.words, kept.unmet, kept.suggestions) == (hits.words, hits.unmet, hits.suggestions)


@pytest.mark.parametrize("name", ["text", "metadata", "heading", "best_sentence"])
def test_a_hit_of_a_closed_retriever_names_the_way_out(root: Path, name: str) -> None:
    with load(root) as retriever:
        (hit,) = retriever.search("closed pump", k=1)
    try:
        getattr(hit, name)
    except AveyBError as error:
        assert "before the retriever is closed, or keep hits.detach()" in str(error)
    else:
        assert name in ("heading", "best_sentence"), "words that were read stay"
