"""Changes of an existing index: add, upsert and delete documents.

Each makes a new version and survives being killed. The store of the new version begins as a copy of the old one and
shards are shared by hard links, so a change costs the copying of the store and the FAISS files, but never encodes
again what is there already.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.index.input.documents import MAX_LINE
from aveyb_retrieval.index.model import Model, cutting, keeping_tokens, load_model
from aveyb_retrieval.index.storage.manifest import read_manifest
from aveyb_retrieval.index.types import Progress, silent
from aveyb_retrieval.index.write.build import OnError, describe_job, ingest_corpus
from aveyb_retrieval.index.write.change import FinishOptions, Report, run_change
from aveyb_retrieval.index.write.selection import Selection
from aveyb_retrieval.index.write.settings import Settings
from aveyb_retrieval.index.write.source import ModelSource, PrecomputedSource, Vectors, VectorSource, open_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

    from aveyb_retrieval.index.input.corpus import Source
    from aveyb_retrieval.index.input.documents import FieldNames
    from aveyb_retrieval.index.storage.filters import Filter
    from aveyb_retrieval.index.write.transaction import Job, Transaction


class InsertOptions(TypedDict, total=False):
    """Options of `add_documents` and `upsert_documents`; all as in `build_index`."""

    vectors: Vectors | None
    model: Model
    fields: FieldNames | None
    on_error: OnError
    max_line: int
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
        return FinishOptions(settings) if docs else None

    return run_change(root, job, work, restart=restart, progress=progress)


def _insert(
    mode: Literal["add", "upsert"],
    corpus: Source | Sequence[str | Path] | None,
    root: str | Path,
    *,
    vectors: Vectors | None = None,
    model: Model = None,
    fields: FieldNames | None = None,
    on_error: OnError = "stop",
    max_line: int = MAX_LINE,
    restart: bool = False,
    device: str = "cpu",
    precision: str = "float32",
    progress: Progress = silent,
) -> Report:
    settings = Settings.of(read_manifest(root))
    source: VectorSource
    documents: Any = corpus
    if vectors is not None:
        ready = open_vectors(vectors, corpus)
        source = PrecomputedSource(ready)
        documents = ready.documents() if corpus is None else corpus
    elif corpus is None:
        raise ConfigError("no corpus and no vectors: give at least one of them")
    elif model is None and settings.model is None:
        raise ConfigError(f"{root}: made from ready-made vectors; add documents with vectors of the same model")
    else:
        wanted = settings.model_source if model is None else model
        loaded = isinstance(wanted, (str, Path)) or wanted is None
        limit = settings.max_tokens if loaded else None
        embedder = load_model(wanted, device=device, precision=precision, max_tokens=limit)
        source = ModelSource(keeping_tokens(cutting(embedder, settings.passage_size), settings.token_codec))
    source.check_fits(settings, root)
    job = describe_job(mode, corpus, settings, on_error=on_error, fields=fields, vectors=source.describe())

    def work(transaction: Transaction, settings: Settings) -> FinishOptions:
        source.check_fits(settings, root)  # again: another process may have replaced the index meanwhile
        ingest_corpus(
            transaction,
            settings,
            source,
            documents,
            fields,
            mode=mode,
            on_error=on_error,
            max_line=max_line,
            progress=progress,
        )
        return FinishOptions(settings)

    return run_change(root, job, work, restart=restart, progress=progress)
