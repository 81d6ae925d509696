"""`export_index`: the documents of an index with their vectors, as shards that another index or engine can take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.shards.parts import EncodedRow, Reach
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.report import EncodeReport
from aveyb_retrieval.indexes.shards.shard import EncodeSettings, check_shard, complete_shards, shard_of
from aveyb_retrieval.indexes.shards.shard_writer import ShardWriter
from aveyb_retrieval.indexes.input.documents import Record, SourceLocation
from aveyb_retrieval.indexes.search.snapshot import Snapshot
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
        made = _settings(snapshot)
        for shard, count in old:
            ShardWriter(place, made, shard, count).discard()
        writers = [ShardWriter(place, made, shard, of) for shard in range(1, of + 1)]
        for writer in writers:
            writer.discard()
        reach = Reach(made.digest, 0, "", 0)
        total = snapshot.manifest.counts["documents"]
        for number, (record, row) in enumerate(stored_documents(snapshot), start=1):
            reach = Reach(made.digest, number, "", 0)
            writers[shard_of(record.id, of) - 1].add(record, row, reach)
            if number % _DOCUMENTS == 0 or number == total:
                progress("exporting", number, total, 0)
        source = snapshot.manifest.settings["model_source"]
        return EncodeReport.of_shards(place, [w.finish(reach, source) for w in writers], 0, time.monotonic() - started)
    finally:
        snapshot.close()


def _settings(snapshot: Snapshot) -> EncodeSettings:
    manifest = snapshot.manifest
    return EncodeSettings(
        model=manifest.model,
        granularity=manifest.granularity,
        dim=manifest.dim,
        storage_dtype=manifest.storage_dtype,
        max_tokens=manifest.settings["max_tokens"],
        passage_tokens=manifest.settings["passage_tokens"],
        passage_overlap=manifest.settings["passage_overlap"],
        late=manifest.settings["late"],
        titled=manifest.settings.get("titled", False),
    )


def stored_documents(snapshot: Snapshot) -> Iterator[tuple[Record, EncodedRow]]:
    """Yield every document with its vectors, in the order of their numbers."""
    with snapshot.store() as store:
        ids = store.ids("document")
        for start in range(0, len(ids), _DOCUMENTS):
            docs = ids[start : start + _DOCUMENTS]
            found, tokens = store.documents(docs.tolist()), store.tokens(docs.tolist())
            vectors = np.zeros((len(docs), snapshot.manifest.dim), dtype=np.float32)
            if "document" in snapshot.kinds:
                vectors = snapshot.tables["document"].gather(docs)
            for doc, vector in zip(docs.tolist(), vectors, strict=True):
                document = found[doc]
                location = SourceLocation(str(snapshot.folder.parent), doc, "document")
                record = Record(
                    document.id, document.title, document.text, document.metadata, location, document.origin
                )
                numbers, spans = store.passages([doc])
                passages = np.zeros((0, snapshot.manifest.dim), dtype=np.float32)
                if "passage" in snapshot.kinds:
                    passages = snapshot.tables["passage"].gather(numbers)
                    norms = np.array(store.norms(doc), dtype=np.float32)
                else:
                    numbers, spans, norms = numbers[:0], spans[:0], np.zeros(0, dtype=np.float32)
                stored = store.some_passages(numbers.tolist())
                yield (
                    record,
                    EncodedRow(
                        vector=vector,
                        passages=passages,
                        spans=spans,
                        norms=norms if len(norms) == len(passages) else None,
                        headings=tuple(stored[number].heading for number in numbers.tolist()),
                        n_tokens=tokens[doc][0],
                        n_cut=tokens[doc][1],
                    ),
                )
