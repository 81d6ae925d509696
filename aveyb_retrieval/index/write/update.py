"""Changes of an existing index: add, upsert, delete, compact, tune. Each makes a new version and survives being killed.

The store of the new version begins as a copy of the old one and shards are shared by hard links, so a change costs the
copying of the store and the FAISS files, not the encoding of what is there already.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import ConfigError, IndexFormatError, InputError
from aveyb_retrieval.index.input.corpus import Source, read_corpus
from aveyb_retrieval.index.input.documents import FieldNames
from aveyb_retrieval.index.input.precomputed import PrecomputedVectors
from aveyb_retrieval.index.storage import directory, filters
from aveyb_retrieval.index.storage.directory import IndexDirectory
from aveyb_retrieval.index.storage.filters import Filter
from aveyb_retrieval.index.storage.manifest import GRANULARITIES, Manifest
from aveyb_retrieval.index.storage.shards import open_table, write_shard
from aveyb_retrieval.index.storage.store import Shard
from aveyb_retrieval.index.types import EmbedderLike, FloatArray, IntArray, Kind, check_fingerprint
from aveyb_retrieval.index.write.build import (
    OnError,
    Report,
    check_not_empty,
    describe_job,
    embedder_encoder,
    load_embedder,
    new_pipeline,
    ready_encoder,
    report,
)
from aveyb_retrieval.index.write.ingest import BATCH_BYTES, Progress, silent
from aveyb_retrieval.index.write.publish import Settings, finish
from aveyb_retrieval.index.write.transaction import Job, Transaction, open_transaction

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in `typing` from Python 3.11 on


class Inserting(TypedDict, total=False):
    """What `add_documents` and `upsert_documents` can be told; all as in `build_index`."""

    vectors: str | Path | npt.NDArray[np.floating] | None
    model: str | Path | None
    fields: FieldNames | None
    on_error: OnError
    restart: bool
    device: str
    precision: str
    embedder: EmbedderLike | None
    progress: Progress


def add_documents(corpus: Source | Sequence[str | Path], root: str | Path, **options: Unpack[Inserting]) -> Report:
    """Add documents with new ids to the index at `root`. The options (`Inserting`) are those of `build_index`.

    Raises:
        InputError: an id is in the index already (use `upsert_documents`), or the corpus is not usable.
        IndexFormatError: there is no index, or the model is not the one that made it.
    """
    return _insert("add", corpus, root, **options)


def upsert_documents(corpus: Source | Sequence[str | Path], root: str | Path, **options: Unpack[Inserting]) -> Report:
    """Add documents, replacing those whose ids are in the index already. Options and errors are `add_documents`'.

    An unchanged document is not encoded again (its metadata are replaced); one that grew is encoded from its first
    passage that changed.
    """
    return _insert("upsert", corpus, root, **options)


def delete_documents(
    root: str | Path,
    ids: Sequence[str] = (),
    *,
    where: Filter | None = None,
    missing_ok: bool = False,
    restart: bool = False,
    progress: Progress = silent,
) -> Report:
    """Remove the documents with these ids, and those that satisfy a filter.

    Raises:
        InputError: an id is not in the index (unless `missing_ok`).
        ConfigError: neither ids nor a filter are given.
    """
    started = time.monotonic()
    if isinstance(ids, str):
        raise ConfigError(f"delete: ids={ids!r} is one string; give a list of ids, as [{ids!r}]")
    if not ids and where is None:
        raise ConfigError("delete: give ids or a filter; an empty filter {} removes everything")
    wanted = sorted(set(ids))
    job: Job = {
        "command": "delete",
        "ids": hashlib.sha256(json.dumps(wanted).encode()).hexdigest() if wanted else None,
        "filter": filters.filter_key(where) if where is not None else None,
    }
    with _existing(root, job, restart) as (change, settings):
        manifest = change.done
        if manifest is None:
            if not change.store.get("consumed"):
                count = _remove(change, wanted, where, missing_ok)
                if count == 0 and change.base is not None:
                    change.cancel()
                    return report(change.index_dir, change.base, started, resumed=False)
            manifest = finish(change, settings, progress)
    return report(change.index_dir, manifest, started, resumed=change.resumed or change.done is not None)


def compact_index(root: str | Path, *, restart: bool = False, progress: Progress = silent) -> Report:
    """Drop the vectors of removed documents, merge small shards, and build the FAISS and full-text indexes anew."""
    started = time.monotonic()
    with _existing(root, {"command": "compact"}, restart) as (change, settings):
        manifest = change.done
        if manifest is None:
            shards = list(_merged_shards(change, settings))
            with change.store.transaction():
                change.store.replace_shards(shards)
                change.store.put("consumed", 1)
            _unlink_unused(change, shards)
            change.store.compact()
            manifest = finish(change, settings, progress, rebuild=True)
    return report(change.index_dir, manifest, started, resumed=change.resumed)


def tune_index(root: str | Path, recall: float, *, restart: bool = False, progress: Progress = silent) -> Manifest:
    """Find the search settings that reach a recall, measured on vectors of the index; returns the new manifest.

    Raises:
        ConfigError: `recall` is not above 0 and at most 1.
    """
    if not 0 < recall <= 1:
        raise ConfigError(f"recall={recall}: must be above 0 and at most 1")
    with _existing(root, {"command": "tune", "recall": recall}, restart) as (change, settings):
        settings = dataclasses.replace(settings, recall=recall)
        return change.done or finish(change, settings, progress, retune=True)


# --- inside ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _existing(root: str | Path, job: Job, restart: bool) -> Iterator[tuple[Transaction, Settings]]:
    if IndexDirectory(root).current() is None:
        raise IndexFormatError(f"{root}: no index here; make one with `aveyb-index build ... -o {root}`")
    with open_transaction(root, job, from_base=True, restart=restart) as change:
        manifest = change.base or change.done
        assert manifest is not None
        yield change, Settings.of(manifest)


def _insert(
    mode: Literal["add", "upsert"],
    corpus: Source | Sequence[str | Path],
    root: str | Path,
    *,
    vectors: str | Path | npt.NDArray[np.floating] | None = None,
    model: str | Path | None = None,
    fields: FieldNames | None = None,
    on_error: OnError = "stop",
    restart: bool = False,
    device: str = "cpu",
    precision: str = "float32",
    embedder: EmbedderLike | None = None,
    progress: Progress = silent,
) -> Report:
    started = time.monotonic()
    index_dir = IndexDirectory(root)
    base = _manifest(index_dir)
    settings = Settings.of(base)
    ready = PrecomputedVectors.open(vectors) if vectors is not None else None
    if ready is not None and (settings.granularity != "document" or ready.dim != settings.dim):
        raise ConfigError(
            f"{ready.name}: one vector of dimension {ready.dim} per document, but {root} has granularity "
            f"{settings.granularity!r} and dimension {settings.dim}"
        )
    if ready is None:
        if embedder is None and base.model is None:
            raise ConfigError(f"{root}: made from ready-made vectors; add documents with vectors of the same model")
        if embedder is None:
            source = model or settings.model_source
            embedder = load_embedder(source, device=device, precision=precision, max_tokens=settings.max_tokens)
        check_fingerprint(base.model, base.dim, embedder, root)
    job = describe_job(
        mode, corpus, settings, on_error=on_error, fields=fields, vectors=ready.describe() if ready else None
    )
    with _existing(root, job, restart) as (change, settings):
        manifest = change.done
        if manifest is None:
            encode = ready_encoder(ready) if ready else embedder_encoder(embedder)  # type: ignore[arg-type]  # one is there
            pipeline = new_pipeline(
                change, settings, encode, mode=mode, on_error=on_error, progress=progress, embedder=embedder
            )
            items = pipeline.run(read_corpus(corpus, fields))
            check_not_empty(change, items)
            if ready is not None and items != len(ready):
                raise InputError(f"{ready.name}: {len(ready)} vectors for {items} documents; one row each is needed")
            manifest = finish(change, settings, progress)
    return report(index_dir, manifest, started, resumed=change.resumed or change.done is not None)


def _manifest(index_dir: IndexDirectory) -> Manifest:
    name = index_dir.current()
    if name is None:
        raise IndexFormatError(
            f"{index_dir.root}: no index here; make one with `aveyb-index build ... -o {index_dir.root}`"
        )
    return Manifest.read(index_dir.root / name)


def _remove(change: Transaction, ids: Sequence[str], where: Filter | None, missing_ok: bool) -> int:
    """Take documents out of the store, all in one transaction; returns how many."""
    store = change.store
    docs: set[int] = set()
    for document_id in ids:
        known = store.find(document_id)
        if known is not None:
            docs.add(known[0])
        elif not missing_ok:
            raise InputError(f"{change.index_dir.root}: no document has the id {document_id!r}; nothing was deleted")
    if where is not None:
        index_fields = change.base.index_fields if change.base else {}
        docs.update(store.matching(filters.compile_filter(where, index_fields)).tolist())
    with store.transaction():
        for doc in sorted(docs):
            store.remove_document(doc, change.version)
        store.put("consumed", 1)
    return len(docs)


def _merged_shards(change: Transaction, settings: Settings) -> Iterator[Shard]:
    """Write the live vectors into new shards of a good size. Interrupted, it is simply done again."""
    kinds = GRANULARITIES[settings.granularity]
    shards = change.store.shards()
    tables = {kind: open_table(change.folder, shards, kind, settings.dim) for kind in kinds}
    counts = change.store.counts()
    rows = max(1, (counts.documents + counts.passages) // max(counts.documents, 1))
    step = max(1, BATCH_BYTES // (4 * settings.dim * rows))
    docs = change.store.live(0, 1 << 62)
    for start in range(0, len(docs), step):
        some = docs[start : start + step]
        ids: dict[Kind, IntArray] = {"document": some}
        if "passage" in kinds:
            ids["passage"] = change.store.passage_ids(some)
        vectors: dict[Kind, tuple[IntArray, FloatArray]] = {
            kind: (ids[kind], tables[kind].gather(ids[kind])) for kind in kinds
        }
        name = directory.shard_file(change.version, int(some[0]))
        info = write_shard(change.folder / name, vectors, settings.storage_dtype)
        yield Shard(int(some[0]), int(some[-1]), name, info.bytes, info.sha256)


def _unlink_unused(change: Transaction, shards: Sequence[Shard]) -> None:
    used = {shard.name for shard in shards}
    for path in (change.folder / directory.VECTORS).iterdir():
        if f"{directory.VECTORS}/{path.name}" not in used:
            path.unlink()
