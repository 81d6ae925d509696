"""Build an index, and change its documents in a `Batch`: add, upsert, delete, metadata.

A batch is one version.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from aveyb_retrieval.documents.corpus import Source, count_items, read_corpus, source_names
from aveyb_retrieval.documents.records import (
    Edits,
    Notice,
    check_metadata,
    metadata_json,
    path_text,
)
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, run_change
from aveyb_retrieval.indexes.changes.ingest import (
    Ingestion,
    ModelSource,
    PrecomputedSource,
    VectorSource,
    open_vectors,
    watch_pictures,
)
from aveyb_retrieval.indexes.changes.language_notices import language_notices
from aveyb_retrieval.indexes.changes.transaction import ChangeState
from aveyb_retrieval.indexes.encoding import WORD_RULES, Encoding
from aveyb_retrieval.indexes.model import (
    BuildOptions,
    InsertOptions,
    Model,
    WriteOptions,
    as_encoded,
    check_options,
    load_as_asked,
    load_model,
    load_recorded,
    reading_of,
    word_rules,
    writing_of,
)
from aveyb_retrieval.indexes.nearest.faiss_file import AUTO, NONE, ONE_LIST_VECTORS, chosen, create
from aveyb_retrieval.indexes.store import filters
from aveyb_retrieval.indexes.store.filters import OWN, warn_of_filter
from aveyb_retrieval.indexes.store.manifest import Changes
from aveyb_retrieval.indexes.store.place import open_directory, read_manifest
from aveyb_retrieval.indexes.types import check_ids, silent
from aveyb_retrieval.indexes.vectors import StoredShards, check_share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aveyb_retrieval.documents.reading import Reading
    from aveyb_retrieval.documents.records import OnError
    from aveyb_retrieval.indexes.changes.transaction import Job, Transaction
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.store.manifest import IndexDirectory
    from aveyb_retrieval.indexes.store.tables import Tables


def build_index(
    corpus: Source | None, out: str | Path | IndexDirectory, **options: Unpack[BuildOptions]
) -> Report:
    """Build an index directory at `out`. Killed at any moment before it is visible, the same call
    continues it.

    A continued build reads `corpus` again from its start (a generator that is used up will not do),
    encodes only what is missing, and builds the FAISS files anew. Killed after its index became
    visible, a build is complete: the same call then says that an index is there. One that is there
    stays visible to its readers until the new one is complete. Options are those of `BuildOptions`,
    `ReadOptions` and `EncodeOptions`.

    `corpus` is a file, folder, glob, "hf:owner/name" for a Hugging Face dataset, "-" for standard
    input, a list of `Path`, or an iterable of texts or of mappings with `text`, optionally `_id`
    (or `id`) and `title`; everything else is metadata. A document without an id gets one that is
    made of its content. Folders hold PDF, DOCX, HTML, EPUB, Markdown and text files. None only with
    `vectors` or `from_index`.

    Raises ConfigError where an option is unknown or out of range, `out` exists already, or an
    interrupted change has other arguments; InputError where the corpus holds something that is no
    document, or no documents at all; IndexLockedError where another process is writing to `out`.

    >>> build_index([{"_id": "lease", "text": "A tenant gives three months' notice.", "year": 2026}], "new").documents
    1
    """  # noqa: E501
    options = check_options(options, BuildOptions, "build_index")
    reading = reading_of(options)
    index_dir, overwrite = open_directory(out), options.get("overwrite", False)
    check_target(index_dir, overwrite)
    index = options.get("index", AUTO)
    source, encoding, documents = _open_source(corpus, index_dir, options)
    if index not in (AUTO, NONE):
        create(
            chosen(index, ONE_LIST_VECTORS)[0], encoding.dim
        )  # what FAISS does not know fails now
    on_error = options.get("on_error", "auto")
    job = describe_job(
        "build", corpus, encoding, on_error=on_error, reading=reading, vectors=source.describe()
    )
    if (old := options.get("from_index")) is not None:
        job["from"] = StoredShards(old).describe()
    job["index"] = index
    share = check_share(options["share"]) if "share" in options else None
    if share is not None:
        job["share"] = list(share)

    def work(transaction: Transaction) -> FinishOptions:
        # again: another process may have built here before this one got the lock
        check_target(index_dir, overwrite)
        notices = ingest_corpus(transaction, source, documents, reading, "add", options, share)
        return FinishOptions(notices=notices, device=options.get("device", "cpu"))

    state = ChangeState(
        job,
        None,
        1,
        secrets.token_hex(4),
        encoding.as_seen_from(index_dir.location),
        index,
        reading=reading.of_folder(),
    )
    return run_change(index_dir, job, work, state=state, **writing_of(options))


_OF_PASSAGES = ("passage_tokens", "passage_overlap", "late")


def _open_source(
    corpus: Source | None, out: IndexDirectory, options: Mapping[str, Any]
) -> tuple[VectorSource, Encoding, Any]:
    """Open what the vectors of a build come from: (source, what it makes, the documents)."""
    if (old := options.get("from_index")) is not None:
        if corpus is not None or options.get("vectors") is not None:
            raise ConfigError(
                f"from_index={str(old)!r}: it holds the documents; leave the corpus and the"
                " vectors out"
            )
        stored = StoredShards(old)
        embedder, encoding = load_as_asked(options)
        stored_rules: dict[str, Any] = {
            name: getattr(stored.encoding, name) for name in WORD_RULES if name not in options
        }
        return ModelSource(embedder), replace(encoding, **stored_rules), stored.texts()
    ready = open_vectors(options.get("vectors"), corpus)
    if ready is None:
        embedder, encoding = load_as_asked(options)
        return ModelSource(embedder), encoding, corpus
    tokens, granularity = options.get("token_vectors"), options.get("granularity", "both")
    if tokens is not None:
        raise ConfigError(
            f"token_vectors={tokens!r} with ready-made vectors: there is no model to make them"
        )
    named = load_as_asked(options)[1] if options.get("model") is not None else None
    if named is not None and named.dim != ready.dim:
        raise ConfigError(
            f"vectors of dimension {ready.dim}, but the model {named.model and named.model['name']}"
            f" makes {named.dim}; give the model that made them, or none"
        )
    if isinstance(ready, StoredShards):
        encoding = _encoding_of_shards(ready, named, options)
        encoding.check_takes(ready.encoding, out, ready.name)
    elif granularity != "document":
        raise ConfigError(
            f"granularity {granularity!r} with ready-made vectors: they are one per document, use"
            " 'document'"
        )
    else:
        for name in _OF_PASSAGES:
            if name in options:
                raise ConfigError(
                    f"{name}={options[name]!r} with ready-made vectors: they are one per document,"
                    " and no passages are cut"
                )
        dtype = options.get("storage_dtype", "float32")
        encoding = named or Encoding(
            None, None, ready.dim, "document", storage_dtype=dtype, **word_rules(options)
        )
    return PrecomputedSource(ready), encoding, ready.documents() if corpus is None else corpus


def _encoding_of_shards(
    shards: StoredShards, named: Encoding | None, options: Mapping[str, Any]
) -> Encoding:
    """What an index of stored documents says of its vectors: what they say, and what was asked for
    where it may be.
    """
    made = shards.encoding
    for name in (*_OF_PASSAGES, "max_tokens"):
        option = options.get(name)
        if option is not None and option != getattr(made, name):
            raise ConfigError(
                f"{name}={option!r}: the documents of {shards.name} were encoded with"
                f" {getattr(made, name)!r}; leave it out, or build that again"
            )
    chosen = {name: options[name] for name in ("granularity", "storage_dtype") if name in options}
    if (
        made.token_vectors is not None
        and chosen.get("granularity", made.granularity) != made.granularity
    ):
        raise ConfigError(
            f"granularity={chosen['granularity']!r}: {shards.name} keeps token vectors with"
            f" granularity {made.granularity!r}; leave it out"
        )
    chosen |= word_rules(options)
    if named is not None:
        chosen |= {"model": named.model, "model_source": named.model_source}
    return replace(made, **chosen)


def describe_job(
    command: str,
    corpus: Source | None,
    encoding: Encoding,
    *,
    on_error: OnError,
    reading: Reading,
    vectors: str | None = None,
) -> Job:
    """What an interrupted change is compared with before it is continued."""
    sources = None if corpus is None else source_names(corpus)
    names = [path_text(source) for source in sources] if sources else "documents from Python"
    return {
        "command": command,
        "corpus": None if corpus is None else names,
        **encoding.comparable(),
        "vectors": vectors,
        **reading.describe(),
        "on_error": on_error,
    }


def ingest_corpus(
    transaction: Transaction,
    source: VectorSource,
    corpus: Source,
    reading: Reading,
    mode: Literal["add", "upsert"],
    options: Mapping[str, Any],
    share: tuple[int, int] | None = None,
) -> tuple[Notice, ...]:
    """Read a corpus (or its share) into a transaction, batch by batch; returns what is to be
    reported of it.

    Of the options `on_error` and `allow_empty` count here.
    """
    on_error, allow_empty = options.get("on_error", "auto"), options.get("allow_empty", False)
    total = None if transaction.progress is silent else count_items(corpus, reading)
    ingestion = Ingestion(
        transaction,
        source,
        mode=mode,
        on_error=on_error,
        share=share,
        total=total,
    )
    items = ingestion.run(read_corpus(corpus, reading, watch_pictures(transaction.progress)))
    rejected = ingestion.first_rejected
    if items == 0 and not allow_empty:
        raise InputError("the input holds no documents: nothing to index")
    if transaction.state.counts.documents == 0 and not allow_empty and share is None:
        first = "" if rejected is None else f"; the first: {rejected.location}: {rejected.reason}"
        raise InputError(f"none of the {items:,} items of the input is a document{first}")
    if isinstance(source, PrecomputedSource):
        source.check_all_used(items)
    transaction.state.left_out = transaction.state.left_out | ingestion.left_out
    transaction.state.ocr_tries = transaction.state.ocr_tries | ingestion.ocr_tries
    if transaction.base is None:
        ingestion.notices += language_notices(transaction)
    return tuple(ingestion.notices)


def check_target(index_dir: IndexDirectory, overwrite: bool) -> None:
    """Raise ConfigError where a build must not write."""
    root = index_dir.root
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{index_dir}: is a file; give the path of a folder for the index")
    if index_dir.current() is not None:
        if not overwrite:
            raise ConfigError(
                f"{index_dir}: an index is already there; replace it with --overwrite"
                " (overwrite=True)"
            )
    elif (
        not index_dir.is_copy
        and root.is_dir()
        and not index_dir.lock.exists()
        and any(root.iterdir())
    ):
        raise ConfigError(
            f"{index_dir}: a folder that is not empty and not an index; choose another one"
        )


@dataclass(frozen=True)
class _Step:
    """One of the changes of a batch; `apply` returns what is to be reported.

    `at_once` says that it is made as a whole: a run that continues an interrupted one need not look
    at it again.
    """

    job: Job
    apply: Callable[[Transaction], Sequence[Notice]]
    at_once: bool = True


class Batch:
    """Changes that wait for `commit`, made in the order in which they were given; `report` then
    says what they did.

    >>> batch = Batch("handbook")
    >>> batch.upsert([{"_id": "valve", "text": "Close the valve first."}])
    >>> batch.commit().added
    1
    """

    report: Report

    def __init__(
        self,
        root: str | Path | IndexDirectory,
        model: Callable[[], Model] | None = None,
        *,
        before: Tables | None = None,
        device: str = "cpu",
        **options: Unpack[WriteOptions],
    ) -> None:
        """Begin; `model` gives the model of documents that are added (None: the one that made the
        index).

        `before` are the datasets at any version, if this process has them open; FAISS may train on
        `device`. For options see `WriteOptions`.
        """
        self._directory = open_directory(root)
        self._model, self._before, self._options = model, before, options
        self._steps: list[_Step] = []
        self._device = device

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, documents: Source, **options: Any) -> None:
        """Add documents with new ids, later.

        Options are those of `InsertOptions` and `ReadOptions`. `documents` may be None where
        `vectors` are an index or several, which hold the documents.
        """
        self.insert("add", documents, options)

    def upsert(self, documents: Source, **options: Any) -> None:
        """Add documents, later, and replace those whose ids are in the index already; options are
        those of `add`.
        """
        self.insert("upsert", documents, options)

    def insert(
        self,
        mode: Literal["add", "upsert"],
        corpus: Any,
        options: Mapping[str, Any],
        *,
        allow_empty: bool = True,
    ) -> None:
        """Add or upsert a corpus, later; one without documents changes nothing, or is an
        InputError.
        """
        brings_vectors = options.get("vectors") is not None
        own = {} if self._model is None or brings_vectors else {"model": self._model()}
        options = check_options({**own, **options}, InsertOptions, mode)
        reading, on_error = reading_of(options), options.get("on_error", "auto")
        self._device = options.get("device", self._device)
        encoding, ready = (
            read_manifest(self._directory).encoding,
            open_vectors(options.get("vectors"), corpus),
        )
        source = (
            open_model(encoding, self._directory, options)
            if ready is None
            else PrecomputedSource(ready)
        )
        documents: Any = corpus if ready is None or corpus is not None else ready.documents()
        source.check_fits(encoding, self._directory)
        taking = {**options, "allow_empty": allow_empty}
        first = not self._steps
        check_folder = _folder_check(corpus)

        def apply(transaction: Transaction) -> Sequence[Notice]:
            check_folder()
            # again: the index may have been replaced
            source.check_fits(transaction.state.encoding, self._directory)
            if not first:
                transaction.state.consumed, transaction.state.digest = 0, ""  # an input of its own
            return ingest_corpus(transaction, source, documents, reading, mode, taking)

        job = describe_job(
            mode, corpus, encoding, on_error=on_error, reading=reading, vectors=source.describe()
        )
        self._steps.append(_Step(job, apply, at_once=False))

    def delete(
        self, ids: Sequence[str] = (), *, where: Filter | None = None, missing_ok: bool = False
    ) -> None:
        """Remove the documents with these ids, later, and those that satisfy a filter; ConfigError
        where neither is given.
        """
        chosen = Selection("delete", ids, where, missing_ok=missing_ok)

        def apply(transaction: Transaction) -> Sequence[Notice]:
            docs = chosen.numbers(transaction)
            transaction.remove(np.array(docs, dtype=np.int64))
            transaction.count(deleted=len(docs))
            return ()

        self._steps.append(_Step({"command": "delete", **chosen.describe()}, apply))

    def update_metadata(
        self,
        changes: Mapping[str, Any],
        ids: Sequence[str] = (),
        *,
        where: Filter | None = None,
        remove: Sequence[str] = (),
        clear: bool = False,
        missing_ok: bool = False,
    ) -> None:
        """Set metadata fields, later; arguments and errors are those of `Index.update_metadata`."""
        fields, removed = _check_changes(changes, remove, clear=clear)
        chosen = Selection("update_metadata", ids, where, missing_ok=missing_ok)

        def apply(transaction: Transaction) -> Sequence[Notice]:
            def changed(row: dict[str, Any]) -> dict[str, Any]:
                edits = transaction.tables.edits_in(row)
                edits = (Edits(edits.read) if clear else edits).changed(fields, removed)
                return {"metadata": metadata_json(edits.merged), "edits": edits.to_json()}

            docs = chosen.numbers(transaction)
            updated = transaction.rewrite(docs, changed)
            transaction.count(updated=updated, unchanged=len(docs) - updated)
            return ()

        described = {
            "changes": hashlib.sha256(metadata_json(fields).encode()).hexdigest(),
            "remove": sorted(removed),
        }
        job: Job = {"command": "update-metadata", **chosen.describe(), **described, "clear": clear}
        self._steps.append(_Step(job, apply))

    def commit(self, *, resumable: bool = False, restart: bool = False) -> Report:
        """Make all changes, as one version; where they change nothing, there is none.

        If one cannot be made, none is, and its error is raised. A single change that is `resumable`
        is continued where it was interrupted. `restart`, here or of the batch, throws away the work
        of an interrupted change.
        """
        read_manifest(self._directory)

        notices = list[Notice]()

        def work(transaction: Transaction) -> FinishOptions | None:
            for number, step in enumerate(self._steps, start=1):
                if step.at_once and transaction.state.step >= number:
                    continue
                notices.extend(step.apply(transaction))
                transaction.state.step = number
            if replace(transaction.state.changes, unchanged=0) == Changes():
                return None
            return FinishOptions(device=self._device)

        job = (
            self._steps[0].job if resumable else {"command": "batch", "token": secrets.token_hex(8)}
        )
        options = self._options
        if restart:
            options = {**options, "restart": True}
        report = run_change(self._directory, job, work, before=self._before, **options)
        self.report = replace(report, notices=tuple(notices))
        return self.report


def insert_alone(
    mode: Literal["add", "upsert"],
    corpus: Source | None,
    root: str | Path | IndexDirectory,
    **options: Any,
) -> Report:
    """Add or upsert a corpus as the only change of a version; the same call continues one that was
    interrupted.

    Options are those of `InsertOptions`, `ReadOptions` and `WriteOptions`. A corpus without
    documents is an InputError.
    """
    writing: Any = {
        name: options.pop(name) for name in WriteOptions.__annotations__ if name in options
    }
    batch = Batch(root, **writing)
    batch.insert(mode, corpus, options, allow_empty=False)
    return batch.commit(resumable=True)


def _folder_check(corpus: Any) -> Callable[[], None]:
    """Return a check that relative places of a corpus still name what they named when they were
    given.
    """
    names = None if corpus is None else source_names(corpus)
    relative = [
        name for name in names or () if Path(name).exists() and not Path(name).is_absolute()
    ]
    folder = Path.cwd() if relative else None

    def check() -> None:
        if folder is not None and Path.cwd() != folder:
            raise ConfigError(
                f"{path_text(relative[0])}: was given to a batch in the folder {folder}, and its"
                f" commit reads it in {Path.cwd()}; give an absolute path"
            )

    return check


class Selection:
    """The documents with these ids, and those that satisfy a filter; ConfigError where neither is
    given.
    """

    def __init__(
        self, command: str, ids: Sequence[str], where: Filter | None, *, missing_ok: bool
    ) -> None:
        listed = check_ids(ids)
        if not listed and where is None:
            raise ConfigError(
                f"{command}: give ids or a filter; an empty filter {{}} selects every document"
            )
        self._ids, self._where, self._missing_ok = sorted(set(listed)), where, missing_ok

    def describe(self) -> dict[str, Any]:
        """Identify the selection, so that an interrupted change never continues with
        another one.
        """
        return {
            "ids": (
                hashlib.sha256(json.dumps(self._ids).encode()).hexdigest() if self._ids else None
            ),
            "filter": filters.filter_key(self._where) if self._where is not None else None,
        }

    def numbers(self, transaction: Transaction) -> list[int]:
        tables = transaction.tables
        documents = tables.find(self._ids)
        missing = next((i for i in self._ids if i not in documents), None)
        if missing is not None and not self._missing_ok:
            raise InputError(
                f"{transaction.place}: no document has the id {missing!r}; nothing was changed"
            )
        docs = {doc for doc, _ in documents.values()}
        if self._where is not None:
            matching = tables.matching(self._where)
            docs.update(matching.tolist())
            if not len(matching):
                warn_of_filter(tables, self._where)
        return sorted(docs)


def _check_changes(
    changes: Mapping[str, Any], remove: Sequence[str], *, clear: bool
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return fields that are set, as they are stored, and those that are removed."""
    if isinstance(remove, str):
        raise ConfigError(
            f"update_metadata: remove={remove!r} is one string; give a list of fields, as"
            f" [{remove!r}]"
        )
    if not changes and not remove and not clear:
        raise ConfigError(
            "update_metadata: nothing to change; give fields with their new values, fields to"
            " remove, or clear"
        )
    if both := sorted(set(changes) & set(remove)):
        raise ConfigError(
            f"update_metadata: the field {both[0]!r} is both set and removed; name it once"
        )
    if own := sorted({*changes, *remove} & {*OWN, "text"}):
        raise ConfigError(
            f"update_metadata: {own[0]!r} is a field of the document itself, not metadata;"
            " change it with upsert"
        )
    return check_metadata(changes, "update_metadata"), frozenset(remove)


def open_model(
    encoding: Encoding, directory: IndexDirectory, options: Mapping[str, Any]
) -> ModelSource:
    """Open the model of an index as the source of a change: the one given, or the one that made the
    index.
    """
    model: Model = options.get("model")
    loading: dict[str, Any] = {
        "device": options.get("device", "cpu"),
        "precision": options.get("precision", "auto"),
    }
    if model is not None:
        embedder = load_model(model, **loading)
    elif encoding.model is not None:
        embedder = load_recorded(
            encoding.model_places(directory.location), encoding.model, **loading
        )
    else:
        raise ConfigError(
            f"{directory}: made from ready-made vectors; add documents with vectors of the same"
            " model"
        )
    return ModelSource(as_encoded(embedder, encoding))
