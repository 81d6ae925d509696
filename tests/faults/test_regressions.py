"""What the campaigns found once, each in a few lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from aveyb_retrieval import Index, Retriever, build_index, files
from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.changes import ingest
from aveyb_retrieval.indexes.changes.verify import verify_index
from aveyb_retrieval.indexes.store import dataset, lance_session
from aveyb_retrieval.indexes.store.manifest import IndexDirectory
from aveyb_retrieval.indexes.store.place import read_manifest
from aveyb_retrieval.indexes.store.tables import StoredVectors, Tables
from aveyb_retrieval.indexes.types import expand_passages
from rigs.faults import consistent
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder


def test_blocks_of_vectors_are_never_empty(tmp_path: Path) -> None:
    """FAISS's RaBitQ refuses to add nothing; a merge of the first documents of an index came to a
    block of others.
    """
    build_index(make_documents(40), tmp_path / "ix", model=FakeEmbedder())
    tables = Tables.open(tmp_path / "ix", read_manifest(tmp_path / "ix"))
    blocks = list(StoredVectors(tables, "document", 16).blocks(1, 9, rows=4))
    assert [numbers.tolist() for numbers, _ in blocks] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def full(*arguments: object) -> Any:
    """What a full disk does."""
    raise OSError(28, "No space left on device")


def broken(*arguments: object) -> Any:
    """What a broken disk does."""
    raise OSError(5, "Input/output error")


def test_a_batch_that_failed_late_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal was waited for, and only the batch itself, gone with its process, could have
    continued it.
    """

    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 5)  # such a batch has a journal
    build_index(make_documents(10), tmp_path / "ix", model=FakeEmbedder())
    with Index.open(tmp_path / "ix", model=FakeEmbedder()) as index:
        with monkeypatch.context() as patch:
            patch.setattr(IndexDirectory, "publish", full)
            with pytest.raises(AveyBError, match="No space left"), index.batch() as batch:
                batch.upsert(make_documents(12, first=10))
        assert len(index) == 10
        with index.batch() as batch:
            batch.upsert(make_documents(12, first=10))
        index.delete(["doc-3"])
        assert len(index) == 21


@pytest.mark.parametrize("name", ["hash_file", "read_bounded"])
def test_a_file_that_cannot_be_read_is_an_error_of_ours(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the index ended in a bare OSError."""
    build_index(make_documents(10), tmp_path / "ix", model=FakeEmbedder())
    monkeypatch.setattr(files, name, broken)
    with pytest.raises(IndexFormatError, match="cannot be read"):
        Retriever.load(tmp_path / "ix", model=FakeEmbedder())
    assert "cannot be read" in verify_index(tmp_path / "ix").problems[0]


def test_the_name_of_a_new_index_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut soon after a first build could lose the whole folder: its parent was never
    flushed.
    """
    flushed, fsync_folder = [], files.fsync_folder

    def noted(folder: Path) -> None:
        flushed.append(folder)
        fsync_folder(folder)

    monkeypatch.setattr(files, "fsync_folder", noted)
    build_index(make_documents(3), tmp_path / "new" / "ix", model=FakeEmbedder())
    assert {tmp_path, tmp_path / "new"} <= set(flushed)


def test_a_process_that_follows_a_writer_lets_go_of_deleted_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lance's caches kept each index of words that was ever opened, with its file."""
    monkeypatch.setattr(lance_session, "MAX_CACHED_VERSIONS", 6)
    monkeypatch.setattr(dataset, "MAX_SMALL_PIECES", 2)
    build_index(make_documents(30), tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        for number in range(40):
            one_change.upsert(
                make_documents(2, seed=number, first=2 * number),
                tmp_path / "ix",
                model=FakeEmbedder(),
            )
            retriever.reopen()
            retriever.search("word1 word2", mode="lexical")
        deleted = sum(_deleted(tmp_path))
    assert deleted <= 6, (
        "of each index of words that was merged since the caches were begun anew, one"
    )


def _deleted(root: Path) -> list[bool]:
    """Of the files below a folder that this process has open: which were deleted."""
    opened = Path("/proc/self/fd")
    if not opened.is_dir():
        pytest.skip("no /proc to look into")
    names = [str(each.readlink()) for each in list(opened.iterdir()) if each.is_symlink()]
    return [name.endswith(" (deleted)") for name in names if str(root) in name]


@pytest.mark.parametrize("count", [-1, 1 << 20, 1 << 50])
def test_a_count_of_passages_that_cannot_be_is_an_error_of_ours(count: int) -> None:
    """Of a damaged row; numpy refused to make room for so many."""
    with pytest.raises(IndexFormatError, match="passages"):
        expand_passages(np.array([[1, 3], [2, count]]))


@pytest.mark.parametrize(
    ("table", "key", "change"),
    [
        ("documents", "doc", {"doc": "doc + 1000"}),
        ("documents", "doc", {"passages": "passages + 1"}),
        ("documents", "doc", {"metadata": "'[1]'"}),
    ],
)
def test_rows_that_do_not_fit_each_other_are_problems(
    table: str, key: str, change: dict[str, str], tmp_path: Path
) -> None:
    """A check of the contents ended in a KeyError; a reader found metadata that are no object."""
    root = tmp_path / "ix"
    build_index(make_documents(10), root, model=FakeEmbedder())
    opened = lance.dataset(
        str(root / f"{table}.lance"), version=read_manifest(root).tables.documents
    )
    opened.update(change, where=f"{key} = 3")
    consistent.reseal(root, {table: opened.version})
    assert problems_of(root)
