"""The one flow of every change: build, add, upsert, delete, metadata, sync, compact and repair."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from aveyb_retrieval import files
from aveyb_retrieval.errors import BackendError, ConfigError
from aveyb_retrieval.indexes.changes.transaction import Job, Transaction, open_transaction
from aveyb_retrieval.indexes.model import WriteOptions, check_options, check_wait
from aveyb_retrieval.indexes.nearest import due_files
from aveyb_retrieval.indexes.nearest.faiss_file import can_make
from aveyb_retrieval.indexes.progress import shown
from aveyb_retrieval.indexes.store.manifest import FAISS, Changes, Manifest, Tier
from aveyb_retrieval.indexes.store.tables import StoredVectors

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.documents.records import Notice
    from aveyb_retrieval.indexes.changes.transaction import ChangeState
    from aveyb_retrieval.indexes.store.manifest import IndexDirectory
    from aveyb_retrieval.indexes.store.tables import Tables
    from aveyb_retrieval.indexes.types import Kind, Progress


logger = logging.getLogger(__name__)
_TABLES_AT_ONCE = 2  # indexed or merged beside each other: the words of each are whole in memory


def finish(transaction: Transaction, options: FinishOptions) -> Manifest:
    """Bring the indexes of a change up to date as far as that is due, and show the new version."""
    state, tables, progress = transaction.state, transaction.tables, transaction.progress
    transaction.whole = options.whole
    new = transaction.base is None
    indexed = new or options.reindex
    if indexed:
        progress("indexing words", 0, None, 0)
    merges_all = options.whole or new  # a build leaves a piece for each batch
    if new or not options.reindex:  # an index that is made again may be damaged
        tables.documents.settle(whole=merges_all)
    if indexed:
        tables.documents.index("id")
    for table in tables.rows.values():
        table.moved()
    # what takes long begins first
    tables_by_rows = sorted(tables.rows.values(), key=lambda table: -table.stored_rows)
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as threads:
        if indexed:
            lists = [index for table in tables_by_rows for index in table.words.values()]
            list(threads.map(lambda index: index.make(transaction), lists))
        run = threads.map if indexed else map
        list(run(lambda table: table.settle(transaction, whole=merges_all), tables_by_rows))
    for kind in state.encoding.kinds:
        _bring_up_to_date(transaction, kind, options)
    return transaction.publish()


def _bring_up_to_date(transaction: Transaction, kind: Kind, options: FinishOptions) -> None:
    state, encoding = transaction.state, transaction.state.encoding
    vectors = StoredVectors(transaction.tables, kind, encoding.dim)
    # where files are made anew, the counts may be wrong, too
    live = len(transaction.tables.numbers(kind)) if options.rebuild else state.counts.of(kind)
    due = due_files.plan(
        state.tiers, kind, state.next_doc, live, state.index, encoding.dim, rebuild=options.rebuild
    )
    makable = can_make(state.index)
    if due and not makable:
        logger.warning(
            "%s: without a GPU, new files of %ss are not made; a search goes on without them",
            FAISS,
            kind,
        )
    if not (due and makable):
        if options.rebuild and (makable or options.reindex):  # what is left is searched exactly
            state.tiers = [tier for tier in state.tiers if tier.kind != kind]
        return
    transaction.save()  # what was encoded is not lost where FAISS takes its time
    files.make_folder(transaction.root / FAISS)
    for number, (first, stop) in enumerate(due):
        name = f"{FAISS}/{kind}-{state.name}-{number}.faiss"
        count = len(transaction.tables.numbers(kind, first, stop))
        try:
            tier, info = due_files.make_tier(
                transaction.root,
                name,
                kind,
                first,
                stop,
                vectors,
                count,
                state.index,
                transaction.progress,
                options.device,
            )
        except (ConfigError, BackendError):
            # all is encoded: the next run may name another type
            state.job = {**state.job, "replaceable": ["index"]}
            transaction.save()
            raise
        transaction.wrote(name, info)
        other_tiers = [
            t for t in state.tiers if t.kind != kind or not (first <= t.first and t.stop <= stop)
        ]
        state.tiers = [*other_tiers, replace(tier, dead=0)]


@dataclass(frozen=True)
class Report:
    """The result of a change: the index it left behind, its counts, and how long this call took.

    `added`, `replaced`, `updated` (new metadata alone, not encoded again), `unchanged` (nothing is
    written), `renamed` and `deleted` count the documents that the change concerned, `rejected` what
    was left out because it is no document, which `rejected_file` lists.
    `notices` are files that were not read because of their kind, and parts of files that hold no
    text; `known` those that an earlier report told of. `indexes`
    describes the FAISS files of each kind of vector; a kind without any is searched exactly.
    `resumed` says whether the call continued an interrupted one.
    """

    path: str | Path
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
    updated: int = 0
    unchanged: int = 0
    renamed: int = 0
    deleted: int = 0
    notices: tuple[Notice, ...] = ()
    known: tuple[Notice, ...] = ()


@dataclass(frozen=True)
class FinishOptions:
    """How to finish: `whole` merges all pieces, `rebuild` makes FAISS files anew, `reindex` the
    indexes of words.

    `device`: where FAISS may train.
    """

    whole: bool = False
    rebuild: bool = False
    reindex: bool = False
    device: str = "cpu"
    notices: tuple[Notice, ...] = ()


Work = Callable[[Transaction], FinishOptions | None]
"""Brings the datasets of a transaction to their new state; None where there is nothing to change.
"""


def run_change(
    place: IndexDirectory,
    job: Job,
    work: Work,
    *,
    progress: Progress | None = None,
    restart: bool = False,
    wait: float = 0,
    state: ChangeState | None = None,
    before: Tables | None = None,
) -> Report:
    """Lock the index, begin or continue the change, do its work, bring indexes up to date, publish
    the new version.

    An interrupted run of the same `job` is continued; if it had published its version, there is
    nothing left to do. `state` is what an index built from nothing begins with, None where one is
    changed; `before` are the datasets at any version, if this process has them open. Without
    `progress` a notebook shows a bar. Raises
    IndexFormatError where there is no index to change, IndexLockedError where another process is
    writing, ConfigError where another change is unfinished.
    """
    started = time.monotonic()
    check_wait(wait)
    with (
        shown(progress) as show,
        open_transaction(
            place, job, state, restart=restart, wait=wait, before=before
        ) as transaction,
    ):
        transaction.progress = show
        if transaction.done is not None:
            return _report(transaction, transaction.done, started, resumed=True)
        options = work(transaction)
        if options is None:
            # only a change of an index can find that nothing is to be changed
            assert transaction.base is not None
            transaction.abandon()
            changes = Changes(unchanged=transaction.state.changes.unchanged)
            return _report(
                transaction, replace(transaction.base, changes=changes), started, resumed=False
            )
        report = _report(
            transaction,
            finish(transaction, options),
            started,
            resumed=transaction.resumed,
        )
        return replace(report, notices=options.notices)


def _report(
    transaction: Transaction, manifest: Manifest, started: float, *, resumed: bool
) -> Report:
    counts = dataclasses.asdict(manifest.counts)
    del counts["characters"], counts["words"]
    return Report(
        path=transaction.place,
        version=manifest.version,
        rejected_file=manifest.rejected_file(transaction.index_dir.shown_root),
        indexes={kind: manifest.tiers_of(kind) for kind in manifest.encoding.kinds},
        seconds=time.monotonic() - started,
        resumed=resumed,
        **counts,
        **dataclasses.asdict(manifest.changes),
    )


def compact(place: IndexDirectory, **options: Unpack[WriteOptions]) -> Report:
    """Merge what changes have left in pieces, give back the room of removed documents, make FAISS
    files anew.

    Changes merge by themselves what they must; this does the rest at once, and nothing where no
    change came after the last compaction. Raises IndexFormatError
    where there is no index, IndexLockedError where another process is writing.
    """
    options = check_options(options, WriteOptions, "compact")

    def work(transaction: Transaction) -> FinishOptions | None:
        if _is_compact(transaction):
            transaction.whole = True  # what readers let go of since then is deleted
            return None
        transaction.progress("merging", 0, None, 0)
        return FinishOptions(whole=True, rebuild=True)

    return run_change(place, {"command": "compact"}, work, **options)


def _is_compact(transaction: Transaction) -> bool:
    """Whether the visible version is that of a compaction, with all FAISS files it should have."""
    base, state = transaction.base, transaction.state
    if base is None or base.job.get("command") != "compact":
        return False
    return all(
        [(tier.first, tier.stop) for tier in base.tiers_of(kind)]
        == due_files.plan(
            base.tiers,
            kind,
            base.next_doc,
            base.counts.of(kind),
            base.index,
            state.encoding.dim,
            rebuild=True,
        )
        for kind in state.encoding.kinds
    )
