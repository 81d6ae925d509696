"""Reading a collection of a server: the version that is open, and how rows become what a search asks for."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.engines.base import SAMPLE, EngineInfo
from aveyb_retrieval.indexes.input.documents import FileOrigin
from aveyb_retrieval.indexes.pages import Pages
from aveyb_retrieval.indexes.store.numbering import expand_passages, rank_of
from aveyb_retrieval.indexes.store.tables import StoredDocument, StoredPassage
from aveyb_retrieval.indexes.store.words import Language, language

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from aveyb_retrieval.indexes.engines.collection import CollectionSettings
    from aveyb_retrieval.indexes.engines.versions import Versions
    from aveyb_retrieval.indexes.types import BoolArray, FloatArray, IntArray, Kind

KEPT = 10_000  # values that are remembered of one state


class Version:
    """One version of a collection that is open; remembers values that searches share."""

    def __init__(self, number: int, settings: CollectionSettings, versions: Versions) -> None:
        self.number = number
        self.settings = settings
        self.label = versions.label(number)
        self.name = versions.name
        self._known: tuple[object, dict[str, Any]] = None, {}

    def known(self, state: object) -> dict[str, Any]:
        """What is remembered of a state of the documents."""
        known = self._known
        if known[0] != state:
            known = self._known = state, {}
        return known[1]


class Server(Protocol):
    """Connections to a server, for many threads."""

    def reading(self) -> AbstractContextManager[Any]:
        """Give one connection to read with, as long as they are not closed."""
        ...

    def close(self) -> None:
        """Close them."""
        ...


class CollectionReader:
    """One collection, at the version that readers saw when it was opened; changes to it are seen."""

    def __init__(
        self, server: Server, versions: Callable[[Any], Versions], view: Callable[[Any, Version], CollectionView]
    ) -> None:
        """Open what is published; the functions are given a connection.

        Raises:
            EngineError: the server does not answer, or refuses the user.
            IndexFormatError: nothing is published under this name.
        """
        self._server: Server | None = server
        self._versions = versions
        self._view = view
        try:
            self._version = self._newest()
        except BaseException:
            server.close()
            raise

    @contextmanager
    def view(self) -> Iterator[CollectionView]:
        """Look at what is there now."""
        with self._open().reading() as connection:
            yield self._view(connection, self._version)

    @property
    def is_stale(self) -> bool:
        """Whether other documents were published under this name."""
        with self._open().reading() as connection:
            return self._versions(connection).shown() != self._version.number

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        """Move to what is published now, unless `check` of it raises an error."""
        newest = self._newest()
        with self._open().reading() as connection:
            check(self._view(connection, newest).info)
        self._version = newest

    def close(self) -> None:
        """Close the connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _open(self) -> Server:
        if self._server is None:
            raise AveyBError(f"{self._version.name}: this index was closed; load it again to search it")
        return self._server

    def _newest(self) -> Version:
        with self._open().reading() as connection:
            return self._versions(connection).visible()


class CollectionView(ABC):
    """What one search reads, as `EngineView` says: the engine finds numbers and reads rows.

    Rows of documents have a number, an id, its rank, how many passages there are, and `stored`: JSON of title, text,
    metadata (JSON) and pages (JSON or null), in one string or several. Those of passages have a number, start and stop
    in the text, the heading and the words.
    """

    tokens = None
    remedy = "publish it again with `aveyb-index publish`"

    def __init__(self, version: Version, state: object) -> None:
        """Look at a version; what is remembered stays as long as `state` does."""
        self.version = version
        self.encoding = version.settings.encoding
        self.language: Language = language(self.encoding.language)
        self._known = version.known(state)

    @cached_property
    def info(self) -> EngineInfo:
        """What there is."""
        return EngineInfo(
            name=self.version.name,
            version=f"{self.version.label}.{self.version.settings.publication}",
            dim=self.encoding.dim,
            granularity=self.encoding.granularity,
            documents=self.count("document"),
            passages=self.count("passage"),
            model=self.encoding.model,
            model_source=self.encoding.model_source,
            remedy=self.remedy,
        )

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """Vectors `[n, d]` of documents or passages, by numbers `[n]`, in their order."""
        found = dict(self.read_vectors(kind, numbers.tolist()))
        missing = next((number for number in numbers.tolist() if number not in found), None)
        if missing is not None:
            raise IndexFormatError(f"{self.version.name}: no vector of {kind} number {missing}; {self.remedy}")
        return np.array([found[number] for number in numbers.tolist()], np.float32).reshape(-1, self.encoding.dim)

    @property
    def mean_vector(self) -> FloatArray:
        """The mean `[d]` of the vectors of the documents that an index directory chooses, too."""
        mean: FloatArray = self.remembered("mean vector", self._mean)
        return mean

    @property
    def mean_passage_length(self) -> float:
        """The mean length of the passages of these documents, in characters."""
        return float(self.remembered("mean length", self._mean_length))

    def occurrences(self, text: str, passages: IntArray) -> tuple[IntArray, BoolArray]:
        """How many passages hold each word of a text, `[t]`, and which of some `[n]`, ascending, do: `[t, n]`."""
        words = [self.as_stored(word) for word in self.language.words(text)]
        stored = {number: f" {held} " for number, held in self.read("passage", ("number", "words"), passages.tolist())}
        held = [[f" {word} " in stored.get(number, "") for number in passages.tolist()] for word in words]
        return np.array(self.holding(words), np.int64), np.array(held, dtype=bool).reshape(len(words), len(passages))

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Numbers of documents by their ids; those that are not there are left out."""
        wanted = set(ids)
        found = self.read("document", ("id", "number"), [rank_of(name) for name in wanted], by="rank")
        return {name: number for name, number in found if name in wanted}

    def documents(self, docs: Sequence[int], *, texts: bool = True) -> dict[int, StoredDocument]:
        """Documents by number; those that are not there are left out. Without `texts`, texts are empty."""
        columns = ("number", "id", "stored") if texts else ("number", "id")
        return {row[0]: _document(*row) for row in self.read("document", columns, docs)}

    def passages(self, passages: Sequence[int]) -> dict[int, StoredPassage]:
        """Passages by number; those that are not there are left out."""
        found = self.read("passage", ("number", "start", "stop", "heading"), passages)
        return {number: StoredPassage((start, stop), heading) for number, start, stop, heading in found}

    def passage_numbers(self, docs: Sequence[int]) -> IntArray:
        """Numbers of the passages of some documents, `[n]`, ascending."""
        counts = sorted(self.read("document", ("number", "passages"), docs))
        return expand_passages(np.array(counts, dtype=np.int64).reshape(-1, 2))

    def passage_spans(self, docs: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Passages of some documents, ascending: numbers `[n]` and characters of the text `[n, 2]`."""
        found = sorted(self.read("passage", ("number", "start", "stop"), self.passage_numbers(docs).tolist()))
        rows = np.array(found, dtype=np.int64).reshape(-1, 3)
        return rows[:, 0], rows[:, 1:]

    def remembered(self, name: str, compute: Callable[[], Any]) -> Any:
        """A value that is computed once as long as no document changes."""
        value = self._known.get(name)
        if value is None:
            value = compute()
            if len(self._known) < KEPT:
                self._known[name] = value
        return value

    def _mean(self) -> FloatArray:
        numbers, kind = np.array(sorted(self.sample(SAMPLE)), dtype=np.int64), self.encoding.kinds[0]
        if kind == "passage":
            numbers = self.passage_numbers(numbers.tolist())
        if not len(numbers):
            return np.zeros(self.encoding.dim, np.float32)
        mean: FloatArray = self.vectors(kind, numbers).mean(axis=0)
        return mean

    def _mean_length(self) -> float:
        spans = self.passage_spans(self.sample(SAMPLE))[1]
        return float((spans[:, 1] - spans[:, 0]).mean()) if len(spans) else 0.0

    # --- what an engine does -----------------------------------------------------------------------------------------

    @abstractmethod
    def read(
        self, kind: Kind, columns: Sequence[str], values: Iterable[int], *, by: str = "number"
    ) -> Iterable[tuple[Any, ...]]:
        """Columns of the rows whose number, or rank, is one of some values, in any order."""

    @abstractmethod
    def read_vectors(self, kind: Kind, numbers: list[int]) -> Iterable[tuple[int, Any]]:
        """Vectors with their numbers."""

    @abstractmethod
    def sample(self, most: int) -> list[int]:
        """Numbers of the documents of least rank."""

    @abstractmethod
    def count(self, kind: Kind, selection: Any = None) -> int:
        """Count the vectors of a kind that can be found."""

    @abstractmethod
    def holding(self, words: Sequence[str]) -> list[int]:
        """How many passages hold each of some words."""

    def as_stored(self, word: str) -> str:
        """A word as rows have it."""
        return word


def _document(number: int, name: str, stored: Iterable[str] = '["", "", "{}", null]') -> StoredDocument:
    title, text, metadata, pages = json.loads("".join(stored))
    # of the file that it was read from, no more than the pages is kept
    origin = None if pages is None else FileOrigin("", "", Pages.from_json(json.loads(pages)))
    return StoredDocument(number, name, title, text, json.loads(metadata), origin)
