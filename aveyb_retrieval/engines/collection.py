"""A collection of a server, over one connection: its versions, and what is written to them.

A publication makes a new version beside the one that readers see, and one switch shows it. The
version before stays until the next switch, for readers that are open.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec
import numpy as np

from aveyb_retrieval.documents.records import FileOrigin, Pages
from aveyb_retrieval.engines.database_rows import ascii_word, describe, held_words, kept_words
from aveyb_retrieval.errors import (
    AveyBError,
    ConfigError,
    EngineError,
    IndexFormatError,
    InputError,
)
from aveyb_retrieval.indexes.encoding import KEPT, Encoding
from aveyb_retrieval.indexes.engine import SAMPLE_DOCUMENTS, EngineInfo
from aveyb_retrieval.indexes.search.named_documents import MAX_CALLED_DOCUMENTS, read_called
from aveyb_retrieval.indexes.search.remembered import Remembered
from aveyb_retrieval.indexes.store.copies import copy_digests, thread_digest
from aveyb_retrieval.indexes.store.filters import OWN
from aveyb_retrieval.indexes.store.languages import rules_of
from aveyb_retrieval.indexes.store.shares import passage_shares
from aveyb_retrieval.indexes.store.tables import (
    PARTS,
    ShownPassage,
    StoredDocument,
    StoredPassages,
)
from aveyb_retrieval.indexes.types import PASSAGE_BITS, expand_passages, sample_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Self

    from aveyb_retrieval.documents.records import Record
    from aveyb_retrieval.indexes.search.operators import Sought
    from aveyb_retrieval.indexes.store.called import CalledBy
    from aveyb_retrieval.indexes.store.tables import Part
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import EncodedRow, FloatArray, IntArray, Kind

    Rows = Sequence[tuple[Record, EncodedRow]]

_SHARES_REMEMBERED = 65_536  # shares of passages, of one version
_REMEMBERED_VALUES = 10_000  # values that are remembered of one version
FORMAT_VERSION = 10
NOT_THERE = "the collection is not there; publish it with `aveyb-index publish`"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


@dataclass(frozen=True)
class Version:
    """One version of a collection, what its names begin with, how it was made, and values that
    searches share.
    """

    number: int
    label: str
    settings: CollectionSettings
    known: dict[Hashable, Any] = field(default_factory=dict, compare=False)


class CollectionReader:
    """One collection, at the version that readers saw when it was opened; changes to it
    are seen.
    """

    def __init__(self, collection: Collection) -> None:
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
        with self._reading() as reading:
            yield reading.view(self._version)

    @property
    def is_stale(self) -> bool:
        with self._reading() as reading:
            return (reading.visible_version() or (None,))[0] != self._version.number

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        with self._reading() as reading:
            newest = reading.visible()
            check(reading.view(newest).info)
        self._version = newest

    def close(self) -> None:
        collection, self._collection = self._collection, None
        if collection is not None:
            collection.close()

    def _reading(self) -> AbstractContextManager[Collection]:
        if self._collection is None:
            raise AveyBError(f"{self._name}: this index was closed; load it again to search it")
        return self._collection.reading()


class CollectionView(ABC):
    """What one search reads, as `EngineView` says, of rows as `DocumentRow` and `PassageRow` are
    written.
    """

    tokens, vocabulary = None, None
    languages: tuple[str, ...] = ()  # all words keep to the rules of one
    lasting = False  # a database goes on
    state: Hashable = None  # what was remembered of another state is not used
    remedy = "publish it again with `aveyb-index publish`"

    def __init__(self, collection: Any, version: Version) -> None:
        self.collection, self.version, self.encoding = (
            collection,
            version,
            version.settings.encoding,
        )
        self.language: Language = rules_of(self.encoding)

    @cached_property
    def info(self) -> EngineInfo:
        made, name = self.encoding, self.collection.name
        version = f"{self.version.label}.{self.version.settings.publication}"
        held = (made.dim, made.granularity, self.count("document"), self.count("passage"))
        return EngineInfo(name, version, *held, made.model, made.model_places(), self.remedy)

    def vector_weights(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """See `EngineView.vector_weights`; a collection keeps none."""
        return np.ones(len(numbers), np.float32)

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        vectors = dict(self.read_vectors(kind, numbers.tolist()))
        missing = next((number for number in numbers.tolist() if number not in vectors), None)
        if missing is not None:
            raise IndexFormatError(
                f"{self.collection.name}: no vector of {kind} number {missing}; {self.remedy}"
            )
        return np.array([vectors[number] for number in numbers.tolist()], np.float32).reshape(
            -1, self.encoding.dim
        )

    @property
    def mean_vector(self) -> FloatArray:
        # of the documents that an index directory chooses, too
        return self.remembered("mean vector", self._mean)

    @property
    def mean_passage_length(self) -> float:
        return float(self.remembered("mean length", self._mean_length))

    def narrow(self, selection: Any, kind: Kind, conditions: Sequence[Sought]) -> Any:
        """Refuse to, where an engine does not say how."""
        raise ConfigError(
            f"{self.collection.name}: {conditions[0].condition.written!r}: conditions on words of"
            f" {kind}s are not supported here; search an index directory, or leave operators out"
        )

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        sought_ids = set(ids)
        rows = self.read(
            "document", ("id", "number"), [sample_rank(name) for name in sought_ids], by="rank"
        )
        return {name: number for name, number in rows if name in sought_ids}

    def documents(
        self, docs: Sequence[int], parts: Sequence[Part] = PARTS
    ) -> dict[int, StoredDocument]:
        """Documents by number; those that are not there are left out.

        Without any of the parts, all are empty.
        """
        columns = ("number", "id", "stored") if parts else ("number", "id")
        return {row[0]: _document(*row) for row in self.read("document", columns, docs)}

    def passages(self, numbers: IntArray, words: Sequence[str] = ()) -> StoredPassages:
        columns = ("number", "start", "stop", "share", *(["words"] if words else []))
        rows = list(self.read("passage", columns, numbers.tolist()))
        if not rows:
            return StoredPassages.none(len(words))
        stored, starts, stops, shares, *texts = zip(*rows, strict=True)
        self._shares.add(dict(zip(stored, shares, strict=True)))
        held = [
            held_words([text.encode() for text in passage_texts], list(map(ascii_word, words)))
            for passage_texts in texts
        ]
        return StoredPassages.of(
            *map(np.array, (stored, starts, stops)), *held or [np.empty((len(rows), 0), np.bool_)]
        )

    def copies(self, kind: Kind, numbers: IntArray) -> IntArray:
        """The digests of what is stored: a collection keeps none."""
        listed = numbers.tolist()
        if kind == "document":
            documents = self.documents(listed)
            return copy_digests(documents[number].text for number in listed)
        passages = self.shown_passages(listed)
        spans = (passages[number].span for number in listed)
        return copy_digests(
            passages[number].text[: stop - start]
            for number, (start, stop) in zip(listed, spans, strict=True)
        )

    def passage_shares(self, numbers: IntArray) -> FloatArray:
        """See `EngineView.passage_shares`; of signatures alike, none counts in full."""
        shares = self._shares.get(numbers.tolist(), self._read_shares)
        return np.array([shares.get(number, 1) for number in numbers.tolist()], np.float32)

    @property
    def _shares(self) -> Remembered[float]:
        """The shares of passages that were read; `passages` reads them, too."""
        remembered: Remembered[float] = self.remembered(
            "shares", partial(Remembered, _SHARES_REMEMBERED)
        )
        return remembered

    def _read_shares(self, numbers: Sequence[int]) -> dict[int, float]:
        return dict(self.read("passage", ("number", "share"), numbers))

    def threads(self, docs: IntArray) -> IntArray:
        """The digests of conversations: a collection keeps none."""
        documents = self.documents(docs.tolist())
        return np.array([thread_digest(documents[doc].metadata) for doc in docs.tolist()], np.int64)

    def shown_passages(self, numbers: Sequence[int]) -> dict[int, ShownPassage]:
        documents = self.documents(sorted({number >> PASSAGE_BITS for number in numbers}))
        rows = self.read(
            "passage", ("number", "start", "stop", "heading"), [*numbers, *(n + 1 for n in numbers)]
        )
        stored = {number: (start, stop, heading) for number, start, stop, heading in rows}
        passages = {}
        for number in numbers:
            if number in stored and number >> PASSAGE_BITS in documents:
                start, stop, heading = stored[number]
                end = max(stop, stored[number + 1][0] if number + 1 in stored else 0)
                text = documents[number >> PASSAGE_BITS].text[start:end]
                passages[number] = ShownPassage(text, partial(str, heading), (start, stop))
        return passages

    def called(self, docs: Sequence[int]) -> dict[int, CalledBy]:
        remembered: Remembered[CalledBy] = self.remembered(
            "called", partial(Remembered, MAX_CALLED_DOCUMENTS)
        )
        return remembered.get(docs, partial(read_called, self))

    def documents_called(self, words: Sequence[str], selection: Any = None) -> list[IntArray]:
        """See `EngineView.documents_called`; a collection keeps no lists of names."""
        return [np.empty(0, np.int64) for _ in words]

    def passage_counts(self, docs: IntArray) -> IntArray:
        counts = dict(self.read("document", ("number", "passages"), docs.tolist()))
        return np.array([counts.get(doc, 0) for doc in docs.tolist()], np.int64)

    def best_passages(
        self, docs: IntArray, query: FloatArray, words: Sequence[str], count: int
    ) -> IntArray:
        """All passages of some documents."""
        return self.passage_numbers(docs.tolist())

    def passage_numbers(self, docs: Sequence[int]) -> IntArray:
        ascending_docs = np.unique(np.array(docs, np.int64))
        return expand_passages(
            np.stack([ascending_docs, self.passage_counts(ascending_docs)], axis=1)
        )

    def remembered(self, name: str, compute: Callable[[], Any]) -> Any:
        """A value that is computed once as long as no document changes."""
        key = (self.state, name)
        if (value := self.version.known.get(key)) is None:
            value = compute()
            self.remember(key, value)
        return value

    def remember(self, key: Hashable, value: Any) -> None:
        """Keep a value for other views of this version."""
        if len(self.version.known) >= _REMEMBERED_VALUES:
            self.version.known.clear()
        self.version.known[key] = value

    def _mean(self) -> FloatArray:
        docs, kind = sorted(self.sample(SAMPLE_DOCUMENTS)), self.encoding.kinds[0]
        vectors = self.vectors(
            kind, np.array(docs, np.int64) if kind == "document" else self.passage_numbers(docs)
        )
        return vectors.mean(axis=0) if len(vectors) else np.zeros(self.encoding.dim, np.float32)

    def _mean_length(self) -> float:
        spans = self.passages(self.passage_numbers(self.sample(SAMPLE_DOCUMENTS))).spans
        return float((spans[:, 1] - spans[:, 0]).mean()) if len(spans) else 0.0

    # --- what an engine does, beside `select`, `matching`, `nearest`, `by_words` and `holding` of
    # `EngineView` -------

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
    def select(self, where: Any) -> Any:
        """Find the documents that satisfy a filter; None where there is no filter."""

    def has_field(self, field: str) -> bool:
        if field in OWN:
            return True
        return self.count("document", self.select({field: {"$exists": True}})) > 0

    @abstractmethod
    def count(self, kind: Kind, selection: Any = None) -> int:
        """Count the vectors of a kind that can be found."""


def _document(
    number: int, name: str, stored: Iterable[str] = '["", "", "{}", null]'
) -> StoredDocument:
    title, text, metadata, pages = json.loads("".join(stored))
    # of the file that it was read from, no more than the pages is kept
    origin = None if pages is None else FileOrigin("", "", Pages.from_json(json.loads(pages)))
    return StoredDocument(number, name, title, text, json.loads(metadata), origin)


@dataclass(frozen=True)
class CollectionSettings:
    """What decides a collection: how vectors and words were made, and what identifies the documents
    as published.
    """

    encoding: Encoding
    publication: str
    format: int = FORMAT_VERSION

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str) -> CollectionSettings:
        """Read the settings of the collection `where`; IndexFormatError where another version wrote
        or damage is.
        """
        if values.get("format") != FORMAT_VERSION:
            raise IndexFormatError(
                f"{where}: collection format {values.get('format')!r}, this version reads"
                f" {FORMAT_VERSION}; publish it again"
            )
        try:
            return msgspec.convert(dict(values), cls, strict=True)
        except msgspec.ValidationError as error:
            raise IndexFormatError(
                f"{where}: damaged settings ({error}); publish it again"
            ) from error

    def check_same(self, other: CollectionSettings, where: str) -> None:
        """Raise ConfigError where documents with the settings `other` cannot be put into `where`,
        which has these.
        """
        # token vectors are not published, and how numbers are stored is the engine's own business
        for name, (ours, theirs) in self.encoding.differences(other.encoding, but=KEPT).items():
            raise ConfigError(
                f"{where}: {name} of the collection is {ours!r}, of the documents {theirs!r};"
                " publish them as a whole, without --update"
            )


@dataclass(frozen=True)
class Address:
    """Where a collection of a server is:
    `scheme://user:password@host:port/folder/.../collection?parameters`.
    """

    url: SplitResult
    folders: tuple[str, ...]
    collection: str
    name: str  # the URL without password and parameters, for messages

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read a URL, or raise ConfigError where its last part cannot be the name of a
        collection.
        """
        try:
            url = urlsplit(text)
            _ = url.port
        except ValueError as error:
            raise ConfigError(
                f"{text.partition('@')[2] or text}: not an address of a database ({error}); write"
                " SCHEME://USER@HOST:PORT/DATABASE/COLLECTION, an IPv6 address in [ ]"
            ) from None
        login, at, host = url.netloc.rpartition("@")
        name = f"{url.scheme}://{login.partition(':')[0]}{at}{host}{url.path}"
        *folders, collection = (unquote(part) for part in url.path.strip("/").split("/"))
        if not _NAME.fullmatch(collection):
            raise ConfigError(
                f"{name}: {collection!r} cannot be the name of a collection; it begins with a"
                " letter and has up to 31 of a-z, 0-9 and _"
            )
        return cls(url, tuple(folders), collection, name)


class DocumentRow(NamedTuple):
    """A document as it is stored: what `CollectionView` reads of it, `rows.describe` of its
    metadata, its words.
    """

    number: int
    rank: int
    id: str
    stored: str
    passages: int
    facts: list[int]
    bounds: dict[str, Any]
    words: str
    vector: FloatArray


class PassageRow(NamedTuple):
    """A passage as it is stored: its characters in the text, its words, and how much it counts."""

    number: int
    start: int
    stop: int
    heading: str
    words: str
    share: float
    vector: FloatArray


class Collection(ABC):
    """A collection, for one thread at a time.

    Publishing goes `begin`, `add` ..., `finish`, `switch`: readers see nothing of it before
    `switch`. `upsert` and `delete` change the version that readers see. All that a version is made
    of has names that begin with its `label`.
    """

    viewed_by: ClassVar[type[CollectionView]]

    def __init__(self, address: Address, *, writes: bool) -> None:
        """Take an address; who `writes` may publish. Connections of engines differ by that."""
        del writes  # of subclasses
        self.address, self.name = address, address.name
        self.prefix = f"aveyb_{address.collection}"
        self._open: Version | None = None

    @classmethod
    def open_engine(cls, address: str) -> CollectionReader:
        return CollectionReader(cls(Address.parse(address), writes=False))

    @classmethod
    def open_writer(cls, address: str) -> Self:
        return cls(Address.parse(address), writes=True)

    def label(self, number: int) -> str:
        """What the names of a version begin with."""
        return f"{self.prefix}_{number}"

    def visible(self) -> Version:
        """Return what readers see; IndexFormatError where nothing was published under this name, or
        only in part.
        """
        visible = self.visible_version()
        if visible is None:
            part = (
                "the collection is published only in part; run the same `aveyb-index publish` again"
                " to continue"
            )
            raise IndexFormatError(f"{self.name}: {part if self.versions() else NOT_THERE}")
        return self.opened(visible[0], CollectionSettings.from_json(visible[1], self.name))

    @property
    def version(self) -> Version:
        """What is written to: what was begun, or what is `visible`."""
        if self._open is None:
            with self.translated():
                self._open = self.visible()
        return self._open

    def view(self, version: Version | None = None) -> CollectionView:
        """Look at a version, or at what is written to."""
        return self.viewed_by(self, version or self.version)

    @contextmanager
    def reading(self) -> Iterator[Collection]:
        """Give itself to read with, where one connection serves many threads."""
        with self.translated():
            yield self

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        """Begin to publish, or go on where the same documents were begun; returns how many of them
        are there.
        """
        with self.translated():
            versions, visible = self.versions(), self.visible_version()
            begun = [number for number in versions if visible is None or number > visible[0]]
            same = (
                []
                if restart
                else [number for number in begun if versions[number] == settings.to_json()]
            )
            for number in set(begun) - set(same[:1]):
                self.drop(number)
            number = same[0] if same else max([0, *versions]) + 1
            if not same:
                self.create(number, settings)
            self._open = self.opened(number, settings)
            return self.view().count("document")

    def switch(self) -> None:
        """Let readers see what was published, at once, and remove what is before what they saw
        until now.
        """
        with self.translated():
            number, (before, _) = self.version.number, self.visible_version() or (0, None)
            if before > number:
                raise EngineError(
                    f"{self.name}: another process has published meanwhile; publish again"
                )
            self.show(number)
            for old in [old for old in self.versions() if old < number and old != before]:
                self.drop(old)

    def upsert(self, rows: Rows) -> None:
        """Add documents, or replace those of the same ids; they are safe when this returns.

        Raises as `add`.
        """
        # of two with one id the last one counts
        last = {record.id: (record, row) for record, row in rows}
        with self.change():
            self.replace(self.view().find(list(last)), list(last.values()))

    def delete(self, ids: Iterable[str], *, missing_ok: bool = True) -> int:
        """Remove documents by id; returns how many there were, or raises InputError (see
        `missing_ok`).
        """
        sought_ids = sorted(set(ids))
        with self.change():
            stored = self.view().find(sought_ids)
            missing = [] if missing_ok else [name for name in sought_ids if name not in stored]
            if missing:
                raise InputError(
                    f"{self.name}: no document has the id {missing[0]!r}; nothing was changed"
                )
            self.remove(list(stored.values()))
        return len(stored)

    def rows_of(
        self, number: int, record: Record, row: EncodedRow
    ) -> tuple[DocumentRow, list[PassageRow]]:
        """What is stored of a document under a number, and of its passages."""
        rules, text = rules_of(self.version.settings.encoding), record.text
        shares = passage_shares(record.title, text, row.spans).tolist()
        parts = zip(row.spans.tolist(), row.headings, shares, row.passages, strict=True)
        passages = [
            PassageRow(
                passage,
                start,
                stop,
                heading,
                kept_words(rules, heading, text[start:stop]),
                share,
                vector,
            )
            for passage, ((start, stop), heading, share, vector) in enumerate(
                parts, number << PASSAGE_BITS
            )
        ]
        stored = json.dumps(
            [record.title, text, record.metadata_json, record.pages_json], ensure_ascii=False
        )
        (facts, bounds), words = describe(record.metadata), kept_words(rules, record.title, text)
        rank, name = sample_rank(record.id), record.id
        return (
            DocumentRow(
                number, rank, name, stored, len(passages), facts, bounds, words, row.vector
            ),
            passages,
        )

    # --- what an engine does ---------------------------------------------------------------------

    def translated(self) -> AbstractContextManager[None]:
        """Turn errors of the server within into ours."""
        return nullcontext()

    def change(self) -> AbstractContextManager[None]:
        """What every change happens in: all of it is there afterwards."""
        return self.translated()

    def opened(self, number: int, settings: CollectionSettings) -> Version:
        """A version that is ready to be read."""
        return Version(number, self.label(number), settings)

    def missing_version(self) -> IndexFormatError:
        """What is raised where the version that is open is not there any more."""
        return IndexFormatError(
            f"{self.name}: the version that is open has been replaced and removed; reopen it"
        )

    def replace(self, stored: dict[str, int], rows: Rows) -> None:
        """Write documents, of which some replace those of the same ids that are
        `stored`, by number.
        """
        self.remove(list(stored.values()))
        self.add(rows)

    @abstractmethod
    def versions(self) -> dict[int, Mapping[str, Any] | None]:
        """The settings of every version by number, ascending; None where one is not complete."""

    @abstractmethod
    def visible_version(self) -> tuple[int, Mapping[str, Any]] | None:
        """The version that readers see, and its settings."""

    @abstractmethod
    def create(self, number: int, settings: CollectionSettings) -> None:
        """Make an empty version."""

    @abstractmethod
    def show(self, number: int) -> None:
        """Let readers see a version."""

    @abstractmethod
    def drop(self, number: int) -> None:
        """Remove a version; it may be left to the next publication."""

    @abstractmethod
    def add(self, rows: Rows) -> None:
        """Add new documents to what is written to, safe when this returns; InputError where it
        cannot hold one.
        """

    @abstractmethod
    def remove(self, docs: list[int]) -> None:
        """Remove documents and their passages by number."""

    @abstractmethod
    def finish(self) -> None:
        """Build the indexes of what was added."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""
