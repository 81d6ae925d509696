"""The indexes of a server by name: each follows its newest version, and all share one model."""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.errors import AveyBError, ConfigError
from aveyb_retrieval.indexes.index import Index
from aveyb_retrieval.indexes.model import Model, load_model, load_recorded
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.indexes.store.place import read_manifest
from aveyb_retrieval.server.batching import BatchedModel
from aveyb_retrieval.server.keys import seen
from aveyb_retrieval.server.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.types import EmbedderLike

WAIT_SECONDS = 5.0  # that a change waits for another writer to end

_log = logging.getLogger("aveyb_retrieval.server")


class Indexes:
    """Open indexes by name, and the model of all of them (None if no index has one).

    `failures` holds by name why an index could not follow its newest version. `load` are two
    functions: one loads the model of an index, the other opens an index with a model. With them the
    server moves to another model when all indexes are made by it; None: it does not. `again` opens
    the same indexes in another process; None if their model was given loaded.
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
        self._retired: list[Index] = []  # writers of models that the server has left
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

        A server has one model. Raises IndexFormatError also if an index was made by another model
        than `model`, or than that of the first index. `observe` is called with the size of each
        batch of queries.
        """
        encodings = {name: read_manifest(path).encoding for name, path in paths.items()}
        with_model = [name for name in paths if encodings[name].model is not None]

        def load(encoding: Encoding, path: str | Path) -> BatchedModel:
            places, recorded = encoding.model_places(path), encoding.model or {}
            loaded = load_recorded(places, recorded, device=device, precision=precision)
            return _batched(loaded, observe)

        batched = None
        if model is not None:
            batched = _batched(load_model(model, device=device, precision=precision), observe)
        elif with_model:
            batched = load(encodings[with_model[0]], paths[with_model[0]])
        open_index = partial(Retriever.load, device=device)
        retrievers = {}
        for name, path in paths.items():
            own = batched if model is not None or name in with_model else None
            retrievers[name] = open_index(path, model=own)
        again = partial(cls.open, paths, model=model, device=device, precision=precision)
        is_loaded = not (model is None or isinstance(model, (str, Path)))
        return cls(
            retrievers,
            batched,
            (load, open_index) if model is None else None,
            None if is_loaded else again,
        )

    @property
    def versions(self) -> dict[str, str]:
        """The versions that are open, by the names of the indexes."""
        return {name: retriever.version for name, retriever in self.retrievers.items()}

    def named(self, name: str | None, only: Filter | None = None) -> tuple[str, Retriever]:
        """Return an index with its name, as a key with a filter sees it; the only one if no name
        is given.
        """
        names = ", ".join(map(repr, self.retrievers))
        if name is None:
            if len(self.retrievers) > 1:
                raise Refusal(422, f"index: several are served; name one of {names}")
            name = next(iter(self.retrievers))
        if name not in self.retrievers:
            raise Refusal(404, f"index={name!r}: no such index; there are {names}")
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
        while self._retired:  # closed here: the thread that changed them is this one
            self._retired.pop().close()
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
        """Move every index to its newest version; one that cannot be opened stays as it is, and the
        log says why.
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
        """Move to another model if the newest versions of all indexes were made by one; return
        whether they were.

        Running requests end on what they began with, which is freed when nobody has it any more.
        """
        if self._load is None or self.model is None:
            return False
        paths = {name: retriever.path for name, retriever in self.retrievers.items()}
        newest = {name: read_manifest(path).encoding for name, path in paths.items()}
        encodings = {name: encoding for name, encoding in newest.items() if encoding.model}
        fingerprints = {encoding.fingerprint for encoding in encodings.values()}
        if not encodings or self.model.fingerprint in fingerprints:
            return False
        load, open_index = self._load
        first = next(iter(encodings))
        model = load(encodings[first], paths[first])
        # an index of a third model is refused
        moved = {name: open_index(paths[name], model=model) for name in encodings}
        with self._moving:
            self.model = model
            self.retrievers.update(moved)
            self._retired += self._writers.values()
            self._writers.clear()
        _log.warning("moved to the model %s: %s", model.model_name, ", ".join(moved))
        return True

    def close(self) -> None:
        """Let go of the model and of all files."""
        if self.model is not None:
            self.model.close()
        for retriever in (*self.retrievers.values(), *self._writers.values(), *self._retired):
            retriever.close()


def _batched(loaded: EmbedderLike, observe: Callable[[int], None]) -> BatchedModel:
    if isinstance(loaded, Embedder):
        loaded.model.warm_up()  # or the first request would wait for what is made once
    return BatchedModel(cast("Embedder", loaded), observe)


def named_paths(arguments: Sequence[str]) -> dict[str, str | Path]:
    """Read `DIR` or `NAME=DIR` into folders (or addresses) by name, by default that of the
    folder.
    """
    paths: dict[str, str | Path] = {}
    for text in arguments:
        name, equals, folder = text.partition("=")
        if not equals or Path(text).is_dir():
            name, folder = Path(text).resolve().name, text
        if not name or "/" in name:
            raise ConfigError(f"{text!r}: an index needs a name without slashes; write NAME=DIR")
        if name in paths:
            raise ConfigError(
                f"{text!r}: {str(paths[name])!r} is called {name!r} too; write NAME=DIR to name it"
            )
        paths[name] = folder if "://" in folder else Path(folder)
    return paths
