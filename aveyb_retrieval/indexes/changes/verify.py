"""`verify`: recompute every hash and count of an index; `repair`: make anew what can be made from the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.nearest import faiss_check
from aveyb_retrieval.indexes.store import directory, store_check
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from aveyb_retrieval.indexes.store.lock import writer_lock
from aveyb_retrieval.indexes.store.manifest import GRANULARITIES, Manifest, file_problems
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS
from aveyb_retrieval.indexes.store.vectors import map_arrays, open_table
from aveyb_retrieval.indexes.store.store import Store, dead_ids
from aveyb_retrieval.indexes.store.tokens import (
    TENSORS,
    open_token_table,
    open_tokens,
    token_codec,
    token_owner,
)
from aveyb_retrieval.indexes.types import IntArray, Kind, Progress, silent
from aveyb_retrieval.indexes.changes.change import FinishOptions, run_change
from aveyb_retrieval.indexes.changes.finish import live_blocks
from aveyb_retrieval.indexes.changes.verify_content import content_problems

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True)
class Verdict:
    """What was found wrong, one sentence each, and whether it has been repaired."""

    problems: list[str]
    repaired: bool = False


def verify_index(root: str | Path, *, repair: bool = False, deep: bool = False, progress: Progress = silent) -> Verdict:
    """Check an index: hashes, sizes, the store's own consistency, counts, ids and vectors of every kind.

    FAISS files are read in another process, which a damaged one may crash. `deep` also compares what hashes say nothing
    of: texts with their digests, passages and their counts with texts, the full-text index with the texts, and what
    FAISS holds of each vector with the stored vector.

    `repair` builds damaged FAISS files again from the vectors, leaves a damaged `rejected.jsonl` behind, and points to
    the newest complete version where the pointer is lost. Documents, vectors and manifests have no second copy: an
    index with damage there stays as it is.

    Raises:
        IndexFormatError: there is nothing to verify.
    """
    index_dir = IndexDirectory(root)
    pointer = _pointer_problem(index_dir)
    if pointer:
        if not repair:
            return Verdict([pointer])
        _repair_pointer(index_dir)
    name = index_dir.current()
    assert name is not None
    folder = index_dir.root / name
    try:
        manifest = Manifest.read(folder)
    except IndexFormatError as error:
        return Verdict([*filter(None, [pointer]), str(error)])
    problems = _problems(folder, manifest, progress, deep=deep)
    if not problems or not repair:
        return Verdict([*filter(None, [pointer]), *problems], repaired=bool(pointer) and not problems)
    repaired = _rebuild(index_dir, folder, manifest, progress)
    return Verdict([*filter(None, [pointer]), *problems], repaired=repaired)


def _pointer_problem(index_dir: IndexDirectory) -> str | None:
    try:
        name = index_dir.current()
    except IndexFormatError as error:
        return str(error)
    if name is None and not index_dir.versions():
        raise index_dir.missing()
    if name is None or not (index_dir.root / name).is_dir():
        return f"{index_dir.pointer}: names {name!r}, which is not there"
    return None


def _repair_pointer(index_dir: IndexDirectory) -> None:
    complete = [name for name in index_dir.versions() if (index_dir.root / name / directory.MANIFEST).exists()]
    if not complete:
        raise IndexFormatError(f"{index_dir.root}: no complete version to point to; build the index again")
    with writer_lock(index_dir.lock):
        index_dir.publish(complete[-1])


def _problems(folder: Path, manifest: Manifest, progress: Progress, *, deep: bool = False) -> list[str]:
    progress("hashing files", 0, len(manifest.files), 0)
    damaged = file_problems(manifest, folder, full=True)
    problems = list(damaged.values())
    if not _rebuildable(damaged):
        return problems  # what follows compares with these files
    store = None
    try:
        store = Store.open_for_reading(folder / directory.STORE)
        if deep:
            progress("checking texts", 0, manifest.counts["documents"], 0)
            problems += content_problems(store)
        problems += _store_problems(store, manifest)
        expected = []
        for kind in GRANULARITIES[manifest.granularity]:
            progress(f"checking {kind}s", 0, manifest.indexes[kind].count, 0)
            wrong, ids = _kind_problems(folder, manifest, store, kind)
            problems += wrong
            name = directory.faiss_file(kind)
            if name not in damaged:  # what is known to be damaged is not given to FAISS
                shards = tuple(folder / shard.name for shard in store.shards()) if deep else ()
                expected.append(faiss_check.Expected(folder / name, kind, ids, manifest.dim, shards))
        progress("checking token vectors", 0, None, 0)
        problems += _token_problems(folder, manifest, store)
        progress("checking FAISS files", 0, len(expected), 0)
        problems += faiss_check.problems(expected)
    except (*store_check.UNREADABLE, AveyBError) as error:
        problems.append(str(error))
    finally:
        if store is not None:
            store.close()
    return problems


def _store_problems(store: Store, manifest: Manifest) -> list[str]:
    problems = [f"{store.path}: {row[0]}" for row in store.db.execute("PRAGMA integrity_check") if row[0] != "ok"]
    counts = store.counts()._asdict()
    for key, value in counts.items():
        if value != manifest.counts.get(key):
            problems.append(f"{store.path}: {value} {key}, the manifest says {manifest.counts.get(key)}")
    tables = [("texts", "documents"), ("fulltext_docsize", "documents")]
    if store.words.has_passages:
        tables.append(("passage_words_docsize", "passages"))
    for table, what in tables:
        (rows,) = store.db.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608  # the names above
        if rows != counts[what]:
            problems.append(f"{store.path}: {rows} rows in {table} for {counts[what]} {what}")
    listed = {s.name: (s.bytes, s.sha256) for s in store.shards()}
    known = {n: (i.bytes, i.sha256) for n, i in manifest.files.items() if n.startswith(directory.VECTORS)}
    if listed != known:
        problems.append(f"{store.path}: lists other shards than the manifest")
    return problems


def _kind_problems(folder: Path, manifest: Manifest, store: Store, kind: Kind) -> tuple[list[str], IntArray]:
    """Differences between the documents, their vectors and the manifest; and the ids that FAISS should hold."""
    problems = []
    table = open_table(folder, store.shards(), kind, manifest.dim)
    expected = store.ids(kind)
    found = [np.empty(0, dtype=np.int64)]
    for ids, vectors in live_blocks(store, table, kind):
        found.append(ids)
        with np.errstate(over="ignore"):  # of a damaged vector
            lengths = np.linalg.norm(vectors, axis=1)
        wrong = ~np.isfinite(lengths) | ((np.abs(lengths - 1) > 1e-2) & (lengths > 1e-6))
        if wrong.any():
            number = int(ids[wrong][0])
            doc = number if kind == "document" else number >> PASSAGE_BITS
            problems.append(f"{folder}: the {kind} vector of document number {doc} is not of unit length")
    if not np.array_equal(np.concatenate(found), expected):
        problems.append(f"{folder}: the stored {kind} vectors are not those of the documents")
    info = manifest.indexes[kind]
    dead = dead_ids(store, kind) if info.tombstones else expected[:0]
    ids = np.sort(np.concatenate([expected, dead]))
    if (info.count, info.tombstones) != (len(ids), len(dead)):
        problems.append(
            f"{folder}: {len(ids)} {kind} vectors, {len(dead)} of them of removed documents; "
            f"the manifest says {info.count} and {info.tombstones}"
        )
    return problems, ids


def _token_problems(folder: Path, manifest: Manifest, store: Store) -> list[str]:
    """Differences between the documents, the manifest's settings, and the token vectors in the shards."""
    paths = [folder / shard.name for shard in store.shards()]
    codec = token_codec(manifest.settings)
    if codec is None:
        holding = [path for path in paths if set(TENSORS) & set(map_arrays(path))]
        return [f"{path}: holds token vectors, the manifest says that there are none" for path in holding]
    problems = []
    for path in paths:
        try:
            block = open_tokens(path, codec)
        except IndexFormatError as error:
            problems.append(str(error))
            continue
        if not (np.diff(block.ids) > 0).all():
            problems.append(f"{path}: the numbers of its token vectors do not ascend")
        covered = np.zeros(len(block.codes) + 1, dtype=np.int64)
        np.add.at(covered, block.ranges[:, 0], 1)
        np.add.at(covered, block.ranges[:, 1], -1)
        if (np.cumsum(covered)[:-1] < 1).any():
            problems.append(f"{path}: holds token vectors of no passage")
    if problems:
        return problems
    kind = token_owner(GRANULARITIES[manifest.granularity])
    table = open_token_table(folder, store.shards(), codec)
    if not np.isin(store.ids(kind), table.ids).all():
        problems.append(f"{folder}: the stored token vectors are not those of the {kind}s")
    return problems


def _rebuild(index_dir: IndexDirectory, folder: Path, manifest: Manifest, progress: Progress) -> bool:
    """Build the FAISS files anew as a new version, if everything they are made from is sound."""
    if not _rebuildable(file_problems(manifest, folder, full=True)):
        return False
    report = run_change(
        index_dir.root,
        {"command": "repair"},
        lambda transaction, settings: FinishOptions(settings, rebuild=True),
        progress=progress,
    )
    repaired = index_dir.root / report.version
    return not _problems(repaired, Manifest.read(repaired), progress)


def _rebuildable(damaged: Iterable[str]) -> bool:
    """Whether an index can be made again without these files."""
    return all(name == directory.REJECTED or name.endswith(".faiss") for name in damaged)
