"""The second half of a change: FAISS indexes from the shards, then everything else that the new version needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.indexes import ann, files, layout
from aveyb_retrieval.indexes.change import Change
from aveyb_retrieval.indexes.files import FileInfo
from aveyb_retrieval.indexes.manifest import GRANULARITIES, IndexInfo, Manifest
from aveyb_retrieval.indexes.pipeline import Progress
from aveyb_retrieval.indexes.protocols import FloatArray, IntArray
from aveyb_retrieval.indexes.store import PASSAGE_BITS, Store, expand_passages
from aveyb_retrieval.indexes.vectors import KINDS, Kind, VectorTable, open_table

if TYPE_CHECKING:
    import faiss

SEED = 0  # of the training sample
TOMBSTONE_LIMIT = 0.2  # a graph index with a larger share of dead vectors is built again


@dataclass(frozen=True)
class Settings:
    """What an index keeps to over all its versions.

    `index` is a FAISS factory string or "auto", `recall` the share of exact results its search settings are tuned for
    (None: not tuned), `model` the description of the model (None: ready-made vectors of a model nobody named),
    `model_source` and `max_tokens` what to load it with again.
    """

    granularity: str
    dim: int
    dtype: str
    index: str
    recall: float | None
    index_fields: dict[str, str]
    model: dict[str, Any] | None
    model_source: str | None
    max_tokens: int | None

    @classmethod
    def of(cls, manifest: Manifest) -> Settings:
        """The settings of an existing index."""
        return cls(
            granularity=manifest.granularity,
            dim=manifest.dim,
            dtype=manifest.dtype,
            index_fields=manifest.index_fields,
            model=manifest.model,
            **manifest.settings,
        )


def finish(change: Change, settings: Settings, progress: Progress, *, rebuild: bool = False) -> Manifest:
    """Build the FAISS indexes of a change or bring them up to date, write the manifest, show the new version."""
    store = change.store
    counts = store.counts()
    listed = {s.name: FileInfo(s.bytes, s.sha256) for s in store.shards()}
    indexes: dict[str, IndexInfo] = {}
    for kind in KINDS:
        if kind in GRANULARITIES[settings.granularity]:
            job = _IndexJob(
                change, kind, counts.documents if kind == "document" else counts.passages, settings, progress
            )
            index, indexes[kind] = job.run(rebuild)
            listed[layout.faiss_file(kind)] = ann.write(index, change.folder / layout.faiss_file(kind))
    if change.base is None:
        store.optimize()
    rejected = list(store.rejected(change.version))
    if rejected:
        lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rejected)
        listed[layout.REJECTED] = files.write_atomic(change.folder / layout.REJECTED, lines.encode())
    store.close()
    listed[layout.STORE] = files.hash_file(change.folder / layout.STORE)
    manifest = Manifest(
        version=change.version,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        package=package_version(),
        model=settings.model,
        granularity=settings.granularity,
        dim=settings.dim,
        dtype=settings.dtype,
        settings={k: getattr(settings, k) for k in ("index", "recall", "model_source", "max_tokens")},
        index_fields=settings.index_fields,
        counts={**counts._asdict(), "rejected": len(rejected)},
        indexes=indexes,
        files=listed,
        job=change.job,
    )
    change.publish(manifest)
    return manifest


@dataclass(frozen=True)
class _IndexJob:
    """Bringing the FAISS index of one kind of vectors to what the store now holds."""

    change: Change
    kind: Kind
    count: int
    settings: Settings
    progress: Progress

    def run(self, rebuild: bool) -> tuple[faiss.Index, IndexInfo]:
        old = self.change.base.indexes.get(self.kind) if self.change.base else None
        factory = ann.choose_factory(self.settings.index, self.count, self.settings.dim)
        if old is not None and not rebuild and old.factory == factory and self.count <= 2 * max(old.trained_on, 1):
            updated = self._update(old)
            if updated is not None:
                return updated
        return self._build(factory)

    def _build(self, factory: str) -> tuple[faiss.Index, IndexInfo]:
        table = open_table(self.change.folder, self.change.store.shards(), self.kind, self.settings.dim)
        index = ann.create(factory, self.settings.dim)
        size = ann.training_size(index, self.count)
        if size:
            self.progress("training", 0, size, 0)
            ann.train(index, sample(table, size), factory)
        self._fill(index, live_blocks(self.change.store, table, self.kind))
        return index, IndexInfo(factory=factory, count=self.count, trained_on=self.count)

    def _update(self, old: IndexInfo) -> tuple[faiss.Index, IndexInfo] | None:
        """The old index without what was removed and with what was added; None where building anew is better."""
        index = ann.read(self.change.base_folder / layout.faiss_file(self.kind), mapped=False)
        removed = self.change.store.removed()
        tombstones = 0
        if len(removed):
            ids = removed[:, 0] if self.kind == "document" else expand_passages(removed)
            before = index.ntotal
            if not ann.remove(index, ids):
                first_new: int = self.change.store.get("first_doc")
                held = removed[removed[:, 0] < first_new]
                tombstones = len(held) if self.kind == "document" else int(held[:, 1].sum())
                if tombstones > TOMBSTONE_LIMIT * before:
                    return None
        first: int = self.change.store.get("first_doc")
        shards = [s for s in self.change.store.shards() if s.first >= first]
        table = open_table(self.change.folder, shards, self.kind, self.settings.dim)
        self._fill(index, live_blocks(self.change.store, table, self.kind))
        return index, replace(old, count=int(index.ntotal), tombstones=tombstones)

    def _fill(self, index: faiss.Index, blocks: Iterator[tuple[IntArray, FloatArray]]) -> None:
        done = 0
        for ids, vectors in blocks:
            ann.fill(index, [(ids, vectors)])
            done += len(ids)
            self.progress(f"indexing {self.kind}s", done, self.count, 0)


def live_blocks(store: Store, table: VectorTable, kind: Kind) -> Iterator[tuple[IntArray, FloatArray]]:
    """The vectors of documents that still exist, block by block."""
    for ids, vectors in table.blocks():
        docs = ids if kind == "document" else ids >> PASSAGE_BITS
        keep = np.isin(docs, store.live(int(docs[0]), int(docs[-1])))
        yield (ids, vectors) if keep.all() else (ids[keep], vectors[keep])


def sample(table: VectorTable, size: int) -> FloatArray:
    """About `size` vectors drawn evenly from a table; `[<= size, d]`, the same ones every time."""
    total = len(table)
    chosen = np.arange(total) if size >= total else np.unique(np.random.default_rng(SEED).integers(0, total, size))
    parts, start = [np.empty((0, table.dim), dtype=np.float32)], 0
    for ids, vectors in table.blocks():
        low, high = np.searchsorted(chosen, [start, start + len(ids)])
        parts.append(vectors[chosen[low:high] - start])
        start += len(ids)
    return np.concatenate(parts)


def package_version() -> str:
    try:
        return version("aveyb-retrieval")
    except PackageNotFoundError:  # run from a source folder
        return "unknown"
