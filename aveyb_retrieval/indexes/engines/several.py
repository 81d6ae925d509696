"""Several servers that share the documents of one collection: each search asks all of them, and merges the answers.

A document is on the server that the hash of its id names. Its number here is `number there * servers + server`, so that
every number tells where it is from. Cosines of different servers compare. BM25 does not unless all use the statistics
of all documents, so these are collected first.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from aveyb_retrieval.errors import EngineError, IndexFormatError
from aveyb_retrieval.indexes.engines.base import BoolArray, EngineInfo, EngineView, VectorEngine
from aveyb_retrieval.indexes.store.numbering import MAX_PASSAGES, PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from aveyb_retrieval.indexes.engines.collection import CollectionSettings
    from aveyb_retrieval.indexes.engines.words import WordStatistics
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.store.tables import StoredDocument, StoredPassage
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

THREADS = 8  # for each server: searches of so many threads ask it at once

T = TypeVar("T")


class ServerView(EngineView, Protocol):
    """What the view of one of several servers has to do besides."""

    def word_statistics(self, kind: Kind, text: str) -> WordStatistics:
        """What BM25 has to know of this server's documents or passages, for the words of a query."""
        ...

    def by_words(
        self,
        kind: Kind,
        text: str,
        k: int,
        selection: Any = None,
        statistics: WordStatistics | None = None,
    ) -> list[tuple[int, float]]:
        """As `EngineView.by_words`, with the statistics of all servers."""
        ...


class ServerEngine(VectorEngine, Protocol):
    """One of several servers."""

    @property
    def settings(self) -> CollectionSettings:
        """What its share was published with."""
        ...

    def view(self) -> AbstractContextManager[ServerView]:
        """Return what gives the state to search when it is entered."""
        ...


class SeveralServers:
    """The servers of one collection, in the order of their shares."""

    def __init__(self, openers: Sequence[tuple[str, Callable[[str], ServerEngine]]], *, partial: bool) -> None:
        """Open every server.

        Args:
            openers: The address of each, and what opens it.
            partial: Search without the servers that do not answer.

        Raises:
            EngineError: a server does not answer; with `partial`: none does.
            ConfigError: these are not all shares of one collection, in their order.
            IndexFormatError: they were not published together.
        """
        self._openers = openers
        self._partial = partial
        self._pool = ThreadPoolExecutor(THREADS * len(openers), thread_name_prefix="aveyb-engine")
        self._engines: list[ServerEngine | None] = [None] * len(openers)
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def view(self) -> Iterator[SeveralView]:
        """Open a view of every server; closed servers are asked again first.

        Raises:
            EngineError: a server does not answer; with `partial`: none does.
        """
        missing = self._connect()
        parts: list[_Part] = []
        with ExitStack() as stack:
            for number, engine in enumerate(self._engines):
                if engine is None:
                    continue
                try:
                    parts.append(_Part(number, stack.enter_context(engine.view())))
                except EngineError as error:
                    if not self._partial:
                        raise
                    missing.append(str(error))
            if not parts:
                raise EngineError("; ".join(missing))
            yield SeveralView(parts, len(self._engines), missing, self._pool)

    @property
    def is_stale(self) -> bool:
        """Whether a server has another version by now."""
        return any(engine.is_stale for engine in self._engines if engine is not None)

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        """Move all servers to what is published now, unless `check` of it raises an error."""
        other = SeveralServers(self._openers, partial=self._partial)
        try:
            with other.view() as view:
                check(view.info)
        except BaseException:
            other.close()
            raise
        self._engines, other._engines = other._engines, self._engines
        other.close()

    def close(self) -> None:
        """Close the connections to all servers."""
        for engine in self._engines:
            if engine is not None:
                engine.close()
        self._pool.shutdown(wait=False)

    def _connect(self) -> list[str]:
        """Open the servers that are not open; returns what is wrong with those that do not answer."""
        closed = [number for number, engine in enumerate(self._engines) if engine is None]
        failures = []
        for number, found in zip(closed, self._pool.map(self._try, closed), strict=True):
            if isinstance(found, EngineError):
                failures.append(found)
            else:
                self._check(number, found)
                self._engines[number] = found
        if failures and (not self._partial or all(engine is None for engine in self._engines)):
            raise failures[0]
        return [str(failure) for failure in failures]

    def _try(self, number: int) -> ServerEngine | EngineError:
        address, opener = self._openers[number]
        try:
            return opener(address)
        except EngineError as error:
            return error

    def _check(self, number: int, engine: ServerEngine) -> None:
        settings, n = engine.settings, len(self._engines)
        with engine.view() as view:
            name = view.info.name
        settings.check_share(number + 1, n, name)
        other = next((each for each in self._engines if each is not None), None)
        if other is not None and other.settings.publication != settings.publication:
            raise IndexFormatError(
                f"{name}: not published together with the other servers; run the same `aveyb-index publish` to all of "
                "them again"
            )


class _Part(NamedTuple):
    """One server, counted from 0, and the state of it that is searched."""

    server: int
    view: ServerView


class SeveralView:
    """States of several servers, as one."""

    tokens = None

    def __init__(self, parts: list[_Part], servers: int, missing: list[str], pool: ThreadPoolExecutor) -> None:
        """Join the views of the servers that answer, of `servers` in all."""
        self._parts = parts
        self._servers = servers
        self._pool = pool
        infos = [part.view.info for part in parts]
        self.info: EngineInfo = replace(
            infos[0],
            name=", ".join(info.name for info in infos),
            version=", ".join(info.version for info in infos),
            documents=sum(info.documents for info in infos),
            passages=sum(info.passages for info in infos),
            missing=tuple(missing),
        )
        self.language: Language = parts[0].view.language

    # --- filters and vectors -----------------------------------------------------------------------------------------

    def select(self, where: Filter | None) -> list[Any] | None:
        """Find the documents that satisfy a filter, on every server."""
        return None if where is None else self._ask(lambda i, part: part.view.select(where))

    def count(self, kind: Kind, selection: list[Any] | None = None) -> int:
        """Count the vectors of a kind that can be found."""
        return sum(self._ask(lambda i, part: part.view.count(kind, _of(selection, i))))

    def nearest(
        self, kind: Kind, queries: FloatArray, k: int, selection: list[Any] | None = None, *, exact: bool = False
    ) -> tuple[FloatArray, IntArray]:
        """Find the vectors nearest to unit vectors `[n, d]` anywhere: cosines and numbers `[n, k]`, best first."""
        found = self._ask(lambda i, part: part.view.nearest(kind, queries, k, _of(selection, i), exact=exact))
        scores = np.concatenate([each[0] for each in found], axis=1)
        numbers = np.concatenate(
            [self._here(part.server, kind, each[1]) for part, each in zip(self._parts, found, strict=True)], axis=1
        )
        order = np.lexsort((numbers, -scores), axis=1)[:, :k]
        return np.take_along_axis(scores, order, 1), np.take_along_axis(numbers, order, 1)

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """Vectors `[n, d]` of documents or passages, by numbers `[n]`, in their order."""
        found = np.empty((len(numbers), self.info.dim), dtype=np.float32)
        rows = self._rows_of(kind, numbers)
        asked = self._ask(lambda i, part: part.view.vectors(kind, self._there(kind, numbers[rows[i]])))
        for mine, vectors in zip(rows, asked, strict=True):
            found[mine] = vectors
        return found

    @cached_property
    def mean_vector(self) -> FloatArray:
        """The mean `[d]` of the vectors: of every server's mean, by its number of documents."""
        means = self._ask(lambda i, part: part.view.mean_vector * part.view.info.documents)
        mean: FloatArray = np.stack(means).sum(axis=0) / np.float32(max(self.info.documents, 1))
        return mean

    # --- words -------------------------------------------------------------------------------------------------------

    @property
    def mean_passage_length(self) -> float:
        """The mean length of all passages, in characters."""
        total = sum(part.view.mean_passage_length * part.view.info.passages for part in self._parts)
        return total / max(self.info.passages, 1)

    def by_words(self, kind: Kind, text: str, k: int, selection: list[Any] | None = None) -> list[tuple[int, float]]:
        """The `k` best documents or passages by BM25 with the statistics of all servers, best first."""
        statistics = self._statistics(kind, text)
        found = self._ask(lambda i, part: part.view.by_words(kind, text, k, _of(selection, i), statistics))
        merged = [
            (int(number), score)
            for part, rows in zip(self._parts, found, strict=True)
            for number, score in zip(
                self._here(part.server, kind, np.array([number for number, _ in rows], dtype=np.int64)),
                (score for _, score in rows),
                strict=True,
            )
        ]
        return sorted(merged, key=lambda row: (-row[1], row[0]))[:k]

    def occurrences(self, text: str, passages: IntArray) -> tuple[IntArray, BoolArray]:
        """How many passages hold each word of a text, `[t]`, and which of some `[n]`, ascending, do: `[t, n]`."""
        rows = self._rows_of("passage", passages)
        found = self._ask(lambda i, part: part.view.occurrences(text, self._there("passage", passages[rows[i]])))
        counts: IntArray = reduce(add, [each[0] for each in found])
        held = np.zeros((len(counts), len(passages)), dtype=bool)
        for mine, (_, its) in zip(rows, found, strict=True):
            held[:, mine] = its
        return counts, held

    def _statistics(self, kind: Kind, text: str) -> WordStatistics:
        return reduce(add, self._ask(lambda i, part: part.view.word_statistics(kind, text)))

    # --- documents ---------------------------------------------------------------------------------------------------

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Numbers of documents by their ids; those that are not there are left out."""
        found = self._ask(lambda i, part: part.view.find(ids))
        return {
            name: number * self._servers + part.server
            for part, each in zip(self._parts, found, strict=True)
            for name, number in each.items()
        }

    def matching(self, selection: list[Any]) -> IntArray:
        """Numbers of the documents of a selection, ascending."""
        found = self._ask(lambda i, part: part.view.matching(selection[i]))
        here = [self._here(part.server, "document", each) for part, each in zip(self._parts, found, strict=True)]
        return np.sort(np.concatenate(here))

    def documents(self, docs: Sequence[int], *, texts: bool = True) -> dict[int, StoredDocument]:
        """Documents by number; those that are not there are left out. Without `texts`, texts are empty."""
        found = self._look_up("document", docs, lambda view, numbers: view.documents(numbers, texts=texts))
        return {number: document._replace(doc=number) for number, document in found.items()}

    def passages(self, passages: Sequence[int]) -> dict[int, StoredPassage]:
        """Passages by number; those that are not there are left out."""
        return self._look_up("passage", passages, lambda view, numbers: view.passages(numbers))

    def passage_numbers(self, docs: Sequence[int]) -> IntArray:
        """Numbers of the passages of some documents, `[n]`, ascending."""
        return self.passage_spans(docs)[0]

    def passage_spans(self, docs: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Passages of some documents, ascending: numbers `[n]` and characters of the text `[n, 2]`."""
        wanted = np.array(docs, dtype=np.int64)
        rows = self._rows_of("document", wanted)
        found = self._ask(lambda i, part: part.view.passage_spans(self._there("document", wanted[rows[i]]).tolist()))
        numbers = np.concatenate(
            [self._here(part.server, "passage", each[0]) for part, each in zip(self._parts, found, strict=True)]
        )
        order = np.argsort(numbers)
        return numbers[order], np.concatenate([each[1] for each in found])[order]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[int, _Part], T]) -> list[T]:
        """Ask all servers at once; answers in their order."""
        if len(self._parts) == 1:
            return [question(0, self._parts[0])]
        return list(self._pool.map(question, range(len(self._parts)), self._parts))

    def _look_up(
        self, kind: Kind, numbers: Sequence[int], read: Callable[[ServerView, list[int]], Any]
    ) -> dict[int, Any]:
        wanted = np.array(numbers, dtype=np.int64)
        rows = self._rows_of(kind, wanted)
        there = [self._there(kind, wanted[mine]).tolist() for mine in rows]
        found = self._ask(lambda i, part: read(part.view, there[i]))
        return {
            int(wanted[row]): each[number]
            for mine, names, each in zip(rows, there, found, strict=True)
            for row, number in zip(mine.tolist(), names, strict=True)
            if number in each
        }

    def _rows_of(self, kind: Kind, numbers: IntArray) -> list[IntArray]:
        """Which of some numbers are of each server that answers."""
        docs = numbers if kind == "document" else numbers >> PASSAGE_BITS
        return [np.flatnonzero(docs % self._servers == part.server) for part in self._parts]

    def _here(self, server: int, kind: Kind, numbers: IntArray) -> IntArray:
        """What a server's numbers are here."""
        if kind == "document":
            return numbers * self._servers + server
        return self._here(server, "document", numbers >> PASSAGE_BITS) << PASSAGE_BITS | numbers & (MAX_PASSAGES - 1)

    def _there(self, kind: Kind, numbers: IntArray) -> IntArray:
        """What numbers from here are on their server."""
        if kind == "document":
            return numbers // self._servers
        return (numbers >> PASSAGE_BITS) // self._servers << PASSAGE_BITS | numbers & (MAX_PASSAGES - 1)


def _of(selection: list[Any] | None, i: int) -> Any:
    return None if selection is None else selection[i]
