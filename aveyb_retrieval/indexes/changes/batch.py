"""Several changes in one commit: they are seen together or not at all."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Literal

from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, run_change
from aveyb_retrieval.indexes.changes.ingest import Ingestion
from aveyb_retrieval.indexes.changes.metadata import MetadataChange
from aveyb_retrieval.indexes.changes.selection import Selection
from aveyb_retrieval.indexes.changes.update import open_model, remove_selected
from aveyb_retrieval.indexes.encode_options import InsertOptions, check_options, reading_of
from aveyb_retrieval.indexes.input.corpus import Source, read_corpus
from aveyb_retrieval.indexes.store.manifest import read_manifest
from aveyb_retrieval.indexes.types import silent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.changes.transaction import Transaction
    from aveyb_retrieval.indexes.model import Model
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.store.tables import Tables


class Batch:
    """Changes that wait for `commit`, made in the order in which they were given; `report` then tells of them."""

    report: Report

    def __init__(self, root: str | Path, model: Model) -> None:
        self._root = root
        self._model = model
        self._steps: list[Callable[[Transaction], object]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, documents: Source, **options: Any) -> None:
        """Add documents with new ids, later; options of reading as in `add_documents`."""
        self._insert("add", documents, options)

    def upsert(self, documents: Source, **options: Any) -> None:
        """Add or replace documents, later; options of reading as in `upsert_documents`."""
        self._insert("upsert", documents, options)

    def delete(self, ids: Sequence[str] = (), *, where: Filter | None = None, missing_ok: bool = False) -> None:
        """Remove documents, later."""
        chosen = Selection("delete", ids, where, missing_ok=missing_ok)
        self._steps.append(lambda transaction: remove_selected(transaction, chosen))

    def update_metadata(
        self,
        changes: Mapping[str, Any],
        ids: Sequence[str] = (),
        *,
        where: Filter | None = None,
        remove: Sequence[str] = (),
        missing_ok: bool = False,
    ) -> None:
        """Set metadata fields, later."""
        change = MetadataChange(changes, Selection("update_metadata", ids, where, missing_ok=missing_ok), remove)
        self._steps.append(change.apply)

    def _insert(self, mode: Literal["add", "upsert"], documents: Source, options: dict[str, Any]) -> None:
        options = check_options(options, InsertOptions, mode)
        reading, on_error = reading_of(options), options.get("on_error", "auto")

        def step(transaction: Transaction) -> None:
            source = open_model(transaction.state.encoding, self._root, {"model": self._model})
            source.check_fits(transaction.state.encoding, self._root)
            transaction.state.consumed, transaction.state.digest = 0, ""  # an input of its own
            Ingestion(transaction, source, mode=mode, on_error=on_error).run(read_corpus(documents, reading))

        self._steps.append(step)

    def commit(self, *, before: Tables | None = None) -> Report:
        """Make all changes, as one version.

        Raises:
            AveyBError: one of them cannot be made; none was.
        """
        read_manifest(self._root)

        def work(transaction: Transaction) -> FinishOptions | None:
            for step in self._steps:
                step(transaction)
            return FinishOptions() if self._steps else None

        # such a change is never continued: nobody else has its documents
        job = {"command": "batch", "token": secrets.token_hex(8)}
        self.report = run_change(self._root, job, work, progress=silent, before=before)
        return self.report
