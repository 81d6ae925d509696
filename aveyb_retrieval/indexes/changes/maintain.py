"""Changes that keep every document: compact an index, tune its search."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.store import directory
from aveyb_retrieval.indexes.store.manifest import FORMAT, GRANULARITIES
from aveyb_retrieval.indexes.store.vectors import open_table, write_shard
from aveyb_retrieval.indexes.store.store import Shard
from aveyb_retrieval.indexes.store.tokens import open_token_table, token_owner
from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind, Progress, silent
from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, run_change
from aveyb_retrieval.indexes.changes.ingest import BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.changes.settings import Settings
    from aveyb_retrieval.indexes.changes.transaction import Transaction


def compact_index(root: str | Path, *, restart: bool = False, progress: Progress = silent) -> Report:
    """Drop the vectors of removed documents, merge small shards, and rebuild the FAISS and full-text indexes.

    Raises:
        IndexFormatError: there is no index.
        IndexLockedError: another process is writing.
    """

    def work(transaction: Transaction, settings: Settings) -> FinishOptions:
        shards = list(_merged_shards(transaction, settings))
        with transaction.store.transaction():
            transaction.store.replace_shards(shards)
            transaction.store.put("consumed", 1)
        _unlink_unused(transaction, shards)
        transaction.store.compact()
        return FinishOptions(settings, rebuild=True)

    return run_change(root, {"command": "compact"}, work, restart=restart, progress=progress)


def tune_index(root: str | Path, recall: float, *, restart: bool = False, progress: Progress = silent) -> Report:
    """Find the search settings that reach a recall, measured against exact search on vectors of the index.

    The report's `indexes` hold the settings, the recall that was reached, and the measured curve.

    Raises:
        ConfigError: `recall` is not above 0 and at most 1.
        IndexFormatError: there is no index.
    """
    if not 0 < recall <= 1:
        raise ConfigError(f"recall={recall}: must be above 0 and at most 1")

    def work(transaction: Transaction, settings: Settings) -> FinishOptions:
        return FinishOptions(dataclasses.replace(settings, recall=recall), retune=True)

    return run_change(root, {"command": "tune", "recall": recall}, work, restart=restart, progress=progress)


def upgrade_index(root: str | Path, *, restart: bool = False, progress: Progress = silent) -> Report:
    """Bring an index of an older format up to date without encoding anything: passages get rows of their words.

    Every other change does this, too; an index that is up to date stays as it is.

    Raises:
        IndexFormatError: there is no index.
        IndexLockedError: another process is writing.
    """

    def work(transaction: Transaction, settings: Settings) -> FinishOptions | None:
        if transaction.base is not None and transaction.base.format == FORMAT:
            return None
        with transaction.store.transaction():
            transaction.store.put("consumed", 1)
        transaction.store.words.optimize()
        return FinishOptions(settings)

    return run_change(root, {"command": "upgrade"}, work, restart=restart, progress=progress)


def _merged_shards(transaction: Transaction, settings: Settings) -> Iterator[Shard]:
    """Write the live vectors into new shards of a good size. Interrupted, it is simply done again."""
    kinds = GRANULARITIES[settings.granularity]
    shards = transaction.store.shards()
    tables = {kind: open_table(transaction.folder, shards, kind, settings.dim) for kind in kinds}
    counts = transaction.store.counts()
    each = 4 * settings.dim * max(1, (counts.documents + counts.passages) // max(counts.documents, 1))
    codec = settings.token_codec
    tokens = None if codec is None else open_token_table(transaction.folder, shards, codec)
    if tokens is not None:
        each += tokens.rows * tokens.codec.row_bytes // max(counts.documents, 1)
    step = max(1, BATCH_BYTES // each)
    docs = transaction.store.live(0, 1 << 62)
    for start in range(0, len(docs), step):
        some = docs[start : start + step]
        ids: dict[Kind, IntArray] = {"document": some}
        if "passage" in kinds:
            ids["passage"] = transaction.store.passage_ids(some)
        vectors: dict[Kind, tuple[IntArray, FloatArray]] = {
            kind: (ids[kind], tables[kind].gather(ids[kind])) for kind in kinds
        }
        others = tokens.gather(ids[token_owner(kinds)], shared=True).tensors() if tokens is not None else None
        name = directory.shard_file(transaction.version, int(some[0]))
        info = write_shard(transaction.folder / name, vectors, settings.storage_dtype, others)
        yield Shard(int(some[0]), int(some[-1]), name, info.bytes, info.sha256)


def _unlink_unused(transaction: Transaction, shards: Sequence[Shard]) -> None:
    used = {shard.name for shard in shards}
    for path in (transaction.folder / directory.VECTORS).iterdir():
        if f"{directory.VECTORS}/{path.name}" not in used:
            path.unlink()
