"""From the names that a user gives (models, an index, a mode) to the systems that are measured on a task.

A model of ours, and with `index_type` any other, is measured as users search: an index of the corpus is built and
searched by `Retriever`, with words and vectors unless `mode` says otherwise. Everything else (peers, fixed chunks, the
paper's protocol, and `index_type="none"`) is measured by its vectors in memory, every one scored exactly;
`mode="hybrid"` then adds the BM25 of bm25s. An option that a system cannot honor is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.eval.base import DEFAULT_MODE, System, fingerprint_of
from aveyb_retrieval.eval.encoders import (
    Chunker,
    CorpusEncoder,
    EmbedderEncoder,
    LoadOptions,
    is_ours,
    load_embedder,
    load_encoder,
)
from aveyb_retrieval.eval.passages import (
    ExactPassages,
    PassageScores,
    VectorScorer,
    evaluate_passages,
    late_against_fixed,
)
from aveyb_retrieval.eval.systems import BM25System, DenseSystem, HybridSystem, IndexSystem, VectorCache
from aveyb_retrieval.eval.tasks import PAPER, Task
from aveyb_retrieval.indexes.types import silent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.indexes.types import Progress

NO_INDEX = "none"
INDEX_TYPES = {"auto": "auto", "flat": "Flat", "hnsw": "HNSW32"}
"""Short names of index types; anything else but "none" is a FAISS factory string."""


@dataclass(frozen=True)
class ModelOptions:
    """How every model is used.

    Attributes:
        mode: "hybrid", "dense" or "lexical"; None: hybrid through an index, else dense.
        granularity: "document", "passage" or "both"; None: all vectors that there are.
        chunk_words: Encode fixed chunks of this many words one by one; excludes an index.
        index_type: A type of index, or "none"; None: "auto" for models of ours, "none" for others.
        load: How a model is loaded.
    """

    mode: str | None = None
    granularity: str | None = None
    chunk_words: int | None = None
    index_type: str | None = None
    load: LoadOptions = field(default_factory=LoadOptions)


def make_systems(
    models: Sequence[str],
    task: Task,
    options: ModelOptions,
    folder: Path,
    *,
    reuse: bool = False,
    progress: Progress = silent,
) -> Iterator[System]:
    """Yield one system per named model, made when it is its turn, so that one model is in memory at a time.

    `bm25` has no vectors, so the options about them do not concern it.

    Raises:
        ConfigError: options that contradict each other, or that a system cannot honor.
        ModelError: a model cannot be loaded.
    """
    cache = VectorCache(folder, reuse=reuse, progress=progress)
    for model in models:
        if model == "bm25":
            yield BM25System(task.corpus, task.protocol)
        elif is_index(model):
            yield _existing_index(model, task, options)
        elif _wants_index(model, task, options):
            yield _built_index(model, task, options, folder, reuse=reuse, progress=progress)
        else:
            yield _exact(model, task, options, cache)


def is_index(path: str) -> bool:
    """Return whether a path is an index directory."""
    return (Path(path) / "current").is_file()


def _wants_index(model: str, task: Task, options: ModelOptions) -> bool:
    """Return whether a model is measured through an index.

    Raises:
        ConfigError: an index type is named for something that has no index.
    """
    if options.index_type == NO_INDEX:
        return False
    reason = None
    if task.protocol is PAPER:
        reason = "the paper protocol has its own prompts and a reduced corpus"
    elif options.chunk_words is not None:
        reason = "an index makes its own passages, not chunks of --chunk-words"
    if reason is None:
        return is_ours(model) or options.index_type is not None
    if options.index_type is not None:
        raise ConfigError(f"index type {options.index_type!r}: {reason}; leave it out to score vectors in memory")
    return False


def _existing_index(path: str, task: Task, options: ModelOptions) -> System:
    if task.protocol is PAPER:
        raise ConfigError(f"{path}: an index holds the whole corpus and its own prompts; name its model instead")
    for name, value in (("index type", options.index_type), ("chunk words", options.chunk_words)):
        if value is not None:
            raise ConfigError(f"{path}: {name} {value!r} has no effect on an index that is built already; leave it out")
    return IndexSystem(
        path,
        mode=options.mode or DEFAULT_MODE,
        granularity=options.granularity,
        options=options.load,
        documents=len(task.corpus),
    )


def _built_index(
    model: str, task: Task, options: ModelOptions, folder: Path, *, reuse: bool, progress: Progress
) -> System:
    """Build (or with `reuse` find) an index of the task's corpus, to be measured through `Retriever`."""
    from aveyb_retrieval.indexes.changes.update import build_index

    embedder = load_embedder(model, options.load)
    named = options.index_type or "auto"
    kind = INDEX_TYPES.get(named.lower(), named)
    load = options.load
    passages = str(getattr(embedder, "passage_size", None))
    parts = [embedder.fingerprint, passages, task.corpus.fingerprint, kind, load.max_tokens, embedder.precision]
    key = fingerprint_of(parts)[:32]
    target = folder / "indexes" / key
    if not (reuse and is_index(str(target))):
        rows = ({"_id": doc.id, "title": doc.title, "text": doc.text} for doc in task.corpus)
        build_index(
            rows,
            target,
            model=embedder,
            index=kind,
            overwrite=True,
            restart=True,
            progress=lambda stage, *counts: progress(f"{embedder.model_name}: {stage}", *counts),
        )
    mode = options.mode or DEFAULT_MODE
    return IndexSystem(
        target,
        mode=mode,
        granularity=options.granularity,
        options=load,
        model=embedder,
        name=f"{embedder.model_name}, {mode}, {kind} index",
    )


def _exact(model: str, task: Task, options: ModelOptions, cache: VectorCache) -> System:
    """Measure a model by its vectors, scored exactly, or by those and BM25."""
    if options.mode == "lexical":
        raise ConfigError(f"mode 'lexical' leaves nothing of {model!r} to measure without an index; name bm25 instead")
    encoder = load_encoder(model, task.protocol, options.load, chunk_words=options.chunk_words)
    granularity = options.granularity or _all_vectors(encoder)
    name = _display_name(encoder, granularity)
    dense = DenseSystem(encoder, task.corpus, cache, granularity=granularity, name=name)
    return HybridSystem(BM25System(task.corpus, task.protocol), dense) if options.mode == "hybrid" else dense


def _all_vectors(encoder: CorpusEncoder) -> str:
    """Return the granularity that ranks by every vector an encoder makes."""
    return {"passages": "both", "none": "document"}.get(encoder.info.settings["chunks"], "passage")


def _display_name(encoder: CorpusEncoder, granularity: str) -> str:
    chunks = encoder.info.settings["chunks"]
    if chunks not in ("passages", "none"):
        return f"{encoder.info.name}, {chunks}"
    return encoder.info.name if granularity == _all_vectors(encoder) else f"{encoder.info.name}, {granularity}"


def passage_table(
    task: Task,
    model: str,
    peers: Sequence[str],
    *,
    chunk_words: int,
    scope: str,
    folder: Path | None = None,
    progress: Progress = silent,
) -> list[PassageScores]:
    """Score late chunking, the same spans encoded one by one, and each peer on chunks of `chunk_words`."""
    cache = VectorCache(folder, progress=progress)
    embedder: Any = None

    def make_encoder(chunker: Chunker | None) -> CorpusEncoder:
        nonlocal embedder
        if embedder is None:
            embedder = load_embedder(model)
        return EmbedderEncoder(embedder, task.protocol, chunker=chunker)

    systems = late_against_fixed(make_encoder, task.corpus, cache)
    for peer in peers:
        encoder = load_encoder(peer, task.protocol, chunk_words=chunk_words)
        scorer = VectorScorer(encoder, task.corpus, cache, name=_display_name(encoder, "passage"))
        systems.append(ExactPassages(scorer))
    return [evaluate_passages(system, task, scope=scope) for system in systems]
