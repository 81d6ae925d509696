"""`build_index`: from a corpus to an index directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aveyb_retrieval.encoder.token_codec import STORAGES
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.shards.encoded_shards import EncodedShards
from aveyb_retrieval.indexes.input.corpus import Source, read_corpus, source_names
from aveyb_retrieval.indexes.input.count import count_items
from aveyb_retrieval.indexes.input.documents import MAX_LINE, FieldNames
from aveyb_retrieval.indexes.input.reading import Reading
from aveyb_retrieval.indexes.model import Model, cut_as_asked, keeping_tokens, load_model, pooling, token_width
from aveyb_retrieval.indexes.nearest.faiss_index import AUTO, create
from aveyb_retrieval.indexes.store import filters
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from aveyb_retrieval.indexes.store.language import ENGLISH
from aveyb_retrieval.indexes.store.language import language as load_language
from aveyb_retrieval.indexes.store.manifest import GRANULARITIES
from aveyb_retrieval.indexes.store.vectors import STORAGE_DTYPES
from aveyb_retrieval.indexes.types import KINDS, EmbedderLike, Progress, model_description, silent
from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, run_change
from aveyb_retrieval.indexes.changes.ingest import Ingestion
from aveyb_retrieval.indexes.changes.settings import Settings
from aveyb_retrieval.indexes.changes.source import (
    ModelSource,
    PrecomputedSource,
    Vectors,
    VectorSource,
    check_shards,
    open_vectors,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aveyb_retrieval.indexes.input.documents import Notice
    from aveyb_retrieval.indexes.input.precomputed import PrecomputedVectors
    from aveyb_retrieval.indexes.input.rows import Item
    from aveyb_retrieval.indexes.changes.transaction import Transaction

OnError = Literal["stop", "skip"]


def build_index(
    corpus: Source | Sequence[str | Path] | None,
    out: str | Path,
    *,
    model: Model = None,
    granularity: str = "both",
    index: str = AUTO,
    recall: float | None = None,
    vectors: Vectors | None = None,
    storage_dtype: str = "float32",
    language: str = ENGLISH,
    id_field: str | None = None,
    title_field: str = "title",
    text_field: str = "text",
    index_fields: Sequence[str] = (),
    on_error: OnError = "stop",
    max_line: int = MAX_LINE,
    allow_empty: bool = False,
    encoding: str | None = None,
    types: Mapping[str, str] | None = None,
    overwrite: bool = False,
    restart: bool = False,
    max_tokens: int | None = None,
    passage_tokens: int | None = None,
    passage_overlap: int = 0,
    late: bool | None = None,
    token_vectors: str | None = None,
    funnel: int | None = None,
    device: str = "cpu",
    precision: str = "float32",
    progress: Progress = silent,
) -> Report:
    """Build an index directory at `out`. Killed at any moment before it is visible, the same call continues it.

    A continued build reads `corpus` again from its start (a generator that is used up will not do), encodes only what
    is missing, and builds the FAISS files anew. Killed after its index became visible, a build is complete: the
    same call then says that an index is there.

    Args:
        corpus: File, folder, glob, "hf:owner/name" for a Hugging Face dataset, "-" for standard input, several of
            these, or an iterable of texts or of mappings with `text`, optionally `_id` (or `id`) and `title`;
            everything else is metadata. A document without an id gets one that is made of its content. Folders hold
            PDF, DOCX, HTML, EPUB, Markdown and text files. None only with `vectors`.
        out: The index directory. An index that is there stays visible to its readers until the new one is complete.
        model: Model folder or name, or a loaded `Embedder`; None is the embedded default.
        granularity: "document", "passage" or "both": which vectors are searched.
        index: "auto" (by size) or a FAISS factory string such as "HNSW32" or "IVF4096,Flat".
        recall: Tune the search settings until this share of exact results is found, and keep the measured curve.
        vectors: Ready-made vectors, one row per document: `.npy`, Parquet with a column `vector`, or an array; or the
            folder or URL of shards that `encode_corpus` made, which hold the documents, too: `corpus` is None then.
        storage_dtype: How vectors are kept on disk: "float32", or "float16" for half the size and an error below 1e-3.
        language: How words are found: "english" (default; Porter's stemmer), another language of
            `aveyb_retrieval.indexes.store.language.LANGUAGES` (needs the extra "bm25"), or "none" (words as they are
            written). Chinese, Japanese and Korean are found in all of them.
        id_field: Field that holds the id; None is `_id`, else `id`, else an id is made.
        title_field: Field that holds the title.
        text_field: Field that holds the text.
        index_fields: Metadata fields that get a database index, for filters on them.
        on_error: What to do with an item that is no document: "stop", or "skip" to list it in `rejected.jsonl`.
        max_line: A line of the corpus, or the text of a file, has at most this many bytes; a longer one is no document.
        allow_empty: Make the index also where the corpus holds no documents (`[]`), to add some later.
        encoding: Of text files, such as "cp1252"; None is UTF-8, or UTF-16 where a byte order mark says so.
        types: Types of columns of CSV and TSV files: "int", "float", "bool" or "string"; the others are inferred.
        overwrite: Replace an index that is already there.
        restart: Throw away the work of an interrupted change.
        max_tokens: Cut documents after this many tokens (counted in the report). None reads them whole.
        passage_tokens: Passages are runs of whole sentences of at most this many tokens, 16 to 8,192. None is what the
            model was loaded with, 256 by default.
        passage_overlap: Passages begin with the last sentences of the one before, up to this many tokens.
        late: Encode passages within their document (True) or one by one (False). None is what the model was loaded
            with: within it for Avey-B models, which know no other way, one by one for sentence-transformers models.
        token_vectors: Also keep a vector of every token, as "int8" (128 bytes) or "1bit" (16), so that
            `rerank="maxsim"` encodes nothing again; None does not.
        funnel: Pool neighbouring tokens of documents in pairs behind the model's first N layers, to encode them in less
            time (see `Embedder.with_funnel`). None is what the model does. Like `precision` it is not kept in the
            index: documents that are added later are encoded as the model does.
        device: Where the model runs.
        precision: What it computes in: "float32", "bfloat16", "float16" or "float8"; see `Embedder.load`. Documents
            and queries may differ in it.
        progress: Called as the work goes on.

    Raises:
        ConfigError: an argument is out of range, `out` exists already, or an interrupted change has other arguments.
        InputError: the corpus holds something that is no document, or no documents at all.
        IndexLockedError: another process is writing to `out`.
    """
    _check_arguments(granularity, storage_dtype, on_error, recall, token_vectors)
    reading = Reading(FieldNames(id_field, title_field, text_field), max_line, encoding, types or {})
    index_dir = IndexDirectory(out)
    _check_target(index_dir, overwrite)
    ready = open_vectors(vectors, corpus) if vectors is not None else None
    if corpus is None and ready is None:
        raise ConfigError("no corpus and no vectors: give at least one of them")
    embedder = None
    if ready is None or model is not None:
        embedder = load_model(model, device=device, precision=precision, max_tokens=max_tokens)
        embedder = pooling(cut_as_asked(embedder, passage_tokens, passage_overlap, late), funnel)
    if token_vectors is not None and ready is not None:
        raise ConfigError(f"token_vectors={token_vectors!r} with ready-made vectors: there is no model to make them")
    size = getattr(embedder, "passage_size", None)
    settings = Settings(
        granularity=granularity,
        dim=_dimension(ready, embedder),
        storage_dtype=storage_dtype,
        index=index,
        recall=recall,
        index_fields={name: filters.json_path(name) for name in index_fields},
        model=model_description(embedder) if embedder else None,
        model_source=str(model) if isinstance(model, (str, Path)) else None,
        max_tokens=max_tokens if max_tokens is not None else getattr(embedder, "max_tokens", None),
        passage_tokens=size.tokens if size else None,
        passage_overlap=size.overlap if size else 0,
        late=size.late if size else None,
        titled=bool(size and size.titled),
        language=load_language(language).name,
        token_vectors=token_vectors,
        token_dim=token_width(_given(embedder)) if token_vectors is not None else None,
    )
    if isinstance(ready, EncodedShards):
        if embedder is None:
            asked = {"passage_tokens": passage_tokens, "passage_overlap": passage_overlap or None, "late": late,
                     "max_tokens": max_tokens}  # fmt: skip
            settings = _settings_of_shards(settings, ready, asked)
        check_shards(ready, settings, out)
    elif ready is not None and granularity != "document":
        raise ConfigError(
            f"granularity {granularity!r} with ready-made vectors: they are one per document, use 'document'"
        )
    source: VectorSource = (
        PrecomputedSource(ready)
        if ready is not None
        else ModelSource(keeping_tokens(_given(embedder), settings.token_codec))
    )
    if index != AUTO:
        create(index, settings.dim)  # a factory string that FAISS does not know fails now, not after the encoding
    job = describe_job("build", corpus, settings, on_error=on_error, reading=reading, vectors=source.describe())
    documents: Any = ready.documents() if corpus is None and ready is not None else corpus

    def work(transaction: Transaction, settings: Settings) -> FinishOptions:
        _check_target(index_dir, overwrite)  # again: another process may have built here before this one got the lock
        with transaction.store.transaction():
            transaction.store.put("index_fields", settings.index_fields)
            transaction.store.set_language(settings.language)
        notices = ingest_corpus(
            transaction,
            settings,
            source,
            documents,
            reading,
            mode="add",
            on_error=on_error,
            allow_empty=allow_empty,
            progress=progress,
        )
        return FinishOptions(settings, notices=notices)

    return run_change(out, job, work, settings=settings, restart=restart, progress=progress)


def describe_job(
    command: str,
    corpus: Source | Sequence[str | Path] | None,
    settings: Settings,
    *,
    on_error: OnError,
    reading: Reading,
    vectors: str | None = None,
) -> dict[str, Any]:
    """What an interrupted change is compared with before it is continued."""
    names = None if corpus is None else source_names(corpus) or "documents from Python"
    return {
        "command": command,
        "corpus": names,
        "model": settings.model["fingerprint"] if settings.model else None,
        "granularity": settings.granularity,
        "storage_dtype": settings.storage_dtype,
        "index": settings.index,
        "recall": settings.recall,
        "max_tokens": settings.max_tokens,
        "passage_tokens": settings.passage_tokens,
        "passage_overlap": settings.passage_overlap,
        "late": settings.late,
        "vectors": vectors,
        "index_fields": list(settings.index_fields),
        # not named where it is the default, so that a change begun by an older version can be finished
        **({"titled": True} if settings.titled else {}),
        **({"language": settings.language} if settings.language != ENGLISH else {}),
        **({"token_vectors": settings.token_vectors} if settings.token_vectors is not None else {}),
        **reading.describe(),
        "on_error": on_error,
    }


def ingest_corpus(
    transaction: Transaction,
    settings: Settings,
    source: VectorSource,
    corpus: Source | Sequence[str | Path],
    reading: Reading,
    *,
    mode: Literal["add", "upsert"],
    on_error: OnError,
    progress: Progress,
    allow_empty: bool = False,
) -> tuple[Notice, ...]:
    """Read a corpus into a transaction: every document with its vectors, committed batch by batch.

    Returns what is to be reported of the corpus.

    Raises:
        InputError: an item is not a document (with `on_error="stop"`), there is none (without `allow_empty`), or
            `source` does not match it.
    """
    items_read = read_corpus(corpus, reading.names, reading.max_line, reading.encoding, reading.types)
    total = None if progress is silent else count_items(corpus)
    items, notices = ingest_items(
        transaction, settings, source, items_read, mode=mode, on_error=on_error, progress=progress, total=total
    )
    if items == 0 and not allow_empty:
        raise InputError("the input holds no documents: nothing to index")
    if transaction.store.is_empty() and not allow_empty:
        raise InputError(
            f"none of the {items:,} items of the input is a document; give the command with --on-error stop --restart "
            "to see the first reason"
        )
    source.check_all_used(items)
    return notices


def ingest_items(
    transaction: Transaction,
    settings: Settings,
    source: VectorSource,
    items: Iterator[Item],
    *,
    mode: Literal["add", "upsert"],
    on_error: OnError,
    progress: Progress,
    total: int | None,
) -> tuple[int, tuple[Notice, ...]]:
    """Take items into a transaction; return how many there were, and what is to be reported of them.

    Raises:
        InputError: an item is not a document (with `on_error="stop"`).
    """
    ingestion = Ingestion(
        transaction,
        source.encode,
        growing=source.growing,
        kinds=tuple(kind for kind in KINDS if kind in GRANULARITIES[settings.granularity]),
        dim=settings.dim,
        storage_dtype=settings.storage_dtype,
        mode=mode,
        on_error=on_error,
        progress=progress,
        codec=settings.token_codec,
        total=total,
    )
    return ingestion.run(items), tuple(ingestion.notices)


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


def _check_arguments(
    granularity: str, storage_dtype: str, on_error: str, recall: float | None, token_vectors: str | None
) -> None:
    for name, value, known in (
        ("granularity", granularity, list(GRANULARITIES)),
        ("storage_dtype", storage_dtype, list(STORAGE_DTYPES)),
        ("on_error", on_error, ["stop", "skip"]),
        ("token_vectors", token_vectors, [None, *STORAGES]),
    ):
        if value not in known:
            raise ConfigError(f"{name}={value!r}: must be one of {', '.join(map(str, known))}")
    if recall is not None and not 0 < recall <= 1:
        raise ConfigError(f"recall={recall}: must be above 0 and at most 1")


def _settings_of_shards(settings: Settings, shards: EncodedShards, asked: dict[str, Any]) -> Settings:
    """Settings of an index of these shards: they say which model made them, and how it cut passages.

    Raises:
        ConfigError: something else was asked for.
    """
    made = shards.settings
    for name, value in asked.items():
        if value is not None and value != getattr(made, name):
            raise ConfigError(
                f"{name}={value!r}: the shards in {shards.name} were encoded with {getattr(made, name)!r}"
            )
    return replace(
        settings,
        model=made.model,
        model_source=shards.model_source,
        max_tokens=made.max_tokens,
        passage_tokens=made.passage_tokens,
        passage_overlap=made.passage_overlap,
        late=made.late,
        titled=made.titled,
    )


def _given(embedder: EmbedderLike | None) -> EmbedderLike:
    assert embedder is not None  # loaded wherever there are no ready-made vectors
    return embedder


def _dimension(ready: PrecomputedVectors | EncodedShards | None, embedder: EmbedderLike | None) -> int:
    if ready is None:
        return _given(embedder).dim
    if embedder is not None and embedder.dim != ready.dim:
        raise ConfigError(
            f"{ready.name}: vectors of dimension {ready.dim}, the model {embedder.model_name} makes {embedder.dim}; "
            "name the model that made them, or none"
        )
    return ready.dim
