"""One part of a shard: a Parquet file of encoded documents.

| column | type | holds |
|---|---|---|
| `_id`, `title`, `text` | string | the document |
| `metadata` | string | its metadata as a JSON object |
| `sha256` | string | hash of the file that the document was read from, "" where there was none of its own |
| `pages` | string | where the pages of that file begin in `text`, as a JSON object; "" where it has none |
| `n_tokens`, `n_cut` | int64 | tokens read, and tokens left out because of `max_tokens` |
| `vector` | fixed_size_list[d] | the document's vector, unit length (zeros for a text without tokens) |
| `passages` | list of fixed_size_list[d] | the passages' vectors, unit length |
| `spans` | list of fixed_size_list[2] of int64 | the passages' characters `[start, end)` in `text` |
| `norms` | list of float32 | lengths of the passages' means before normalization; empty where the model says none |
| `headings` | list of string | the heading over each passage, or "" |

The numbers of vectors are float32, or float16 where the shard says so. The file's own metadata say how far into the
corpus it reaches, so that an interrupted shard is continued.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.input.documents import FieldNames, FileOrigin, Record, Rejected, SourceLocation, read_row
from aveyb_retrieval.indexes.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow

    from aveyb_retrieval.indexes.types import FloatArray, IntArray

_KEY = b"aveyb"
_DOCUMENT = ("_id", "title", "text", "metadata", "sha256", "pages")
_SHA256 = re.compile("[0-9a-f]{64}")
_OFF_UNIT = 1e-2  # float16 keeps a unit vector's length to 1e-3


@dataclass(frozen=True)
class Reach:
    """How far a part reaches: which settings made it, and the corpus up to its last document.

    Attributes:
        settings: digest of the settings.
        consumed: items of the corpus that were read, those of other shards included.
        digest: hash of all these items.
        rejected: items of this shard, up to there, that are no documents.
    """

    settings: str
    consumed: int
    digest: str
    rejected: int


@dataclass(frozen=True)
class EncodedRow:
    """An encoded document as a part holds it; what an index needs of a model's answer.

    Attributes:
        vector: float32 `[d]`.
        passages: float32 `[n, d]`.
        spans: int64 `[n, 2]`.
        norms: float32 `[n]`; None where the model gave none.
        headings: one for each passage.
    """

    vector: FloatArray
    passages: FloatArray
    spans: IntArray
    norms: FloatArray | None
    headings: tuple[str, ...]
    n_tokens: int
    n_cut: int


def schema(dim: int, storage_dtype: str) -> pyarrow.Schema:
    """Return the columns of a part whose vectors have `dim` numbers of "float32" or "float16"."""
    import pyarrow as pa

    number = pa.float16() if storage_dtype == "float16" else pa.float32()
    vector = pa.list_(pa.field("element", number), dim)
    span = pa.list_(pa.field("element", pa.int64()), 2)
    fields = [
        *((name, pa.string()) for name in _DOCUMENT),
        ("n_tokens", pa.int64()),
        ("n_cut", pa.int64()),
        ("vector", vector),
        ("passages", pa.list_(pa.field("element", vector))),
        ("spans", pa.list_(pa.field("element", span))),
        ("norms", pa.list_(pa.field("element", pa.float32()))),
        ("headings", pa.list_(pa.field("element", pa.string()))),
    ]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])


def write_part(batch: Sequence[tuple[Record, EncodedRow]], dim: int, storage_dtype: str, reach: Reach) -> bytes:
    """Return the bytes of a part that holds these documents. The same documents give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = schema(dim, storage_dtype)
    records, encoded = [record for record, _ in batch], [e for _, e in batch]
    numbers = np.float16 if storage_dtype == "float16" else np.float32
    passages = np.concatenate([e.passages for e in encoded]).astype(numbers)
    spans = np.concatenate([e.spans for e in encoded]).astype(np.int64)
    counts = np.array([len(e.passages) for e in encoded])
    arrays = {
        "_id": [r.id for r in records],
        "title": [r.title for r in records],
        "text": [r.text for r in records],
        "metadata": [r.metadata_json for r in records],
        "sha256": [r.origin.sha256 if r.origin else "" for r in records],
        "pages": [r.pages_json or "" for r in records],
        "n_tokens": [e.n_tokens for e in encoded],
        "n_cut": [e.n_cut for e in encoded],
        "vector": _rows(np.stack([e.vector for e in encoded]).astype(numbers), columns.field("vector").type),
        "passages": _lists(_rows(passages, columns.field("passages").type.value_type), counts),
        "spans": _lists(_rows(spans, columns.field("spans").type.value_type), counts),
        "norms": [[] if e.norms is None else e.norms for e in encoded],
        "headings": [list(e.headings) for e in encoded],
    }
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values, columns.field(name).type)
        for name, values in arrays.items()
    }
    made = columns.with_metadata({_KEY: json.dumps(asdict(reach)).encode()})
    table = pa.Table.from_arrays(list(arrays.values()), schema=made)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)  # vectors hold nothing that repeats
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_reach(data: bytes, name: str) -> Reach:
    """Return how far a part reaches.

    Raises:
        InputError: the bytes are no part.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        made = pq.read_schema(pa.BufferReader(data)).metadata or {}
        return Reach(**json.loads(made[_KEY]))
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
        raise _damaged(name, f"not a part of a shard: {error}") from error


class Part:
    """A part that was read and checked: its documents by row."""

    def __init__(self, data: bytes, name: str, dim: int, storage_dtype: str) -> None:
        """Read a part from its bytes.

        Raises:
            InputError: it is damaged, its columns are of other types, a document's passages, spans, norms and headings
                are not equally many, a span is not in the text, or a vector is not of unit length.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.name = name
        expected = schema(dim, storage_dtype)
        try:
            table = pq.read_table(pa.BufferReader(data), columns=expected.names)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(name, f"not readable as Parquet: {error}") from error
        for field in expected:
            found = table.schema.field(field.name).type if field.name in table.column_names else None
            if found is None or not found.equals(field.type):
                raise _damaged(name, f"the column {field.name!r} is of type {found}, not {field.type}")
            if table.column(field.name).null_count:
                raise _damaged(name, f"the column {field.name!r} has empty values")
        self._table = table
        columns = {name: _array(table.column(name)) for name in ("vector", "passages", "spans", "norms", "headings")}
        self.ids: list[str] = table.column("_id").to_pylist()
        self._counted = list(zip(table.column("n_tokens").to_pylist(), table.column("n_cut").to_pylist(), strict=True))
        self._vectors = _matrix(columns["vector"], dim, np.float32)
        self._passages = _matrix(columns["passages"].flatten(), dim, np.float32)
        self._spans = _matrix(columns["spans"].flatten(), 2, np.int64)
        self._norms = np.asarray(columns["norms"].flatten().to_numpy(zero_copy_only=False), dtype=np.float32)
        self._headings: list[str] = columns["headings"].flatten().to_pylist()
        self._check_counts({name: _counts(columns[name]) for name in ("passages", "spans", "norms", "headings")})
        self._ends = np.cumsum(_counts(columns["passages"]))
        self._norm_ends = np.cumsum(_counts(columns["norms"]))
        self._check_values()

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.ids)

    @property
    def passages(self) -> int:
        """Number of passages of all documents."""
        return len(self._passages)

    @property
    def tokens(self) -> int:
        """Number of tokens that were read of all documents."""
        return sum(n_tokens for n_tokens, _ in self._counted)

    def documents(self, folder: str) -> list[Record | Rejected]:
        """The documents; `folder` is where those that were files are now said to have been read.

        Raises:
            InputError: a document's metadata are not a JSON object, its hash is none, or its pages are not in its text.
        """
        rows = self._table.select(_DOCUMENT).to_pylist()
        return [self._document(number, row, folder) for number, row in enumerate(rows)]

    def _document(self, number: int, row: dict[str, Any], folder: str) -> Record | Rejected:
        sha256, pages = row.pop("sha256"), row.pop("pages")
        try:
            row["metadata"] = json.loads(row["metadata"])
        except (ValueError, RecursionError):
            row["metadata"] = None
        if not isinstance(row["metadata"], dict):
            raise self._damaged_row(number, "its metadata are not a JSON object")
        item = read_row(row, SourceLocation(self.name, number + 1, "row"), FieldNames())
        if isinstance(item, Rejected) or not (sha256 or pages):
            return item
        if not _SHA256.fullmatch(sha256):
            raise self._damaged_row(number, "the hash of its file is none")
        try:
            found = Pages.from_json(json.loads(pages)) if pages else None
            if found and found.starts[-1] > len(item.text):
                raise ValueError("pages outside the text")
        except (ValueError, RecursionError) as error:
            raise self._damaged_row(number, str(error)) from error
        return replace(item, origin=FileOrigin(sha256, folder, found))

    def row(self, number: int) -> EncodedRow:
        """Return what was encoded of a document, counted from 0."""
        mine = slice(self._ends[number - 1] if number else 0, self._ends[number])
        norms = self._norms[self._norm_ends[number - 1] if number else 0 : self._norm_ends[number]]
        n_tokens, n_cut = self._counted[number]
        return EncodedRow(
            vector=self._vectors[number],
            passages=self._passages[mine],
            spans=self._spans[mine],
            norms=norms if len(norms) else None,
            headings=tuple(self._headings[mine]),
            n_tokens=n_tokens,
            n_cut=n_cut,
        )

    def _check_counts(self, counts: dict[str, IntArray]) -> None:
        wanted = counts["passages"]
        for column in ("spans", "headings", "norms"):
            wrong = counts[column] != wanted
            if column == "norms":
                wrong &= counts[column] > 0  # a model that gives none
            if wrong.any():
                number = int(np.flatnonzero(wrong)[0])
                raise self._damaged_row(number, f"{wanted[number]} passages, but {counts[column][number]} {column}")

    def _check_values(self) -> None:
        import pyarrow.compute as pc

        document = np.searchsorted(self._ends, np.arange(len(self._spans)), side="right")
        lengths = pc.utf8_length(_array(self._table.column("text"))).to_numpy(zero_copy_only=False)
        start, stop = self._spans[:, 0], self._spans[:, 1]
        outside = (start < 0) | (start > stop) | (stop > lengths[document])
        if outside.any():
            number = int(document[np.flatnonzero(outside)[0]])
            raise self._damaged_row(number, f"a passage outside the text of {lengths[number]:,} characters")
        for rows, owner in ((self._vectors, np.arange(len(self))), (self._passages, document)):
            norms = np.linalg.norm(rows, axis=1)
            wrong = ~((np.abs(norms - 1) < _OFF_UNIT) | (norms == 0))  # of NaN, too
            if wrong.any():
                raise self._damaged_row(int(owner[np.flatnonzero(wrong)[0]]), "a vector that is not of unit length")

    def _damaged_row(self, number: int, what: str) -> InputError:
        return _damaged(self.name, f"row {number + 1} ({self.ids[number]!r}): {what}")


def _array(column: Any) -> Any:
    """A table's column as one array."""
    import pyarrow as pa

    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


def _counts(lists: Any) -> IntArray:
    import pyarrow.compute as pc

    return np.asarray(pc.list_value_length(lists).to_numpy(zero_copy_only=False), dtype=np.int64)


def _matrix(rows: Any, width: int, dtype: type) -> Any:
    return np.asarray(rows.flatten().to_numpy(zero_copy_only=False), dtype=dtype).reshape(-1, width)


def _rows(values: np.ndarray, kind: Any) -> Any:
    """An array of fixed-size lists from a matrix `[n, d]`."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(values).reshape(-1), kind.value_type)
    return pa.FixedSizeListArray.from_arrays(flat, type=kind)


def _lists(values: Any, counts: IntArray) -> Any:
    """An array of lists, the i-th with the next `counts[i]` values."""
    import pyarrow as pa

    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=pa.list_(pa.field("element", values.type)))


def _damaged(name: str, what: str) -> InputError:
    return InputError(f"{name}: {what}; encode this shard again, or restore the file from a copy")
