"""`build_index`: from a corpus to an index directory."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from aveyb_retrieval.documents.corpus import Source, count_items, read_corpus, source_names
from aveyb_retrieval.documents.records import path_text
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, run_change
from aveyb_retrieval.indexes.changes.ingest import Ingestion, ModelSource, PrecomputedSource, VectorSource, open_vectors
from aveyb_retrieval.indexes.changes.transaction import State
from aveyb_retrieval.indexes.encoding import WORD_RULES, Encoding
from aveyb_retrieval.indexes.model import (
    BuildOptions,
    check_options,
    keeping_tokens,
    load_as_asked,
    reading_of,
    word_rules,
    writing_of,
)
from aveyb_retrieval.indexes.nearest.faiss_file import AUTO, NONE, create
from aveyb_retrieval.indexes.shards import StoredShards, check_share
from aveyb_retrieval.indexes.store.manifest import IndexDirectory
from aveyb_retrieval.indexes.types import silent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

    from aveyb_retrieval.documents.reading import Reading
    from aveyb_retrieval.documents.records import Notice, OnError
    from aveyb_retrieval.indexes.changes.transaction import Job, Transaction
    from aveyb_retrieval.indexes.types import Progress


def build_index(
    corpus: Source | Sequence[str | Path] | None, out: str | Path, **options: Unpack[BuildOptions]
) -> Report:
    """Build an index directory at `out`. Killed at any moment before it is visible, the same call continues it.

    A continued build reads `corpus` again from its start (a generator that is used up will not do), encodes only what
    is missing, and builds the FAISS files anew. Killed after its index became visible, a build is complete: the
    same call then says that an index is there.

    Args:
        corpus: File, folder, glob, "hf:owner/name" for a Hugging Face dataset, "-" for standard input, several of
            these, or an iterable of texts or of mappings with `text`, optionally `_id` (or `id`) and `title`;
            everything else is metadata. A document without an id gets one that is made of its content. Folders hold
            PDF, DOCX, HTML, EPUB, Markdown and text files. None only with `vectors` or `from_index`.
        out: The index directory. An index that is there stays visible to its readers until the new one is complete.
        **options: See `BuildOptions`, `ReadOptions` and `EncodeOptions`.

    Raises:
        ConfigError: an option is unknown or out of range, `out` exists already, or an interrupted change has other
            arguments.
        InputError: the corpus holds something that is no document, or no documents at all.
        IndexLockedError: another process is writing to `out`.
    """
    options = check_options(options, BuildOptions, "build_index")
    reading = reading_of(options)
    index_dir, overwrite = IndexDirectory(out), options.get("overwrite", False)
    _check_target(index_dir, overwrite)
    index, progress = options.get("index", AUTO), options.get("progress", silent)
    source, encoding, documents = _open_source(corpus, out, options)
    if index not in (AUTO, NONE):
        create(index, encoding.dim)  # a factory string that FAISS does not know fails now, not after the encoding
    on_error = options.get("on_error", "auto")
    job = describe_job("build", corpus, encoding, on_error=on_error, reading=reading, vectors=source.describe())
    if (old := options.get("from_index")) is not None:
        job["from"] = StoredShards(old).describe()
    job |= {"index": index, "recall": options.get("recall")}
    share = check_share(options["share"]) if "share" in options else None
    if share is not None:
        job["share"] = list(share)

    def work(transaction: Transaction) -> FinishOptions:
        _check_target(index_dir, overwrite)  # again: another process may have built here before this one got the lock
        notices = ingest_corpus(
            transaction,
            source,
            documents,
            reading,
            mode="add",
            on_error=on_error,
            allow_empty=options.get("allow_empty", False),
            share=share,
            progress=progress,
        )
        return FinishOptions(notices=notices)

    state = State(job, None, 1, secrets.token_hex(4), encoding.beside(out), index, options.get("recall"))
    return run_change(out, job, work, state=state, **writing_of(options))


def _open_source(
    corpus: Source | Sequence[str | Path] | None, out: str | Path, options: Mapping[str, Any]
) -> tuple[VectorSource, Encoding, Any]:
    """Open what the vectors of a build come from: (source, what it makes, the documents)."""
    if (old := options.get("from_index")) is not None:
        if corpus is not None or options.get("vectors") is not None:
            raise ConfigError(f"from_index={str(old)!r}: it holds the documents; leave the corpus and the vectors out")
        stored = StoredShards(old)
        embedder, encoding = load_as_asked(options)
        kept: dict[str, Any] = {name: getattr(stored.encoding, name) for name in WORD_RULES if name not in options}
        encoding = replace(encoding, **kept)
        return ModelSource(keeping_tokens(embedder, encoding.token_codec)), encoding, stored.texts()
    ready = open_vectors(options.get("vectors"), corpus)
    if ready is None:
        embedder, encoding = load_as_asked(options)
        return ModelSource(keeping_tokens(embedder, encoding.token_codec)), encoding, corpus
    tokens, granularity = options.get("token_vectors"), options.get("granularity", "both")
    if tokens is not None:
        raise ConfigError(f"token_vectors={tokens!r} with ready-made vectors: there is no model to make them")
    named = load_as_asked(options)[1] if options.get("model") is not None else None
    if named is not None and named.dim != ready.dim:
        raise ConfigError(
            f"vectors of dimension {ready.dim}, but the model {named.model and named.model['name']} makes {named.dim}; "
            "give the model that made them, or none"
        )
    if isinstance(ready, StoredShards):
        encoding = _encoding_of_shards(ready, named, options)
        encoding.check_takes(ready.encoding, out, ready.name)
    elif granularity != "document":
        raise ConfigError(
            f"granularity {granularity!r} with ready-made vectors: they are one per document, use 'document'"
        )
    else:
        dtype = options.get("storage_dtype", "float32")
        encoding = named or Encoding(None, None, ready.dim, "document", storage_dtype=dtype, **word_rules(options))
    return PrecomputedSource(ready), encoding, ready.documents() if corpus is None else corpus


def _encoding_of_shards(shards: StoredShards, named: Encoding | None, options: Mapping[str, Any]) -> Encoding:
    """What an index of stored documents says of its vectors: what they say, and what was asked for where it may be."""
    made = shards.encoding
    for name in ("passage_tokens", "passage_overlap", "late", "max_tokens", "funnel"):
        asked = options.get(name)
        if asked is not None and asked != getattr(made, name):
            raise ConfigError(
                f"{name}={asked!r}: the documents of {shards.name} were encoded with {getattr(made, name)!r}; leave "
                "it out, or build that again"
            )
    chosen = {name: options[name] for name in ("granularity", "storage_dtype") if name in options}
    if made.token_vectors is not None and chosen.get("granularity", made.granularity) != made.granularity:
        raise ConfigError(
            f"granularity={chosen['granularity']!r}: {shards.name} keeps token vectors with granularity "
            f"{made.granularity!r}; leave it out"
        )
    chosen |= word_rules(options)
    if named is not None:
        chosen |= {"model": named.model, "model_source": named.model_source}
    return replace(made, **chosen)


def describe_job(
    command: str,
    corpus: Source | Sequence[str | Path] | None,
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
    corpus: Source | Sequence[str | Path],
    reading: Reading,
    *,
    mode: Literal["add", "upsert"],
    on_error: OnError,
    progress: Progress,
    allow_empty: bool = False,
    share: tuple[int, int] | None = None,
) -> tuple[Notice, ...]:
    """Read a corpus into a transaction: every document (of a share) with its vectors, committed batch by batch.

    Returns what is to be reported of the corpus.

    Raises:
        InputError: an item is not a document (with `on_error="stop"`), there is none (without `allow_empty`), or
            `source` does not match it.
    """
    total = None if progress is silent else count_items(corpus)
    ingestion = Ingestion(
        transaction, source, mode=mode, on_error=on_error, share=share, progress=progress, total=total
    )
    items, rejected = ingestion.run(read_corpus(corpus, reading)), ingestion.first_rejected
    if items == 0 and not allow_empty:
        raise InputError("the input holds no documents: nothing to index")
    if transaction.state.counts.documents == 0 and not allow_empty and share is None:
        first = "" if rejected is None else f"; the first: {rejected.location}: {rejected.reason}"
        raise InputError(f"none of the {items:,} items of the input is a document{first}")
    source.check_all_used(items)
    if transaction.base is None:
        transaction.state.left_out = ingestion.left_out
    return tuple(ingestion.notices)


def _check_target(index_dir: IndexDirectory, overwrite: bool) -> None:
    """Raise ConfigError where a build must not write."""
    root = index_dir.root
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root}: is a file; give the path of a folder for the index")
    if index_dir.current() is not None:
        if not overwrite:
            raise ConfigError(f"{root}: an index is already there; replace it with --overwrite (overwrite=True)")
    elif root.is_dir() and not index_dir.lock.exists() and any(root.iterdir()):
        raise ConfigError(f"{root}: a folder that is not empty and not an index; choose another one")
