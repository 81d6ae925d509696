"""The one flow of every change: build, add, upsert, delete, metadata, sync, compact, tune and repair."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.changes.finish import finish
from aveyb_retrieval.indexes.changes.transaction import Job, Transaction, open_transaction
from aveyb_retrieval.indexes.store.manifest import Changes, Manifest, Tier

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.changes.transaction import State
    from aveyb_retrieval.indexes.input.documents import Notice
    from aveyb_retrieval.indexes.store.tables import Tables
    from aveyb_retrieval.indexes.types import Progress


@dataclass(frozen=True)
class Report:
    """The result of a change: the index it left behind, its counts, and how long this call took.

    `added`, `replaced`, `unchanged` (not encoded again), `renamed` and `deleted` count the documents that the change
    concerned, `rejected` what was left out because it is no document, which `rejected_file` lists. `notices` are files
    that were not read because of their kind, and parts of files that hold no text. `indexes` describes the FAISS files
    of each kind of vector, with the recall measured where it was tuned; a kind without any is searched exactly.
    `resumed` says whether the call continued an interrupted one.
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
    indexes: Mapping[str, list[Tier]]
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
    """How to finish a change.

    `whole` merges everything into one piece, `rebuild` makes all FAISS files anew, `reindex` the indexes of words;
    `retune` measures the settings of searches again. `notices` are for the report.
    """

    whole: bool = False
    rebuild: bool = False
    reindex: bool = False
    retune: bool = False
    notices: tuple[Notice, ...] = ()


Work = Callable[[Transaction], FinishOptions | None]
"""Brings the datasets of a transaction to their new state; None where there is nothing to change."""


def once(apply: Callable[[Transaction], int]) -> Work:
    """The work of a change of a single step: `apply` makes it, and returns how many documents it concerned."""

    def work(transaction: Transaction) -> FinishOptions | None:
        if not transaction.state.step:  # else done by the interrupted run that this one continues
            if not apply(transaction):
                return None
            transaction.state.step = 1
        return FinishOptions()

    return work


def run_change(
    root: str | Path,
    job: Job,
    work: Work,
    *,
    progress: Progress,
    restart: bool = False,
    state: State | None = None,
    before: Tables | None = None,
) -> Report:
    """Lock the index, begin or continue the change, do its work, bring indexes up to date, publish the new version.

    An interrupted run of the same `job` is continued; if it had published its version, there is nothing left to do.

    Args:
        root: The index directory.
        job: Identifies the change: what an interrupted run is compared with before it is continued.
        work: Does what is particular to this change.
        progress: Called as the work goes on.
        restart: Throw away the work of an interrupted change.
        state: What an index built from nothing begins with; None changes the index that is there.
        before: The datasets at any version, if this process has them open.

    Raises:
        IndexFormatError: there is no index to change.
        IndexLockedError: another process is writing.
        ConfigError: another change is unfinished.
    """
    started = time.monotonic()
    with open_transaction(root, job, state, restart=restart, before=before) as transaction:
        if transaction.done is not None:
            return _report(transaction, transaction.done, started, resumed=True)
        options = work(transaction)
        if options is None:
            assert transaction.base is not None  # only a change of an index can find that nothing is to be changed
            transaction.abandon()
            unchanged = replace(transaction.base, changes=Changes())
            return _report(transaction, unchanged, started, resumed=False)
        manifest = finish(transaction, options, progress)
        report = _report(transaction, manifest, started, resumed=transaction.resumed)
        return replace(report, notices=options.notices)


def _report(transaction: Transaction, manifest: Manifest, started: float, *, resumed: bool) -> Report:
    counts = dataclasses.asdict(manifest.counts)
    del counts["characters"], counts["words"]
    return Report(
        path=transaction.root,
        version=manifest.version,
        rejected_file=manifest.rejected_file(transaction.root),
        indexes={kind: manifest.tiers_of(kind) for kind in manifest.encoding.kinds},
        seconds=time.monotonic() - started,
        resumed=resumed,
        **counts,
        **dataclasses.asdict(manifest.changes),
    )
