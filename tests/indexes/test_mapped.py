"""What is mapped from Lance's files is what Lance itself reads, whatever was merged or deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from aveyb_retrieval import (
    build_index,
    compact_index,
    delete_documents,
    update_metadata,
    upsert_documents,
)
from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store import dataset
from aveyb_retrieval.indexes.store.dataset import (
    FILES,
    LAYOUT,
    SPAN,
    VECTOR,
    WORDS,
    MappedVectors,
    open_texts,
)
from aveyb_retrieval.indexes.store.place import read_manifest
from aveyb_retrieval.indexes.store.tables import Tables, fixed_lists
from aveyb_retrieval.indexes.types import expand_passages, widened
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_they_are_what_lance_reads(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "SMALL_FRAGMENTS", 4)
    root, model = tmp_path / "ix", FakeEmbedder()
    build_index(make_documents(1), root, model=model, storage_dtype=dtype)
    before: Tables | None = None
    changes: list[Any] = [
        lambda: upsert_documents(make_documents(50, seed=1), root, model=model),
        lambda: delete_documents(root, [f"doc-{i}" for i in range(0, 50, 3)]),
        *(
            lambda i=i: upsert_documents(make_documents(2, seed=2, first=5 * i), root, model=model)
            for i in range(9)
        ),
        lambda: update_metadata(root, {"seen": True}, ["doc-1"]),
        lambda: compact_index(root),
    ]
    for change in changes:
        change()
        tables = Tables.open(root, read_manifest(root).tables, before)
        for kind in ("document", "passage"):
            stored = tables.of(kind)
            table = stored.take(tables.numbers(kind), [VECTOR])
            assert np.array_equal(table[stored.key].to_numpy(), tables.numbers(kind))
            expected = np.array(table[VECTOR].to_pylist(), dtype=np.float32)
            assert np.array_equal(tables.vectors(kind, tables.numbers(kind)), expected)
        numbers = tables.numbers("passage")
        texts = ["heading", "text", WORDS]
        table = tables.passages.take(numbers, [*SPAN, *texts])
        for name in texts:
            spans, stored = tables.passages.spans(numbers, name)
            assert stored == [text.encode() for text in table[name].to_pylist()]
        starts, stops = (table[name].to_numpy() for name in SPAN)
        assert np.array_equal(spans, np.stack([starts, stops], axis=1))
        rows = tables.documents.scan(["doc", "passages"]).to_pydict()
        pairs = np.array(sorted(zip(rows["doc"], rows["passages"], strict=True)))
        assert np.array_equal(tables.passage_numbers(rows["doc"]), expand_passages(pairs))
        before = tables


def test_every_half_is_widened_as_it_is() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    wide, finite = widened(halves), np.isfinite(halves)
    assert np.array_equal(
        wide[finite].view(np.uint32), halves.astype(np.float32)[finite].view(np.uint32)
    )


def test_what_was_deleted_has_no_vector(tmp_path: Path) -> None:
    build_index(make_documents(5), tmp_path / "ix", model=FakeEmbedder())
    delete_documents(tmp_path / "ix", ["doc-1"])
    tables = Tables.open(tmp_path / "ix", read_manifest(tmp_path / "ix").tables)
    found, vectors = tables.live_vectors("document", np.array([1, 2, 3, 77]))
    assert (found.tolist(), len(vectors)) == ([1, 3], 2)
    with pytest.raises(IndexFormatError, match=r"document number \[2\], which is not stored"):
        tables.vectors("document", np.array([1, 2]))


def test_a_file_of_many_pages(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(40_000, 300)).astype(np.float32)
    kind = pa.list_(pa.float32(), 300)
    schema = pa.schema([pa.field("doc", pa.int64()), pa.field(VECTOR, kind, metadata=LAYOUT)])
    table = pa.table({"doc": np.arange(len(rows)), VECTOR: fixed_lists(rows, kind)}, schema=schema)
    batches = table.to_batches(max_chunksize=1000)
    made = lance.write_dataset(
        pa.RecordBatchReader.from_batches(schema, batches), str(tmp_path / "x")
    )
    (file,) = made.get_fragments()[0].metadata.files
    path = tmp_path / "x" / "data" / file.path
    mapped = MappedVectors.open(path, VECTOR)
    opened = [
        each for each in Path("/proc/self/fd").glob("*") if each.resolve() == path.resolve()
    ]  # of Linux
    assert len(opened) <= 1, "one map, however many pages there are"
    assert len(mapped.starts) > 1
    wanted = np.random.default_rng(1).permutation(len(rows))[:5000]
    out = np.empty((5000, 300), np.float32)
    mapped.read_vectors(wanted, out, np.arange(5000))
    assert np.array_equal(out, rows[wanted])


def test_vectors_that_are_null_are_refused(tmp_path: Path) -> None:
    kind = pa.list_(pa.float32(), 16)
    schema = pa.schema([pa.field("doc", pa.int64()), pa.field(VECTOR, kind, metadata=LAYOUT)])
    rows = pa.table({"doc": range(100), VECTOR: pa.nulls(100, kind)}, schema=schema)
    made = lance.write_dataset(rows, str(tmp_path / "x"), data_storage_version=FILES)
    (file,) = made.get_fragments()[0].metadata.files
    with pytest.raises(IndexFormatError, match="laid out otherwise"):
        MappedVectors.open(tmp_path / "x" / "data" / file.path, VECTOR)


def test_another_layout_is_refused(tmp_path: Path) -> None:
    kind = pa.list_(pa.float32(), 16)
    rows = fixed_lists(np.random.default_rng(0).normal(size=(100, 16)), kind)
    made = lance.write_dataset(pa.table({"doc": range(100), VECTOR: rows}), str(tmp_path / "x"))
    (file,) = made.get_fragments()[0].metadata.files
    with pytest.raises(IndexFormatError, match="laid out otherwise"):
        MappedVectors.open(tmp_path / "x" / "data" / file.path, VECTOR)


@pytest.mark.parametrize(
    "texts",
    [
        [" one "],
        [" all are alike "] * 30,
        [""] * 3,
        [f" few {i} " for i in range(3)],
        [f" text {i} " for i in range(300)],
        [f" text {i % 7} " * 9 for i in range(200)],
        [f" long text of many words {i}" * 60 for i in range(20_000)],
        ["", " \u00fc ", " \u6f22\u5b57 " * 100, ""],
    ],
    ids=["one", "alike", "empty", "bytes", "short", "repeated", "pages", "other"],
)
def test_texts_of_every_size(texts: list[str], tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("n", pa.int64()), pa.field(WORDS, pa.large_string(), metadata=LAYOUT)]
    )
    rows = pa.table({"n": range(len(texts)), WORDS: texts}, schema=schema)
    made = lance.write_dataset(rows, str(tmp_path / "x"), data_storage_version=FILES)
    (file,) = made.get_fragments()[0].metadata.files
    mapped = open_texts(tmp_path / "x" / "data" / file.path, WORDS)
    wanted = np.random.default_rng(1).permutation(len(texts))
    assert mapped.read_texts(wanted) == [texts[row].encode() for row in wanted.tolist()]


@pytest.mark.parametrize(
    "texts",
    [
        ["a", None, "b"] * 40,
        [None] * 5,
        ["c", None, *map(str, range(500))],
        [f" text {i} " * 50 for i in range(100)],
    ],
)
def test_texts_that_are_null_or_compressed_are_refused(
    texts: list[str | None], tmp_path: Path
) -> None:
    layout = LAYOUT if None in texts else None
    schema = pa.schema(
        [pa.field("n", pa.int64()), pa.field(WORDS, pa.large_string(), metadata=layout)]
    )
    rows = pa.table({"n": range(len(texts)), WORDS: texts}, schema=schema)
    made = lance.write_dataset(rows, str(tmp_path / "x"), data_storage_version=FILES)
    (file,) = made.get_fragments()[0].metadata.files
    with pytest.raises(IndexFormatError, match="laid out otherwise"):
        open_texts(tmp_path / "x" / "data" / file.path, WORDS)
