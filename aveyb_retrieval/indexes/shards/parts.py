"""One part of a shard: encoded documents as a Parquet file, and how far into the corpus they reach.

docs/scale.md describes the columns. The file's own metadata hold the reach, so that an interrupted shard is continued.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from aveyb_retrieval.documents.pages import Pages
from aveyb_retrieval.documents.records import FieldNames, FileOrigin, Record, SourceLocation, make_record
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.types import EncodedRow, FloatArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow

    from aveyb_retrieval.indexes.encoding import Encoding

_REACH = b"aveyb"  # the file's own metadata hold it under this name
_PASSAGE = ("start", "stop", "heading", "norm", "vector")
_SHA256 = re.compile("[0-9a-f]{64}")
OTHER_SETTINGS, OTHER_CORPUS = "by another model or with other settings", "from another corpus"
_OFF_UNIT = 1e-2  # float16 keeps a unit vector's length to 1e-3


class Reach(msgspec.Struct, frozen=True):
    """How far a part reaches: which settings made it, and the corpus up to its last document.

    Attributes:
        settings: digest of the settings.
        consumed: items of the corpus that were read, those of other shards included.
        digest: hash of all these items.
        rejected: items of this shard, up to there, that are no documents.
    """

    settings: str
    consumed: int = 0
    digest: str = ""
    rejected: int = 0


def schema(encoding: Encoding) -> pyarrow.Schema:
    """Return the columns of a part."""
    import pyarrow as pa

    def required(**columns: Any) -> list[pyarrow.Field]:
        return [pa.field(name, kind, nullable=False) for name, kind in columns.items()]

    text, whole, number = pa.string(), pa.int64(), pa.from_numpy_dtype(encoding.storage_dtype)
    vector = required(vector=pa.list_(*required(element=number), encoding.dim))
    passage = [*required(start=whole, stop=whole, heading=text), pa.field("norm", pa.float32()), *vector]
    return pa.schema(
        [
            *required(_id=text, title=text, text=text, metadata=text),
            *(pa.field(name, text) for name in ("sha256", "pages")),
            *required(n_tokens=whole, n_cut=whole),
            *vector,
            *required(passages=pa.list_(*required(element=pa.struct(passage)))),
        ]
    )


def write_part(records: Sequence[Record], encoding: Encoding, reach: Reach) -> bytes:
    """Return the bytes of a part that holds these encoded documents. The same documents give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns, dtype = schema(encoding).with_metadata({_REACH: msgspec.json.encode(reach)}), encoding.storage_dtype
    table = pa.Table.from_pylist([_row(record, dtype) for record in records], schema=columns)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)  # vectors hold nothing that repeats
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _row(record: Record, dtype: str) -> dict[str, Any]:
    encoded, origin = encoded_of(record), record.origin
    norms = [None] * len(encoded.spans) if encoded.norms is None else encoded.norms
    passages = zip(*encoded.spans.T, encoded.headings, norms, encoded.passages.astype(dtype), strict=True)
    return {
        **{"_id": record.id, "title": record.title, "text": record.text, "metadata": record.metadata_json},
        **{"sha256": origin.sha256 if origin else None, "pages": record.pages_json},
        **{"n_tokens": encoded.n_tokens, "n_cut": encoded.n_cut, "vector": encoded.vector.astype(dtype)},
        "passages": [dict(zip(_PASSAGE, passage, strict=True)) for passage in passages],
    }


def read_part(data: bytes, name: str, encoding: Encoding, folder: str) -> tuple[list[Record], Reach]:
    """Return the encoded documents of a part, and how far it reaches.

    `folder` is where documents that were files are now said to have been read.

    Raises:
        ConfigError: it was encoded otherwise.
        InputError: it is damaged, its columns are of other types, a document is none, a span or page is not in its
            text, or a vector is not of unit length.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data))
        reach = msgspec.json.decode((table.schema.metadata or {})[_REACH], type=Reach)
    except (pa.ArrowException, OSError, KeyError, msgspec.MsgspecError) as error:
        raise _damaged(name, f"not a part of a shard: {error}") from error
    if reach.settings != encoding.digest:
        raise made_otherwise(name, OTHER_SETTINGS)
    if not table.schema.equals(schema(encoding)):
        raise _damaged(name, "columns of other types than those of a part")
    lists = table["passages"].combine_chunks()
    start, stop, headings, norms, passages = lists.flatten().flatten()
    spans = np.stack([start.to_numpy(), stop.to_numpy()], axis=1)
    norms = norms.to_numpy(zero_copy_only=False)
    units, vectors = _matrix(passages), _matrix(table["vector"].combine_chunks())
    off, off_passages = _off_unit(vectors), _off_unit(units)
    ends, headings = lists.offsets.to_numpy() - lists.offsets[0].as_py(), headings.to_pylist()
    records = []
    for number, row in enumerate(table.drop_columns(["vector", "passages"]).to_pylist()):
        mine = slice(ends[number], ends[number + 1])
        encoded = EncodedRow(
            vector=vectors[number],
            passages=units[mine],
            spans=spans[mine],
            norms=None if np.isnan(norms[mine]).any() else norms[mine],
            headings=tuple(headings[mine]),
            n_tokens=row.pop("n_tokens"),
            n_cut=row.pop("n_cut"),
        )
        try:
            if off[number] or off_passages[mine].any():
                raise ValueError("a vector that is not of unit length")
            records.append(_record(row, encoded, SourceLocation(name, number + 1, "row"), folder))
        except (ValueError, RecursionError) as error:
            raise _damaged(name, f"row {number + 1} ({row['_id']!r}): {error}") from error
    return records, reach


def _off_unit(rows: FloatArray) -> np.ndarray:
    """Which rows `[n, d]` are neither of unit length nor zeros: bool `[n]`."""
    lengths = np.linalg.norm(rows, axis=1)
    return ~((np.abs(lengths - 1) < _OFF_UNIT) | (lengths == 0))  # of NaN, too


def _record(row: dict[str, Any], encoded: EncodedRow, location: SourceLocation, folder: str) -> Record:
    """Make a document of a row.

    Raises:
        ValueError, RecursionError: it is none.
    """
    sha256, pages = row.pop("sha256"), row.pop("pages")
    row["metadata"] = json.loads(row["metadata"])
    if not isinstance(row["metadata"], dict):
        raise ValueError("its metadata are not a JSON object")
    record = make_record(row, location, FieldNames())
    spans = encoded.spans
    if ((spans[:, 0] < 0) | (spans[:, 0] > spans[:, 1]) | (spans[:, 1] > len(record.text))).any():
        raise ValueError(f"a passage outside the text of {len(record.text):,} characters")
    if sha256 is None and pages is None:
        return replace(record, encoded=encoded)
    if not _SHA256.fullmatch(sha256 or ""):
        raise ValueError("the hash of its file is none")
    found = Pages.from_json(json.loads(pages)) if pages is not None else None
    if found and found.starts[-1] > len(record.text):
        raise ValueError("pages outside the text")
    return replace(record, encoded=encoded, origin=FileOrigin(sha256, folder, found))


def encoded_of(record: Record) -> EncodedRow:
    """Return what was encoded of a document that comes out of a shard, or goes into one."""
    assert record.encoded is not None
    return record.encoded


def made_otherwise(name: str, how: str) -> ConfigError:
    """Return the error that something in a place of shards was made `how`, and is in the way."""
    return ConfigError(
        f"{name}: encoded {how}; give the same as before, another folder, or --restart (restart=True) to encode it "
        "again"
    )


def _damaged(name: str, what: str) -> InputError:
    return InputError(f"{name}: {what}; encode this shard again, or restore the file from a copy")


def _matrix(rows: pyarrow.FixedSizeListArray) -> FloatArray:
    """Vectors `[n, d]` float32 of lists of d numbers."""
    flat: FloatArray = rows.flatten().to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return flat.reshape(-1, rows.type.list_size)
