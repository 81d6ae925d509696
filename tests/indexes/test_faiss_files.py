"""FAISS files of every type: their structure is known before FAISS reads them, their codes are those of the vectors."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.nearest import faiss_check, faiss_codes, faiss_file, faiss_index, faiss_structure
from aveyb_retrieval.indexes.store.manifest import read_manifest
from aveyb_retrieval.indexes.changes.update import delete_documents, upsert_documents
from aveyb_retrieval.indexes.changes.verify import verify_index
from tests.faults import consistent
from tests.faults.commands import forked_checks
from tests.faults.test_hostile import rehash
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = (
    "Flat", "SQ8", "SQ4", "SQ6", "SQfp16", "HNSW8", "HNSW8_SQ8", "PQ4x4", "IVF4,Flat", "IVF4,SQ8", "IVF4,PQ4x4",
    "IVF4_HNSW4,Flat", "OPQ4,IVF4_HNSW4,PQ4x4", "PCA8,Flat", "PCAR8,IVF4,Flat", "RR16,SQ8", "PCA8,HNSW8",
)  # fmt: skip
COUNT = 300
VECTORS = np.random.default_rng(0).normal(size=(COUNT, 16)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
IDS = np.arange(COUNT, dtype=np.int64) * 3 + 5


def make(factory: str, path: Path, count: int = COUNT) -> None:
    index = faiss_index.create(factory, 16)
    if count:
        faiss_index.train(index, VECTORS, factory)
        faiss_index.fill(index, IDS[:count], VECTORS[:count])
    faiss_file.write(index, path)


@pytest.mark.parametrize("factory", KNOWN)
def test_the_structure_of_what_faiss_writes_is_known(factory: str, tmp_path: Path) -> None:
    path = tmp_path / "x.faiss"
    for count in (COUNT, 0):
        make(factory, path, count)
        assert faiss_structure.check(path)
    make(factory, path)
    data = path.read_bytes()
    for damaged in (data[:-1], data + b"\0", data[:100], b"", data[:4] + bytes(8) + data[12:]):
        path.write_bytes(damaged)
        with pytest.raises(IndexFormatError, match="damaged"):
            faiss_structure.check(path)


def test_a_type_that_is_not_walked_is_left_to_faiss(tmp_path: Path) -> None:
    make("PQ4x4fs", tmp_path / "x.faiss")
    assert not faiss_structure.check(tmp_path / "x.faiss")


def look_up(ids: np.ndarray) -> np.ndarray:
    return VECTORS[(ids - 5) // 3]


@pytest.mark.parametrize("factory", [*KNOWN, "PQ4x4,RFlat"])
def test_codes_are_those_of_the_vectors_and_of_no_others(factory: str, tmp_path: Path) -> None:
    path = tmp_path / "x.faiss"
    make(factory, path)
    index = faiss_file.read(path, mapped=True)
    assert np.concatenate(list(faiss_codes.differing(index, look_up))).tolist() == []
    changed = VECTORS.copy()
    changed[[7, 90]] = changed[[90, 7]]  # two vectors under each other's ids
    changed[33] = -changed[33]
    wrong = np.concatenate(list(faiss_codes.differing(index, lambda ids: changed[(ids - 5) // 3])))
    assert set(wrong) == set(IDS[[7, 33, 90]])


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "SQ8", "IVF4,Flat", "PQ4x4", "PCA8,IVF4_HNSW4,SQ8"])
def test_verify_deep_is_content_with_an_index_that_was_changed_in_order(factory: str, tmp_path: Path) -> None:
    root, model = tmp_path / "ix", FakeEmbedder()
    build_index(make_documents(60), root, model=model, index=factory, storage_dtype="float16")
    upsert_documents(make_documents(20, seed=3, first=50), root, model=model)
    delete_documents(root, ["doc-1", "doc-2"])
    with forked_checks():
        assert verify_index(root, deep=True).problems == []
    for change in (consistent.faiss_ids, consistent.shard_rows):
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        version = copy / read_manifest(copy).version
        change(random.Random(1), version)
        for path in version.rglob("*"):
            if path.suffix in (".faiss", ".safetensors"):
                rehash(copy, str(path.relative_to(version)))
        with forked_checks():
            assert verify_index(copy, deep=True).problems
        shutil.rmtree(copy)


def test_a_reader_refuses_a_faiss_file_of_a_wrong_structure_before_faiss_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(60), root, model=FakeEmbedder(), index="SQ8", granularity="document")
    path = root / "v000001" / "document.faiss"
    path.write_bytes(path.read_bytes()[:-100])
    rehash(root, "document.faiss")
    monkeypatch.setattr(faiss_file, "_no_larger_than", None)  # FAISS is not reached
    with pytest.raises(IndexFormatError, match=r"damaged .*--repair"):
        Retriever.load(root, model=FakeEmbedder())
    with forked_checks():
        assert any("damaged" in problem for problem in verify_index(root).problems)


def test_both_kinds_are_checked_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(30), root, model=FakeEmbedder())
    run, started = faiss_check.subprocess.run, []
    monkeypatch.setattr(faiss_check.subprocess, "run", lambda *a, **k: started.append(a) or run(*a, **k))
    assert verify_index(root, deep=True).problems == []
    assert len(started) == 1


def test_a_type_whose_codes_cannot_be_compared_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(60), root, model=FakeEmbedder(), index="IVF4,PQ4x4fs", granularity="document")
    assert verify_index(root, deep=True).problems == []
    assert "codes are not compared" in caplog.text


def test_a_hostile_name_of_a_shard_in_the_store_is_refused(tmp_path: Path) -> None:
    from tests.faults.test_hostile import change_store

    root = tmp_path / "ix"
    build_index(make_documents(30), root, model=FakeEmbedder())
    change_store(root, "UPDATE shards SET name = '../../outside'")
    assert any("'../../outside'" in problem for problem in verify_index(root).problems)
    with pytest.raises(AveyBError, match="outside"):
        delete_documents(root, ["doc-1"])
