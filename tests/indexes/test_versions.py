"""Versions: a reader keeps the one that it opened, an index made again is another one, and old ones
leave nothing.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import portalocker
import pytest

from aveyb_retrieval import Index, Retriever, build_index, copy_index, files, verify_index
from aveyb_retrieval.errors import ConfigError, IndexFormatError, InputError
from aveyb_retrieval.indexes.changes.change import compact
from aveyb_retrieval.indexes.store.manifest import IndexDirectory
from aveyb_retrieval.indexes.store.place import CLEAN_EVERY_VERSIONS, hold_visible
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.disk import files_of, files_of_one_version, manifest_path
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODES = ("dense", "lexical", "hybrid")
QUERIES = ("word1 word2", "word7 word80 word120", "title 7")


def answers(reader: Retriever) -> list[Any]:
    """All that a reader can be asked."""
    found: list[Any] = [reader.search(list(QUERIES), k=9, mode=mode) for mode in MODES]
    found += [reader.search(list(QUERIES), k=9, unit="passage", filter={"year": {"$gte": 2005}})]
    found = pickle.loads(pickle.dumps(found))  # which reads all of the hits
    return [
        *found,
        list(reader.documents()),
        reader.count({"year": 2003}),
        len(reader),
        reader.version,
    ]


# --- readers -------------------------------------------------------------------------------------


def test_a_reader_keeps_its_version_through_fifty_changes(tmp_path: Path) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(60), root, model=FakeEmbedder())
    with (
        Index.open(root, model=FakeEmbedder()) as index,
        Retriever.load(root, model=FakeEmbedder()) as reader,
    ):
        before = answers(reader)
        changes: list[Callable[[int], object]] = [
            lambda i: index.add(make_documents(1, first=100 + i)),
            lambda i: index.upsert(make_documents(2, seed=i, first=i)),
            lambda i: index.update_metadata({"year": 2003}, [f"doc-{i}"]),
            lambda i: index.delete([f"doc-{100 + i - 3}"]),
            lambda i: index.compact() if i % 20 == 4 else index.delete(where={"year": 1}),
        ]
        for number in range(50):
            changes[number % 5](number // 5 * 5 % 50 if number % 5 in (1, 2) else number)
            if number % 10 == 9:
                assert answers(reader) == before, number
        assert reader.is_stale
        reader.reopen()
        assert answers(reader) == answers(index) != before
    assert problems_of(root) == []


def test_a_listing_ends_on_the_version_that_it_began_with(tmp_path: Path) -> None:
    rows = make_documents(600)
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add(rows)
        listing = index.documents()
        first = next(listing)
        index.delete(where={})
        index.compact()
        assert [first.id, *(document.id for document in listing)] == [row["_id"] for row in rows]
        assert list(index.documents()) == []


def test_the_vectors_of_a_retriever_may_be_in_memory(tmp_path: Path) -> None:
    build_index(make_documents(60), tmp_path / "ix", model=FakeEmbedder(), index="HNSW8")
    with (
        Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as mapped,
        Retriever.load(tmp_path / "ix", model=FakeEmbedder(), mapped=False, verify=True) as read,
    ):
        assert answers(mapped) == answers(read)


def files_that_hold(root: Path, *words: str) -> list[str]:
    """The files below a folder that hold one of these words."""
    return [
        path.name
        for path in root.rglob("*")
        if path.is_file() and any(word.encode() in path.read_bytes() for word in words)
    ]


@pytest.mark.parametrize("is_read", [False, True], ids=["not read meanwhile", "read meanwhile"])
def test_a_deleted_text_is_in_no_file_after_compact(tmp_path: Path, is_read: bool) -> None:
    root, words = tmp_path / "ix", ("xylograph", "zebrastripe", "wombat", "quokka-7")
    secret = {"_id": words[3], "title": words[1], "text": f"The {words[0]} is blue.", "n": words[2]}
    build_index([*make_documents(9), secret], root, model=FakeEmbedder())
    reader = Retriever.load(root, model=FakeEmbedder()) if is_read else None
    with Index.open(root, model=FakeEmbedder()) as index:
        index.delete([words[3]])
        assert words[3] not in index
    assert files_that_hold(root, *words)
    compact(IndexDirectory(root))
    assert bool(files_that_hold(root, *words)) == is_read
    if reader is not None:
        reader.close()
        compact(IndexDirectory(root))
        assert files_that_hold(root, *words) == []


def test_a_copy_is_whole_if_the_index_changes_meanwhile(tmp_path: Path) -> None:
    root, copied = tmp_path / "ix", tmp_path / "copy"
    build_index(make_documents(9), root, model=FakeEmbedder())
    with Index.open(root, model=FakeEmbedder()) as index:

        def change(_stage: str, done: int, _total: int | None, _tokens: int) -> None:
            if not done:
                for number in range(CLEAN_EVERY_VERSIONS):
                    index.add(make_documents(1, first=100 + number))
                index.compact()

        copy_index(root, copied, progress=change)
        assert len(index) == 9 + CLEAN_EVERY_VERSIONS
    assert problems_of(copied) == []
    with Retriever.load(copied, model=FakeEmbedder(), verify=True) as retriever:
        assert len(retriever) == 9


# --- an index made again at the same place -------------------------------------------------------


def old_and_new(seed: str = "a") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two corpora of the same shape, so that versions, numbers and sizes are alike, without a
    document in common.
    """
    old = [{**row, "_id": f"old-{row['_id']}"} for row in make_documents(60, seed=1)]
    new = [
        {**row, "_id": f"new-{row['_id']}", "text": f"new {row['text']}"}
        for row in make_documents(60, seed=2)
    ]
    return old, new


def make_again(
    root: Path, rows: list[dict[str, Any]], *, model: FakeEmbedder | None = None
) -> None:
    shutil.rmtree(root)
    build_index(rows, root, model=model or FakeEmbedder())


@pytest.fixture(params=["removed", "overwritten", "moved here"])
def again(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[Path, list[dict[str, Any]]], None]:
    """Ways in which another index comes to the same place."""

    def make(root: Path, rows: list[dict[str, Any]]) -> None:
        if request.param == "removed":
            make_again(root, rows)
        elif request.param == "overwritten":
            build_index(rows, root, model=FakeEmbedder(), overwrite=True)
        else:
            build_index(rows, tmp_path / "elsewhere", model=FakeEmbedder())
            root.rename(tmp_path / "away")
            (tmp_path / "elsewhere").rename(root)

    return make


def test_a_reader_of_an_index_that_was_made_again_never_mixes_the_two(
    tmp_path: Path, again: Any
) -> None:
    root, (old, new) = tmp_path / "ix", old_and_new()
    build_index(old, root, model=FakeEmbedder())
    texts = {row["_id"]: row["text"] for row in old}
    reader, read = (Retriever.load(root, model=FakeEmbedder()) for _ in range(2))
    before = answers(read)
    assert not reader.is_stale
    again(root, new)
    for one in (reader, read):
        assert one.is_stale
        for question in (*MODES, "documents", "get", "count"):
            assert_old_or_one_clear_error(one, question, texts, root)
    for one in (reader, read):
        one.reopen()
        assert not one.is_stale
    build_index(new, tmp_path / "alone", model=FakeEmbedder())
    with Retriever.load(tmp_path / "alone", model=FakeEmbedder()) as alone:
        assert answers(reader)[:-1] == answers(read)[:-1] == answers(alone)[:-1] != before[:-1]


def assert_old_or_one_clear_error(
    reader: Retriever, question: str, texts: dict[str, str], root: Path
) -> None:
    """What a stale reader answers is all of the old index, or one line that says what to do."""
    try:
        if question == "documents":
            found = {document.id: document.text for document in reader.documents()}
            assert found == texts
        elif question == "get":
            assert reader.get(["old-doc-3"])[0].text == texts["old-doc-3"]
        elif question == "count":
            assert reader.count({"year": 2003}) == 3
        else:
            for hit in reader.search("word1 word2 new", k=60, mode=question):  # type: ignore[arg-type]
                assert hit.text == texts[hit.id]
    except IndexFormatError as error:
        assert str(error).startswith(str(root))
        assert "if the index was built again at this place, open it again" in str(error)
        assert "\n" not in str(error)


def test_an_index_follows_one_that_was_made_again(tmp_path: Path, again: Any) -> None:
    root, (old, new) = tmp_path / "ix", old_and_new()
    build_index(old, root, model=FakeEmbedder())
    with Index.open(root, model=FakeEmbedder()) as index:
        assert index.search("word1")
        again(root, new)
        assert {hit.id for hit in index.search("new", k=100, mode="lexical", fold=False)} == {
            row["_id"] for row in new
        }
        assert index.upsert([{"_id": "more", "text": "zinc"}]).documents == 61
        assert [hit.id for hit in index.search("zinc", mode="lexical")] == ["more"]
        assert problems_of(index.path) == []


def test_an_index_that_was_changed_before_it_was_made_again_is_followed_too(tmp_path: Path) -> None:
    root, (old, new) = tmp_path / "ix", old_and_new()
    build_index(old, root, model=FakeEmbedder())
    with Index.open(root, model=FakeEmbedder()) as index:
        index.upsert(make_documents(5))
        assert index.search("word1")
        make_again(root, new)
        one_change.upsert(make_documents(5, seed=4), root, model=FakeEmbedder())
        texts = {row["_id"]: row["text"] for row in [*new, *make_documents(5, seed=4)]}
        assert {document.id: document.text for document in index.documents()} == texts
        assert all(
            hit.text == texts[hit.id] for hit in index.search("word1 word2", k=65, mode="dense")
        )


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(5), root, model=FakeEmbedder())
    with (
        Index.open(root, model=FakeEmbedder()) as index,
        Retriever.load(root, model=FakeEmbedder()) as reader,
    ):
        shutil.rmtree(root)
        assert reader.is_stale
        with pytest.raises(IndexFormatError, match="no index here"):
            reader.reopen()
        for ask in (
            lambda: index.search("word1"),
            lambda: len(index),
            lambda: index.add(make_documents(1, first=9)),
        ):
            with pytest.raises(IndexFormatError, match="no index here"):
                ask()
    assert not root.exists()


def test_an_index_made_again_by_another_model_is_refused_naming_both(tmp_path: Path) -> None:
    root, (old, new) = tmp_path / "ix", old_and_new()
    build_index(old, root, model=FakeEmbedder())
    with (
        Index.open(root, model=FakeEmbedder()) as index,
        Retriever.load(root, model=FakeEmbedder()) as reader,
    ):
        make_again(root, new, model=FakeEmbedder(seed="b"))
        for ask in (
            reader.reopen,
            lambda: index.search("word1"),
            lambda: index.add([{"_id": "x", "text": "y"}]),
        ):
            with pytest.raises(
                IndexFormatError, match=r"made by the model fake-b .* but this is fake-a"
            ):
                ask()
    with Index.open(root, model=FakeEmbedder(seed="b")) as other:
        assert len(other) == 60


# --- the disk ------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[Path], object]] = {
    "build": lambda root: build_index(
        make_documents(30, seed=8), root, model=FakeEmbedder(), overwrite=True
    ),
    "add": lambda root: one_change.add(make_documents(9, first=90), root, model=FakeEmbedder()),
    "upsert": lambda root: one_change.upsert(
        make_documents(9, seed=3, first=5), root, model=FakeEmbedder()
    ),
    "metadata": lambda root: one_change.update_metadata(root, {"year": 1}, where={"year": 2004}),
    "delete": lambda root: one_change.delete(root, ["doc-3"]),
    "delete all": lambda root: one_change.delete(root, where={}),
    "compact": one_change.compact,
    "repair": lambda root: verify_index(root, repair=True),
}


@pytest.mark.parametrize(
    ("change", "factory"), [*((change, "HNSW8") for change in CHANGES), ("upsert", "auto")]
)
def test_compaction_leaves_nothing_of_older_versions(
    tmp_path: Path, change: str, factory: str
) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(25, longest=20), root, model=FakeEmbedder(), index=factory)
    assert files_of(root) == files_of_one_version(root)
    if change == "repair":
        next(root.glob("words/*")).write_bytes(b"nothing")
    CHANGES[change](root)
    assert files_of(root) >= files_of_one_version(root)
    assert problems_of(root) == []
    if change not in ("build", "compact"):
        one_change.compact(root)
    assert files_of(root) == files_of_one_version(root)
    assert problems_of(root) == []


def test_old_versions_do_not_gather(tmp_path: Path) -> None:
    root, sizes = tmp_path / "ix", []
    with Index.create(root, model=FakeEmbedder()) as index:
        index.add(make_documents(30))
        for number in range(5 * CLEAN_EVERY_VERSIONS):
            index.upsert(make_documents(1, seed=number, first=number % 30))
            sizes.append(len(files_of(root)))
    assert len(list((root / "versions").iterdir())) <= CLEAN_EVERY_VERSIONS
    assert max(sizes[3 * CLEAN_EVERY_VERSIONS :]) <= max(sizes[: 3 * CLEAN_EVERY_VERSIONS])


def test_what_a_reader_reads_stays_until_it_closes(tmp_path: Path) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(40), root, model=FakeEmbedder())
    first = files_of(root)
    with Retriever.load(root, model=FakeEmbedder()) as reader:
        before = answers(reader)
        one_change.upsert(make_documents(40, seed=1), root, model=FakeEmbedder())
        one_change.compact(root)
        assert first <= files_of(root)
        assert answers(reader) == before
    one_change.compact(root)
    assert files_of(root) == files_of_one_version(root)


@pytest.mark.parametrize("change", ["add", "upsert", "delete", "metadata"])
def test_a_change_that_fails_leaves_nothing(tmp_path: Path, change: str) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(40), root, model=FakeEmbedder())
    before = {name: (root / name).read_bytes() for name in files_of(root)}
    bad: list[Any] = [{"_id": "a", "text": "x"}, {"_id": "b"}]
    failing: dict[str, Callable[[], object]] = {
        "add": lambda: one_change.add(bad, root, model=FakeEmbedder()),
        "upsert": lambda: one_change.upsert(bad, root, model=FakeEmbedder()),
        "delete": lambda: one_change.delete(root, ["nobody"]),
        "metadata": lambda: one_change.update_metadata(root, {"a": 1}, ["nobody"]),
    }
    with pytest.raises(InputError):
        failing[change]()
    assert {name: (root / name).read_bytes() for name in files_of(root)} == before


def test_versions_are_counted_and_named_by_their_build(tmp_path: Path) -> None:
    root, names = tmp_path / "ix", []
    reports = [build_index(make_documents(5), root, model=FakeEmbedder())]
    names.append(manifest_path(root).stem)
    reports.append(one_change.delete(root, ["doc-1"]))
    names.append(manifest_path(root).stem)
    reports.append(build_index(make_documents(5), root, model=FakeEmbedder(), overwrite=True))
    names.append(manifest_path(root).stem)
    assert [report.version for report in reports] == ["v000001", "v000002", "v000003"]
    builds = [name.partition("-")[2] for name in names]
    assert builds[0] == builds[1] != builds[2]
    with pytest.raises(ConfigError, match="already there"):
        build_index(make_documents(5), root, model=FakeEmbedder())


def test_a_clean_up_that_fails_does_not_undo_a_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(20), root, model=FakeEmbedder())
    first = manifest_path(root)
    with Retriever.load(root, model=FakeEmbedder()) as reader:
        one_change.upsert([{"_id": "new", "text": "zinc"}], root, model=FakeEmbedder())
        first.write_bytes(b"damaged")  # what the reader still needs is not known any more
        assert one_change.compact(root).documents == 21
        assert "could not be deleted" in caplog.text
        assert reader.get(["doc-1"])[0].id == "doc-1"
    with Retriever.load(root, model=FakeEmbedder()) as reader:
        assert len(reader) == 21
    one_change.compact(root)
    assert files_of(root) == files_of_one_version(root)


def test_a_version_that_is_hidden_while_it_is_opened_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, real, looks = tmp_path / "ix", portalocker.lock, 0
    build_index(make_documents(20), root, model=FakeEmbedder())

    def lock(*given: Any) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:  # a writer is quicker than the first look
            one_change.compact(root)
        real(*given)

    monkeypatch.setattr(portalocker, "lock", lock)
    manifest, held = hold_visible(IndexDirectory(root))
    with held:
        assert manifest.name == IndexDirectory(root).current()
        assert manifest.name.startswith("v000002")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("which", [1, 2], ids=["read", "marked"])
def test_a_version_that_cannot_be_opened_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, which: int
) -> None:
    root, real, opened = tmp_path / "ix", files.open_regular, 0
    build_index(make_documents(20), root, model=FakeEmbedder())
    manifest = manifest_path(root)

    def refuse(path: Path, *given: Any, **options: Any) -> Any:
        nonlocal opened
        opened += path == manifest
        if path == manifest and opened == which:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *given, **options)

    monkeypatch.setattr(files, "open_regular", refuse)
    with pytest.raises(IndexFormatError, match=f"cannot be read .{os.strerror(number)}"):
        Retriever.load(root, model=FakeEmbedder())


def test_replaced_passages_count_for_how_rare_a_word_is(tmp_path: Path) -> None:
    root = tmp_path / "ix"
    rows = [{"_id": str(number), "text": f"word{number} word{number + 1}"} for number in range(40)]
    build_index(rows, root, model=FakeEmbedder())
    with Index.open(root, model=FakeEmbedder()) as index:
        index.search("acme word3", k=1)
        index.upsert([{**row, "text": f"acme {row['text']}"} for row in rows])
        found = index.search("acme word3", k=5)
        with Retriever.load(root, model=FakeEmbedder()) as fresh:
            assert found == fresh.search("acme word3", k=5)
