"""The one flow of every change: build, add, upsert, delete, compact, tune and repair."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.store import directory
from aveyb_retrieval.indexes.store.manifest import IndexInfo, Manifest, read_manifest
from aveyb_retrieval.indexes.changes.finish import finish
from aveyb_retrieval.indexes.changes.settings import Settings
from aveyb_retrieval.indexes.changes.transaction import Job, Transaction, open_transaction

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.input.documents import Notice
    from aveyb_retrieval.indexes.types import Progress


CHANGES = ("added", "replaced", "unchanged", "renamed", "deleted")  # what a manifest counts of its own change


@dataclass(frozen=True)
class Report:
    """The result of a change: the index it left behind, its counts, and how long this call took.

    `added`, `replaced`, `unchanged` (not encoded again), `renamed` and `deleted` count the documents that the change
    concerned, `rejected` what was left out because it is no document, which `rejected_file` lists. `notices` are files
    that were not read because of their kind, and parts of files that hold no text. `indexes` describes the FAISS index
    of each kind of vector, with the recall measured where it was tuned. `resumed` says whether the call continued an
    interrupted one.
    """

    path: Path
    version: str
    documents: int
    passages: int
    tokens: int
    cut_documents: int
    cut_tokens: int
    rejected: int
    rejected_file: Path | None
    indexes: Mapping[str, IndexInfo]
    seconds: float
    resumed: bool
    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    renamed: int = 0
    deleted: int = 0
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True)
class FinishOptions:
    """How to finish a change: the settings of the new version, whether FAISS indexes are rebuilt, whether tuned.

    `notices` are for the report.
    """

    settings: Settings
    rebuild: bool = False
    retune: bool = False
    notices: tuple[Notice, ...] = ()


Work = Callable[[Transaction, Settings], FinishOptions | None]
"""Brings the store and the shards of a transaction to their new state; None where there is nothing to change."""


def run_change(
    root: str | Path,
    job: Job,
    work: Work,
    *,
    progress: Progress,
    restart: bool = False,
    settings: Settings | None = None,
) -> Report:
    """Lock the index, begin or continue the change, do its work, build FAISS, publish the new version.

    An interrupted run of the same `job` is continued; if it had finished all work, only its publication is completed.

    Args:
        root: The index directory.
        job: Identifies the change: what an interrupted run is compared with before it is continued.
        work: Does what is particular to this change.
        progress: Called as the work goes on.
        restart: Throw away the work of an interrupted change.
        settings: Those of an index built from nothing; None changes the index that is there, with its own.

    Raises:
        IndexFormatError: there is no index to change.
        IndexLockedError: another process is writing.
        ConfigError: another change is unfinished.
    """
    started = time.monotonic()
    from_base = settings is None
    if from_base:
        read_manifest(root)
    with open_transaction(root, job, from_base=from_base, restart=restart) as transaction:
        if transaction.done is not None:
            return _report(transaction, transaction.done, started, resumed=True)
        if settings is None:
            assert transaction.base is not None  # `read_manifest` found one, and versions are never all removed
            settings = Settings.of(transaction.base)
        finish_with = work(transaction, settings)
        if finish_with is None:
            assert transaction.base is not None  # only a change of an index can find that nothing is to be changed
            transaction.cancel()
            return _report(transaction, transaction.base, started, resumed=False, unchanged=True)
        manifest = finish(
            transaction, finish_with.settings, progress, rebuild=finish_with.rebuild, retune=finish_with.retune
        )
        report = _report(transaction, manifest, started, resumed=transaction.resumed)
        return replace(report, notices=finish_with.notices)


def _report(
    transaction: Transaction, manifest: Manifest, started: float, *, resumed: bool, unchanged: bool = False
) -> Report:
    """Report a version: one that this change made, or with `unchanged` the one that it left as it was."""
    root = transaction.index_dir.root
    counts: dict[str, Any] = {
        name: count for name, count in manifest.counts.items() if not (unchanged and name in CHANGES)
    }
    rejected = root / manifest.version / directory.REJECTED
    return Report(
        path=root,
        version=manifest.version,
        rejected_file=rejected if directory.REJECTED in manifest.files else None,
        indexes=manifest.indexes,
        seconds=time.monotonic() - started,
        resumed=resumed,
        **counts,
    )
