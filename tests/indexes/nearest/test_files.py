"""FAISS files of every type: they are guarded by their hashes, and `problems_of`
searches them.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index, copy_index, files, verify_index
from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.nearest import faiss_file
from aveyb_retrieval.indexes.store import manifest
from aveyb_retrieval.indexes.store.checked import CHECKED
from tests import one_change
from tests.contents import problems_of
from tests.indexes.disk import rehash
from tests.recorder import record_calls

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = (
    "IVF1,RaBitQfs",
    "IVF4,RaBitQfs",
    "IVF4,RaBitQfs3",
    "Flat",
    "SQ8",
    "SQ4",
    "SQ6",
    "SQfp16",
    "HNSW8",
    "HNSW8_SQ8",
    "PQ4x4",
    "IVF4,Flat",
    "IVF4,SQ8",
    "IVF4,PQ4x4",
    "IVF4_HNSW4,Flat",
    "OPQ4,IVF4_HNSW4,PQ4x4",
    "PCA8,Flat",
    "PCAR8,IVF4,Flat",
    "RR16,SQ8",
    "PCA8,HNSW8",
)
ROWS = np.random.default_rng(0).normal(size=(800, 16)).astype(np.float32)


def made(root: Path, factory: str, rows: np.ndarray = ROWS) -> Path:
    """Build an index of vectors; return its FAISS file."""
    report = build_index(None, root, vectors=rows, granularity="document", index=factory)
    (tier,) = report.indexes["document"]
    return root / tier.file


@pytest.mark.parametrize("factory", KNOWN)
def test_verify_finds_the_stored_vectors_in_a_file(factory: str, tmp_path: Path) -> None:
    made(tmp_path / "ix", factory)
    assert problems_of(tmp_path / "ix") == []


@pytest.mark.parametrize("factory", ["IVF1,RaBitQfs", "HNSW8"])
def test_a_file_that_was_cut_or_changed_is_refused(
    factory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of a large index FAISS files alone are hashed
    monkeypatch.setattr(manifest, "_QUICK_BYTES", 0)
    root = tmp_path / "ix"
    path = made(root, factory)
    whole = path.read_bytes()
    for damaged in (
        whole[:100],
        whole[:-1],
        b"",
        whole[:-1] + bytes([whole[-1] ^ 1]),
        whole[:40] + b"?" + whole[41:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(
            IndexFormatError, match=r"bytes, the manifest says|do not fit the sha256"
        ) as caught:
            Retriever.load(root)
        assert path.name in str(caught.value)
        assert "--repair" in str(caught.value)
        (problem,) = verify_index(root).problems
        assert path.name in problem
    assert verify_index(root, repair=True).repaired


def test_opening_reads_a_large_file_once_after_it_was_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_QUICK_BYTES", 0)
    root = tmp_path / "ix"
    path = made(root, "SQ8")
    hashed = record_calls(monkeypatch, files, "hash_file")
    copy_index(root, tmp_path / "copy")
    hashed.clear()
    for place in (root, tmp_path / "copy", root):
        Retriever.load(place).close()
    assert hashed == []
    shutil.copytree(root, tmp_path / "other")
    for _ in range(3):
        Retriever.load(tmp_path / "other").close()
    assert [call["path"].name for call in hashed] == [path.name]
    assert verify_index(root).problems == []
    assert [call["path"].name for call in hashed].count(path.name) == 2


@pytest.mark.parametrize("noted", [b"{", b"[]", b'{"faiss/x": 1}', None])
def test_a_file_that_was_changed_behind_its_times_is_refused(
    noted: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_QUICK_BYTES", 0)
    root = tmp_path / "ix"
    path = made(root, "SQ8")
    if noted is not None:
        (root / CHECKED).write_bytes(noted)
        Retriever.load(root).close()
    times, data = path.stat(), path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(IndexFormatError, match="do not fit the sha256"):
        Retriever.load(root)
    with pytest.raises(IndexFormatError, match="do not fit the sha256"):
        Retriever.load(root)  # nothing was noted of it
    one_change.upsert([{"_id": "0", "text": "words"}], root, vectors=ROWS[:1])
    with pytest.raises(IndexFormatError, match="do not fit the sha256"):
        Retriever.load(root)  # nor by a change that kept it


@pytest.mark.parametrize("factory", ["IVF1,RaBitQfs", "HNSW8", "SQ8"])
def test_a_file_of_other_vectors_does_not_find_these(factory: str, tmp_path: Path) -> None:
    root = tmp_path / "ix"
    path = made(root, factory)
    path.write_bytes(made(tmp_path / "other", factory, -ROWS).read_bytes())
    rehash(root, path.relative_to(root).as_posix())
    assert verify_index(root).problems == []
    (problem,) = problems_of(root)
    assert path.name in problem
    assert "does not find" in problem


def test_a_file_of_fewer_vectors_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "ix"
    path = made(root, "SQ8")
    path.write_bytes(made(tmp_path / "other", "SQ8", ROWS[:-1]).read_bytes())
    rehash(root, path.relative_to(root).as_posix())
    (problem,) = verify_index(root).problems
    assert "799 vectors in it, the manifest says 800" in problem


def test_what_is_no_file_of_faiss_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "x.faiss").write_bytes(b"nothing of FAISS")
    with pytest.raises(IndexFormatError, match=r"FAISS cannot read it .*--repair"):
        faiss_file.read(tmp_path / "x.faiss", mapped=True)
