"""From the names that a user gives (models, an index, a mode) to the systems that are measured on a
task.

A model of ours, and with `index_type` any other, is measured as users search: an index of the
corpus is built and searched by `Retriever`, with words and vectors unless `mode` says otherwise.
Everything else (peers, fixed chunks, the paper's protocol, and `index_type="none"`) is measured by
its vectors: the index is built without approximation, and every vector is scored. An option that a
system cannot honor is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.eval.base import DEFAULT_MODE, System, fingerprint_of
from aveyb_retrieval.eval.encoders import (
    AsMeasured,
    LoadOptions,
    is_ours,
    load_embedder,
    load_measured,
)
from aveyb_retrieval.eval.systems import (
    BM25System,
    IndexSystem,
)
from aveyb_retrieval.eval.tasks import PAPER, Task
from aveyb_retrieval.indexes.types import silent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.eval.data import Corpus
    from aveyb_retrieval.indexes.types import EmbedderLike, Progress

NO_INDEX = "none"
INDEX_TYPES = {"auto": "auto", "flat": "Flat", "hnsw": "HNSW32"}
"""Short names of index types; anything else but "none" is a FAISS factory string."""


@dataclass(frozen=True)
class EvalModelOptions:
    """How every model is used.

    Attributes:
        mode: None: hybrid through an index, else dense.
        granularity: None: all vectors that there are.
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
    options: EvalModelOptions,
    folder: Path,
    *,
    reuse: bool = False,
    progress: Progress = silent,
) -> Iterator[System]:
    """Yield one system per named model, made when it is its turn, so that one model is in memory at
    a time.

    `bm25` has no vectors, so the options about them do not concern it.
    """
    mode, named = options.mode or DEFAULT_MODE, options.index_type or "auto"
    kind = INDEX_TYPES.get(named.lower(), named)
    searched: dict[str, Any] = {
        "mode": mode,
        "granularity": options.granularity,
        "options": options.load,
    }
    made: dict[str, Any] = {"reuse": reuse, "progress": progress}
    for model in models:
        if model == "bm25":
            yield BM25System(task.corpus, task.protocol)
        elif is_index(model):
            if task.protocol is PAPER:
                raise ConfigError(
                    f"{model}: an index holds the whole corpus and its own prompts; name its model"
                    " instead"
                )
            for what, value in (
                ("index type", options.index_type),
                ("chunk words", options.chunk_words),
            ):
                if value is not None:
                    raise ConfigError(
                        f"{model}: {what} {value!r} has no effect on an index that is built"
                        " already; leave it out"
                    )
            yield IndexSystem(model, documents=len(task.corpus), **searched)
        elif _wants_index(model, task, options):
            embedder = load_embedder(model, options.load)
            path = indexed(embedder, task.corpus, folder / "indexes", kind=kind, **made)
            name = f"{embedder.model_name}, {mode}, {kind} index"
            yield IndexSystem(path, model=embedder, name=name, **searched)
        elif options.mode == "lexical":
            raise ConfigError(
                f"mode 'lexical' leaves nothing of {model!r} to measure without an index; name bm25"
                " instead"
            )
        else:
            measured = load_measured(
                model, task.protocol, options.load, chunk_words=options.chunk_words
            )
            yield exact_system(
                measured,
                task.corpus,
                folder,
                **searched | {"mode": options.mode or "dense"},
                **made,
            )


def exact_system(
    model: AsMeasured,
    corpus: Corpus,
    folder: Path,
    *,
    mode: str = "dense",
    granularity: str | None = None,
    options: LoadOptions | None = None,
    name: str = "",
    reuse: bool = True,
    progress: Progress = silent,
) -> IndexSystem:
    """Measure a model by its vectors, every one scored: an index of the corpus without
    approximation.
    """
    if granularity is not None and model.granularity not in ("both", granularity):
        raise ConfigError(
            f"granularity {granularity!r}: {model.model_name} with chunks {model.chunks!r} makes"
            f" only vectors of {model.granularity}s; leave it out"
        )
    path = indexed(
        model,
        corpus,
        folder / "vectors",
        granularity=model.granularity,
        reuse=reuse,
        progress=progress,
    )
    label = (
        model.model_name
        if model.chunks in ("passages", "none")
        else f"{model.model_name}, {model.chunks}"
    )
    if granularity not in (None, model.granularity):
        label += f", {granularity}"
    options = replace(options or LoadOptions(), max_tokens=None)
    system = IndexSystem(
        path,
        mode=mode,
        granularity=granularity,
        options=options,
        model=model,
        name=name or label,
        exact=True,
    )
    system.info = replace(
        system.info, kind=mode, settings={**system.info.settings, "chunks": model.chunks}
    )
    return system


def indexed(
    model: EmbedderLike,
    corpus: Corpus,
    folder: Path,
    *,
    kind: str = "none",
    granularity: str = "both",
    reuse: bool = True,
    progress: Progress = silent,
) -> Path:
    """Return an index of a corpus below `folder`, found with `reuse` where it was made before; else
    it is built.

    Each document has its id as the metadata field `document` as well, for searches within some of
    them.
    """
    from aveyb_retrieval.indexes.changes.update import build_index

    read = [str(getattr(model, name, None)) for name in ("passage_size", "max_tokens", "precision")]
    path = (
        folder
        / fingerprint_of([model.fingerprint, corpus.fingerprint, kind, granularity, *read])[:32]
    )
    if not (reuse and is_index(str(path))):

        def report(stage: str, done: int, total: int | None, tokens: int) -> None:
            progress(f"{model.model_name}: {stage}", done, total or len(corpus), tokens)

        options: dict[str, Any] = {
            "index": kind,
            "granularity": granularity,
            "overwrite": True,
            "restart": True,
        }
        build_index(indexed_rows(corpus), path, model=model, progress=report, **options)
    return path


def indexed_rows(corpus: Corpus) -> Iterator[dict[str, str]]:
    """Yield the documents of a corpus for `build_index`, each with its id as the metadata field
    `document`.
    """
    for document in corpus:
        yield {
            "_id": document.id,
            "title": document.title,
            "text": document.text,
            "document": document.id,
        }


def is_index(path: str) -> bool:
    """Return whether a path is an index directory."""
    return (Path(path) / "current").is_file()


def _wants_index(model: str, task: Task, options: EvalModelOptions) -> bool:
    if options.index_type == NO_INDEX:
        return False
    if task.protocol is PAPER:
        reason = "the paper protocol has its own prompts and a reduced corpus"
    elif options.chunk_words is not None:
        reason = "an index makes its own passages, not chunks of --chunk-words"
    else:
        return is_ours(model) or options.index_type is not None
    if options.index_type is not None:
        raise ConfigError(
            f"index type {options.index_type!r}: {reason}; leave it out to score every vector"
        )
    return False
