"""From what a user names (models, an index, a mode) to the systems that are measured on a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.eval.base import System, fingerprint_of
from aveyb_retrieval.eval.encoders import AveyEncoder, Chunker, CorpusEncoder, is_ours, load_encoder
from aveyb_retrieval.eval.passages import PassageScores, evaluate_passages, late_against_fixed
from aveyb_retrieval.eval.protocols import PAPER, Task
from aveyb_retrieval.eval.systems import (
    BM25System,
    DenseSystem,
    IndexSystem,
    Track,
    VectorCache,
    WeightedSystem,
    no_progress,
)

INDEX_TYPES = {"auto": "auto", "flat": "Flat", "hnsw": "HNSW32"}
"""Short names of index types; anything else is a FAISS factory string."""


@dataclass(frozen=True)
class ModelOptions:
    """How every model is used. `mode` None is dense."""

    mode: str | None = None
    unit: str = "document"
    chunk_words: int | None = None
    index_type: str | None = None
    max_tokens: int | None = None
    dtype: str = "float32"
    device: str = "cpu"


def make_systems(
    models: Sequence[str],
    task: Task,
    options: ModelOptions,
    folder: Path,
    *,
    reuse: bool = False,
    track: Track = no_progress,
) -> Iterator[System]:
    """One system per named model, made when it is its turn, so that one model is in memory at a time.

    Raises:
        ConfigError: options that contradict each other. ModelError: a model cannot be loaded.
    """
    cache = VectorCache(folder, reuse=reuse, track=track)
    for model in models:
        if model == "bm25" or (options.mode == "lexical" and not is_index(model)):
            yield BM25System(task.corpus, task.protocol)
        elif is_index(model):
            if task.protocol is PAPER:
                raise ConfigError(
                    f"{model}: an index holds the whole corpus and its own prompts; name its model instead."
                )
            yield IndexSystem(model, mode=options.mode or "dense")
        elif options.index_type is not None:
            yield _built_index(model, task, options, folder, reuse=reuse, track=track)
        else:
            yield _dense_or_hybrid(model, task, options, cache)


def is_index(path: str) -> bool:
    """Whether a path is an index directory."""
    return (Path(path) / "current").is_file()


def _dense_or_hybrid(model: str, task: Task, options: ModelOptions, cache: VectorCache) -> System:
    encoder = load_encoder(
        model,
        task.protocol,
        device=options.device,
        dtype=options.dtype,
        max_tokens=options.max_tokens,
        chunk_words=options.chunk_words,
    )
    unit = "passage" if options.chunk_words else options.unit
    dense = DenseSystem(encoder, task.corpus, cache, unit=unit, name=_display_name(encoder, unit))
    if options.mode != "hybrid":
        return dense
    return WeightedSystem(BM25System(task.corpus, task.protocol), dense)


def _display_name(encoder: CorpusEncoder, unit: str) -> str:
    chunks = encoder.info.settings["chunks"]
    if chunks not in ("late", "none"):
        return f"{encoder.info.name}, {chunks}"
    return encoder.info.name if unit == "document" else f"{encoder.info.name}, {unit}"


def _built_index(model: str, task: Task, options: ModelOptions, folder: Path, *, reuse: bool, track: Track) -> System:
    """Build (or with `reuse` find) an index of the task's corpus and measure it through `Retriever`."""
    if task.protocol is PAPER:
        raise ConfigError(
            "index_type measures an index over the whole corpus; the paper protocol has none. Leave one out."
        )
    if model != "default" and not is_ours(model):
        raise ConfigError(
            f"index_type builds indexes with Avey-B models, and {model!r} is none; leave it out for exact search."
        )
    from aveyb_retrieval.encoder.embedder import Embedder
    from aveyb_retrieval.index.write.build import build_index

    path = None if model == "default" else model
    embedder = Embedder.load(path, device=options.device, max_tokens=options.max_tokens)
    kind = INDEX_TYPES.get(str(options.index_type).lower(), str(options.index_type))
    key = fingerprint_of([embedder.fingerprint, task.corpus.fingerprint, kind, options.max_tokens])[:32]
    target = folder / "indexes" / key
    if not (reuse and is_index(str(target))):
        documents = track(task.corpus, len(task.corpus), f"{embedder.model_name}: indexing")
        rows = ({"_id": doc.id, "title": doc.title, "text": doc.text} for doc in documents)
        build_index(
            rows, target, model=path, device=options.device, index=kind, max_tokens=options.max_tokens, overwrite=True,
            restart=True,
        )  # fmt: skip
    return IndexSystem(target, mode=options.mode or "dense", name=f"{embedder.model_name}, {kind} index")


def passage_table(
    task: Task, model: str, peers: Sequence[str], chunk_words: int, scope: str, folder: Path | None, track: Track
) -> list[PassageScores]:
    """Our model with late chunking, the same spans one by one, then each peer on fixed chunks of `chunk_words`."""
    cache = VectorCache(folder, track=track)
    embedder: Any = None

    def make_encoder(chunker: Chunker | None) -> CorpusEncoder:
        nonlocal embedder
        if embedder is None:
            from aveyb_retrieval.encoder.embedder import Embedder

            embedder = Embedder.load(None if model == "default" else model)
        return AveyEncoder(embedder, task.protocol, chunker=chunker)

    scores = late_against_fixed(make_encoder, task, cache, scope=scope)
    for peer in peers:
        encoder = load_encoder(peer, task.protocol, chunk_words=chunk_words)
        scores.append(evaluate_passages(encoder, task, cache, scope=scope, name=_display_name(encoder, "passage")))
    return scores
