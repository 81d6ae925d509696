"""The second half of a change: indexes of words, FAISS files that are due, and the new version shown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.nearest import build
from aveyb_retrieval.indexes.store import files
from aveyb_retrieval.indexes.store.dataset import WORDS
from aveyb_retrieval.indexes.store.directory import FAISS
from aveyb_retrieval.indexes.store.vectors import StoredVectors

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.changes.change import FinishOptions
    from aveyb_retrieval.indexes.changes.transaction import Transaction
    from aveyb_retrieval.indexes.store.manifest import Manifest
    from aveyb_retrieval.indexes.types import Kind, Progress


def finish(transaction: Transaction, options: FinishOptions, progress: Progress) -> Manifest:
    """Bring the indexes of a change up to date as far as that is due, and show the new version."""
    state, tables = transaction.state, transaction.tables
    transaction.whole = options.whole
    new = transaction.base is None
    if new or not options.reindex:  # indexes of words that are made again may be damaged: nothing merges these before
        for dataset in tables.all.values():
            dataset.settle(whole=options.whole or new)  # a build leaves a fragment for each batch
    if new or options.reindex:
        progress("indexing words", 0, None, 0)
        for dataset, column in ((tables.documents, "id"), (tables.texts, WORDS), (tables.passages, WORDS)):
            dataset.index(column)
    for kind in state.encoding.kinds:
        _bring_up_to_date(transaction, kind, progress, rebuild=options.rebuild)
    if options.retune and state.recall is not None:
        state.tiers = [
            build.tune_tier(transaction.root, tier, StoredVectors(tables, tier.kind, state.encoding.dim), state.recall)
            for tier in state.tiers
        ]
    return transaction.publish()


def _bring_up_to_date(transaction: Transaction, kind: Kind, progress: Progress, *, rebuild: bool) -> None:
    state, encoding = transaction.state, transaction.state.encoding
    vectors = StoredVectors(transaction.tables, kind, encoding.dim)
    live = len(transaction.tables.of(kind))
    due = build.plan(state.tiers, kind, state.next_doc, live, state.index, encoding.dim, rebuild=rebuild)
    if not due:
        if rebuild:  # what is left is searched exactly
            state.tiers = [tier for tier in state.tiers if tier.kind != kind]
        return
    transaction.save()  # what was encoded is not lost where FAISS takes its time
    (transaction.root / FAISS).mkdir(exist_ok=True)
    files.fsync_folder(transaction.root)
    for number, (first, stop) in enumerate(due):
        name = f"{FAISS}/{kind}-{state.name}-{number}.faiss"
        count = len(transaction.tables.numbers(kind, first, stop))
        try:
            tier, info = build.make_tier(
                transaction.root, name, kind, first, stop, vectors, count, state.index, state.recall, progress
            )
        except ConfigError:
            transaction.allow_other_index()
            raise
        transaction.wrote(name, info)
        kept = [t for t in state.tiers if t.kind != kind or not (first <= t.first and t.stop <= stop)]
        state.tiers = [*kept, replace(tier, dead=0)]
