"""Reading a collection of a server: the version that is open, and how rows become what a search asks for."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.engines.base import SAMPLE, EngineInfo
from aveyb_retrieval.indexes.engines.words import ascii_word
from aveyb_retrieval.indexes.input.documents import FileOrigin
from aveyb_retrieval.indexes.pages import Pages
from aveyb_retrieval.indexes.store.numbering import expand_passages, rank_of
from aveyb_retrieval.indexes.store.tables import StoredDocument, stored_passages
from aveyb_retrieval.indexes.store.words import Language, language

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from aveyb_retrieval.indexes.engines.collection import Collection, CollectionSettings
    from aveyb_retrieval.indexes.store.tables import StoredPassage
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

KEPT = 10_000  # values that are remembered of one version


@dataclass(frozen=True)
class Version:
    """One version of a collection, what its names begin with, how it was made, and values that searches share."""

    number: int
    label: str
    settings: CollectionSettings
    known: dict[Hashable, Any] = field(default_factory=dict, compare=False)


class CollectionReader:
    """One collection, at the version that readers saw when it was opened; changes to it are seen."""

    def __init__(self, collection: Collection) -> None:
        """Open what is published, and take over the connections."""
        self._name = collection.name
        self._collection: Collection | None = collection
        try:
            with collection.reading() as reading:
                self._version = reading.visible()
        except BaseException:
            collection.close()
            raise

    @contextmanager
    def view(self) -> Iterator[CollectionView]:
        """Look at what is there now."""
        with self._reading() as reading:
            yield reading.view(self._version)

    @property
    def is_stale(self) -> bool:
        """Whether other documents were published under this name."""
        with self._reading() as reading:
            return (reading.shown() or (None,))[0] != self._version.number

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        """Move to what is published now, unless `check` of it raises an error."""
        with self._reading() as reading:
            newest = reading.visible()
            check(reading.view(newest).info)
        self._version = newest

    def close(self) -> None:
        """Close the connections."""
        collection, self._collection = self._collection, None
        if collection is not None:
            collection.close()

    def _reading(self) -> AbstractContextManager[Collection]:
        if self._collection is None:
            raise AveyBError(f"{self._name}: this index was closed; load it again to search it")
        return self._collection.reading()


class CollectionView(ABC):
    """What one search reads, as `EngineView` says: the engine finds numbers and reads rows.

    Rows are those of `DocumentRow` and `PassageRow`; `stored` may be one string or several.
    """

    tokens = None
    remedy = "publish it again with `aveyb-index publish`"

    def __init__(self, collection: Any, version: Version) -> None:
        self.collection, self.version, self.encoding = collection, version, version.settings.encoding
        self.language: Language = language(self.encoding.language)

    @cached_property
    def state(self) -> Hashable:
        """What was remembered of another state is not used."""
        return None

    @cached_property
    def info(self) -> EngineInfo:
        """What there is."""
        made, counts = self.encoding, (self.count("document"), self.count("passage"))
        version = f"{self.version.label}.{self.version.settings.publication}"
        return EngineInfo(
            self.collection.name,
            version,
            made.dim,
            made.granularity,
            *counts,
            made.model,
            made.model_source,
            self.remedy,
        )

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """Vectors `[n, d]` of documents or passages, by numbers `[n]`, in their order."""
        found = dict(self.read_vectors(kind, numbers.tolist()))
        missing = next((number for number in numbers.tolist() if number not in found), None)
        if missing is not None:
            raise IndexFormatError(f"{self.collection.name}: no vector of {kind} number {missing}; {self.remedy}")
        return np.array([found[number] for number in numbers.tolist()], np.float32).reshape(-1, self.encoding.dim)

    @property
    def mean_vector(self) -> FloatArray:
        """The mean `[d]` of the vectors of the documents that an index directory chooses, too."""
        return self.remembered("mean vector", self._mean)

    @property
    def mean_passage_length(self) -> float:
        """The mean length of the passages of these documents, in characters."""
        return float(self.remembered("mean length", self._mean_length))

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Numbers of documents by their ids; those that are not there are left out."""
        wanted = set(ids)
        found = self.read("document", ("id", "number"), [rank_of(name) for name in wanted], by="rank")
        return {name: number for name, number in found if name in wanted}

    def documents(self, docs: Sequence[int], *, texts: bool = True) -> dict[int, StoredDocument]:
        """Documents by number; those that are not there are left out. Without `texts`, texts are empty."""
        columns = ("number", "id", "stored") if texts else ("number", "id")
        return {row[0]: _document(*row) for row in self.read("document", columns, docs)}

    def passages(self, passages: Sequence[int], words: Sequence[str] = ()) -> dict[int, StoredPassage]:
        """Passages by number, with which of some words they hold; those that are not there are left out."""
        columns = ("number", "start", "stop", "heading", *(["words"] if words else []))
        rows = list(self.read("passage", columns, passages))
        return stored_passages(list(map(ascii_word, words)), *zip(*rows, strict=True)) if rows else {}

    def passage_numbers(self, docs: Sequence[int]) -> IntArray:
        """Numbers of the passages of some documents, `[n]`, ascending."""
        counts = sorted(self.read("document", ("number", "passages"), docs))
        return expand_passages(np.array(counts, dtype=np.int64).reshape(-1, 2))

    def remembered(self, name: str, compute: Callable[[], Any]) -> Any:
        """A value that is computed once as long as no document changes."""
        key = (self.state, name)
        if (value := self.version.known.get(key)) is None:
            value = compute()
            self.remember(key, value)
        return value

    def remember(self, key: Hashable, value: Any) -> None:
        """Keep a value for other views of this version."""
        if len(self.version.known) >= KEPT:
            self.version.known.clear()
        self.version.known[key] = value

    def _mean(self) -> FloatArray:
        docs, kind = sorted(self.sample(SAMPLE)), self.encoding.kinds[0]
        vectors = self.vectors(kind, np.array(docs, np.int64) if kind == "document" else self.passage_numbers(docs))
        return vectors.mean(axis=0) if len(vectors) else np.zeros(self.encoding.dim, np.float32)

    def _mean_length(self) -> float:
        numbers = self.passage_numbers(self.sample(SAMPLE)).tolist()
        spans = [each.span for each in self.passages(numbers).values()]
        return sum(stop - start for start, stop in spans) / max(len(spans), 1)

    # --- what an engine does, beside `select`, `matching`, `nearest`, `by_words` and `holding` of `EngineView` -------

    @abstractmethod
    def read(
        self, kind: Kind, columns: Sequence[str], values: Iterable[int], *, by: str = "number"
    ) -> Iterable[tuple[Any, ...]]:
        """Columns of the rows whose number, or rank, is one of some values, in any order."""

    def read_vectors(self, kind: Kind, numbers: list[int]) -> Iterable[tuple[Any, ...]]:
        """Vectors with their numbers."""
        return self.read(kind, ("number", "vector"), numbers)

    @abstractmethod
    def sample(self, most: int) -> list[int]:
        """Numbers of the documents of least rank."""

    @abstractmethod
    def count(self, kind: Kind, selection: Any = None) -> int:
        """Count the vectors of a kind that can be found."""


def _document(number: int, name: str, stored: Iterable[str] = '["", "", "{}", null]') -> StoredDocument:
    title, text, metadata, pages = json.loads("".join(stored))
    # of the file that it was read from, no more than the pages is kept
    origin = None if pages is None else FileOrigin("", "", Pages.from_json(json.loads(pages)))
    return StoredDocument(number, name, title, text, json.loads(metadata), origin)
