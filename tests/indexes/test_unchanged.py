"""What a change does not change is not written; who writes beside another waits; what a disk says
has a class.
"""

from __future__ import annotations

import errno
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from aveyb_retrieval import DiskError, Index, Retriever, build_index
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexLockedError
from aveyb_retrieval.indexes.changes import ingest
from aveyb_retrieval.indexes.store.dataset import LanceTable
from tests import one_change
from tests.contents import problems_of
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS: list[dict[str, Any]] = [
    {"_id": f"d{i}", "title": f"T{i}", "text": f"word{i} and more", "n": i, "tags": ["a", {"b": 1}]}
    for i in range(20)
]
COUNTS = ("added", "replaced", "updated", "unchanged", "deleted")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index.open(tmp_path / "ix", create=True, model=FakeEmbedder()) as opened:
        opened.add(ROWS)
        yield opened


def counts(report: Any) -> tuple[int, ...]:
    return tuple(getattr(report, name) for name in COUNTS)


def test_the_same_documents_again_write_nothing(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = index.version
    index.update_metadata({"set": True}, ["d3"])
    changed = index.version
    assert changed != version

    def refused(*_: Any) -> None:
        raise AssertionError("something was written")

    for name in ("append", "delete"):
        monkeypatch.setattr(LanceTable, name, refused)
    for rows in (ROWS, ROWS[3:5], reversed(ROWS), [{**ROWS[0], "n": 0}]):
        report = index.upsert(list(rows))
        assert report.version == changed
        assert report.unchanged == len(list(rows)) or report.unchanged == 20
        assert counts(report)[:3] == (0, 0, 0)
    report = index.update_metadata({"set": True}, ["d3"])
    assert (report.version, counts(report)) == (changed, (0, 0, 0, 1, 0))
    with index.batch() as batch:
        batch.upsert(ROWS)
        batch.update_metadata({"set": True}, ["d3"])
        batch.delete(["none"], missing_ok=True)
    assert batch.report.version == changed


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{**ROWS[0], "n": 100}], (0, 0, 1, 0, 0)),
        ([{**ROWS[0], "n": 0.5}, ROWS[1]], (0, 0, 1, 1, 0)),
        ([{"_id": "d0", "title": "T0", "text": ROWS[0]["text"]}], (0, 0, 1, 0, 0)),
        ([{**ROWS[0], "title": "Another"}, {**ROWS[1], "new": None}], (0, 1, 1, 0, 0)),
        ([{**ROWS[2], "tags": ["a", {"b": 2}]}, {"_id": "x", "text": "y"}], (1, 0, 1, 0, 0)),
        ([{**ROWS[1], "n": 1.0}], (0, 0, 1, 0, 0)),
        ([{**ROWS[1], "n": True}], (0, 0, 1, 0, 0)),
    ],
)
def test_a_change_of_metadata_alone_is_counted(
    index: Index, changes: list[dict[str, Any]], expected: tuple[int, ...]
) -> None:
    before = index.version
    report = index.upsert(changes)
    assert counts(report) == expected
    assert (report.version == before) == (not any(expected[:3]))
    stored = {document.id: document.metadata for document in index.documents()}
    last = {row["_id"]: row for row in changes}
    for name, row in last.items():
        assert stored[name] == {k: v for k, v in row.items() if k not in ("_id", "title", "text")}
    assert not problems_of(index.path)


def test_threads_that_change_one_index_wait_for_each_other(tmp_path: Path) -> None:
    build_index([], tmp_path / "ix", model=FakeEmbedder(), allow_empty=True)
    (tmp_path / "link").symlink_to(tmp_path / "ix")
    places = (tmp_path / "ix", tmp_path / "link")
    indexes = [Index.open(places[n % 2], model=FakeEmbedder()) for n in range(4)]
    barrier = threading.Barrier(4)

    def write(n: int) -> None:
        barrier.wait()
        for number in range(5):
            indexes[n].add([{"_id": f"{n}-{number}", "text": "word"}])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert len(Retriever.load(tmp_path / "ix")) == 20


def test_a_change_within_a_change_is_refused_and_does_not_wait_for_itself(index: Index) -> None:
    other = Index.open(index.path, model=FakeEmbedder())

    def within(*_: Any) -> None:
        other.delete(["d1"])

    with pytest.raises(IndexLockedError):
        build_index(
            [{"_id": "x", "text": "y"}],
            Path(index.path),
            model=FakeEmbedder(),
            overwrite=True,
            progress=within,
        )
    assert len(index) == 20


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            OSError(errno.EROFS, "Read-only file system"),
            "is read-only: to change the index, change a copy",
        ),
        (
            OSError("LanceError(IO): Read-only file system (os error 30), /a/b.rs:190:9"),
            "read-only",
        ),
        (OSError(errno.EACCES, "Permission denied"), "Get the right to write there, or to"),
        (OSError(errno.ENOSPC, "No space left on device"), "Make room and run the same command"),
        (OSError(errno.EIO, "Input/output error"), "Repair the disk"),
    ],
)
def test_a_disk_that_fails_has_a_class_and_says_what_to_do(
    index: Index, error: OSError, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(LanceTable, "append", fails)
    with pytest.raises(DiskError, match=words) as raised:
        index.add([{"_id": "new", "text": "word"}])
    assert isinstance(raised.value, AveyBError)
    assert "the version that was visible before is unchanged" in str(raised.value)
    assert ".rs:" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(index.search("word1", mode="lexical")) == 1
    with pytest.raises(DiskError, match="no index is made"):
        build_index(ROWS, tmp_path / "other", model=FakeEmbedder())


class LosingEmbedder(FakeEmbedder):
    """Loses its connection at the first document, or when it is called."""

    def __init__(self, *, at_once: bool) -> None:
        super().__init__()
        self.at_once = at_once

    def encode_documents(self, documents: Any) -> Iterator[Any]:
        if self.at_once:
            self._lose()
        return map(self._lose, documents)

    def _lose(self, *_: Any) -> None:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer") from error


def rows_of_a_file_that_is_not_there(error: OSError) -> Iterator[dict[str, Any]]:
    yield {"_id": "new", "text": "word"}
    raise error


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "rows.txt"),
        PermissionError(errno.EACCES, "Permission denied", "rows.txt"),
        OSError(errno.ENOSPC, "No space left on device", "/tmp/rows"),
    ],
)
def test_errors_of_a_callers_own_files_and_connections_are_raised_as_they_are(
    index: Index, error: OSError, tmp_path: Path
) -> None:
    before = index.version
    for change in (index.add, index.upsert):
        with pytest.raises(type(error)) as raised:
            change(rows_of_a_file_that_is_not_there(error))
        assert raised.value is error
    for at_once in (True, False):
        with pytest.raises(ConnectionResetError, match="reset by peer") as lost:
            build_index(ROWS, tmp_path / "lost", model=LosingEmbedder(at_once=at_once))
        assert isinstance(lost.value.__cause__, ZeroDivisionError)
        assert isinstance(lost.value.__context__, ZeroDivisionError)
    assert index.version == before


def test_a_disk_that_fails_while_a_model_asks_for_more_is_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LanceTable, "append", fails)
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 2)
    with pytest.raises(DiskError, match="Make room"):
        build_index(ROWS, tmp_path / "ix", model=FakeEmbedder())


def test_a_document_twice_in_one_call_is_unchanged_both_times(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 7)
    before = index.version
    for rows in ([ROWS[0], ROWS[0]], [*ROWS, *ROWS], [{**ROWS[0], "n": 100}, ROWS[0]]):
        report = index.upsert(rows)
        assert (report.version, counts(report)) == (before, (0, 0, 0, len(rows), 0))
    report = index.upsert([ROWS[0], {**ROWS[0], "text": "other"}, ROWS[0], {**ROWS[1], "n": 100}])
    assert report.version != before
    assert (index["d0"].text, index["d1"].metadata["n"]) == (ROWS[0]["text"], 100)


def test_an_interrupted_change_is_thrown_away_by_an_index_that_is_opened_so(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 2)
    monkeypatch.setattr(ingest, "LOOK_AHEAD_ITEMS", 1)
    rows = [{"_id": f"new{i}", "text": f"word{i}"} for i in range(7)]
    with pytest.raises(ZeroDivisionError):
        index.upsert(row if i < 6 else 1 / 0 for i, row in enumerate(rows))
    with pytest.raises(ConfigError, match=r"restart=True, which an Index takes"):
        index.delete(["d1"])
    with Index.open(index.path, model=FakeEmbedder(), restart=True) as opened:
        assert opened.delete(["d1"]).deleted == 1
        with pytest.raises(ZeroDivisionError):  # the work of this one is no longer thrown away
            opened.upsert(row if i < 6 else 1 / 0 for i, row in enumerate(rows))
        with pytest.raises(ConfigError, match="restart=True"):
            opened.delete(["d2"])
        report = opened.upsert(rows)
        assert (report.added, report.resumed) == (7, True)
        assert len(opened) == 26


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_given_vectors_that_are_stored_are_not_written_again(storage: str, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    build_index(
        ROWS, tmp_path / "i", vectors=vectors, granularity="document", storage_dtype=storage
    )
    again = one_change.upsert(ROWS, tmp_path / "i", vectors=2 * vectors)
    assert (again.version, counts(again)) == ("v000001", (0, 0, 0, 20, 0))
    changed = [{**row, "n": 100} if row is ROWS[0] else row for row in ROWS]
    vectors[[3, 17]] = -vectors[[3, 17]]
    report = one_change.upsert(changed, tmp_path / "i", vectors=vectors)
    assert counts(report) == (0, 2, 1, 17, 0)
    with Retriever.load(tmp_path / "i") as retriever:
        assert [result[0].id for result in retriever.search_vectors(vectors, k=1)] == [
            row["_id"] for row in ROWS
        ]


@pytest.mark.parametrize("look_ahead", [1, 2, 3])
def test_of_one_id_with_several_vectors_the_last_counts(
    look_ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 1)
    monkeypatch.setattr(ingest, "LOOK_AHEAD_ITEMS", look_ahead)
    vectors = np.eye(8, dtype=np.float32)
    build_index(ROWS[:4], tmp_path / "i", vectors=vectors[:4], granularity="document")
    rows = [ROWS[0], ROWS[1], ROWS[2], ROWS[0]]
    one_change.upsert(rows, tmp_path / "i", vectors=vectors[[7, 1, 2, 0]])
    with Retriever.load(tmp_path / "i") as retriever:
        assert retriever.search_vectors(vectors[:1], k=1)[0][0].score == pytest.approx(1)


def test_metadata_whose_fields_come_in_another_order_are_the_same(index: Index) -> None:
    rows = [{"_id": "x", "text": "y", "b": 1, "a": {"d": [1, 2], "c": 2}}]
    index.add(rows)
    index.update_metadata({"z": 1, "set": {"q": 1, "p": 2}}, ["x"], remove=["gone"])
    before = index.version
    other = [{"_id": "x", "a": {"c": 2, "d": [1, 2]}, "text": "y", "b": 1}]
    for given in (rows, other, rows):
        report = index.upsert(given)
        assert (report.version, counts(report)) == (before, (0, 0, 0, 1, 0))
    report = index.update_metadata({"set": {"p": 2, "q": 1}, "z": 1}, ["x"], remove=["gone"])
    assert (report.version, counts(report)) == (before, (0, 0, 0, 1, 0))
    report = index.upsert([{"_id": "x", "text": "y", "b": 1, "a": {"d": [2, 1], "c": 2}}])
    assert counts(report) == (0, 0, 1, 0, 0)


def test_other_vectors_of_the_same_text_are_taken(tmp_path: Path) -> None:
    rows = [{"_id": "a", "text": "the same words"}]
    first, second = np.eye(4, dtype=np.float32)[:2]
    build_index(rows, tmp_path / "i", vectors=first[None], granularity="document")
    one_change.upsert(rows, tmp_path / "i", vectors=second[None])
    with Retriever.load(tmp_path / "i") as retriever:
        assert retriever.search_vectors(second[None], k=1)[0][0].score == pytest.approx(1)


def test_a_compaction_of_what_is_compact_makes_no_version(index: Index) -> None:
    index.add([{"_id": "x", "text": "y"}])
    index.delete(["d3"])
    done = index.compact()
    again = index.compact()
    assert again.version == done.version
    assert counts(again) == (0, 0, 0, 0, 0)
    index.delete(["x"])
    assert index.compact().version != done.version
    assert len(index) == 19


def test_deletions_are_told_apart_though_as_many_rows_are_gone(tmp_path: Path) -> None:
    """What a version deleted is not taken for what another one deleted that took its place."""
    schema = pa.schema([("doc", pa.int64()), ("passages", pa.int64())])
    place = tmp_path / "d.lance"
    table = LanceTable.create(place, schema, "doc")
    table.append(pa.table({"doc": [1, 2, 3], "passages": [1, 1, 1]}, schema))
    shutil.copytree(place, tmp_path / "copy.lance")
    table.delete(np.array([1]))
    assert table.held[0].tolist() == [2, 3]
    shutil.rmtree(place)
    shutil.move(tmp_path / "copy.lance", place)
    other = LanceTable.open(place, lance.dataset(str(place)).version, "doc")
    other.delete(np.array([2]))
    opened = LanceTable.open(place, other.version, "doc", before=table)
    assert opened.held[0].tolist() == [1, 3]
