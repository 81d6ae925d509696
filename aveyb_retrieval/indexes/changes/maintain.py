"""Changes that keep every document: compact an index, tune its search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, run_change
from aveyb_retrieval.indexes.encode_options import check_recall
from aveyb_retrieval.indexes.types import Progress, silent

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.changes.transaction import Transaction


def compact_index(root: str | Path, *, restart: bool = False, progress: Progress = silent) -> Report:
    """Merge what changes have left in pieces, give back the room of removed documents, make FAISS files anew.

    Changes merge by themselves what they must; this does the rest at once.

    Raises:
        IndexFormatError: there is no index.
        IndexLockedError: another process is writing.
    """

    def work(transaction: Transaction) -> FinishOptions:
        progress("merging", 0, None, 0)
        return FinishOptions(whole=True, rebuild=True)

    return run_change(root, {"command": "compact"}, work, restart=restart, progress=progress)


def tune_index(root: str | Path, recall: float, *, restart: bool = False, progress: Progress = silent) -> Report:
    """Find the search settings that reach a recall, measured against exact search on vectors of the index.

    The report's `indexes` hold the settings, the recall that was reached, and the measured curve.

    Raises:
        ConfigError: `recall` is not above 0 and at most 1.
        IndexFormatError: there is no index.
    """
    check_recall(recall)

    def work(transaction: Transaction) -> FinishOptions:
        transaction.state.recall = recall
        return FinishOptions(retune=True)

    return run_change(root, {"command": "tune", "recall": recall}, work, restart=restart, progress=progress)
