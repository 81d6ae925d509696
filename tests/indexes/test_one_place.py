"""An index that was opened by a relative path stays the same index when the process changes its
folder.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Index, Retriever, build_index, sync_index
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexFormatError, InputError
from aveyb_retrieval.indexes.search.alerts import Alert, add_alert, run_alerts
from tests.indexes.fake import FakeEmbedder, load_instead

if TYPE_CHECKING:
    from collections.abc import Callable

    from aveyb_retrieval.indexes.types import Progress

TENANTS = ("a", "b")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders with an index `ix` each; the process is in the first."""
    for tenant in TENANTS:
        build_index(
            [{"_id": f"{tenant}1", "text": f"word1 of tenant {tenant}"}],
            tmp_path / tenant / "ix",
            model=FakeEmbedder(),
        )
    monkeypatch.chdir(tmp_path / "a")
    return tmp_path


def stored(path: Path) -> list[str]:
    with Retriever.load(path) as retriever:
        return sorted(document.id for document in retriever.documents())


def test_an_open_index_reads_and_writes_where_it_was_opened(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.open("ix", model=FakeEmbedder())
    retriever = Retriever.load(Path("ix"), model=FakeEmbedder())
    both = Retriever.load(["ix", "../a/ix"], model=FakeEmbedder())
    part = retriever.visible({})
    monkeypatch.chdir(folders / "b")
    assert [hit.id for hit in index.search("word1")] == ["a1"]
    index.upsert([{"_id": "a2", "text": "word1 word2"}])
    with index.batch() as batch:
        batch.add([{"_id": "a3", "text": "word1 word3"}])
        batch.update_metadata({"year": 2026}, ["a1"])
    index.delete(["a2"])
    index.compact()
    assert not index.verify().problems
    assert retriever.is_stale
    for reader in (retriever, both, part):
        reader.reopen()
        assert {hit.id for hit in reader.search("word1", fold=False)} == {"a1", "a3"}
    assert (stored(folders / "a/ix"), stored(folders / "b/ix")) == (["a1", "a3"], ["b1"])
    assert str(index.path) == str(retriever.path) == "ix"


def test_copies_by_pickle_open_the_index_that_was_open(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = [
        Index.open("ix"),
        Retriever.load("ix"),
        Retriever.load({"one": "ix"}),
        Retriever.load("ix").visible({}),
    ]
    pickled = [pickle.dumps(each) for each in opened]
    monkeypatch.chdir(folders / "b")
    for data in pickled:
        copy = pickle.loads(data)
        assert [document.id for document in copy.documents()] == ["a1"]
    pickle.loads(pickled[0]).delete(["a1"])
    assert (stored(folders / "a/ix"), stored(folders / "b/ix")) == ([], ["b1"])


def moves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Progress:
    """A progress function that changes the folder of the process at its first call."""
    return lambda *_: monkeypatch.chdir(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda path, progress: build_index(
            [{"_id": "new", "text": "word9"}],
            path,
            model=FakeEmbedder(),
            overwrite=True,
            progress=progress,
        ),
        lambda path, progress: sync_index(
            Path("letters").absolute(), path, model=FakeEmbedder(), progress=progress
        ),
    ],
)
@pytest.mark.parametrize("place", ["ix", "none-yet"])
def test_a_change_ends_where_it_began(
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[str, Progress], object],
    place: str,
) -> None:
    (folders / "a/letters").mkdir()
    (folders / "a/letters/new").with_suffix(".txt").write_text("word9")
    change(place, moves(folders / "b", monkeypatch))
    assert any(name.startswith("new") for name in stored(folders / "a" / place))
    assert stored(folders / "b/ix") == ["b1"]
    assert not (folders / "b/none-yet").exists()


def test_a_batch_does_not_read_another_file_of_the_same_name(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in TENANTS:
        (folders / tenant / "note.txt").write_text(f"secret of {tenant}")
    index = Index.open("ix", model=FakeEmbedder())

    def upsert_then_move() -> None:
        with index.batch() as batch:
            batch.upsert(Path("note.txt"))
            monkeypatch.chdir(folders / "b")

    with pytest.raises(ConfigError, match=r"note\.txt: was given to a batch in the folder .*/a"):
        upsert_then_move()
    assert stored(folders / "a/ix") == ["a1"]


def test_saved_questions_are_those_of_one_index(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_instead(monkeypatch, lambda *_, **__: FakeEmbedder())
    add_alert("ix", Alert("words", "word1", at_least=0))
    assert (folders / "a/ix/alerts.json").exists()
    assert run_alerts("ix", print) == []


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Index.open("none"), IndexFormatError, "^none: no index here"),
        (lambda: build_index([], "ix", allow_empty=True), ConfigError, "^ix: an index is already"),
        (lambda: Index.open("ix").delete(["x"]), InputError, "^ix: no document has the id 'x'"),
        (lambda: sync_index(".", "ix", only=["x"]), AveyBError, "the index ix"),
    ],
)
def test_messages_name_the_place_as_it_was_given(
    folders: Path, call: Callable[[], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call()
    assert folders.exists()
