"""`Retriever`: the one face of an index that an application sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, Unpack, overload

from aveyb_retrieval.errors import AveyBError, ConfigError, InputError, plural
from aveyb_retrieval.indexes.engine import is_address, open_engine
from aveyb_retrieval.indexes.model import Model, check_loaded, load_model, load_recorded
from aveyb_retrieval.indexes.search.by_vector import unit_queries
from aveyb_retrieval.indexes.search.local import LocalEngine, StoredEngine
from aveyb_retrieval.indexes.search.options import Options, SearchOptions
from aveyb_retrieval.indexes.search.quotes import QuoteCheck, check_quotes
from aveyb_retrieval.indexes.search.ranking import QueryModel
from aveyb_retrieval.indexes.search.search import (
    Search,
    rank_texts,
    search_texts,
    search_vectors,
)
from aveyb_retrieval.indexes.search.several import MAX_INDEXES, SeveralEngine
from aveyb_retrieval.indexes.search.step_times import (
    OnSearch,
    SearchEvent,
    check_on_search,
    measured,
)
from aveyb_retrieval.indexes.search.stored_documents import Documents
from aveyb_retrieval.indexes.search.visible import VisibleEngine
from aveyb_retrieval.indexes.store.filters import compile_filter
from aveyb_retrieval.indexes.store.manifest import is_stored
from aveyb_retrieval.indexes.types import EmbedderLike, check_fingerprint, check_ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    import numpy as np
    import numpy.typing as npt

    from aveyb_retrieval.indexes.engine import EngineInfo, EngineView, VectorEngine
    from aveyb_retrieval.indexes.search.hit import Hit, Result
    from aveyb_retrieval.indexes.store.filters import Filter


Place = Union[str, Path, "Retriever"]
HitList = TypeVar("HitList", bound=Sized)  # hits of a query


class Retriever(Documents):
    """Searches an index directory. Safe to use from many threads; several processes may open the
    same index.

    A retriever of a directory keeps to the version that was visible when it was loaded, however
    the index is changed meanwhile; `reopen` moves to the newest one. A retriever of an index in an
    object store follows the newest version within seconds. A copy made by pickle opens the same
    place with the same options: the newest version, by the model that the index names where the
    model was given loaded.

    `path` is where the index is, or the names of several; `indexes` are the retrievers of several
    indexes by name, empty for one index.

    >>> with Retriever.load("handbook") as retriever:
    ...     [hit.id for hit in retriever.search("what notice must a tenant give?", k=1)]
    ['lease']
    """

    def __init__(
        self,
        path: str | Path,
        engine: VectorEngine,
        embedder: EmbedderLike | None,
        opening: _Opening,
    ) -> None:
        self.path = path
        self.indexes = opening.path if isinstance(opening.path, dict) else {}
        self._engine = engine
        self._embedder = embedder
        self._opening = opening
        self._model_lock = threading.Lock()
        self._part_of: tuple[Retriever, Filter] | None = None
        self._lender: Retriever | None = None  # whose model is used, where it has none of its own

    @classmethod
    def load(
        cls,
        path: str | Path | Sequence[Place] | Mapping[str, Place],
        *,
        model: Model = None,
        device: str = "cpu",
        precision: str = "auto",
        mapped: bool = True,
        verify: bool = False,
        on_search: OnSearch | None = None,
    ) -> Self:
        """Open an index, or several whose documents are searched in one ranking.

        Args:
            path: The index directory, its address in an object store (`s3://BUCKET/PATH`, `gs://`,
                `az://`), or that of a collection that `publish_index` made, such as
                `postgresql://USER@HOST/DATABASE/NAME`. Several of these or of open retrievers (a
                list, or a mapping from names) must be of one model and the same options.
                `Hit.index` is the name, by default the path as given; `close` closes all.
            model: The model that made the index: a loaded `Embedder`, or where it is now; None
                looks where it was at the build, at the first search that needs it.
            device: Where the model runs and vectors are searched.
            precision: What the model computes in, as in `Embedder.load`; an index is searched in
                any.
            mapped: Leave FAISS files on disk, shared with other processes, instead of reading them
                into memory.
            verify: Recompute the hash of every file first, also of a large index.
            on_search: Gets a `SearchEvent` at the end of every search that raised no error, in the
                thread of the search, which waits for it and raises what it raises.

        Raises IndexFormatError where there is no index, it is damaged, or of another model;
        BackendError where the device is not there; EngineError where a server fails; ConfigError
        where options or indexes do not fit.
        """
        check_on_search(on_search)
        if isinstance(path, (Sequence, Mapping)) and not isinstance(path, str):
            options: Any = {
                "model": model,
                "device": device,
                "precision": precision,
                "mapped": mapped,
                "on_search": on_search,
            }
            return cls._load_several(path, verify=verify, **options)
        source = _fixed_model(model) if isinstance(model, (str, Path)) else None
        embedder = None if isinstance(model, (str, Path)) else model
        if embedder is not None:
            # `device` says where vectors are searched, too, and so it may be given beside a loaded
            # model
            check_loaded(embedder, device="cpu", precision=precision, max_tokens=None)
        opening = _Opening(path, source, device, precision, mapped, on_search)
        engine: VectorEngine
        if is_address(path):
            if verify or not mapped:
                reason = (
                    "verify and mapped: only of an index directory; a server checks and keeps its"
                    " own files"
                )
                raise ConfigError(reason)
            engine = open_engine(str(path))
        else:
            kind = StoredEngine if is_stored(path) else LocalEngine
            engine = kind(path, mapped=mapped, full_check=verify, device=device)
            opening = replace(opening, path=engine.directory.location)
        with engine.view() as view:
            name = view.info.name if is_address(path) or is_stored(path) else Path(path)
        retriever = cls(name, engine, None, opening)
        if isinstance(engine, StoredEngine):
            engine.check = retriever._check_model
        if embedder is not None:
            _check_model(retriever._info(), embedder)
            retriever._embedder = embedder
        elif source is not None:
            retriever._model()
        return retriever

    @classmethod
    def _load_several(cls, places: Sequence[Place] | Mapping[str, Place], **options: Any) -> Self:
        pairs = (
            places.items()
            if isinstance(places, Mapping)
            else [(getattr(place, "path", place), place) for place in places]
        )
        named = {str(name): place for name, place in pairs}
        if not 0 < len(named) == len(places) <= MAX_INDEXES or any(
            getattr(place, "indexes", ()) for place in named.values()
        ):
            raise ConfigError(
                f"{', '.join(named) or 'no indexes'}: give 1 to {MAX_INDEXES} indexes, each once"
                " and by itself"
            )
        indexes = {
            n: place if isinstance(place, Retriever) else cls.load(place, **options)
            for n, place in named.items()
        }
        first = next(iter(indexes.values()))
        engine = SeveralEngine({name: retriever._engine for name, retriever in indexes.items()})
        on_search = options.get("on_search")
        opening = replace(first._opening, path=indexes, on_search=on_search)
        retriever = cls(", ".join(indexes), engine, None, opening)
        info = retriever._info()  # refuses indexes that do not go together
        model = options.get("model")
        if model is None or isinstance(model, (str, Path)):
            retriever._lender = first
        else:
            _check_model(info, model)  # none of places that were open already has it
            retriever._embedder = model
        return retriever

    def __reduce__(self) -> tuple[Any, ...]:
        if self._part_of is not None:
            return Retriever.visible, self._part_of
        return partial(type(self).load, **vars(self._opening)), ()

    def visible(self, filter: Filter) -> Retriever:
        """Return this index as one that holds only the documents that satisfy a filter, for who may
        see no others.

        No hit, score, count or error tells of the others; a filter of a search has the statistics
        of all. It shares files and model with this one, is closed with it, and is of index
        directories alone. ConfigError where the filter means nothing.
        """
        compile_filter(filter)  # only for its errors
        filter = deepcopy(filter)  # what its caller changes later is another filter
        if self.indexes:
            part = Retriever.load(
                {name: retriever.visible(filter) for name, retriever in self.indexes.items()},
                on_search=self._opening.on_search,
            )
        else:
            part = Retriever(self.path, VisibleEngine(self._engine, filter), None, self._opening)
        part._part_of = self, filter
        part._lender = self
        return part

    @property
    def version(self) -> str:
        """Name of the version that is open."""
        return self._info().version

    @property
    def granularity(self) -> str:
        """The vectors that were made: "document", "passage" or "both"."""
        return self._info().granularity

    @property
    def model(self) -> EmbedderLike:
        """The model that encodes queries, loaded when it is first asked for; changes of the index
        can share it.

        Raises ConfigError where that model was never named, ModelError where there is no usable
        one.
        """
        return self._model()

    @property
    def is_stale(self) -> bool:
        """Whether a newer version is there to be reopened."""
        return self._engine.is_stale

    def reopen(self) -> None:
        """Move to the newest version. Searches that are running end on the one they began with."""
        if self.is_stale:
            self._engine.reopen(self._check_model)

    @classmethod
    async def aload(
        cls, path: str | Path | Sequence[Place] | Mapping[str, Place], **options: Any
    ) -> Self:
        """Run `load` in a thread, for asynchronous programs."""
        load: Any = cls.load  # of one directory alone where this is an Index
        return await asyncio.to_thread(lambda: load(path, **options))

    async def areopen(self) -> None:
        """Run `reopen` in a thread, for asynchronous programs."""
        await asyncio.to_thread(self.reopen)

    def close(self) -> None:
        """Let go of the index's files. Searching afterwards is an error."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._info().documents

    def __bool__(self) -> bool:
        """True also of an index without documents."""
        return True

    def __contains__(self, id: object) -> bool:
        """Whether a document has this id."""
        try:
            ids = check_ids([id])  # type: ignore[list-item]  # it refuses what is no id
        except InputError:
            return False
        with self._engine.view() as view:
            return ids[0] in view.find(ids)

    # a document is had by its id, and not by its place: `documents` gives all of them
    __iter__ = None

    def __repr__(self) -> str:
        name = type(self).__name__
        try:
            info = self._info()
        except AveyBError as error:
            return f"<{name} {str(self.path)!r}: {error}>"
        part = "" if self._part_of is None else ", of which a part is visible"
        return (
            f"<{name} {str(self.path)!r}, version {info.version},"
            f" {plural(info.documents, 'document')}{part}>"
        )

    # a string is a sequence of strings, too: it takes the first of the two
    @overload
    def search(  # type: ignore[overload-overlap]
        self, query: str, k: int = ..., **options: Unpack[SearchOptions]
    ) -> Result: ...
    @overload
    def search(
        self, query: Sequence[str], k: int = ..., **options: Unpack[SearchOptions]
    ) -> list[Result]: ...

    def search(
        self, query: str | Sequence[str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Result | list[Result]:
        """Find the `k` best documents or passages for a query, or for each query of a list (then a
        list of results).

        Fewer than `k` come back where fewer exist (lexically: hold a word of the query) or reach
        `min_score`; with `sort`, also where fewer of the `candidates` match. Options are those of
        `SearchOptions`. A `Result` is a list of hits that also says which conditions nothing
        fulfilled, and which words may be meant.

        Raises InputError where a query is empty; ConfigError where an option is unknown, out of
        range, or asks for what the index does not have; IndexFormatError where the model is not the
        one that made the index.
        """
        texts = _as_list(query)
        results = self._run(k, options, lambda search: list(search_texts(search, texts)))
        return results[0] if isinstance(query, str) else results

    @overload
    async def asearch(  # type: ignore[overload-overlap]
        self, query: str, k: int = ..., **options: Unpack[SearchOptions]
    ) -> Result: ...
    @overload
    async def asearch(
        self, query: Sequence[str], k: int = ..., **options: Unpack[SearchOptions]
    ) -> list[Result]: ...

    async def asearch(
        self, query: str | Sequence[str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Result | list[Result]:
        """Run `search` in a thread; most of its work does not hold Python's lock."""
        return await asyncio.to_thread(lambda: self.search(query, k, **options))

    def check_quotes(
        self, answer: str, hits: Sequence[Hit] | None = None, *, filter: Filter | None = None
    ) -> list[QuoteCheck]:
        """Look for every quotation of an answer in the hits that it was made from, then in the
        whole index.

        Word for word, without a model; see `aveyb_retrieval.indexes.search.quotes`. The answer is
        plain text or Markdown, else ConfigError is raised; `hits` are in the order of its marks
        `[1]`, `[2]`; without any only the index counts.
        """
        return check_quotes(self, answer, hits, filter=filter)

    def search_vectors(
        self, vectors: npt.NDArray[np.floating], k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Result]:
        """Run `search` with queries that are vectors already, `[n, d]`; they are scaled to unit
        length. Copies are told by their texts, and not folded unless `fold=True` asks for it.

        Raises InputError where they are of another dimension or not finite, ConfigError where an
        option needs a text.
        """
        options.setdefault("mode", "dense")
        options.setdefault("fold", False)

        def steps(search: Search) -> list[Result]:
            if search.options.needs_text:
                raise ConfigError(
                    "search_vectors: lexical search, fusion, reranking and operators need queries"
                    " of text; use search"
                )
            unit = unit_queries(vectors, search.view.info.dim)
            return list(search_vectors(search, unit))

        return self._run(k, options, steps)

    def rank(
        self, queries: Sequence[str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[list[tuple[str, float]]]:
        """Search for a list of queries, but give only (id, score) pairs: what an evaluation of many
        queries needs.

        Copies are not folded unless `fold=True` asks for it. Raises as `search`; InputError if
        `queries` is one string.
        """
        if isinstance(queries, str):
            raise InputError(
                f"queries={queries!r} is one string; give a list of queries, as [{queries!r}]"
            )
        options.setdefault("fold", False)
        texts = _as_list(list(queries))
        return self._run(k, options, lambda search: list(rank_texts(search, texts)))

    def words(self, query: str) -> list[str]:
        """Return the words of a query that a lexical search looks up: without stop words, stemmed
        if the index is.
        """
        with self._engine.view() as view:
            return view.language.words(query)

    def _run(
        self, k: int, options: SearchOptions, steps: Callable[[Search], list[HitList]]
    ) -> list[HitList]:
        """Run the steps of a search, and report how long they took to who asks."""
        on_search = self._opening.on_search
        timing = nullcontext() if on_search is None else measured()
        with timing as stopwatch, self._engine.view() as view:
            search = self._prepare(view, k, options)
            results = steps(search)
        if on_search is not None and stopwatch is not None:
            checked = search.options
            event = SearchEvent(
                index=str(self.path),
                version=view.info.version,
                queries=len(results),
                k=checked.k,
                mode=checked.mode,
                unit=checked.unit,
                hits=sum(map(len, results)),
                seconds=stopwatch.seconds,
                steps=stopwatch.steps,
            )
            on_search(event)
        return results

    def _prepare(self, view: EngineView, k: int, options: SearchOptions) -> Search:
        parsed = Options.parse(view.info.granularity, k, **options)
        return Search.of(view, parsed, QueryModel(self._model, self._opening.device))

    def _info(self) -> EngineInfo:
        with self._engine.view() as view:
            return view.info

    def _model(self) -> EmbedderLike:
        if self._lender is not None:
            return self._lender._model()
        with self._model_lock:
            if self._embedder is None:
                info = self._info()
                embedder = self._opening.embedder(info)
                _check_model(info, embedder)
                self._embedder = embedder
            return self._embedder

    def _check_model(self, info: EngineInfo) -> None:
        if self._lender is not None:
            self._lender._check_model(info)
        elif self._embedder is not None:
            _check_model(info, self._embedder)


@dataclass(frozen=True)
class _Opening:
    path: str | Path | dict[str, Retriever]
    model: str | Path | None
    device: str
    precision: str
    mapped: bool
    on_search: OnSearch | None

    def embedder(self, info: EngineInfo) -> EmbedderLike:
        if self.model is not None:
            return load_model(self.model, device=self.device, precision=self.precision)
        if info.model is None:
            raise ConfigError(
                f"{info.name}: made from ready-made vectors of an unnamed model; search it with"
                " search_vectors or mode='lexical', or give the model (build it with --model"
                " next time)"
            )
        return load_recorded(
            info.model_places, info.model, device=self.device, precision=self.precision
        )


def _fixed_model(model: str | Path) -> str | Path:
    """A model's folder as it is found from any other folder; a name stays as it is."""
    folder = Path(model)
    return folder.absolute() if folder.is_dir() else model


def _check_model(info: EngineInfo, embedder: EmbedderLike) -> None:
    check_fingerprint(info.model, info.dim, embedder, info.name)


def _as_list(query: str | Sequence[str]) -> list[str]:
    if not isinstance(query, Iterable):
        raise InputError(
            f"the query is of type {type(query).__name__}; a string or a list of strings is needed"
        )
    queries = [query] if isinstance(query, str) else list(query)
    for number, text in enumerate(queries, start=1):
        where = "the query" if isinstance(query, str) else f"query {number} of {len(queries)}"
        if not isinstance(text, str):
            raise InputError(f"{where} is of type {type(text).__name__}; a string is needed")
        if not text.strip():
            raise InputError(f"{where} is empty; there is nothing to search for")
    return queries
