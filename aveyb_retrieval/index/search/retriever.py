"""`Retriever`: the one face of an index that an application sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.index.model import Model, check_loaded, load_model
from aveyb_retrieval.index.search import lookup
from aveyb_retrieval.index.search.documents import DocumentSearch
from aveyb_retrieval.index.search.options import Options, SearchOptions
from aveyb_retrieval.index.search.passages import PassageSearch
from aveyb_retrieval.index.search.snapshot import Snapshot
from aveyb_retrieval.index.storage.directory import IndexDirectory
from aveyb_retrieval.index.types import EmbedderLike, check_fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

    from aveyb_retrieval.index.search.base import Search
    from aveyb_retrieval.index.search.hits import Hit
    from aveyb_retrieval.index.search.lookup import Document
    from aveyb_retrieval.index.storage.filters import Filter


class Retriever:
    """Searches an index directory. Safe to use from many threads; several processes may open the same index.

    A retriever keeps to the version that was visible when it was loaded, however the index is changed meanwhile;
    `reopen` moves to the newest one.
    """

    def __init__(self, path: str | Path, snapshot: Snapshot, embedder: EmbedderLike | None, opening: _Opening) -> None:
        self.path = Path(path)
        self._snapshot = snapshot
        self._embedder = embedder
        self._opening = opening
        self._model_lock = threading.Lock()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: Model = None,
        device: str = "cpu",
        precision: str = "float32",
        mapped: bool = True,
        verify: bool = False,
    ) -> Retriever:
        """Open an index.

        Args:
            path: The index directory.
            model: The model that made the index: a loaded `Embedder`, or where it is now; None looks where it was at
                the build, at the first search that needs it.
            device: Where the model runs and vectors are searched.
            precision: What the model computes in, as in `build_index`.
            mapped: Leave vectors on disk, shared with other processes, instead of reading them into memory.
            verify: Recompute the hash of every file first, also of a large index.

        Raises:
            IndexFormatError: there is no index, it is damaged, or it was made by another model.
            BackendError: the device is not there.
        """
        source, embedder = (model, None) if model is None or isinstance(model, (str, Path)) else (None, model)
        if embedder is not None:
            # `device` says where vectors are searched, too, and so it may be given beside a loaded model
            check_loaded(embedder, device="cpu", precision=precision, max_tokens=None)
        opening = _Opening(source, device, precision, mapped)
        retriever = cls(path, Snapshot.open(path, mapped=mapped, full_check=verify, device=device), None, opening)
        if embedder is not None:
            _check_model(retriever._snapshot, embedder)
            retriever._embedder = embedder
        elif source is not None:
            retriever._model()
        return retriever

    @property
    def version(self) -> str:
        """Name of the version that is open."""
        return self._snapshot.manifest.version

    @property
    def granularity(self) -> str:
        """The vectors that were made: "document", "passage" or "both"."""
        return self._snapshot.manifest.granularity

    @property
    def model(self) -> EmbedderLike:
        """The model that encodes queries, loaded when it is first asked for; changes of the index can share it.

        Raises:
            ConfigError: the index was made from ready-made vectors of a model that was not named.
            ModelError: there is no usable model where it was.
        """
        return self._model()

    @property
    def is_stale(self) -> bool:
        """Whether a newer version is there to be reopened."""
        return IndexDirectory(self.path).current() != self.version

    def reopen(self) -> None:
        """Move to the newest version. Searches that are running end on the one they began with."""
        if self.is_stale:
            snapshot = Snapshot.open(self.path, mapped=self._opening.mapped, device=self._opening.device)
            if self._embedder is not None:
                _check_model(snapshot, self._embedder)
            self._snapshot = snapshot  # the old one lets go of its files when the last search on it ends

    def close(self) -> None:
        """Let go of the index's files. Searching afterwards is an error."""
        self._snapshot.close()

    def __enter__(self) -> Retriever:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of documents."""
        return self._snapshot.manifest.counts["documents"]

    # --- documents ---------------------------------------------------------------------------------------------------

    def get(self, ids: Sequence[str], *, missing_ok: bool = False) -> list[Document]:
        """Return documents by id, in the order of `ids`; with `missing_ok`, without those that are not there.

        Raises:
            InputError: an id is not in the index, or `ids` is not a list of strings.
        """
        return lookup.get(self._snapshot, ids, missing_ok=missing_ok)

    def documents(
        self, filter: Filter | None = None, *, limit: int | None = None, offset: int = 0
    ) -> Iterator[Document]:
        """Yield all documents that satisfy a filter, oldest first, or up to `limit` of them after the first `offset`.

        They are read as they are asked for, all from the version that is open now.

        Raises:
            ConfigError: the filter, `limit` or `offset` is not one.
        """
        return lookup.documents(self._snapshot, filter, limit, offset)

    def count(self, filter: Filter | None = None) -> int:
        """Count the documents that satisfy a filter; without one, all.

        Raises:
            ConfigError: the filter means nothing.
        """
        return lookup.count(self._snapshot, filter)

    # --- searching ---------------------------------------------------------------------------------------------------

    # a string is a sequence of strings, too: it takes the first of the two
    @overload
    def search(  # type: ignore[overload-overlap]
        self, query: str, k: int = ..., **options: Unpack[SearchOptions]
    ) -> list[Hit]: ...
    @overload
    def search(self, query: Sequence[str], k: int = ..., **options: Unpack[SearchOptions]) -> list[list[Hit]]: ...

    def search(
        self, query: str | Sequence[str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Hit] | list[list[Hit]]:
        """Find the `k` best documents or passages for a query, or for each query of a list (then a list of lists).

        Args:
            query: Text, or several.
            k: How many; fewer come back only where fewer exist (or, lexically, hold any of the words), or `min_score`,
                or `rerank` with folding or `per_document`, leaves fewer.
            **options: See `SearchOptions`.

        Raises:
            InputError: a query is empty.
            ConfigError: an option is unknown, out of range, or the index does not have what it asks for.
            IndexFormatError: the model is not the one that made the index.
        """
        texts = _as_list(query)
        search = self._prepare(k, options)
        hits = [search.hits(ranked) for ranked in search.rank_texts(texts)]
        return hits[0] if isinstance(query, str) else hits

    @overload
    async def asearch(  # type: ignore[overload-overlap]
        self, query: str, k: int = ..., **options: Unpack[SearchOptions]
    ) -> list[Hit]: ...
    @overload
    async def asearch(
        self, query: Sequence[str], k: int = ..., **options: Unpack[SearchOptions]
    ) -> list[list[Hit]]: ...

    async def asearch(
        self, query: str | Sequence[str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Hit] | list[list[Hit]]:
        """Run `search` in a thread, for asynchronous programs; the work is done outside of Python."""
        return await asyncio.to_thread(lambda: self.search(query, k, **options))

    def search_vectors(
        self, vectors: npt.NDArray[np.floating], k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[list[Hit]]:
        """Run `search` with queries that are vectors already, `[n, d]`; they are scaled to unit length.

        Raises:
            InputError: they are of another dimension, or not finite.
            ConfigError: an option needs the text of a query.
        """
        options.setdefault("mode", "dense")
        search = self._prepare(k, options)
        if search.needs_text:
            raise ConfigError("search_vectors: lexical search, fusion and reranking need queries of text; use search")
        return [search.hits(ranked) for ranked in search.rank_vectors(self._snapshot.unit_vectors(vectors))]

    def rank(
        self, queries: Sequence[str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[list[tuple[str, float]]]:
        """Search for a list of queries, but give only (id, score) pairs: what an evaluation of many queries needs."""
        search = self._prepare(k, options)
        return [search.pairs(ranked) for ranked in search.rank_texts(_as_list(list(queries)))]

    def words(self, query: str) -> list[str]:
        """Return the words of a query that a lexical search looks up: without stop words, stemmed if the index is."""
        return self._snapshot.language.words(query)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _prepare(self, k: int, options: SearchOptions) -> Search:
        snapshot = self._snapshot
        parsed = Options.parse(snapshot.manifest.granularity, k, **options)
        return (PassageSearch if parsed.unit == "passage" else DocumentSearch)(snapshot, parsed, self._model)

    def _model(self) -> EmbedderLike:
        """The model, loaded when it is first needed."""
        with self._model_lock:
            if self._embedder is None:
                embedder = self._opening.embedder(self._snapshot)
                _check_model(self._snapshot, embedder)
                self._embedder = embedder
            return self._embedder


@dataclass(frozen=True)
class _Opening:
    """How to open the model and later versions."""

    model: str | Path | None
    device: str
    precision: str
    mapped: bool

    def embedder(self, snapshot: Snapshot) -> EmbedderLike:
        manifest = snapshot.manifest
        if self.model is None and manifest.model is None:
            raise ConfigError(
                f"{snapshot.folder.parent}: made from ready-made vectors of a model that was not named; search it with "
                "search_vectors, lexically, or give the model (build it with --model next time)"
            )
        source = self.model if self.model is not None else manifest.settings["model_source"]
        return load_model(source, device=self.device, precision=self.precision)


def _check_model(snapshot: Snapshot, embedder: EmbedderLike) -> None:
    check_fingerprint(snapshot.manifest.model, snapshot.manifest.dim, embedder, snapshot.folder.parent)


def _as_list(query: str | Sequence[str]) -> list[str]:
    if not isinstance(query, Iterable):
        raise InputError(f"the query is of type {type(query).__name__}; a string or a list of strings is needed")
    queries = [query] if isinstance(query, str) else list(query)
    for number, text in enumerate(queries, start=1):
        where = "the query" if isinstance(query, str) else f"query {number} of {len(queries)}"
        if not isinstance(text, str):
            raise InputError(f"{where} is of type {type(text).__name__}; a string is needed")
        if not text.strip():
            raise InputError(f"{where} is empty; there is nothing to search for")
    return queries
