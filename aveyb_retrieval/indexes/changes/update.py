"""Changes of an existing index: add, upsert and delete documents.

Each makes a new version and survives being killed. The store of the new version begins as a copy of the old one and
shards are shared by hard links, so a change costs the copying of the store and the FAISS files, but never encodes
again what is there already.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.input.documents import MAX_LINE, FieldNames
from aveyb_retrieval.indexes.input.reading import Reading
from aveyb_retrieval.indexes.model import Model, cutting, keeping_tokens, load_model, source_of
from aveyb_retrieval.indexes.store.manifest import read_manifest
from aveyb_retrieval.indexes.types import Progress, silent
from aveyb_retrieval.indexes.changes.build import OnError, describe_job, ingest_corpus
from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, run_change
from aveyb_retrieval.indexes.changes.selection import Selection
from aveyb_retrieval.indexes.changes.settings import Settings
from aveyb_retrieval.indexes.changes.source import ModelSource, PrecomputedSource, Vectors, VectorSource, open_vectors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

    from aveyb_retrieval.indexes.input.corpus import Source
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.changes.transaction import Job, Transaction


class InsertOptions(TypedDict, total=False):
    """Options of `add_documents` and `upsert_documents`; all as in `build_index`."""

    vectors: Vectors | None
    model: Model
    id_field: str | None
    title_field: str
    text_field: str
    on_error: OnError
    max_line: int
    encoding: str | None
    types: Mapping[str, str] | None
    restart: bool
    device: str
    precision: str
    progress: Progress


def add_documents(
    corpus: Source | Sequence[str | Path] | None, root: str | Path, **options: Unpack[InsertOptions]
) -> Report:
    """Add documents with new ids to the index at `root`. The options (`InsertOptions`) are those of `build_index`.

    `corpus` may be None where `vectors` are shards, which hold the documents.

    Raises:
        InputError: an id is in the index already (use `upsert_documents`), or the corpus is not usable.
        IndexFormatError: there is no index, or the model is not the one that made it.
    """
    return _insert("add", corpus, root, **options)


def upsert_documents(
    corpus: Source | Sequence[str | Path] | None, root: str | Path, **options: Unpack[InsertOptions]
) -> Report:
    """Add documents, replacing those whose ids are in the index already. Options and errors are `add_documents`'.

    An unchanged document is not encoded again (its metadata are replaced); one that grew is encoded from its first
    passage that changed.
    """
    return _insert("upsert", corpus, root, **options)


def delete_documents(
    root: str | Path,
    ids: Sequence[str] = (),
    *,
    where: Filter | None = None,
    missing_ok: bool = False,
    restart: bool = False,
    progress: Progress = silent,
) -> Report:
    """Remove the documents with these ids, and those that satisfy a filter.

    Raises:
        InputError: an id is not in the index (unless `missing_ok`).
        ConfigError: neither ids nor a filter are given.
        IndexFormatError: there is no index.
    """
    chosen = Selection("delete", ids, where, missing_ok=missing_ok)
    job: Job = {"command": "delete", **chosen.describe()}

    def work(transaction: Transaction, settings: Settings) -> FinishOptions | None:
        store = transaction.store
        if store.get("consumed"):  # by the interrupted run that this one continues
            return FinishOptions(settings)
        with store.transaction():
            docs = chosen.numbers(transaction)
            for doc in docs:
                store.remove_document(doc, transaction.version)
            store.put("consumed", 1)
            store.put("changes", {"deleted": len(docs)})
        return FinishOptions(settings) if docs else None

    return run_change(root, job, work, restart=restart, progress=progress)


def _insert(
    mode: Literal["add", "upsert"],
    corpus: Source | Sequence[str | Path] | None,
    root: str | Path,
    *,
    vectors: Vectors | None = None,
    model: Model = None,
    id_field: str | None = None,
    title_field: str = "title",
    text_field: str = "text",
    on_error: OnError = "stop",
    max_line: int = MAX_LINE,
    encoding: str | None = None,
    types: Mapping[str, str] | None = None,
    restart: bool = False,
    device: str = "cpu",
    precision: str = "float32",
    progress: Progress = silent,
) -> Report:
    settings = Settings.of(read_manifest(root))
    reading = Reading(FieldNames(id_field, title_field, text_field), max_line, encoding, types or {})
    source: VectorSource
    documents: Any = corpus
    if vectors is not None:
        ready = open_vectors(vectors, corpus)
        source = PrecomputedSource(ready)
        documents = ready.documents() if corpus is None else corpus
    elif corpus is None:
        raise ConfigError("no corpus and no vectors: give at least one of them")
    else:
        source = open_model(settings, root, model, device=device, precision=precision)
    source.check_fits(settings, root)
    job = describe_job(mode, corpus, settings, on_error=on_error, reading=reading, vectors=source.describe())

    def work(transaction: Transaction, settings: Settings) -> FinishOptions:
        source.check_fits(settings, root)  # again: another process may have replaced the index meanwhile
        notices = ingest_corpus(
            transaction, settings, source, documents, reading, mode=mode, on_error=on_error, progress=progress
        )
        return FinishOptions(settings, notices=notices)

    return run_change(root, job, work, restart=restart, progress=progress)


def open_model(settings: Settings, root: str | Path, model: Model, *, device: str, precision: str) -> ModelSource:
    """Open the model of an index as the source of a change: the one given, or the one that made the index.

    Raises:
        ConfigError: the index was made from ready-made vectors.
    """
    if model is None and settings.model is None:
        raise ConfigError(f"{root}: made from ready-made vectors; add documents with vectors of the same model")
    wanted = source_of(settings.model_source, settings.model) if model is None else model
    loaded = isinstance(wanted, (str, Path)) or wanted is None
    limit = settings.max_tokens if loaded else None
    embedder = load_model(wanted, device=device, precision=precision, max_tokens=limit)
    return ModelSource(keeping_tokens(cutting(embedder, settings.passage_size), settings.token_codec))
