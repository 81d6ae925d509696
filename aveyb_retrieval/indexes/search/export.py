"""`export_index`: the documents of an index with their vectors, as shards that another index or engine can take."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.input.documents import Record, SourceLocation
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.shards.parts import EncodedRow, Reach
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.report import EncodeReport
from aveyb_retrieval.indexes.shards.shard import check_shard, complete_shards, shard_of
from aveyb_retrieval.indexes.shards.shard_writer import ShardWriter
from aveyb_retrieval.indexes.store.numbering import expand_passages
from aveyb_retrieval.indexes.types import Progress, silent

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
    started = time.monotonic()
    place = Place(out)
    old = complete_shards(place)
    if old and not overwrite:
        raise ConfigError(f"{place}: there are shards already; give another folder, or --overwrite (overwrite=True)")
    snapshot = Snapshot.open(root)
    try:
        # shards hold no token vectors
        made = replace(snapshot.manifest.encoding, token_vectors=None, token_dim=None)
        for shard, count in old:
            ShardWriter(place, made, shard, count).discard()
        writers = [ShardWriter(place, made, shard, of) for shard in range(1, of + 1)]
        for writer in writers:
            writer.discard()
        reach = Reach(made.digest, 0, "", 0)
        total = snapshot.manifest.counts.documents
        for number, (record, row) in enumerate(stored_documents(snapshot), start=1):
            reach = Reach(made.digest, number, "", 0)
            writers[shard_of(record.id, of) - 1].add(record, row, reach)
            if number % _DOCUMENTS == 0 or number == total:
                progress("exporting", number, total, 0)
        return EncodeReport.of_shards(place, [w.finish(reach) for w in writers], 0, time.monotonic() - started)
    finally:
        snapshot.close()


def stored_documents(snapshot: Snapshot, start: int = 0) -> Iterator[tuple[Record, EncodedRow]]:
    """Yield every document with its vectors, in the order of their numbers, after the first `start`."""
    tables, encoding = snapshot.tables, snapshot.manifest.encoding
    ids, empty = snapshot.all_documents()[start:], np.zeros((0, encoding.dim), dtype=np.float32)
    for first in range(0, len(ids), _DOCUMENTS):
        docs = ids[first : first + _DOCUMENTS]
        found, (stored, counts) = tables.read_documents(docs.tolist()), tables.counted(docs)
        vectors = np.zeros((len(docs), encoding.dim), dtype=np.float32)
        if "document" in encoding.kinds:
            vectors = tables.vectors("document", docs)
        numbers = expand_passages(np.stack([stored, counts["passages"]], axis=1))
        about = tables.passages.take(numbers, ["start", "stop", "heading", "norm"])
        passages = tables.vectors("passage", numbers) if "passage" in encoding.kinds else empty
        spans = np.stack([about["start"].to_numpy(), about["stop"].to_numpy()], axis=1)
        headings, norms = about["heading"].to_pylist(), about["norm"].to_numpy().astype(np.float32)
        ends = np.cumsum(counts["passages"]).tolist()
        for row, doc in enumerate(docs.tolist()):
            mine, document = slice(ends[row] - int(counts["passages"][row]), ends[row]), found[doc]
            location = SourceLocation(str(snapshot.root), doc, "document")
            yield (
                Record(document.id, document.title, document.text, document.metadata, location, document.origin),
                EncodedRow(
                    vector=vectors[row],
                    passages=passages[mine],
                    spans=spans[mine],
                    norms=norms[mine] if np.isfinite(norms[mine]).all() else None,
                    headings=tuple(headings[mine]),
                    n_tokens=int(counts["tokens"][row]),
                    n_cut=int(counts["cut_tokens"][row]),
                ),
            )
