"""Changes of documents: add, upsert, delete and metadata, each alone or several in one version."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from aveyb_retrieval.documents.corpus import Source, read_corpus
from aveyb_retrieval.documents.records import check_metadata, metadata_json
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.changes.build import describe_job, ingest_corpus
from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, once, run_change
from aveyb_retrieval.indexes.changes.ingest import Ingestion, ModelSource, PrecomputedSource, open_vectors
from aveyb_retrieval.indexes.model import (
    InsertOptions,
    Model,
    check_options,
    cutting,
    keeping_tokens,
    limiting,
    load_model,
    load_recorded,
    pooling,
    reading_of,
)
from aveyb_retrieval.indexes.store import filters
from aveyb_retrieval.indexes.store.filters import OWN, warn_of_filter
from aveyb_retrieval.indexes.store.manifest import read_manifest
from aveyb_retrieval.indexes.store.numbering import check_ids
from aveyb_retrieval.indexes.types import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Unpack

    from aveyb_retrieval.indexes.changes.transaction import Job, Transaction
    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.store.tables import Tables


class Selection:
    """The documents with these ids, and those that satisfy a filter.

    Raises:
        ConfigError: neither is given.
        InputError: `ids` is not a list of strings.
    """

    def __init__(self, command: str, ids: Sequence[str], where: Filter | None, *, missing_ok: bool) -> None:
        listed = check_ids(ids)
        if not listed and where is None:
            raise ConfigError(f"{command}: give ids or a filter; an empty filter {{}} is for every document")
        self._ids = sorted(set(listed))
        self._where = where
        self._missing_ok = missing_ok

    def describe(self) -> dict[str, Any]:
        """Identify the selection, so that an interrupted change never continues with another one."""
        return {
            "ids": hashlib.sha256(json.dumps(self._ids).encode()).hexdigest() if self._ids else None,
            "filter": filters.filter_key(self._where) if self._where is not None else None,
        }

    def numbers(self, transaction: Transaction) -> list[int]:
        """Return the numbers of the documents in a change, ascending.

        Raises:
            InputError: an id is not in the index, which was not said to be all right.
        """
        tables, docs = transaction.tables, set[int]()
        known = tables.find(self._ids)
        missing = next((i for i in self._ids if i not in known), None)
        if missing is not None and not self._missing_ok:
            raise InputError(f"{transaction.root}: no document has the id {missing!r}; nothing was changed")
        docs.update(doc for doc, _ in known.values())
        if self._where is not None:
            matching = tables.matching(self._where)
            docs.update(matching.tolist())
            if not len(matching):
                warn_of_filter(tables, self._where)
        return sorted(docs)


def update_metadata(
    root: str | Path,
    changes: Mapping[str, Any],
    ids: Sequence[str] = (),
    *,
    where: Filter | None = None,
    remove: Sequence[str] = (),
    missing_ok: bool = False,
    restart: bool = False,
    progress: Progress = silent,
    before: Tables | None = None,
) -> Report:
    """Set metadata fields of the documents with these ids, and of those that satisfy a filter.

    Fields that are not named stay as they are. `_id`, `title` and `text` are refused, as they are no metadata:
    `upsert_documents` changes them.

    Args:
        root: The index directory.
        changes: Fields and their new values, for every chosen document; a value replaces the old one as a whole.
        ids: Ids of documents.
        where: A filter; {} is for every document.
        remove: Names of fields to take away.
        missing_ok: Ignore ids that are not in the index.
        restart: Throw away the work of an interrupted change.
        progress: Called as the work goes on.
        before: The datasets at any version, if this process has them open.

    Raises:
        ConfigError: there is nothing to change, a field is both set and removed or is a document's own, or neither ids
            nor a filter are given.
        InputError: a value is not what JSON can hold, or an id is not in the index (unless `missing_ok`).
        IndexFormatError: there is no index.
        IndexLockedError: another process is writing.
    """
    change = MetadataChange(changes, Selection("update_metadata", ids, where, missing_ok=missing_ok), remove)
    progress("changing metadata", 0, None, 0)
    return run_change(root, change.job, once(change.apply), restart=restart, progress=progress, before=before)


class MetadataChange:
    """New values of fields, and fields to take away, for some documents.

    Raises:
        ConfigError: there is nothing to change, or a field is both set and removed, or is a document's own.
        InputError: a value is not what JSON can hold.
    """

    def __init__(self, changes: Mapping[str, Any], chosen: Selection, remove: Sequence[str] = ()) -> None:
        if isinstance(remove, str):
            raise ConfigError(
                f"update_metadata: remove={remove!r} is one string; give a list of fields, as [{remove!r}]"
            )
        if not changes and not remove:
            raise ConfigError(
                "update_metadata: nothing to change; give fields with their new values, or fields to remove"
            )
        if both := sorted(set(changes) & set(remove)):
            raise ConfigError(f"update_metadata: the field {both[0]!r} is both set and removed; name it once")
        if own := sorted({*changes, *remove} & {*OWN, "text"}):
            raise ConfigError(f"update_metadata: {own[0]!r} is a document's own, not metadata; upsert changes it")
        self._new = check_metadata(changes, "update_metadata")
        self._remove = frozenset(remove)
        self._chosen = chosen

    @property
    def job(self) -> Job:
        """What identifies it."""
        return {
            "command": "update-metadata",
            **self._chosen.describe(),
            "changes": hashlib.sha256(metadata_json(self._new).encode()).hexdigest(),
            "remove": sorted(self._remove),
        }

    def apply(self, transaction: Transaction) -> int:
        """Make it; return how many documents it concerned."""
        docs = self._chosen.numbers(transaction)
        transaction.rewrite(docs, self._changed)
        transaction.count(replaced=len(docs))
        return len(docs)

    def _changed(self, row: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in json.loads(row["metadata"]).items() if name not in self._remove}
        return {"metadata": metadata_json({**kept, **self._new})}


def add_documents(
    corpus: Source | Sequence[str | Path] | None, root: str | Path, **options: Unpack[InsertOptions]
) -> Report:
    """Add documents with new ids to the index at `root`. For options see `InsertOptions` and `ReadOptions`.

    `corpus` may be None where `vectors` are an index or several, which hold the documents.

    Raises:
        InputError: an id is in the index already (use `upsert_documents`), or the corpus is not usable.
        IndexFormatError: there is no index, or the model is not the one that made it.
    """
    return insert("add", corpus, root, options)


def upsert_documents(
    corpus: Source | Sequence[str | Path] | None, root: str | Path, **options: Unpack[InsertOptions]
) -> Report:
    """Add documents, replacing those whose ids are in the index already. Options and errors are `add_documents`'.

    An unchanged document is not encoded again (its metadata are replaced); one that grew is encoded from its first
    passage that changed.
    """
    return insert("upsert", corpus, root, options)


def delete_documents(
    root: str | Path,
    ids: Sequence[str] = (),
    *,
    where: Filter | None = None,
    missing_ok: bool = False,
    restart: bool = False,
    progress: Progress = silent,
    before: Tables | None = None,
) -> Report:
    """Remove the documents with these ids, and those that satisfy a filter.

    Raises:
        InputError: an id is not in the index (unless `missing_ok`).
        ConfigError: neither ids nor a filter are given.
        IndexFormatError: there is no index.
    """
    chosen = Selection("delete", ids, where, missing_ok=missing_ok)
    job: Job = {"command": "delete", **chosen.describe()}
    work = once(lambda transaction: remove_selected(transaction, chosen))
    return run_change(root, job, work, restart=restart, progress=progress, before=before)


def remove_selected(transaction: Transaction, chosen: Selection) -> int:
    """Remove the documents of a selection; return how many."""
    docs = chosen.numbers(transaction)
    transaction.remove(np.array(docs, dtype=np.int64))
    transaction.count(deleted=len(docs))
    return len(docs)


def insert(
    mode: Literal["add", "upsert"],
    corpus: Source | Sequence[str | Path] | None,
    root: str | Path,
    options: Mapping[str, Any],
    *,
    before: Tables | None = None,
    allow_empty: bool = False,
) -> Report:
    """Add or upsert documents; `before` are the datasets at any version, if this process has them open.

    With `allow_empty` a corpus without documents changes nothing; otherwise it is an InputError.
    """
    options = check_options(options, InsertOptions, f"{mode}_documents")
    encoding = read_manifest(root).encoding
    reading, on_error, progress = reading_of(options), options.get("on_error", "auto"), options.get("progress", silent)
    ready = open_vectors(options.get("vectors"), corpus)
    source = open_model(encoding, root, options) if ready is None else PrecomputedSource(ready)
    documents: Any = corpus if ready is None or corpus is not None else ready.documents()
    source.check_fits(encoding, root)
    job = describe_job(mode, corpus, encoding, on_error=on_error, reading=reading, vectors=source.describe())

    def work(transaction: Transaction) -> FinishOptions | None:
        source.check_fits(transaction.state.encoding, root)  # again: the index may have been replaced meanwhile
        notices = ingest_corpus(
            transaction,
            source,
            documents,
            reading,
            mode=mode,
            on_error=on_error,
            progress=progress,
            allow_empty=allow_empty,
        )
        return FinishOptions(notices=notices) if transaction.state.consumed else None

    return run_change(root, job, work, restart=options.get("restart", False), progress=progress, before=before)


def open_model(encoding: Encoding, root: str | Path, options: Mapping[str, Any]) -> ModelSource:
    """Open the model of an index as the source of a change: the one given, or the one that made the index.

    Raises:
        ConfigError: the index was made from ready-made vectors.
    """
    model: Model = options.get("model")
    loading: dict[str, Any] = {"device": options.get("device", "cpu"), "precision": options.get("precision", "auto")}
    if model is not None:
        embedder = load_model(model, **loading)
    elif encoding.model is not None:
        embedder = load_recorded(encoding.model_source, encoding.model, **loading)
    else:
        raise ConfigError(f"{root}: made from ready-made vectors; add documents with vectors of the same model")
    embedder = limiting(embedder, encoding.max_tokens)
    embedder = pooling(cutting(embedder, encoding.passage_size), encoding.funnel)
    return ModelSource(keeping_tokens(embedder, encoding.token_codec))


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
