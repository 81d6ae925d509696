"""Vectors that leave an index, and tables of hits: the rows are those that are stored, by name."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from aveyb_retrieval import Index, Retriever, VectorBatch, build_index
from aveyb_retrieval.cli.index import main
from aveyb_retrieval.errors import ConfigError, OptionalDependencyError
from aveyb_retrieval.indexes.search import exported_vectors
from aveyb_retrieval.indexes.search.hit import ARROW_COLUMNS, Result
from aveyb_retrieval.indexes.store.place import describe
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNITS: Any = ("document", "passage")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with several changes, and documents without text."""
    root = tmp_path_factory.mktemp("vectors") / "ix"
    build_index(make_documents(30), root, model=FakeEmbedder())
    with Index.open(root, model=FakeEmbedder()) as index:
        index.delete(["doc-3", "doc-4"])
        index.upsert([{"_id": "new", "text": "word1 " * 900, "year": 2031}])
        index.upsert([{"_id": "empty", "text": "", "year": 2031}])
    return root


@pytest.fixture
def retriever(root: Path) -> Iterator[Retriever]:
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        yield retriever


def joined(batches: Iterator[VectorBatch]) -> tuple[list[str], Any, Any]:
    parts = list(batches)
    spans = None if parts[0].spans is None else np.concatenate([part.spans for part in parts])
    ids = [name for part in parts for name in part.ids]
    return ids, spans, np.concatenate([part.vectors for part in parts])


@pytest.mark.parametrize("unit", UNITS)
def test_vectors_are_those_of_the_documents_that_are_named(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, unit: Any
) -> None:
    whole = joined(retriever.vectors(unit))
    monkeypatch.setattr(exported_vectors, "VECTOR_BATCH_DOCUMENTS", 4)
    batches = list(retriever.vectors(unit))
    assert len(batches) > 5 and sum(map(len, batches)) == len(whole[0])
    ids, spans, vectors = joined(iter(batches))
    assert ids == whole[0] and (vectors == whole[2]).all()
    assert vectors.dtype == np.float32
    listed = [document.id for document in retriever.documents()]
    assert list(dict.fromkeys(ids)) == [name for name in listed if name in ids]
    info = describe(retriever.path)
    assert len(ids) == info["documents" if unit == "document" else "passages"]
    for row, name in enumerate(ids):
        if not vectors[row].any():  # of a document without text
            continue
        options = {"k": 200, "unit": unit, "exact": True, "ids": [name]}
        found = retriever.search_vectors(vectors[row : row + 1], **options)[0]
        assert found[0].score == pytest.approx(1, abs=1e-5)
        if spans is not None:
            cosines = {hit.span: hit.score for hit in found}
            assert cosines[tuple(spans[row].tolist())] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("unit", UNITS)
def test_a_filter_and_a_part_select_vectors(retriever: Retriever, unit: Any) -> None:
    some = {"year": 2031}
    ids, _, vectors = joined(retriever.vectors(unit, some))
    assert set(ids) == ({"new", "empty"} if unit == "document" else {"new"})
    assert joined(retriever.visible(some).vectors(unit))[0] == ids
    assert len(vectors) == len(ids) == len(joined(retriever.vectors(unit, some))[0])
    assert list(retriever.vectors(unit, {"year": 1})) == []


@pytest.mark.parametrize("unit", UNITS)
def test_files_hold_the_same_rows(retriever: Retriever, tmp_path: Path, unit: Any) -> None:
    ids, spans, vectors = joined(retriever.vectors(unit))
    for name in ("v.parquet", "v.npy", "v.faiss"):
        assert retriever.export_vectors(tmp_path / name, unit) == len(ids)
    table = pq.read_table(tmp_path / "v.parquet")
    columns = {"document": ["_id", "vector"], "passage": ["_id", "start", "stop", "vector"]}
    assert table.column_names == columns[unit]
    assert table["_id"].to_pylist() == ids
    assert (np.stack(table["vector"].to_numpy()) == vectors).all()
    assert (np.load(tmp_path / "v.npy") == vectors).all()
    index = faiss.read_index(str(tmp_path / "v.faiss"))
    assert (index.reconstruct_n(0, index.ntotal) == vectors).all()
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    for name in ("v.npy", "v.faiss"):
        lines = (tmp_path / f"{name}.ids.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["_id"] for line in lines] == ids
        if spans is not None:
            assert [json.loads(line)["span"] for line in lines] == spans.tolist()
    if spans is not None:
        assert table["start"].to_pylist() == spans[:, 0].tolist()
        assert table["stop"].to_pylist() == spans[:, 1].tolist()
    names = {"v.parquet", "v.npy", "v.faiss", "v.npy.ids.jsonl", "v.faiss.ids.jsonl"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_build_reads_the_vectors_of_documents_again(retriever: Retriever, tmp_path: Path) -> None:
    target = tmp_path / "v.parquet"
    retriever.export_vectors(target, filter={"year": {"$lt": 2031}})
    ids, _, vectors = joined(retriever.vectors("document", {"year": {"$lt": 2031}}))
    rows = [document.to_dict() for document in retriever.get(ids)]
    build_index(rows, tmp_path / "again", vectors=target, granularity="document")
    with Retriever.load(tmp_path / "again") as again:
        assert np.allclose(joined(again.vectors())[2], vectors, atol=1e-6)


def test_an_index_without_documents_gives_files_without_rows(tmp_path: Path) -> None:
    with Index.create(tmp_path / "ix", model=FakeEmbedder(dim=4)) as index:
        assert index.export_vectors(tmp_path / "v.npy") == 0
        assert index.export_vectors(tmp_path / "v.parquet", "passage") == 0
        assert index.export_vectors(tmp_path / "v.faiss") == 0
    assert np.load(tmp_path / "v.npy").shape == (0, 4)
    assert pq.read_table(tmp_path / "v.parquet").column_names == ["_id", "start", "stop", "vector"]
    assert faiss.read_index(str(tmp_path / "v.faiss")).ntotal == 0


def test_vectors_that_are_not_there_and_places_that_are_taken(
    retriever: Retriever, root: Path, tmp_path: Path
) -> None:
    build_index(make_documents(3), tmp_path / "ix", model=FakeEmbedder(), granularity="document")
    few = Retriever.load(tmp_path / "ix")
    with pytest.raises(ConfigError, match="granularity 'document' and has no vectors of passages"):
        few.vectors("passage")
    with pytest.raises(ConfigError, match="unit='page': must be one of document, passage"):
        few.vectors("page")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one index at a time"):
        Retriever.load({"one": root, "two": retriever}).vectors()
    with pytest.raises(ConfigError, match=r"must end with \.parquet or \.npy or \.faiss"):
        few.export_vectors(tmp_path / "v.csv")
    with pytest.raises(ConfigError, match="no such folder"):
        few.export_vectors(tmp_path / "none" / "v.npy")
    (tmp_path / "v.npy").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        few.export_vectors(tmp_path / "v.npy")
    assert (tmp_path / "v.npy").read_text() == "mine"
    assert few.export_vectors(tmp_path / "v.npy", overwrite=True) == 3
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        few.export_vectors(tmp_path / "folder.npy", overwrite=True)
    (tmp_path / "w.faiss.ids.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"w\.faiss\.ids\.jsonl: exists already"):
        few.export_vectors(tmp_path / "w.faiss")
    (tmp_path / "w.parquet.tmp").write_text("mine")
    assert few.export_vectors(tmp_path / "w.parquet") == 3
    assert {path.name: path.read_text() for path in tmp_path.glob("w.*s*l")} == {
        "w.faiss.ids.jsonl": "mine"
    }
    assert (tmp_path / "w.parquet.tmp").read_text() == "mine"
    assert not list(tmp_path.glob("folder.npy.*")) and not list(tmp_path.glob("w.faiss"))


def test_a_matrix_that_cannot_take_its_place_leaves_the_names_that_were_there(
    retriever: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(f"{target.name} cannot be replaced")

    monkeypatch.setattr(exported_vectors, "rename", refuse)
    for name in ("v.npy", "v.faiss"):
        (tmp_path / f"{name}.ids.jsonl").write_text("before")
        with pytest.raises(OSError, match=f"{name} cannot be replaced"):
            retriever.export_vectors(tmp_path / name, overwrite=True)
        assert (tmp_path / f"{name}.ids.jsonl").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2


def test_names_of_rows_are_one_line_each_for_every_reader(tmp_path: Path) -> None:
    ids = ["a\nb", "c\u2028d", "e\x85f", "g\rh", "\N{EURO SIGN}"]
    build_index(
        [{"_id": name, "text": "word1"} for name in ids], tmp_path / "ix", model=FakeEmbedder()
    )
    with Retriever.load(tmp_path / "ix") as retriever:
        retriever.export_vectors(tmp_path / "v.npy")
    lines = (tmp_path / "v.npy.ids.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"_id": name} for name in ids]


def test_without_faiss_an_export_says_what_to_install(
    retriever: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(OptionalDependencyError, match="pip install"):
        retriever.export_vectors(tmp_path / "v.faiss")
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_fails_leaves_the_file_that_was_there(
    retriever: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("v.parquet", "v.npy", "v.faiss"):
        (tmp_path / name).write_text("before")

    def broken(*arguments: Any) -> Iterator[VectorBatch]:
        yield next(batches(*arguments))
        raise OSError("the disk is gone")

    batches = exported_vectors.read_batches
    monkeypatch.setattr(exported_vectors, "read_batches", broken)
    for name in ("v.parquet", "v.npy", "v.faiss"):
        with pytest.raises(OSError, match="disk is gone"):
            retriever.export_vectors(tmp_path / name, overwrite=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("v.parquet", "v.npy", "v.faiss"), "before"
    )


def test_the_command_writes_files_and_says_what_is_wrong(root: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "v.npy")
    run = CliRunner().invoke
    done = run(main, ["export", str(root), "-o", target, "--filter", '{"year": 2031}'])
    assert (done.exit_code, done.output) == (0, f"{target}: 2 vectors\n")
    again = run(main, ["export", str(root), "-o", target])
    assert again.exit_code == 2 and "exists already" in again.output
    passages = run(main, ["export", str(root), "-o", target, "--unit", "passage", "--overwrite"])
    assert passages.exit_code == 0 and len(np.load(target)) > 30


def test_a_table_of_hits_has_a_row_for_each(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"_id": "a", "title": "A", "text": "word1 word2", "year": 2024, "author": {"name": "Ada"}},
        {"_id": "b", "text": "word1", "year": 2023, "parties": [{"name": "X"}, {"name": "Y"}]},
        {"_id": "c", "text": "word1 word3", "year": "unknown", "serial": 2**63},
    ]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        hits = retriever.search("word1", 3, context=1)
        table = hits.to_arrow(["author.name", "parties.name"], text=True)
        assert table.schema.names == [*ARROW_COLUMNS.names, "text", "author.name", "parties.name"]
        for row, hit in zip(table.to_pylist(), hits, strict=True):
            for name in (
                "id",
                "title",
                "score",
                "confidence",
                "passage",
                "page",
                "context",
                "text",
            ):
                assert row[name] == getattr(hit, name)
            assert (row["start"], row["stop"]) == hit.span
            assert row["duplicates"] == list(hit.duplicates)
            assert json.loads(row["metadata"]) == hit.metadata
        named = {row["id"]: (row["author.name"], row["parties.name"]) for row in table.to_pylist()}
        assert named == {"a": ("Ada", None), "b": (None, ["X", "Y"]), "c": (None, None)}
        assert table["id"].to_pylist() == [hit.id for hit in hits]
        with pytest.raises(ConfigError, match="no type for all values of 'year'"):
            hits.to_arrow(["year"])
        for wrong in ("year", [3]):
            with pytest.raises(ConfigError, match="must be a list of fields"):
                hits.to_arrow(wrong)  # type: ignore[arg-type]
        for fields in (["title"], ["author.name", "author.name"]):
            with pytest.raises(ConfigError, match="is a column of the table already"):
                hits.to_arrow(fields)
        assert pa.Table.from_pylist([], schema=ARROW_COLUMNS).equals(Result().to_arrow())
        with pytest.raises(ConfigError, match="no type for all values of 'serial'"):
            hits.to_arrow(["serial"])
        words = retriever.search("word3", 1, mode="lexical").to_arrow(["year"])
        assert words["confidence"].to_pylist() == [None] and words["year"].to_pylist() == [
            "unknown"
        ]


def test_a_table_of_hits_is_a_frame_of_pandas(root: Path) -> None:
    pytest.importorskip("pandas")
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        hits = retriever.search("word1", 3)
        assert list(hits.to_arrow().to_pandas()["id"]) == [hit.id for hit in hits]
