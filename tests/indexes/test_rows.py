"""What is read of mapped files is what was written, whatever was merged or deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from aveyb_retrieval import Index, Retriever, build_index
from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store import mapped
from aveyb_retrieval.indexes.store import rows as rows_module
from aveyb_retrieval.indexes.store.mapped import LocalBytes, MappedRows, write_batches
from aveyb_retrieval.indexes.store.place import read_manifest
from aveyb_retrieval.indexes.store.rows import SPAN, VECTOR, WORDS, find_rows, fixed_lists
from aveyb_retrieval.indexes.store.tables import Tables
from aveyb_retrieval.indexes.types import expand_passages, widened
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder
from tests.refusals import Refusal, refusals

TEXTS = {
    "one": [" one "],
    "alike": [" all are alike "] * 30,
    "empty": [""] * 3,
    "short": [f" text {i} " for i in range(300)],
    "batches": [f" long text of many words {i}" * 6 for i in range(40_000)],
    "other": ["", " \u00fc ", " \u6f22\u5b57 " * 100, ""],
}


def _written(path: Path, **columns: Any) -> MappedRows:
    """A file of columns that is open; rows are numbered by tens."""
    names = {"n": pa.array(np.arange(len(next(iter(columns.values())))) * 10), **columns}
    table = pa.table(names)
    write_batches(path, table.schema, [table])
    return MappedRows.open(path, LocalBytes.map(path), table.schema)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_changes_lose_nothing(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MAX_SMALL_PIECES", 4)
    root, model = tmp_path / "ix", FakeEmbedder()
    build_index(make_documents(1), root, model=model, storage_dtype=dtype)
    before: Tables | None = None
    with Index.open(root, model=model) as index:
        changes: list[Any] = [
            lambda: index.upsert(make_documents(50, seed=1)),
            lambda: index.delete([f"doc-{i}" for i in range(0, 50, 3)]),
            *(lambda i=i: index.upsert(make_documents(2, seed=2, first=5 * i)) for i in range(9)),
            lambda: index.update_metadata({"seen": True}, ["doc-1"]),
            index.compact,
        ]
        for change in changes:
            change()
            tables = Tables.open(root, read_manifest(root), before)
            numbers = tables.numbers("passage")
            stored = tables.passages.take(numbers, [*SPAN, "heading", "text", WORDS, VECTOR])
            assert np.array_equal(stored["passage"].to_numpy(), numbers)
            expected = np.array(stored[VECTOR].to_pylist(), dtype=np.float32)
            assert np.array_equal(tables.vectors("passage", numbers), expected)
            for name in ("heading", "text", WORDS):
                texts = tables.passages.encoded_texts(numbers, name)
                assert texts == [text.encode() for text in stored[name].to_pylist()]
            starts, stops = (stored[name].to_numpy() for name in SPAN)
            spans = tables.passages.spans(numbers)
            assert np.array_equal(spans, np.stack([starts, stops], axis=1))
            rows = tables.documents.scan(["doc", "passages"]).to_pydict()
            pairs = np.array(sorted(zip(rows["doc"], rows["passages"], strict=True)))
            assert np.array_equal(numbers, expand_passages(pairs))
            assert tables.texts.scan(["doc"])["doc"].to_pylist() == sorted(rows["doc"])
            block = dict[int, np.ndarray]()
            for kind in ("document", "passage"):
                for some, vectors in tables.stored_vectors(kind, tables.numbers(kind), 7):
                    block |= dict(zip(some.tolist(), widened(vectors).copy(), strict=True))
                every = tables.vectors(kind, tables.numbers(kind))
                assert np.array_equal(
                    np.stack([block[n] for n in tables.numbers(kind).tolist()]), every
                )
            before = tables
    assert len(tables.texts.pieces) == len(tables.passages.pieces) == 1


def test_a_document_of_one_passage_stores_one_vector(tmp_path: Path) -> None:
    class OnePassage(FakeEmbedder):
        """Documents whose only passage has their vector, but for those called "own"."""

        def encode_documents(self, documents: Any) -> Any:
            for encoded, (prefix, _) in zip(
                super().encode_documents(documents := list(documents)), documents, strict=True
            ):
                opposite = -encoded.vector
                near = np.nextafter(encoded.vector, np.float32(2))
                encoded.passages[0] = opposite if "own" in prefix else near
                yield encoded

    documents = [{"_id": str(i), "title": "own" if i == 2 else "", "text": "w"} for i in range(4)]
    model = OnePassage()
    build_index(documents, tmp_path / "ix", model=model)
    tables = Tables.open(tmp_path / "ix", read_manifest(tmp_path / "ix"))
    assert len(tables.own_vectors) == 1
    docs = tables.numbers("document")
    alike = (tables.vectors("document", docs) == tables.vectors("passage", docs << 20)).all(axis=1)
    assert alike.tolist() == [True, True, False, True]
    with Retriever.load(tmp_path / "ix", model=model) as reader:
        assert len(reader.search("w", mode="dense", k=4, fold=False)) == 4


def test_every_half_is_widened_as_it_is() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    wide, finite = widened(halves), np.isfinite(halves)
    assert np.array_equal(
        wide[finite].view(np.uint32), halves.astype(np.float32)[finite].view(np.uint32)
    )


def test_what_was_deleted_has_no_vector(tmp_path: Path) -> None:
    build_index(make_documents(5), tmp_path / "ix", model=FakeEmbedder())
    with Index.open(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.delete(["doc-1"])
    tables = Tables.open(tmp_path / "ix", read_manifest(tmp_path / "ix"))
    found, vectors = tables.live_vectors("document", np.array([1, 2, 3, 77]))
    assert (found.tolist(), len(vectors)) == ([1, 3], 2)
    with pytest.raises(IndexFormatError, match=r"document number \[2\], which is not stored"):
        tables.vectors("document", np.array([1, 2]))


def test_vectors_of_many_batches(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(40_000, 60)).astype(np.float32)
    rows = _written(tmp_path / "x", **{VECTOR: fixed_lists(vectors, pa.list_(pa.float32(), 60))})
    # of Linux
    opened = [
        each for each in Path("/proc/self/fd").glob("*") if each.resolve() == rows.path.resolve()
    ]
    assert len(opened) <= 1, "one map, however many batches there are"
    assert len(rows.starts) > 1
    wanted = np.random.default_rng(1).permutation(len(vectors))[:5000]
    out = np.empty((5000, 60), np.float32)
    rows.copy_vectors(VECTOR, wanted, out, np.arange(5000))
    assert np.array_equal(out, vectors[wanted])
    ordered = np.sort(wanted)
    block = rows.block(VECTOR, ordered, np.empty((5000, 240), np.uint8))
    assert np.array_equal(block, vectors[ordered])


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_every_size(name: str, tmp_path: Path) -> None:
    texts = TEXTS[name]
    rows = _written(tmp_path / "x", **{WORDS: pa.array(texts, pa.large_string())})
    wanted = np.random.default_rng(1).permutation(len(texts))
    assert rows.texts(WORDS, wanted) == [texts[row].encode() for row in wanted.tolist()]


def test_columns_with_nulls_are_refused(tmp_path: Path) -> None:
    rows = _written(tmp_path / "x", **{WORDS: pa.array(["a", None, "b"], pa.large_string())})
    with pytest.raises(IndexFormatError, match="has nulls"):
        rows.texts(WORDS, np.array([0]))


@refusals(
    {
        IndexFormatError: {
            "out of order": lambda path, schema: MappedRows.open(
                path, LocalBytes.map(path), schema
            ),
            r"has the columns \['n', 'x'\], not \['n', 'y'\]": lambda path, _: MappedRows.open(
                path, LocalBytes.map(path), pa.schema([("n", pa.int64()), ("y", pa.int64())])
            ),
        },
    }
)
def test_other_columns_and_another_order_are_refused(tmp_path: Path, refused: Refusal) -> None:
    table = pa.table({"n": pa.array([3, 1]), "x": pa.array([1, 2])})
    write_batches(tmp_path / "x", table.schema, [table])
    refused(tmp_path / "x", table.schema)


@pytest.mark.parametrize(
    ("tables", "batches", "at_once"),
    [
        ([3, 2, 5, 1], [10, 1], 1 << 20),  # small ones together
        ([19, 13], [19, 13], 1 << 20),  # others as they are
        ([2, 12, 20], [14, 10, 10], 1 << 20),
        ([45], [12, 12, 12, 9], 1 << 20),
        ([0, 3], [3], 1 << 20),
        ([3, 2, 5, 1], [3, 2, 5, 1], 1),  # wide rows: few are much memory
    ],
)
def test_batches_of_a_file_are_neither_small_nor_large(
    tables: list[int],
    batches: list[int],
    at_once: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mapped, "BATCH_ROWS", 10)
    monkeypatch.setattr(mapped, "_BATCH_BYTES", at_once)
    rows = pa.table({"n": pa.array(np.arange(sum(tables)))})
    first = np.cumsum([0, *tables])
    given = [rows.slice(start, size) for start, size in zip(first, tables, strict=False)]
    write_batches(tmp_path / "x", rows.schema, given)
    written = MappedRows.open(tmp_path / "x", LocalBytes.map(tmp_path / "x"), rows.schema)
    assert np.diff(written.starts, append=len(written)).tolist() == batches
    assert written.numbers.tolist() == rows["n"].to_pylist()


def test_rows_are_found_by_their_numbers() -> None:
    numbers = np.array([2, 3, 4, 9, 10, 40])
    for wanted in ([2, 3, 4], [40, 2], [1, 2, 5, 9, 10, 11, 41], [7], []):
        expected = [numbers.tolist().index(n) if n in numbers else -1 for n in wanted]
        assert find_rows(numbers, np.array(wanted, np.int64)).tolist() == expected
