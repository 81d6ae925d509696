"""The second half of a change: FAISS indexes from the shards, then everything else that the new version needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.nearest import faiss_file, faiss_index, tune
from aveyb_retrieval.indexes.nearest.faiss_searcher import FaissSearcher
from aveyb_retrieval.indexes.store import directory, files, sample
from aveyb_retrieval.indexes.store.files import FileInfo
from aveyb_retrieval.indexes.store.manifest import GRANULARITIES, IndexInfo, Manifest
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, expand_passages
from aveyb_retrieval.indexes.store.vectors import VectorTable, open_table
from aveyb_retrieval.indexes.store.store import Shard, Store, dead_ids
from aveyb_retrieval.indexes.changes.settings import Settings
from aveyb_retrieval.version import package_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    import faiss

    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind, Progress
    from aveyb_retrieval.indexes.changes.transaction import Transaction

SEED = 0  # of the training sample
TOMBSTONE_LIMIT = 0.2  # a graph index with a larger share of dead vectors is built again


def finish(
    transaction: Transaction, settings: Settings, progress: Progress, *, rebuild: bool = False, retune: bool = False
) -> Manifest:
    """Build the FAISS indexes of a change or bring them up to date, write the manifest, show the new version.

    `rebuild` makes them anew from the vectors; `retune` measures their search settings again.
    """
    store = transaction.store
    counts = store.counts()
    changes: dict[str, int] = store.get("changes") or {}
    listed = {s.name: FileInfo(s.bytes, s.sha256) for s in store.shards()}
    indexes: dict[str, IndexInfo] = {}
    for kind in GRANULARITIES[settings.granularity]:
        count = counts.documents if kind == "document" else counts.passages
        name = directory.faiss_file(kind)
        builder = FaissBuilder(transaction, kind, count, settings, progress)
        indexes[kind], listed[name] = builder.run(rebuild)
        if retune:
            indexes[kind] = builder.tune(indexes[kind])
    if transaction.base is None:
        store.words.optimize()  # later changes leave merging to compaction
    rejected = list(store.rejected(transaction.version))
    if rejected:
        lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rejected)
        listed[directory.REJECTED] = files.write_atomic(transaction.folder / directory.REJECTED, lines.encode())
    sample.settle(store)
    store.close()
    listed[directory.STORE] = files.hash_file(transaction.folder / directory.STORE)
    manifest = Manifest(
        version=transaction.version,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        package=package_version(),
        model=settings.model,
        granularity=settings.granularity,
        dim=settings.dim,
        storage_dtype=settings.storage_dtype,
        settings={name: getattr(settings, name) for name in Settings.KEPT},
        index_fields=settings.index_fields,
        counts={**counts._asdict(), "rejected": len(rejected), **changes},
        indexes=indexes,
        files=listed,
        job=transaction.job,
    )
    transaction.publish(manifest)
    return manifest


@dataclass(frozen=True)
class FaissBuilder:
    """Bringing the FAISS index of one kind of vectors to what the store now holds, and its file to the disk."""

    transaction: Transaction
    kind: Kind
    count: int
    settings: Settings
    progress: Progress

    def run(self, rebuild: bool) -> tuple[IndexInfo, FileInfo]:
        """Build the index or bring the old one up to date; return its description and its file's size and hash."""
        old = self.transaction.base.indexes.get(self.kind) if self.transaction.base else None
        factory = faiss_index.choose_factory(self.settings.index, self.count, self.settings.dim)
        if old is None or rebuild or old.factory != factory or self.count > 2 * old.trained_on:
            return self._build(factory)
        return self._update(old) or self._build(factory)

    def _build(self, factory: str) -> tuple[IndexInfo, FileInfo]:
        table = self._table(self.transaction.store.shards())
        index = faiss_index.create(factory, self.settings.dim)
        size = faiss_index.training_size(index, self.count)
        if size:
            self.progress("training", 0, size, 0)
            try:
                faiss_index.train(index, draw(table, size), factory)
            except ConfigError:
                self.transaction.allow_other_index()
                raise
        faiss_index.reserve(index, self.count)
        all_live = len(table) == self.count  # then there is no need to ask which are
        self._fill(index, table.blocks() if all_live else live_blocks(self.transaction.store, table, self.kind))
        info = IndexInfo(factory=factory, count=self.count, trained_on=self.count)
        written = self._write(index)
        return (self.tune(info) if self.settings.recall is not None else info), written

    def _update(self, old: IndexInfo) -> tuple[IndexInfo, FileInfo] | None:
        """The old index without what was removed and with what was added; None where building anew is better."""
        assert self.transaction.base is not None
        name = directory.faiss_file(self.kind)
        store = self.transaction.store
        first: int = store.get("first_doc")
        removed = store.removed(self.transaction.version)
        removed = removed[
            removed[:, 0] < first
        ]  # what was added and removed by this very change was never in the index
        shards = [s for s in store.shards() if s.first >= first]
        if not len(removed) and not shards:
            files.link(self.transaction.base_folder / name, self.transaction.folder / name)
            return old, self.transaction.base.files[name]
        index = faiss_file.read(self.transaction.base_folder / name, mapped=False)
        ids = removed[:, 0] if self.kind == "document" else expand_passages(removed)
        tombstones = old.tombstones
        if len(ids) and not faiss_index.remove(index, ids):
            tombstones += len(ids)
            if tombstones > TOMBSTONE_LIMIT * index.ntotal:
                return None
        table = self._table(shards)
        faiss_index.reserve(index, len(table))
        self._fill(index, live_blocks(store, table, self.kind))
        return replace(old, count=int(index.ntotal), tombstones=tombstones), self._write(index)

    def tune(self, info: IndexInfo) -> IndexInfo:
        """The index's description with search settings for the wanted recall, and what was measured."""
        assert self.settings.recall is not None
        store, table = self.transaction.store, self._table(self.transaction.store.shards())
        index = faiss_file.read(self.transaction.folder / directory.faiss_file(self.kind), mapped=True)
        searcher = FaissSearcher(index, {}, factory=info.factory)
        drawn = np.random.default_rng(SEED).permutation(draw(table, 4 * tune.QUERIES))
        queries = drawn[np.linalg.norm(drawn, axis=1) > 0][: tune.QUERIES]  # an empty text is near to nothing
        if not len(queries):
            return replace(info, params={}, recall=None, curve=[])  # nothing to measure with
        selector = searcher.select_all_but(dead_ids(store, self.kind)) if info.tombstones else None
        self.progress(f"tuning {self.kind}s", 0, None, 0)
        found = tune.tune(
            searcher, table, live_blocks(store, table, self.kind), queries, self.settings.recall, selector
        )
        return replace(info, params=found.params, recall=found.recall, curve=found.curve)

    def _table(self, shards: list[Shard]) -> VectorTable:
        return open_table(self.transaction.folder, shards, self.kind, self.settings.dim)

    def _fill(self, index: faiss.Index, blocks: Iterator[tuple[IntArray, FloatArray]]) -> None:
        self.progress(f"indexing {self.kind}s", int(index.ntotal), self.count, 0)
        for ids, vectors in blocks:
            faiss_index.fill(index, ids, vectors)
            self.progress(f"indexing {self.kind}s", int(index.ntotal), self.count, 0)

    def _write(self, index: faiss.Index) -> FileInfo:
        return faiss_file.write(index, self.transaction.folder / directory.faiss_file(self.kind))


def live_blocks(store: Store, table: VectorTable, kind: Kind) -> Iterator[tuple[IntArray, FloatArray]]:
    """The vectors of documents that still exist, block by block."""
    for ids, vectors in table.blocks():
        docs = ids if kind == "document" else ids >> PASSAGE_BITS
        keep = np.isin(docs, store.live(int(docs[0]), int(docs[-1])))
        yield (ids, vectors) if keep.all() else (ids[keep], vectors[keep])


def draw(table: VectorTable, size: int) -> FloatArray:
    """About `size` vectors drawn evenly from a table; `[<= size, d]`, the same ones every time."""
    total = len(table)
    chosen = np.arange(total) if size >= total else np.unique(np.random.default_rng(SEED).integers(0, total, size))
    parts, start = [np.empty((0, table.dim), dtype=np.float32)], 0
    for ids, vectors in table.blocks():
        low, high = np.searchsorted(chosen, [start, start + len(ids)])
        parts.append(vectors[chosen[low:high] - start])
        start += len(ids)
    return np.concatenate(parts)
