"""Changes of an existing index: add, upsert and delete documents. Each costs what it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.changes.build import describe_job, ingest_corpus
from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, once, run_change
from aveyb_retrieval.indexes.changes.selection import Selection
from aveyb_retrieval.indexes.changes.source import ModelSource, PrecomputedSource, open_vectors
from aveyb_retrieval.indexes.encode_options import InsertOptions, check_options, reading_of
from aveyb_retrieval.indexes.model import Model, cutting, keeping_tokens, limiting, load_model, load_recorded, pooling
from aveyb_retrieval.indexes.store.manifest import read_manifest
from aveyb_retrieval.indexes.types import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

    from aveyb_retrieval.indexes.changes.transaction import Job, Transaction
    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.input.corpus import Source
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.store.tables import Tables


def add_documents(
    corpus: Source | Sequence[str | Path] | None, root: str | Path, **options: Unpack[InsertOptions]
) -> Report:
    """Add documents with new ids to the index at `root`. For options see `InsertOptions` and `ReadOptions`.

    `corpus` may be None where `vectors` are shards, which hold the documents.

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
