"""`export_index`: the documents of an index with their vectors, as shards that another index or engine can take."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.documents.records import Record, SourceLocation
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.shards.encode import EncodeReport
from aveyb_retrieval.indexes.shards.parts import Reach
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.shard import ShardWriter, check_shard, complete_shards, cut_into_parts, shard_of
from aveyb_retrieval.indexes.store.numbering import expand_passages
from aveyb_retrieval.indexes.types import EncodedRow, IntArray, Progress, silent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DOCUMENTS = 256  # read at a time


def export_index(
    root: str | Path, out: str | Path, *, of: int = 1, overwrite: bool = False, progress: Progress = silent
) -> EncodeReport:
    """Write all documents of an index as `of` shards to `out`, a folder or an fsspec URL. Nothing is encoded.

    Vectors are written as the index stores them. `build_index(None, path, vectors=out)` makes the same index again.

    Raises:
        IndexFormatError: there is no index, or it is damaged.
        ConfigError: there are shards at `out` already (unless `overwrite`).
    """
    check_shard(1, of)
    place, started = Place(out), time.monotonic()
    old = complete_shards(place)
    if old and not overwrite:
        raise ConfigError(f"{place}: there are shards already; give another folder, or --overwrite (overwrite=True)")
    snapshot = Snapshot.open(root)
    try:
        # shards hold no token vectors
        made = replace(snapshot.manifest.encoding, token_vectors=None, token_dim=None)
        writers = [ShardWriter(place, made, shard, of) for shard in range(1, of + 1)]
        for writer in (*(ShardWriter(place, made, *shard) for shard in old), *writers):
            writer.discard()
        rows = snapshot.tables.documents.scan(["doc", "id"]).sort_by("doc")
        docs, total = rows["doc"].to_numpy(), rows.num_rows
        shards = np.array([shard_of(document_id, of) for document_id in rows["id"].to_pylist()], dtype=np.int64)
        done = 0
        for writer in writers:
            writer.reach = Reach(made.digest, total)
            for part in cut_into_parts(stored_documents(snapshot, docs[shards == writer.shard]), made):
                writer.write(part)
                done += len(part)
                progress("exporting", done, total, 0)
        return EncodeReport.of_shards(place, [writer.finish() for writer in writers], 0, started)
    finally:
        snapshot.close()


def stored_documents(snapshot: Snapshot, numbers: IntArray) -> Iterator[Record]:
    """Yield documents by their numbers `[n]`, with their vectors."""
    tables, encoding = snapshot.tables, snapshot.manifest.encoding
    empty = np.zeros((0, encoding.dim), dtype=np.float32)
    for first in range(0, len(numbers), _DOCUMENTS):
        docs = numbers[first : first + _DOCUMENTS]
        found, (stored, counts) = tables.read_documents(docs.tolist()), tables.counted(docs)
        vectors = np.zeros((len(docs), encoding.dim), dtype=np.float32)
        if "document" in encoding.kinds:
            vectors = tables.vectors("document", docs)
        passage_numbers = expand_passages(np.stack([stored, counts["passages"]], axis=1))
        about = tables.passages.take(passage_numbers, ["start", "stop", "heading", "norm"])
        passages = tables.vectors("passage", passage_numbers) if "passage" in encoding.kinds else empty
        spans = np.stack([about["start"].to_numpy(), about["stop"].to_numpy()], axis=1)
        headings, norms = about["heading"].to_pylist(), about["norm"].to_numpy().astype(np.float32)
        ends = np.cumsum(counts["passages"]).tolist()
        for row, doc in enumerate(docs.tolist()):
            mine, document = slice(ends[row] - int(counts["passages"][row]), ends[row]), found[doc]
            encoded = EncodedRow(
                vector=vectors[row],
                passages=passages[mine],
                spans=spans[mine],
                norms=norms[mine] if np.isfinite(norms[mine]).all() else None,
                headings=tuple(headings[mine]),
                n_tokens=int(counts["tokens"][row]),
                n_cut=int(counts["cut_tokens"][row]),
            )
            location = SourceLocation(str(snapshot.root), doc, "document")
            about_it = (document.id, document.title, document.text, document.metadata, location)
            yield Record(*about_it, origin=document.origin, encoded=encoded)
