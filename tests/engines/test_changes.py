"""Every engine holds what was put into it: upserts, deletions, publishing anew, readers beside a
writer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval.errors import InputError
from tests.engines.stands import EMBEDDER
from tests.indexes.conftest import assert_best, make_documents, true_scores

if TYPE_CHECKING:
    from collections.abc import Callable

    from aveyb_retrieval import Retriever
    from tests.engines.stands import Collection, Documents, Stand

QUERY = "word1 word2 word3"


def ids(retriever: Retriever, query: str = QUERY, k: int = 1000, **options: Any) -> list[str]:
    return sorted(hit.id for hit in retriever.search(query, k, **{"mode": "dense", **options}))


def check(retriever: Retriever, rows: Documents) -> None:
    """The collection holds exactly these documents, and ranks them by their true scores."""
    assert len(retriever) == len(rows) == retriever.count()
    assert sorted(document.id for document in retriever.documents()) == sorted(
        row["_id"] for row in rows
    )
    assert_best(retriever.search(QUERY, 5, mode="dense"), true_scores(rows, EMBEDDER, QUERY), 5)


def test_documents_are_added_and_replaced(collection: Collection) -> None:
    rows = make_documents(30)
    collection.publish(rows)
    more = make_documents(10, first=25, seed=9)
    collection.upsert(more)
    with collection.load() as retriever:
        check(retriever, rows[:25] + more)


def test_an_upsert_done_twice_changes_nothing(collection: Collection) -> None:
    rows = make_documents(30)
    collection.publish(rows)
    for _ in range(2):
        collection.upsert(rows[:12])
    with collection.load() as retriever:
        check(retriever, rows)


def test_a_replaced_document_is_found_by_its_new_text_only(collection: Collection) -> None:
    collection.publish([{"_id": "a", "text": "oldword"}, {"_id": "b", "text": "word1"}])
    collection.upsert([{"_id": "a", "title": "New", "text": "newword"}])
    with collection.load() as retriever:
        assert ids(retriever, "oldword", mode="lexical") == []
        assert ids(retriever, "newword", mode="lexical") == ["a"]
        assert ids(retriever, "newword", mode="lexical", unit="passage") == ["a"]
        assert retriever.get(["a"])[0].title == "New"


def test_scores_of_words_follow_every_change(
    collection: Collection, stand: Stand, needs: Callable[[str], None]
) -> None:
    needs("fresh-statistics")
    rows = make_documents(40)
    collection.publish(rows[:30])
    collection.upsert(rows[20:])
    collection.delete([row["_id"] for row in rows[:10]])
    fresh = stand.collection()
    fresh.publish(rows[10:])
    with collection.load() as retriever, fresh.load() as other:
        for options in ({"mode": "lexical"}, {}, {"unit": "passage"}):
            found = {h.id: h.score for h in retriever.search(QUERY, 20, **options)}  # type: ignore[arg-type]
            wanted = {h.id: h.score for h in other.search(QUERY, 20, **options)}  # type: ignore[arg-type]
            assert found == pytest.approx(wanted, abs=1e-4)


def test_metadata_are_replaced(collection: Collection) -> None:
    collection.publish(
        [{"_id": "a", "text": "word1", "year": 1}, {"_id": "b", "text": "word2", "year": 1}]
    )
    collection.upsert([{"_id": "a", "text": "word1", "year": 2}])
    with collection.load() as retriever:
        assert ids(retriever, filter={"year": 2}) == ["a"]
        assert ids(retriever, filter={"year": 1}) == ["b"]


def test_metadata_come_back_as_they_were(collection: Collection) -> None:
    metadata = {
        "z": 1,
        "a": [1, 2.5, None, True, "x", {"deep": []}],
        "big": 2**64 - 1,
        "small": 1e-300,
        "one": 1.0,
        "quoted": 'line\nbreak "quoted" \\ ünïcödé 😀',
        "empty": {},
        "none": None,
    }
    collection.publish([{"_id": "a", "text": "word1", "metadata": metadata}])
    with collection.load() as retriever:
        (document,) = retriever.get(["a"])
        assert document.metadata == metadata
        assert {k: type(v) for k, v in document.metadata.items()} == {
            k: type(v) for k, v in metadata.items()
        }
        (hit,) = retriever.search("word1", 1, mode="dense")
        assert hit.metadata == metadata


def test_deleted_documents_are_gone(collection: Collection) -> None:
    rows = make_documents(30)
    collection.publish(rows)
    collection.delete(["doc-3", "doc-7"])
    with collection.load() as retriever:
        check(retriever, [row for row in rows if row["_id"] not in ("doc-3", "doc-7")])
        assert retriever.get(["doc-3"], missing_ok=True) == []


def test_a_deleted_document_can_come_back(collection: Collection) -> None:
    rows = make_documents(12)
    collection.publish(rows)
    collection.delete(["doc-3"])
    collection.upsert([rows[3]])
    with collection.load() as retriever:
        check(retriever, rows)


def test_deleting_what_is_not_there_is_an_error_and_deletes_nothing(collection: Collection) -> None:
    rows = make_documents(5)
    collection.publish(rows)
    with pytest.raises(InputError, match="nobody"):
        collection.delete(["doc-1", "nobody"])
    with collection.load() as retriever:
        check(retriever, rows)


def test_without_documents_nothing_is_found(collection: Collection) -> None:
    collection.publish(make_documents(3))
    collection.delete(["doc-0", "doc-1", "doc-2"])
    with collection.load() as retriever:
        assert (len(retriever), list(retriever.documents())) == (0, [])
        assert retriever.search(QUERY, mode="dense") == []
        assert retriever.search(QUERY, mode="dense", unit="passage", filter={"year": 2000}) == []
        assert (
            retriever.search(QUERY) == retriever.search(QUERY, mode="lexical", unit="passage") == []
        )
    collection.upsert(make_documents(4))
    with collection.load() as retriever:
        check(retriever, make_documents(4))


def test_ids_are_any_text(collection: Collection) -> None:
    names = [
        "ä/ö?ü#",
        "日本語",
        "😀" * 40,
        "a b\tc",
        "'; DROP TABLE documents; --",
        '"quoted" \\ back',
        "%s {x} $1",
        "A",
        "a",
    ]
    rows = [{"_id": name, "text": f"word{n}"} for n, name in enumerate(names)]
    collection.publish(rows)
    collection.upsert(rows[3:])
    with collection.load() as retriever:
        assert [document.id for document in retriever.get(names)] == names
        assert ids(retriever) == sorted(names)
    collection.delete(names[:5])
    with collection.load() as retriever:
        assert sorted(document.id for document in retriever.documents()) == sorted(names[5:])


def test_long_texts_are_kept_whole(collection: Collection) -> None:
    text = " ".join(f"ж{i % 300} word{i % 300}" for i in range(9000))
    assert len(text.encode()) > 1 << 16
    collection.publish(
        [{"_id": "long", "title": "T" * 1000, "text": text}, {"_id": "short", "text": "word1"}]
    )
    with collection.load() as retriever:
        (document,) = retriever.get(["long"])
        assert (document.title, document.text) == ("T" * 1000, text)
        for hit in retriever.search("ж299 word299", 50, mode="dense", unit="passage", fold=False):
            assert hit.span is not None
            assert hit.passage == hit.text[slice(*hit.span)]


def test_a_long_id_is_kept_or_refused(collection: Collection) -> None:
    name = "x" * 5000
    collection.publish([{"_id": name, "text": "word1"}, {"_id": name + "y", "text": "word2"}])
    with collection.load() as retriever:
        assert [document.id for document in retriever.get([name + "y", name])] == [name + "y", name]


def test_a_retriever_keeps_to_its_version_until_it_is_reopened(collection: Collection) -> None:
    collection.publish(make_documents(10))
    with collection.load() as retriever:
        version = retriever.version
        assert not retriever.is_stale
        collection.publish(make_documents(4, first=50))
        assert retriever.is_stale
        assert len(ids(retriever)) == 10
        retriever.reopen()
        assert (retriever.version != version, retriever.is_stale) == (True, False)
        check(retriever, make_documents(4, first=50))


def test_what_is_written_is_there_after_opening_again(collection: Collection) -> None:
    rows = make_documents(20)
    collection.publish(rows)
    with collection.load() as first:
        check(first, rows)
    collection.upsert(make_documents(3, first=20))
    with collection.load() as second:
        check(second, make_documents(20) + make_documents(3, first=20))


def test_readers_beside_a_writer_see_whole_documents(
    collection: Collection, needs: Callable[[str], None]
) -> None:
    """A document's title says which text it has: no search ever sees one with the other of another
    round.
    """
    needs("one-state")

    def documents(number: int) -> Documents:
        text = f"word{number} round" + f" word{number}" * 20
        return [
            {"_id": f"d{i}", "title": f"round {number}", "text": text, "round": number}
            for i in range(8)
        ]

    collection.publish(documents(0))
    stop, problems, searches = threading.Event(), list[object](), [0]

    def read() -> None:
        try:
            with collection.load() as retriever:
                while not stop.is_set():
                    for hit in retriever.search("round word1", 20, mode="dense"):
                        number = hit.metadata["round"]
                        assert hit.title == f"round {number}"
                        assert hit.text.startswith(f"word{number} round")
                        assert hit.passage
                        assert hit.passage in hit.text
                    searches[0] += 1
                    retriever.reopen()
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 6):
        collection.upsert(documents(number))
    stop.set()
    for reader in readers:
        reader.join(60)
    assert not problems
    assert searches[0] > 0
    with collection.load() as retriever:
        assert {document.metadata["round"] for document in retriever.documents()} == {5}
        assert len(retriever) == 8
