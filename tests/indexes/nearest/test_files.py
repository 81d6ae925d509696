"""FAISS files of every type: damaged ones are errors, wrong ones are found by another process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.nearest import (
    faiss_check,
    faiss_file,
)
from aveyb_retrieval.indexes.nearest import (
    faiss_check as faiss_codes,
)
from aveyb_retrieval.indexes.nearest import (
    faiss_file as faiss_index,
)
from aveyb_retrieval.indexes.nearest.build import make_tier
from aveyb_retrieval.indexes.nearest.faiss_check import Expected
from aveyb_retrieval.indexes.nearest.tiers import Nearest
from tests.indexes.nearest.fake import FakeVectors

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = (
    "IVF1,RaBitQfs", "IVF4,RaBitQfs", "IVF4,RaBitQfs3", "Flat", "SQ8", "SQ4", "SQ6", "SQfp16", "HNSW8", "HNSW8_SQ8",
    "PQ4x4", "IVF4,Flat", "IVF4,SQ8", "IVF4,PQ4x4", "IVF4_HNSW4,Flat", "OPQ4,IVF4_HNSW4,PQ4x4", "PCA8,Flat",
    "PCAR8,IVF4,Flat", "RR16,SQ8", "PCA8,HNSW8",
)  # fmt: skip
STORED = FakeVectors.random("document", 300, 16)


def make(factory: str, path: Path) -> None:
    index = faiss_index.create(factory, 16)
    faiss_index.train(index, STORED.rows, factory)
    faiss_index.fill(index, STORED.numbers, STORED.rows)
    faiss_file.write(index, path)


def expected(path: Path, **changed: object) -> Expected:
    fields = {"kind": "document", "first": 0, "stop": 300, "count": 300, "ids": STORED.numbers, "dim": 16}
    return Expected(path, **{**fields, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize("factory", KNOWN)
def test_a_file_that_was_cut_is_refused(factory: str, tmp_path: Path) -> None:
    path = tmp_path / "x.faiss"
    make(factory, path)
    data = path.read_bytes()
    for damaged in (data[:100], b""):
        path.write_bytes(damaged)
        with pytest.raises(IndexFormatError, match="FAISS cannot read it"):
            faiss_file.read(path, mapped=True)


def test_a_search_refuses_a_damaged_file(tmp_path: Path) -> None:
    tier, _ = make_tier(tmp_path, "faiss/a", "document", 0, 300, STORED, 300, "auto")
    path = tmp_path / tier.file
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(IndexFormatError, match=r"FAISS cannot read it .*--repair"):
        Nearest.open(tmp_path, "document", [tier], STORED, 300)


@pytest.mark.parametrize("factory", KNOWN)
def test_codes_are_those_of_the_vectors_and_of_no_others(factory: str, tmp_path: Path) -> None:
    path = tmp_path / "x.faiss"
    make(factory, path)
    index = faiss_file.read(path, mapped=True)
    known = np.delete(STORED.numbers, [5, 6, 200])  # others were deleted since
    assert np.concatenate(list(faiss_codes.differing(index, known, lambda ids: STORED.rows[ids]))).tolist() == []
    changed = STORED.rows.copy()
    changed[[7, 90]] = -changed[[90, 7]]
    changed[33] = -changed[33]
    wrong = np.concatenate(list(faiss_codes.differing(index, known, lambda ids: changed[ids])))
    assert set(wrong.tolist()) == {7, 33, 90}


def test_another_process_finds_what_is_wrong_with_files(tmp_path: Path) -> None:
    good, vectors, others = tmp_path / "good", tmp_path / "v.npy", tmp_path / "w.npy"
    make("IVF1,RaBitQfs", good)
    np.save(vectors, STORED.rows.astype(np.float16))
    swapped = STORED.rows.copy()
    swapped[3] = -swapped[3]
    np.save(others, swapped)
    cut = tmp_path / "cut"
    cut.write_bytes(good.read_bytes()[:-9])
    half = STORED.numbers[::2]
    found = faiss_check.problems(
        [
            expected(good),
            expected(good, vectors=vectors),
            expected(good, ids=half),
            expected(good, vectors=others),
            expected(good, count=301),
            expected(good, ids=np.append(STORED.numbers, 300), stop=301),
            expected(good, stop=299, ids=STORED.numbers[:299]),
            expected(good, dim=17),
            expected(cut),
        ]
    )
    told = [
        "1 of its codes",
        "manifest says 301",
        "1 of the 301",
        "not of the documents",
        "manifest says 17",
        "FAISS cannot read it",
    ]
    assert len(found) == len(told), found
    assert all(part in problem for part, problem in zip(told, found, strict=True)), found
