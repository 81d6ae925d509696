"""Vectors that were made elsewhere: rows of an array or a file, or indexes, which hold their
documents, too.

A shard is an index that a build made of one share of a corpus. A document belongs to the share that
the hash of its id names, so shards may be made by any processes, in any order, twice or again: each
has one content only.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.documents.records import Record, SourceLocation
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.store.manifest import is_stored
from aveyb_retrieval.indexes.store.place import hold_visible, open_directory, read_manifest
from aveyb_retrieval.indexes.store.tables import WEIGHT, StoredTokens, Tables
from aveyb_retrieval.indexes.types import (
    EncodedRow,
    FloatArray,
    expand_passages,
    id_digest,
    unit_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.store.manifest import IndexDirectory, Manifest
    from aveyb_retrieval.indexes.types import IntArray

_BLOCK_BYTES = 16 << 20
_NO_SPANS = np.empty((0, 2), dtype=np.int64)


class PrecomputedVectors:
    """A matrix of vectors `[n, d]`, read row by row and scaled to unit length; `ids` where the file
    has them.
    """

    def __init__(
        self, rows: npt.NDArray[np.floating], name: str, ids: Sequence[str] | None = None
    ) -> None:
        if rows.ndim != 2 or rows.shape[1] == 0 or not np.issubdtype(rows.dtype, np.floating):
            raise InputError(
                f"{name}: an array of shape {rows.shape} and type {rows.dtype}; [documents, d]"
                " floats are needed"
            )
        self.rows, self.name, self.ids = rows, name, ids
        self.dim = int(rows.shape[1])
        self._step = max(1, _BLOCK_BYTES // (4 * self.dim))
        # first row, unit rows
        self._block: tuple[int, FloatArray] = (0, np.empty((0, self.dim), dtype=np.float32))

    @classmethod
    def open(cls, source: str | Path | npt.NDArray[np.floating]) -> PrecomputedVectors:
        """Open a `.npy` file (memory-mapped), a Parquet file with a `vector` column, or take an
        array.
        """
        if isinstance(source, np.ndarray):
            return cls(source, "vectors")
        path = Path(source)
        try:
            if path.suffix == ".npy":
                return cls(np.load(path, mmap_mode="r", allow_pickle=False), str(path))
            if path.suffix == ".parquet":
                return cls(*_read_parquet(path))
        except (OSError, ValueError, EOFError, SyntaxError, TokenError) as error:
            # the last two: of a header of .npy
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}: not readable as vectors ({error})") from error
        raise InputError(f"{path}: vectors are read from .npy and .parquet files")

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self) -> str:
        """The name with a hash of all rows: an interrupted change must not continue with other
        vectors.
        """
        digest = hashlib.sha256(str((self.rows.shape, self.rows.dtype.str)).encode())
        for start in range(0, len(self), self._step):
            digest.update(np.ascontiguousarray(self.rows[start : start + self._step]).data)
        return f"{self.name} (sha256 {digest.hexdigest()[:16]})"

    def documents(self) -> Iterator[dict[str, Any]]:
        """A corpus for vectors that come without one: ids (row numbers where there are none) and
        empty texts.
        """
        for row in range(len(self)):
            yield {"_id": self.ids[row] if self.ids is not None else str(row), "text": ""}

    def document(self, position: int, document_id: str) -> EncodedRow:
        """The vector of the document at `position` of the corpus, counted from 0, and
        no passages.
        """
        if position >= len(self):
            raise InputError(
                f"{self.name}: {len(self)} vectors, but the corpus has more documents; one row each"
                " is needed"
            )
        if self.ids is not None and self.ids[position] != document_id:
            raise InputError(
                f"{self.name}, row {position + 1}: the vector of {self.ids[position]!r}, "
                f"but the corpus has {document_id!r} there; both must have the same order"
            )
        unit = self._unit(position)
        if np.isnan(unit[0]):
            raise InputError(
                f"{self.name}, row {position + 1} (document {document_id!r}): the vector holds NaN"
                " or infinity"
            )
        return EncodedRow(unit, unit[None, :][:0], _NO_SPANS)

    def _unit(self, position: int) -> FloatArray:
        """One row at unit length (all NaN if it is not finite).

        Made in blocks, as rows are asked for in order.
        """
        start, block = self._block
        if not start <= position < start + len(block):
            start = position
            block = unit_rows(self.rows[start : start + self._step])
            self._block = start, block
        return block[position - start]


def _read_parquet(path: Path) -> tuple[npt.NDArray[np.floating], str, list[str] | None]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:  # the last: of a column's name
        raise InputError(f"{path}: not readable as Parquet ({error})") from error
    if "vector" not in table.column_names:
        raise InputError(
            f"{path}: has the columns {table.column_names}; one called 'vector' is needed"
        )
    try:
        column = table.column("vector").combine_chunks()
        rows = np.stack(
            [np.asarray(v, dtype=np.float32) for v in column.to_numpy(zero_copy_only=False)]
        )
    except (TypeError, ValueError, pyarrow.ArrowException) as error:
        raise InputError(
            f"{path}: the column 'vector' does not hold lists of numbers of one length ({error})"
        ) from error
    field = next((f for f in ("_id", "id") if f in table.column_names), None)
    return rows, str(path), [str(v) for v in table.column(field).to_pylist()] if field else None


MAX_SHARDS = 9999
_DOCUMENTS = 256  # read at a time


def shard_of(document_id: str, of: int) -> int:
    """Return the shard, from 1, that a document belongs to: the first eight bytes of SHA-256 of its
    id, modulo `of`.
    """
    return int.from_bytes(id_digest(document_id)[:8], "big") % of + 1


def check_share(share: tuple[int, int]) -> tuple[int, int]:
    """Return the number of a share, from 1, and how many there are."""
    try:
        number, of = share
        if not all(isinstance(part, int) and not isinstance(part, bool) for part in share):
            raise TypeError
    except (TypeError, ValueError):
        raise ConfigError(
            f"share={share!r}: must be two whole numbers, as (1, 4) for the first of four"
        ) from None
    if not 1 <= number <= of <= MAX_SHARDS:
        raise ConfigError(
            f"share {number}/{of}: shares are counted from 1/N to N/N, at most {MAX_SHARDS:,}"
        )
    return number, of


class StoredShards:
    """All documents of an index, or of several that belong together and have one encoding, index by
    index.
    """

    def __init__(self, paths: str | Path | Sequence[str | Path]) -> None:
        """Open an index, a folder of indexes, or several indexes."""
        places = [paths] if isinstance(paths, (str, Path)) else list(paths)
        self.name = ", ".join(map(str, places))
        self._roots = [
            root for path in places for root in _indexes_in(path if is_stored(path) else Path(path))
        ]
        self._manifests = [read_manifest(root) for root in self._roots]
        self._check_complete()
        for root, manifest in zip(self._roots[1:], self._manifests[1:], strict=True):
            self._check_same(root, manifest)
        self.encoding = self._manifests[0].encoding
        self.dim = self.encoding.dim
        self.passages = sum(manifest.counts.passages for manifest in self._manifests)

    def __len__(self) -> int:
        """Number of documents."""
        return sum(manifest.counts.documents for manifest in self._manifests)

    def describe(self) -> str:
        """The name with a hash of all versions: an interrupted change must not continue with other
        vectors.
        """
        names = "\n".join(manifest.name for manifest in self._manifests)
        return f"{self.name} (sha256 {hashlib.sha256(names.encode()).hexdigest()[:16]})"

    def documents(self, start: int = 0) -> Iterator[Record]:
        """The documents with what was encoded of them, without the first `start`."""
        for root, opened in zip(self._roots, self._manifests, strict=True):
            manifest, held = hold_visible(root)
            with held:
                if manifest.name != opened.name:
                    raise InputError(f"{root}: changed while it was read; run the command again")
                tables = Tables.open(root.root, manifest)
                numbers = tables.numbers("document")[start:]
                yield from stored_documents(str(root), tables, manifest.encoding, numbers)
            start = max(0, start - manifest.counts.documents)

    @property
    def languages(self) -> list[str]:
        """The languages of all documents, most frequent first, where each has its own rules."""
        counts = Counter[str]()
        for root in self._roots:
            manifest, held = hold_visible(root)
            with held:
                counts.update(Tables.open(root.root, manifest).languages())
        return [code for code, _ in counts.most_common()]

    def texts(self) -> Iterator[Record]:
        """The same documents to be encoded anew: texts, metadata with what people set in it, and
        files.
        """
        return (replace(record, encoded=None) for record in self.documents())

    def _check_complete(self) -> None:
        shares = [manifest.share for manifest in self._manifests]
        if all(share is None for share in shares):
            return
        roots = dict(zip(shares, self._roots, strict=True))
        if None in roots:
            raise InputError(
                f"{roots[None]}: not a shard, or changed since, in a folder of shards; keep"
                " only the shards of one corpus in the folder"
            )
        sizes = sorted({share[1] for share in shares if share is not None})
        if len(sizes) > 1:
            raise InputError(
                f"{self.name}: shards of {sizes[0]} and shards of {sizes[1]}; keep only one"
                " division of the corpus in the folder"
            )
        missing = [number for number in range(1, sizes[0] + 1) if (number, sizes[0]) not in roots]
        if missing:
            numbers = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
            raise InputError(
                f"{self.name}: {len(missing)} of {sizes[0]} shards are missing or not complete:"
                f" {numbers}; build them with --share {missing[0]}/{sizes[0]}"
            )

    def _check_same(self, root: IndexDirectory, manifest: Manifest) -> None:
        first, ours, theirs = self._roots[0], self._manifests[0].encoding, manifest.encoding
        if ours.digest != theirs.digest:
            # the same one by another name
            but = ("model",) if ours.fingerprint == theirs.fingerprint else ()
            name, (one, another) = next(iter(ours.differences(theirs, but=but).items()))
            raise InputError(
                f"{first} and {root} were encoded differently: {name} is {one!r} and {another!r};"
                " build one again"
            )
        if manifest.share is not None and manifest.corpus != self._manifests[0].corpus:
            raise InputError(
                f"{first} and {root} are of different corpora; build all shards of one corpus"
            )


def _indexes_in(path: str | Path) -> list[IndexDirectory]:
    """The index at the path, where there is one; else the indexes in this folder, by their
    names.
    """
    directory = open_directory(path)
    if directory.current() is not None:
        return [directory]
    inside = sorted(path.iterdir()) if isinstance(path, Path) and path.is_dir() else []
    directories = [open_directory(folder) for folder in inside if folder.is_dir()]
    indexes = [directory for directory in directories if directory.current() is not None]
    if not indexes:
        raise InputError(
            f"{path}: no index here, and no folder of indexes; make them with `aveyb-index build`"
        )
    return indexes


def stored_documents(
    where: str, tables: Tables, encoding: Encoding, numbers: IntArray
) -> Iterator[Record]:
    """Yield documents of a version by their numbers `[n]`, with their vectors, and the codes of
    their tokens.
    """
    empty = np.zeros((0, encoding.dim), dtype=np.float32)
    tokens = (
        StoredTokens(tables, encoding.tokens_of, codec)
        if (codec := encoding.token_codec) is not None
        else None
    )
    for first in range(0, len(numbers), _DOCUMENTS):
        docs = numbers[first : first + _DOCUMENTS]
        documents, (stored, counts) = tables.read_documents(docs.tolist()), tables.counted(docs)
        edits = tables.edits(docs.tolist())
        vectors = np.zeros((len(docs), encoding.dim), dtype=np.float32)
        if "document" in encoding.kinds:
            vectors = tables.vectors("document", docs)
        passage_numbers = expand_passages(np.stack([stored, counts["passages"]], axis=1))
        rows = tables.passages.take(passage_numbers, ["start", "stop", "heading", WEIGHT])
        passages = (
            tables.vectors("passage", passage_numbers) if "passage" in encoding.kinds else empty
        )
        spans = np.stack([rows["start"].to_numpy(), rows["stop"].to_numpy()], axis=1)
        headings = rows["heading"].to_pylist()
        weights = rows[WEIGHT].to_numpy()
        ends = np.cumsum(counts["passages"]).tolist()
        for row, doc in enumerate(docs.tolist()):
            mine, document = (
                slice(ends[row] - int(counts["passages"][row]), ends[row]),
                documents[doc],
            )
            owners = (
                passage_numbers[mine] if encoding.tokens_of == "passage" else docs[row : row + 1]
            )
            encoded = EncodedRow(
                vector=vectors[row],
                passages=passages[mine],
                spans=spans[mine],
                headings=tuple(headings[mine]),
                n_tokens=int(counts["tokens"][row]),
                n_cut=int(counts["cut_tokens"][row]),
                tokens=None if tokens is None else tokens.gather(owners),
                weights=weights[mine],
            )
            about_it = (document.id, document.title, document.text, document.metadata)
            location = SourceLocation(where, doc, "document")
            yield Record(
                *about_it,
                location,
                origin=document.origin,
                encoded=encoded,
                edits=edits.get(document.id),
                keywords=document.keywords,
            )


def encoded_of(record: Record) -> EncodedRow:
    """Return what was encoded of a document that comes out of an index."""
    assert record.encoded is not None
    return record.encoded
