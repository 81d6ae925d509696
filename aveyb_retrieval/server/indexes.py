"""Several indexes by name, each following its newest version, and their one model, which encodes
queries in batches.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.errors import AveyBError, ConfigError
from aveyb_retrieval.indexes.index import Index
from aveyb_retrieval.indexes.model import Model, load_model, load_recorded
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.indexes.store.manifest import is_stored
from aveyb_retrieval.indexes.store.place import read_manifest
from aveyb_retrieval.indexes.types import WordVectors, token_width
from aveyb_retrieval.server.keys import seen
from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.server.work import CURRENT, check_current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.encoder.embedders.windows import WindowEncoder
    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.types import EmbedderLike, Encoded, FloatArray
    from aveyb_retrieval.server.work import Ticket

MAX_BATCH = 64  # queries encoded together
MAX_CHARACTERS = 16_384  # of them together, unless a single request has more


@dataclass(order=True)
class _Request:
    """Queries of one call; what is short goes first, since whoever asks many or long ones waits
    anyhow.
    """

    characters: int
    number: int
    queries: list[str] = field(compare=False)
    ticket: Ticket | None = field(compare=False)
    vectors: Future[FloatArray] = field(compare=False, default_factory=Future)


class BatchedModel:
    """A model whose `encode_queries` may be called from many threads and encodes their queries in
    batches.

    One thread at a time encodes, for all who wait. It takes what waits, up to `MAX_BATCH` queries,
    and never waits for more: a lone query is encoded at once, and batches grow only as fast as
    queries arrive. Vectors do not depend on the batch. Queries whose request nobody waits for any
    more are not encoded. `observe` is called with the number of queries of each batch.
    """

    def __init__(
        self, model: Embedder | WindowEncoder, observe: Callable[[int], None] = lambda size: None
    ) -> None:
        self.model = model
        self.dim, self.model_name, self.fingerprint = model.dim, model.model_name, model.fingerprint
        self.token_dim = token_width(model)
        if isinstance(model, WordVectors):
            self.word_vectors = model.word_vectors
        self._observe = observe
        self._waiting: queue.PriorityQueue[_Request] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._closed = False
        self._encoding = threading.Lock()

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[Encoded]:
        """Encode (prefix, text) pairs, in the calling thread."""
        for encoded in self.model.encode_documents(documents):
            check_current()
            yield encoded

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[FloatArray]:
        """Encode texts into token vectors, in the calling thread."""
        check_current()
        return self.model.token_vectors(texts, prompt=prompt)

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Encode queries into `[n, d]` float32 unit rows, together with those of other threads."""
        check_current()
        if self._closed:
            raise AveyBError(f"{self.model_name}: closed; it encodes no more queries")
        request = _Request(
            sum(map(len, queries)), next(self._numbers), list(queries), CURRENT.get()
        )
        self._waiting.put(request)
        with self._encoding:
            while not request.vectors.done():  # so it waits still
                self._encode(self._gather())
        return request.vectors.result()

    def close(self) -> None:
        """Take no more queries; those that wait are encoded."""
        self._closed = True

    def _gather(self) -> list[_Request]:
        requests, size, characters = [self._waiting.get_nowait()], 0, 0
        while True:
            size += len(requests[-1].queries)
            characters += requests[-1].characters
            if size >= MAX_BATCH or characters >= MAX_CHARACTERS or self._waiting.empty():
                return requests
            requests.append(self._waiting.get_nowait())

    def _encode(self, gathered: list[_Request]) -> None:
        requests = []
        for request in gathered:
            if request.ticket is None or (over := request.ticket.over) is None:
                requests.append(request)
            else:
                request.vectors.set_exception(over)
        if not requests:
            return
        try:
            vectors = self.model.encode_queries(
                [query for request in requests for query in request.queries]
            )
        except Exception as error:  # whoever asked gets it, whatever it is
            if len(requests) == 1:
                requests[0].vectors.set_exception(error)
                return
            for request in requests:  # one bad query is no reason to fail the others
                self._encode([request])
            return
        self._observe(len(vectors))
        start = 0
        for request in requests:
            stop = start + len(request.queries)
            request.vectors.set_result(vectors[start:stop])
            start = stop


WAIT_SECONDS = 5.0  # that a change waits for another writer to end

_log = logging.getLogger("aveyb_retrieval.server")


class Indexes:
    """Open indexes by name, and the model of all of them (None where none of them has one).

    `failures` says why an index could not follow its newest version. `load` loads the model of an
    index, and opens an index by it: where all indexes are made by another model from now on, the
    server moves to it; None: it does not. `again` opens the same in another process; None where
    their model was given loaded.
    """

    def __init__(
        self,
        retrievers: dict[str, Retriever],
        model: BatchedModel | None,
        load: tuple[Callable[..., BatchedModel], Callable[..., Retriever]] | None = None,
        again: Callable[[], Indexes] | None = None,
    ) -> None:
        self.retrievers, self.model, self._load, self.again = retrievers, model, load, again
        self.failures: dict[str, str] = {}
        self._writers: dict[str, Index] = {}
        self._moving = threading.Lock()

    @classmethod
    def open(
        cls,
        paths: Mapping[str, str | Path],
        *,
        model: Model = None,
        device: str = "cpu",
        precision: str = "auto",
        observe: Callable[[int], None] = lambda size: None,
    ) -> Indexes:
        """Open indexes (folders or addresses, by name) and load their model, as `Retriever.load`
        does.

        Raises IndexFormatError also where one was made by another model than the one given or the
        first one's: a server has one model. `observe` is called with the size of each batch of
        queries.
        """
        made = {name: read_manifest(path).encoding for name, path in paths.items()}
        recorded = [name for name in paths if made[name].model is not None]

        def load(of: Encoding, path: str | Path) -> BatchedModel:
            found = load_recorded(
                of.model_places(path), of.model or {}, device=device, precision=precision
            )
            return _batched(found, observe)

        batched = None
        if model is not None:
            batched = _batched(load_model(model, device=device, precision=precision), observe)
        elif recorded:
            batched = load(made[recorded[0]], paths[recorded[0]])
        opened, retrievers = partial(Retriever.load, device=device), {}
        for name, path in paths.items():
            own = batched if model is not None or name in recorded else None
            retrievers[name] = opened(path, model=own)
        again = partial(cls.open, paths, model=model, device=device, precision=precision)
        is_loaded = not (model is None or isinstance(model, (str, Path)))
        return cls(
            retrievers,
            batched,
            (load, opened) if model is None else None,
            None if is_loaded else again,
        )

    @property
    def versions(self) -> dict[str, str]:
        """The versions that are open, by the names of the indexes."""
        return {name: each.version for name, each in self.retrievers.items()}

    def named(self, name: str | None, only: Filter | None = None) -> tuple[str, Retriever]:
        """Return an index with its name, as a key with a filter sees it; the only one where no name
        is given.
        """
        known = ", ".join(map(repr, self.retrievers))
        if name is None:
            if len(self.retrievers) > 1:
                raise Refusal(422, f"index: several are served; name one of {known}")
            name = next(iter(self.retrievers))
        if name not in self.retrievers:
            raise Refusal(404, f"index={name!r}: no such index; there are {known}")
        return name, seen(self.retrievers[name], only)

    def needed_model(self) -> BatchedModel:
        """Return the model, or raise Refusal (404)."""
        if self.model is None:
            raise Refusal(
                404,
                "no model is served: the indexes were made from vectors; start the server with"
                " --model",
            )
        return self.model

    def writer(self, name: str) -> Index:
        """Return an index to be changed, by one thread at a time."""
        if name not in self._writers:
            path = self.retrievers[name].path
            model = None
            if self.model is not None and read_manifest(path).encoding.model is not None:
                model = self.model.model
            self._writers[name] = Index.open(path, model=model, wait=WAIT_SECONDS)
        return self._writers[name]

    def reopen(self, name: str) -> None:
        """Move an index to its newest version."""
        with self._moving:  # or the slower of two would move it back
            self.retrievers[name].reopen()

    def follow(self) -> None:
        """Move every index to its newest version; one that cannot be opened stays as it is and says
        why.
        """
        for name in self.retrievers:
            retriever = self.retrievers[name]
            try:
                if retriever.is_stale:
                    if not self._move():
                        self.reopen(name)
                    _log.info("%s: version %s is open", name, self.retrievers[name].version)
                self.failures.pop(name, None)
            except (AveyBError, OSError) as error:
                if self.failures.get(name) != str(error):
                    self.failures[name] = str(error)
                    _log.error("%s stays at version %s: %s", name, retriever.version, error)

    def _move(self) -> bool:
        """Move to another model, if the newest versions of all indexes were made by one; return
        whether they were.

        Requests that are running end on what they began with, which is let go when nobody has it
        any more.
        """
        if self._load is None or self.model is None:
            return False
        paths = {name: each.path for name, each in self.retrievers.items()}
        made = {
            name: found
            for name, path in paths.items()
            if (found := read_manifest(path).encoding).model
        }
        if {each.fingerprint for each in made.values()} & {self.model.fingerprint} or not made:
            return False
        load, opened = self._load
        first = next(iter(made))
        model = load(made[first], paths[first])
        # refuses where they are of several
        moved = {name: opened(paths[name], model=model) for name in made}
        with self._moving:
            self.model = model
            self.retrievers.update(moved)
            self._writers.clear()
        _log.warning("moved to the model %s: %s", model.model_name, ", ".join(moved))
        return True

    def close(self) -> None:
        """Let go of the model and of all files."""
        if self.model is not None:
            self.model.close()
        for retriever in (*self.retrievers.values(), *self._writers.values()):
            retriever.close()


def _batched(loaded: EmbedderLike, observe: Callable[[int], None]) -> BatchedModel:
    if isinstance(loaded, Embedder):
        loaded.model.warm_up()  # or the first request would wait for what is made once
    return BatchedModel(cast("Embedder", loaded), observe)


def named_paths(given: Sequence[str]) -> dict[str, str | Path]:
    """Read `DIR` or `NAME=DIR` into folders (or addresses) by name, by default that of
    the folder.
    """
    paths: dict[str, str | Path] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or Path(text).is_dir():
            name, folder = Path(text).resolve().name, text
        if not name or "/" in name:
            raise ConfigError(f"{text!r}: an index needs a name without slashes; write NAME=DIR")
        if name in paths:
            raise ConfigError(
                f"{text!r}: {str(paths[name])!r} is called {name!r} too; write NAME=DIR to name it"
            )
        paths[name] = folder if is_stored(folder) else Path(folder)
    return paths
