"""`Index`: searched and changed in one program, always at its newest version, by many threads,
processes and copies.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import shutil
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pytest

from aveyb_retrieval import Index, Retriever, build_index
from aveyb_retrieval.errors import (
    AveyBError,
    ConfigError,
    IndexFormatError,
    IndexLockedError,
    InputError,
)
from aveyb_retrieval.indexes.store.manifest import IndexDirectory, writer_lock
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder, load_instead
from tests.recorder import record_calls
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = make_documents(20)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built") / "ix"
    build_index(ROWS, root, model=FakeEmbedder())
    return root


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    """An index that a test may change."""
    return shutil.copytree(built, tmp_path / "ix")


@pytest.fixture
def index(root: Path) -> Iterator[Index]:
    with Index.open(root, model=FakeEmbedder()) as opened:
        yield opened


def ids(index: Retriever, query: str, **options: Any) -> set[str]:
    return {hit.id for hit in index.search(query, k=100, mode="lexical", **options)}


# --- opening -------------------------------------------------------------------------------------


def test_an_index_is_made_where_there_is_none_if_that_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(IndexFormatError, match="no index here; make one with"):
        Index.open(tmp_path / "ix", model=FakeEmbedder())
    assert not (tmp_path / "ix").exists()
    with Index.open(
        tmp_path / "ix", create=True, model=FakeEmbedder(), granularity="document"
    ) as index:
        assert (len(index), index.granularity, index.search("word1")) == (0, "document", [])
        index.add([{"_id": "a", "text": "word1"}])
    with Index.open(tmp_path / "ix", create=True, model=FakeEmbedder()) as index:
        assert (len(index), index.granularity) == (1, "document")
    with pytest.raises(ConfigError, match="already there"):
        Index.create(tmp_path / "ix", model=FakeEmbedder())
    with Index.create(tmp_path / "ix", model=FakeEmbedder(), overwrite=True) as index:
        assert len(index) == 0


DATABASE = "postgresql://nobody@127.0.0.1:1/none/notes"


@refusals(
    {
        ConfigError: {
            "no option 'modle'; did you mean 'model'": lambda root: Index.open(
                root, modle=FakeEmbedder()
            ),
            "an address, but an index directory is needed": [
                lambda root: Index.open(DATABASE),
                lambda root: Index.open(DATABASE, create=True),
                lambda root: Index.load(DATABASE),
            ],
            "the index directory is of type list; a path is needed": lambda root: Index.load(
                ["one", "two"]
            ),
            "the index directory is of type int; a path is needed": lambda root: Index.load(5),
        },
        IndexFormatError: {
            "no index here": [
                lambda root: Retriever.load(root.parent),
                lambda root: Retriever.load(root.parent / "missing"),
            ],
            r"fake-a \(fingerprint .*fake-b \(fingerprint": lambda root: Retriever.load(
                root, model=FakeEmbedder(seed="b")
            ),
            r"made by the model fake-a .* but this is fake-b": lambda root: Index.open(
                root, model=FakeEmbedder(seed="b")
            ),
        },
    }
)
def test_what_cannot_be_opened_is_refused(root: Path, refused: Refusal) -> None:
    refused(root)


@pytest.mark.parametrize("changed", [False, True])
def test_a_closed_index_says_so(index: Index, changed: bool) -> None:
    if changed:
        index.upsert([{"_id": "new", "text": "zinc"}])
    index.close()
    with pytest.raises(AveyBError, match="this index was closed; load it again"):
        index.search("word1")


# --- what was written is found -------------------------------------------------------------------


def test_an_index_that_was_loaded_is_one_that_was_opened(root: Path) -> None:
    with Index.load(root, model=FakeEmbedder()) as index:
        index.add([{"_id": "new", "text": "zinc"}])
        assert ids(index, "zinc") == {"new"}
    with pytest.raises(ConfigError, match="the index directory is of type list; a path is needed"):
        Index.load([root], model=FakeEmbedder())


def test_the_next_search_finds_what_was_written(index: Index) -> None:
    assert index.add([{"_id": "new", "text": "zinc anodes", "year": 1}]).added == 1
    assert ids(index, "zinc") == {"new"}
    assert index.upsert([{"_id": "new", "text": "copper wires", "year": 1}]).replaced == 1
    assert (ids(index, "zinc"), ids(index, "copper")) == (set(), {"new"})
    assert index.update_metadata({"year": 2}, ["new"], remove=["nothing"]).updated == 1
    assert (
        index.count({"year": 1}),
        [document.id for document in index.documents({"year": 2})],
    ) == (0, ["new"])
    assert index.delete(["new"]).deleted == 1
    assert ids(index, "copper") == set()
    assert index.delete(where={"year": {"$gte": 2010}}).deleted == 10
    assert len(index) == index.count() == 10
    assert index.compact().documents == 10
    assert problems_of(index.path) == []


def test_an_index_follows_what_others_write(index: Index, root: Path) -> None:
    one_change.add([{"_id": "new", "text": "zinc anodes"}], root, model=FakeEmbedder())
    assert ids(index, "zinc") == {"new"}
    one_change.upsert([{"_id": "new", "text": "copper"}], root, model=FakeEmbedder())
    assert index.get(["new"])[0].text == "copper"
    one_change.update_metadata(root, {"year": 1}, ["new"])
    assert index.count({"year": 1}) == 1
    one_change.compact(root)
    one_change.delete(root, ["new"])
    assert len(index) == 20


def test_columns_in_memory_are_read_once_by_all_versions(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned = record_calls(monkeypatch, lance.LanceDataset, "scanner")
    for number in range(6):
        index.add(make_documents(1, first=1000 + number))
        if number % 2:
            assert index.search("word1", filter={"year": {"$gte": 0}})
    read = Counter(
        (fragment.fragment_id, column)
        for call in scanned
        for fragment in call["fragments"] or ()
        for column in call["columns"]
    )
    assert {"doc", "language"} <= {column for _, column in read}
    assert set(read.values()) == {1}


def test_a_retriever_beside_it_keeps_its_version_until_it_reopens(index: Index, root: Path) -> None:
    with Retriever.load(root, model=FakeEmbedder()) as reader:
        index.add([{"_id": "new", "text": "zinc"}])
        assert (ids(reader, "zinc"), reader.is_stale, index.is_stale) == (set(), True, True)
        reader.reopen()
        assert (ids(reader, "zinc"), reader.is_stale) == ({"new"}, False)


def test_a_change_that_cannot_be_made_changes_nothing(index: Index, root: Path) -> None:
    before = (root / "current").read_text()
    with pytest.raises(InputError, match="'doc-1' is already in use"):
        index.add([{"_id": "new", "text": "x"}, {"_id": "doc-1", "text": "y"}])
    with pytest.raises(InputError, match="no text"):
        index.upsert([{"_id": "new", "text": "x"}, {"_id": "other"}])
    with pytest.raises(InputError, match="no document has the id 'nobody'; nothing was changed"):
        index.delete(["doc-1", "nobody"])
    with pytest.raises(ConfigError, match="ids or a filter"):
        index.delete()
    with pytest.raises(ConfigError, match="no option 'modle'"):
        index.upsert([{"_id": "new", "text": "x"}], modle="x")  # type: ignore[call-arg]
    with (
        writer_lock(IndexDirectory(root).lock),
        pytest.raises(IndexLockedError, match="another writer is at work"),
    ):
        index.add([{"_id": "new", "text": "x"}])
    assert index.upsert([]).documents == 20
    assert index.delete(["nobody"], missing_ok=True).documents == 20
    assert (root / "current").read_text() == before
    assert len(index) == 20


def test_asynchronous_programs_write_and_search(index: Index) -> None:
    async def both() -> list[Any]:
        await index.aupsert([{"_id": "new", "text": "zinc"}])
        return await asyncio.gather(*(index.asearch("zinc", k=1, mode="lexical") for _ in range(4)))

    assert [[hit.id for hit in hits] for hits in asyncio.run(both())] == [["new"]] * 4


def test_threads_share_it(index: Index) -> None:
    def work(number: int) -> bool:
        name = f"thread-{number}"
        index.upsert([{"_id": name, "text": f"zinc word{number}"}])
        found = name in ids(index, "zinc")
        index.update_metadata({"year": number}, [name])
        return found and index.get([name])[0].metadata == {"year": number}

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(12)))
    assert len(index) == 32
    assert problems_of(index.path) == []


# --- changes together ----------------------------------------------------------------------------


def test_a_batch_is_seen_as_a_whole(index: Index, root: Path) -> None:
    number = int(index.version.removeprefix("v"))
    with Retriever.load(root) as reader, index.batch() as batch:
        batch.add([{"_id": "new", "text": "zinc"}])
        batch.upsert([{"_id": "doc-1", "text": "copper"}, {"_id": "new", "text": "zinc and tin"}])
        batch.update_metadata({"metal": True}, ["new", "doc-1"])
        batch.delete(["doc-2"])
        assert len(batch) == 4
        assert (ids(index, "zinc copper"), reader.is_stale) == (set(), False)
    assert int(index.version.removeprefix("v")) == number + 1
    assert ids(index, "zinc") == ids(index, "tin") == {"new"}
    assert ids(index, "copper") == {"doc-1"}
    assert index.count({"metal": True}) == 2
    assert len(index) == 20
    assert problems_of(index.path) == []


def test_what_a_batch_added_can_be_changed_and_removed_in_it(index: Index) -> None:
    with index.batch() as batch:
        batch.add(
            [{"_id": "new", "text": "zinc", "year": 1}, {"_id": "other", "text": "zinc", "year": 2}]
        )
        batch.update_metadata({"year": 3}, where={"year": 2})
        batch.delete(where={"year": 1})
    assert [document.metadata for document in index.get(["other"])] == [{"year": 3}]
    assert ids(index, "zinc") == {"other"}


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_exception_in_the_block_drops_a_batch(
    index: Index, root: Path, error: type[BaseException]
) -> None:
    before = (root / "current").read_text()
    with pytest.raises(error), index.batch() as batch:
        batch.add([{"_id": "new", "text": "zinc"}])
        raise error
    assert (root / "current").read_text() == before
    assert index.add([{"_id": "new", "text": "tin"}]).resumed is False
    assert ids(index, "zinc") == set()


def test_a_batch_with_one_change_that_cannot_be_made_makes_none(index: Index, root: Path) -> None:
    before = (root / "current").read_text()
    with pytest.raises(InputError, match="'nobody'; nothing was changed"), index.batch() as batch:
        batch.add([{"_id": "new", "text": "zinc"}])
        batch.delete(["nobody"])
    with pytest.raises(InputError, match="'new' is already in use"), index.batch() as batch:
        batch.add([{"_id": "new", "text": "zinc"}])
        batch.add([{"_id": "new", "text": "tin"}])
    assert (root / "current").read_text() == before
    assert ids(index, "zinc tin") == set()
    assert problems_of(index.path) == []


def test_a_batch_without_changes_makes_no_version(index: Index, root: Path) -> None:
    before = (root / "current").read_text()
    with index.batch() as batch:
        assert len(batch) == 0
    assert (root / "current").read_text() == before


# --- models and copies ---------------------------------------------------------------------------


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that were loaded: fake ones, whatever is asked for."""
    loaded: list[Any] = []

    def load(model: Any = None, **_: Any) -> FakeEmbedder:
        loaded.append(model)
        return FakeEmbedder()

    load_instead(monkeypatch, load)
    return loaded


def test_ten_readers_and_indexes_share_one_model(tmp_path: Path, loads: list[Any]) -> None:
    for number in range(3):
        build_index(ROWS, tmp_path / f"{number}", model="shared-model")
    loads.clear()
    readers = [Retriever.load(tmp_path / f"{number % 3}") for number in range(10)]
    indexes = [Index.open(tmp_path / f"{number % 3}") for number in range(10)]
    assert loads == [], "a model is loaded when it is first needed"
    assert all(reader.search("word1", k=3) for reader in [*readers, *indexes])
    assert loads == ["shared-model"]
    assert len({id(reader.model) for reader in [*readers, *indexes]}) == 1


def test_threads_that_need_a_model_at_once_load_it_once(tmp_path: Path, loads: list[Any]) -> None:
    build_index(ROWS, tmp_path / "ix", model="asked-for-at-once")
    loads.clear()
    readers = [Retriever.load(tmp_path / "ix") for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda reader: reader.search("word1"), readers))
    assert loads == ["asked-for-at-once"]


def test_a_copy_made_by_pickle_opens_the_same_place(tmp_path: Path, loads: list[Any]) -> None:
    with Index.open(tmp_path / "ix", create=True, model="to-be-copied", mapped=False) as index:
        copy = pickle.loads(pickle.dumps(index))
        index.add([{"_id": "a", "text": "zinc"}])
        assert type(copy) is Index
        assert ids(copy, "zinc") == {"a"}
        copy.add([{"_id": "b", "text": "zinc ore"}])
        assert ids(index, "zinc") == {"a", "b"}
        assert copy.search("zinc", k=2) == index.search("zinc", k=2)
        data = pickle.dumps(index)
        assert len(data) < 1000, "the place and the options, no more"
    shutil.rmtree(tmp_path / "ix")
    with pytest.raises(IndexFormatError, match="no index here"):
        pickle.loads(data)


def test_readers_say_what_they_are(index: Index, root: Path) -> None:
    assert repr(index) == f"<Index {str(root)!r}, version v000001, 20 documents>"
    with Retriever.load(root) as retriever:
        part = retriever.visible({"none": 1})
        assert repr(part).endswith("0 documents, of which a part is visible>")
        name = ROWS[0]["_id"]
        assert (name in retriever, "none" in retriever, 7 in retriever) == (True, False, False)
        assert (name in part, bool(part), len(part)) == (False, True, 0)


def test_every_change_has_an_asynchronous_twin(index: Index) -> None:
    async def change() -> list[Any]:
        return [
            await index.aadd([{"_id": "new", "text": "zinc"}]),
            await index.aupsert([{"_id": "new", "text": "copper"}]),
            await index.aupdate_metadata({"a": 1}, ["new"]),
            await index.adelete(where={"a": 1}),
            await index.acompact(),
        ]

    added, replaced, updated, deleted, _ = asyncio.run(change())
    counted = (added.added, replaced.replaced, updated.updated, deleted.deleted)
    assert counted == (1, 1, 1, 1)


def test_a_batch_has_an_asynchronous_twin(index: Index) -> None:
    count = len(index)

    async def change() -> None:
        async with index.abatch() as batch:
            batch.upsert([{"_id": "new", "text": "zinc"}])
            await index.aadd([{"_id": "meanwhile", "text": "copper"}])
            assert "new" not in index
            batch.delete(["meanwhile"])
        with pytest.raises(KeyError):
            async with index.abatch() as batch:
                batch.delete(["new"])
                raise KeyError

    asyncio.run(change())
    assert "new" in index and "meanwhile" not in index
    assert len(index) == count + 1


def test_loading_and_reopening_have_asynchronous_twins(index: Index) -> None:
    async def follow() -> tuple[bool, bool]:
        retriever = await Retriever.aload(index.path, model=index.model)
        await index.aadd([{"_id": "new", "text": "zinc"}])
        before = "new" in retriever
        await retriever.areopen()
        after = "new" in retriever
        retriever.close()
        with await Index.aload(index.path, model=index.model) as again:
            assert type(again) is Index
        return before, after

    assert asyncio.run(follow()) == (False, True)


def test_an_index_of_vectors_from_elsewhere_grows_without_a_model(tmp_path: Path) -> None:
    unit = np.eye(4, 8, dtype=np.float32)
    rows = [{"id": str(number), "text": f"text {number}"} for number in range(4)]
    build_index(rows[:2], tmp_path / "ix", vectors=unit[:2], granularity="document")
    with Index.open(tmp_path / "ix") as index:
        assert index.add(rows[2:3], vectors=unit[2:3]).documents == 3
        assert index.upsert(rows[1:2], vectors=unit[3:]).documents == 3
        (hits,) = index.search_vectors(unit[3:], k=1)
        assert [hit.id for hit in hits] == ["1"]


# --- other processes -----------------------------------------------------------------------------


def _try(send: Any, actions: list[Any]) -> None:
    for act in actions:
        try:
            send.send(f"done: {act()}")
        except AveyBError as error:
            send.send(str(error))


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
def test_a_forked_process_says_what_to_do(tmp_path: Path) -> None:
    """It does not wait for threads that are not there."""
    build_index([{"_id": "a", "text": "hello world"}], tmp_path / "ix", model=FakeEmbedder())
    retriever, index = (
        kind.load(tmp_path / "ix", model=FakeEmbedder()) for kind in (Retriever, Index)
    )
    retriever.search("hello")
    actions = [
        lambda: retriever.search("hello"),
        lambda: len(list(retriever.documents())),
        lambda: Retriever.load(tmp_path / "ix"),
        lambda: index.upsert([{"_id": "b", "text": "new"}]),
        lambda: build_index([{"_id": "b", "text": "new"}], tmp_path / "new", model=FakeEmbedder()),
    ]
    receive, send = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lance and of Python: just that is meant
        child = multiprocessing.get_context("fork").Process(target=_try, args=(send, actions))
        child.start()
    for _ in actions:
        assert receive.poll(30), "the child waits"
        assert "start workers by 'spawn' or 'forkserver'" in receive.recv()
    child.join(30)
    assert retriever.search("hello")[0].id == "a"  # here it goes on
