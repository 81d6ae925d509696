"""What a search needs of the place where vectors and words live, as protocols; from an address to
such a place.

Our own files (`aveyb_retrieval.indexes.search.local`) are one engine; a database server
(`aveyb_retrieval.engines`) is another. Fusion, passages, thresholds and reranking are ours and work
on any engine: it names documents by numbers, those of `aveyb_retrieval.indexes.types`, finds the
nearest vectors and the best matches by words, and gives back what is stored under a number.

Engines of other packages join by `register_engine`: an object with `open_engine` and `open_writer`
of an address, such as a subclass of `Collection` or a module.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.encoding import GRANULARITIES
from aveyb_retrieval.indexes.store.tables import PARTS
from aveyb_retrieval.indexes.types import ascending, expand_passages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from aveyb_retrieval.engines.collection import Collection
    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.search.operators import Sought
    from aveyb_retrieval.indexes.store.called import CalledBy
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.store.tables import (
        Part,
        ShownPassage,
        StoredDocument,
        StoredPassages,
        StoredTokens,
    )
    from aveyb_retrieval.indexes.store.vocabulary import IndexVocabulary
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind


# documents whose mean vector stands for that of all: those whose ids have the least hashes
SAMPLE_DOCUMENTS = 1024
MAX_DOCUMENTS_CALLED = 10_000  # by one word: it hardly tells which document a question means
Selection = Any  # what `EngineView.select` made of a filter; only the view that made it reads it


@dataclass(frozen=True)
class EngineInfo:
    """What an engine says about the documents that it holds."""

    name: str  # the path or URL (without a password), for messages
    version: str  # changes whenever the documents were replaced as a whole
    dim: int  # d, the width of the vectors
    granularity: str  # the vectors that were made: "document", "passage" or "both"
    documents: int
    passages: int
    # the description of the model that made the vectors; None where nobody named it
    model: dict[str, Any] | None
    # best first; empty where it is the embedded one, or was given loaded
    model_places: tuple[str, ...]
    remedy: str  # what to do where stored data contradict each other, for messages
    build: str = ""  # identifies an index directory, whatever its version; "" of other engines

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of vectors that can be searched."""
        return GRANULARITIES[self.granularity]


class EngineView(Protocol):
    """One state of an engine: all that one search reads belongs together, whatever is written
    meanwhile.
    """

    @property
    def info(self) -> EngineInfo:
        """What there is."""

    @property
    def encoding(self) -> Encoding:
        """How vectors and words were made."""

    @property
    def tokens(self) -> StoredTokens | None:
        """The vectors of tokens, for late interaction; None where the engine keeps none."""

    @property
    def language(self) -> Language:
        """The rules by which words are found."""

    @property
    def languages(self) -> Sequence[str]:
        """ISO 639-1 codes of the documents' languages, most frequent first; none where all have the
        same rules.
        """

    @property
    def mean_vector(self) -> FloatArray:
        """The mean `[d]` of (a sample of) the vectors: its product with a query is what a document
        scores at random.
        """

    @property
    def mean_passage_length(self) -> float:
        """The mean length of all passages, in characters."""

    def select(self, where: Filter | None) -> Selection | None:
        """Find the documents that satisfy a filter, or raise ConfigError; None where there is no
        filter.
        """

    def has_field(self, field: str) -> bool:
        """Whether a document that can be found has this field, or it is `_id` or `title`."""

    def count(self, kind: Kind, selection: Selection | None = None) -> int:
        """Count the vectors of a kind that can be found."""

    def nearest(
        self,
        kind: Kind,
        queries: FloatArray,
        k: int,
        selection: Selection | None = None,
        *,
        exact: bool = False,
    ) -> tuple[FloatArray, IntArray]:
        """Find the vectors nearest to unit vectors `[n, d]`: cosines and numbers `[n, k]`, best
        first.

        As many as `k` if so many exist, otherwise all (`[n, count]`). `exact` scores every vector.
        """

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """Vectors `[n, d]` of documents or passages, by numbers `[n]`, in their order."""

    def vector_weights(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """What vectors weigh beside words, by numbers `[n]`: 0 (the model does not know the text)
        to 1.
        """

    def by_words(
        self, kind: Kind, words: Sequence[str], k: int, selection: Selection | None = None
    ) -> list[tuple[int, float]]:
        """The `k` best documents (title and text) or passages by BM25, best first; fewer where
        fewer hold a word.

        Words, here and below, are as `language` gives those of a query.
        """

    def holding(self, words: Sequence[str]) -> list[int]:
        """How many passages (documents, where there are none) hold each of some words."""

    @property
    def vocabulary(self) -> IndexVocabulary | None:
        """The words of all documents, as `language.forms` gives them; None where the engine keeps
        no list of them.
        """

    def narrow(
        self, selection: Selection | None, kind: Kind, conditions: Sequence[Sought]
    ) -> Selection:
        """The part of a selection (None: all) that fulfills conditions; ConfigError: the engine
        cannot look for one.
        """

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Numbers of documents by their ids; those that are not there are left out."""

    def matching(self, selection: Selection) -> IntArray:
        """Numbers of the documents of a selection, ascending."""

    def documents(
        self, docs: Sequence[int], parts: Sequence[Part] = PARTS
    ) -> Mapping[int, StoredDocument]:
        """Documents by number; those that are not there are left out.

        Parts not asked for may be empty.
        """

    def called(self, docs: Sequence[int]) -> Mapping[int, CalledBy]:
        """The words that documents are called by, by number; those that are not there are left out.

        An engine that keeps none reads them: `indexes.search.named_documents.read_called`.
        """

    def documents_called(
        self, words: Sequence[str], selection: Selection | None = None
    ) -> list[IntArray]:
        """Numbers, ascending, of the documents whose id, title or metadata have each of some words.

        Of a word that calls more than `MAX_DOCUMENTS_CALLED`, there are none, and of no word if an
        engine keeps no lists of names: questions name documents all the same whose passages are
        among the candidates.
        """

    def passages(self, numbers: IntArray, words: Sequence[str] = ()) -> StoredPassages:
        """Passages `[n]` by number, with which of some words they hold; those that are not there
        are left out.
        """

    def shown_passages(self, numbers: Sequence[int]) -> Mapping[int, ShownPassage]:
        """What is shown of passages, by number; those that are not there are left out."""

    def copies(self, kind: Kind, numbers: IntArray) -> IntArray:
        """The digests `[n]` of the words of documents' texts, or of passages, by numbers `[n]`:
        `copy_digest` of `aveyb_retrieval.indexes.store.copies`.
        """

    def passage_shares(self, numbers: IntArray) -> FloatArray:
        """How much passages `[n]` count, float32 `[n]`, 0 to 1: less of what a mail repeats."""

    def threads(self, docs: IntArray) -> IntArray:
        """The digests `[n]` of the threads that documents `[n]` belong to, 0 for none:
        `thread_digest` of `aveyb_retrieval.indexes.store.copies`.
        """

    def passage_counts(self, docs: IntArray) -> IntArray:
        """How many passages documents `[n]` have, `[n]`; 0 for those that are not there."""

    def best_passages(
        self, docs: IntArray, query: FloatArray, words: Sequence[str], count: int
    ) -> IntArray:
        """Numbers of passages among which are the `count` best of every one of some documents: the
        nearest to a vector.

        Where `query` is empty, the best by words. An engine may give all passages of the documents.
        """

    @property
    def lasting(self) -> bool:
        """Whether it can be read after it was left, as long as the engine is open."""


def passage_numbers(view: EngineView, docs: IntArray) -> IntArray:
    """Numbers of all passages of documents `[n]`, ascending."""
    docs = ascending(docs)
    return expand_passages(np.stack([docs, view.passage_counts(docs)], axis=1))


class VectorEngine(Protocol):
    """A place where documents, their vectors and their words live, opened for searching by many
    threads.
    """

    def view(self) -> AbstractContextManager[EngineView]:
        """Return what gives the state to search when it is entered, once."""

    @property
    def is_stale(self) -> bool:
        """Whether the documents were replaced as a whole, and `reopen` would find others."""

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        """Move to the newest version, unless `check` of it raises an error."""

    def close(self) -> None:
        """Let go of files and connections. Searching afterwards is an error."""


_OURS = {"postgresql": "postgres.PostgresCollection", "postgres": "postgres.PostgresCollection"}
_registered: dict[str, Any] = {}


def register_engine(scheme: str, engine: Any) -> None:
    """Make the addresses of an engine known in this process: `scheme` stands before their ://."""
    _registered[scheme] = engine


def is_address(path: object) -> bool:
    """Whether a name is the address of an engine, not of a directory."""
    if not isinstance(path, str) or "://" not in path:
        return False
    scheme = path.partition("://")[0]
    return scheme in _OURS or scheme in _registered


def open_engine(address: str) -> VectorEngine:
    """Open a collection for searching; EngineError where its server fails, IndexFormatError where
    nothing is there.
    """
    return _module(address).open_engine(address)


def open_writer(address: str) -> Collection:
    """Connect to a server to write a collection, or raise what `open_engine` does."""
    return _module(address).open_writer(address)


def _module(address: str) -> Any:
    scheme = address.partition("://")[0]
    if scheme in _registered:
        return _registered[scheme]
    if scheme not in _OURS:
        schemes = ", ".join([*_OURS, *_registered])
        raise ConfigError(f"{scheme}://: an engine of this kind is not known; known are {schemes}")
    module, name = _OURS[scheme].split(".")
    return getattr(import_module(f"aveyb_retrieval.engines.{module}"), name)
