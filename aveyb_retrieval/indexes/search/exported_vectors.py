"""Stored vectors for other programs: batches of arrays, and files of them.

A file is Parquet, with ids and vectors in one, or a matrix: `.npy`, or an exact FAISS index
(`IndexFlatIP`). A file of JSON lines beside a matrix names its rows.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np
import pyarrow as pa

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.files import fsync_file, rename
from aveyb_retrieval.indexes.engine import passage_numbers
from aveyb_retrieval.indexes.nearest.faiss_file import import_faiss
from aveyb_retrieval.indexes.search.several import SeveralView
from aveyb_retrieval.indexes.types import PASSAGE_BITS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aveyb_retrieval.indexes.engine import EngineView
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

VECTOR_BATCH_DOCUMENTS = 1024  # whose vectors are read at once
IDS_SUFFIX = ".ids.jsonl"  # of the file beside a matrix


@dataclass(frozen=True, eq=False)
class VectorBatch:
    """Vectors of some documents or passages.

    Attributes:
        ids: The id of the document of each row, `n` of them.
        spans: The characters `[start, end)` of each passage in its document's text, int64
            `[n, 2]`; None for documents.
        vectors: Rows of unit length, zeros for a document without text, float32 `[n, d]`.
    """

    ids: list[str]
    spans: IntArray | None
    vectors: FloatArray

    def __len__(self) -> int:
        return len(self.ids)


def select_documents(view: EngineView, unit: Kind, where: Filter | None) -> IntArray:
    """Numbers of the documents that satisfy a filter, oldest first; ConfigError if the index has no
    vectors of a unit.
    """
    if unit not in get_args(Kind):
        raise ConfigError(f"unit={unit!r}: must be one of {', '.join(get_args(Kind))}")
    if unit not in view.info.kinds:
        raise ConfigError(
            f"unit={unit!r}: {view.info.name} was built with granularity"
            f" {view.info.granularity!r} and has no vectors of {unit}s"
        )
    if isinstance(view, SeveralView):
        raise ConfigError(
            f"{view.info.name}: read the vectors of one index at a time; `indexes` has them by name"
        )
    return view.matching(view.select({} if where is None else where))


def read_batches(view: EngineView, unit: Kind, docs: IntArray) -> Iterator[VectorBatch]:
    """Yield the vectors of documents `[n]`, or of their passages, in order."""
    for start in range(0, len(docs), VECTOR_BATCH_DOCUMENTS):
        part = docs[start : start + VECTOR_BATCH_DOCUMENTS]
        stored = view.documents(part.tolist(), ())
        if unit == "document":
            ids = [stored[doc].id for doc in part.tolist()]
            yield VectorBatch(ids, None, view.vectors(unit, part))
        else:
            numbers = passage_numbers(view, part)
            ids = [stored[doc].id for doc in (numbers >> PASSAGE_BITS).tolist()]
            yield VectorBatch(ids, view.passages(numbers).spans, view.vectors(unit, numbers))


def write_vectors(
    view: EngineView, path: Path, unit: Kind, where: Filter | None, *, overwrite: bool
) -> int:
    """Write the vectors of an index to a file, as `Retriever.export_vectors` says."""
    write = _WRITERS.get(path.suffix)
    if write is None:
        raise ConfigError(f"{path}: must end with {' or '.join(_WRITERS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: no such folder")
    for target in [path] if path.suffix == ".parquet" else [path, _names_of(path)]:
        if target.is_dir():
            raise ConfigError(f"{target}: is a folder; choose another name")
        if os.path.lexists(target) and not overwrite:
            raise ConfigError(f"{target}: exists already; choose another name, or overwrite it")
    docs = select_documents(view, unit, where)
    rows = len(docs) if unit == "document" else int(view.passage_counts(docs).sum())
    write(path, read_batches(view, unit, docs), _Shape(rows, view.info.dim, unit))
    return rows


@dataclass(frozen=True)
class _Shape:
    """What is written: `rows` vectors `[d]`, d = `dim`, of documents or passages."""

    rows: int
    dim: int
    unit: Kind


def _write_parquet(path: Path, batches: Iterator[VectorBatch], shape: _Shape) -> None:
    import pyarrow.parquet as pq

    names = ["_id"] if shape.unit == "document" else ["_id", "start", "stop"]
    types = [pa.string(), pa.int64(), pa.int64()]
    vector = pa.field("vector", pa.list_(pa.float32(), shape.dim))
    schema = pa.schema([*zip(names, types, strict=False), vector])
    with _replacing(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for batch in batches:
            spans = [] if batch.spans is None else list(batch.spans.T)
            numbers = pa.array(batch.vectors.ravel())
            vectors = pa.FixedSizeListArray.from_arrays(numbers, shape.dim)
            columns = [pa.array(batch.ids), *map(pa.array, spans), vectors]
            writer.write_table(pa.table(columns, schema=schema))


def _write_npy(path: Path, batches: Iterator[VectorBatch], shape: _Shape) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (shape.rows, shape.dim)}
    with (
        _naming_rows(path) as name_rows,
        _replacing(path) as temporary,
        temporary.open("wb") as handle,
    ):
        np.lib.format.write_array_header_1_0(handle, header)
        for batch in batches:
            handle.write(np.ascontiguousarray(batch.vectors, "<f4").data)
            name_rows(batch)


def _write_faiss(path: Path, batches: Iterator[VectorBatch], shape: _Shape) -> None:
    faiss = import_faiss()
    index = faiss.IndexFlatIP(shape.dim)
    with _naming_rows(path) as name_rows, _replacing(path) as temporary:
        for batch in batches:
            index.add(batch.vectors)
            name_rows(batch)
        faiss.write_index(index, str(temporary))


_WRITERS: dict[str, Callable[[Path, Iterator[VectorBatch], _Shape], None]] = {
    ".parquet": _write_parquet,
    ".npy": _write_npy,
    ".faiss": _write_faiss,
}


def _names_of(path: Path) -> Path:
    """The file that names the rows of a matrix."""
    return path.with_name(path.name + IDS_SUFFIX)


@contextmanager
def _naming_rows(path: Path) -> Iterator[Callable[[VectorBatch], None]]:
    """Give what writes which document, and which part of it, is in each row of a batch, to the file
    that names the rows of `path`.
    """
    with _replacing(_names_of(path)) as temporary, temporary.open("w", encoding="utf-8") as handle:

        def name_rows(batch: VectorBatch) -> None:
            spans = [None] * len(batch) if batch.spans is None else batch.spans.tolist()
            for name, span in zip(batch.ids, spans, strict=True):
                row = {"_id": name} if span is None else {"_id": name, "span": span}
                # signs that other readers take for the end of a line are escaped
                handle.write(json.dumps(row) + "\n")

        yield name_rows


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give the name of a file to write, which takes the place of `path` when all is written."""
    # a name of its own: nothing else is overwritten, no other export writes to it
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        fsync_file(temporary)
        rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
