"""A version of an index as if it held only the documents that satisfy a filter: for those who may
see no others.

Whatever is counted over all documents is counted over those that can be seen: how many there are,
their mean vector, how long their passages are, and which of them hold a word, from the list of each
word that is asked for. FAISS's files are of all vectors: where they are searched, which of the
nearest are found hangs a little on the others.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, get_args

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.snapshot import Renamed, Snapshot
from aveyb_retrieval.indexes.store.filters import OWN
from aveyb_retrieval.indexes.store.languages import rules_of
from aveyb_retrieval.indexes.store.postings import bm25
from aveyb_retrieval.indexes.store.vocabulary import IndexVocabulary
from aveyb_retrieval.indexes.types import Kind, find_in, sample_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from aveyb_retrieval.indexes.engine import EngineInfo, VectorEngine
    from aveyb_retrieval.indexes.search.selections import Allowed
    from aveyb_retrieval.indexes.store.filters import Filter, Scalar
    from aveyb_retrieval.indexes.store.tables import Tables
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import FloatArray, IntArray


# documents whose words are read in the time that one word takes to be looked up
DOCUMENTS_READ_PER_LOOKUP = 64


@dataclass(frozen=True)
class VisibleEngine:
    """An engine whose views show only the documents that satisfy a filter."""

    engine: VectorEngine
    where: Filter

    @contextmanager
    def view(self) -> Iterator[VisibleSnapshot]:
        with self.engine.view() as view:
            if not isinstance(view, Snapshot):
                raise ConfigError(f"{view.info.name}: only an index directory can be seen in part")
            yield VisibleSnapshot(view, self.where)

    @property
    def is_stale(self) -> bool:
        return self.engine.is_stale

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        self.engine.reopen(check)

    def close(self) -> None:
        self.engine.close()


@dataclass(frozen=True)
class Counted:
    """What is counted over the documents that can be seen."""

    hashes: IntArray  # of ids, ascending
    mean_vector: FloatArray  # as `EngineView` says
    mean_passage: float  # characters
    # documents and passages with words, and how many words these have
    words: dict[Kind, tuple[int, int]]
    languages: tuple[str, ...]  # of the documents, as `Snapshot.languages`
    language: Language  # the rules by which their words are found

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.hashes.nbytes + self.mean_vector.nbytes


class VisibleSnapshot(Snapshot):
    """What of a version, `whole`, satisfies a filter; made for each search, what is remembered
    stays with the whole.

    A part of a part satisfies both filters: every method joins `_where` to the filter that it gets.
    """

    _whole: Snapshot
    _where: Filter

    def __init__(self, snapshot: Snapshot, where: Filter) -> None:
        if isinstance(snapshot, VisibleSnapshot):
            where = {"$and": [snapshot._where, where]}
            snapshot = snapshot._whole
        self.__dict__.update(vars(snapshot))
        self._whole = snapshot  # whose files stay open as long as something refers to it
        self._where = where
        part = snapshot.select_part(where)
        self.everything = self._seen = part
        self.info = replace(
            snapshot.info, documents=len(part.docs), passages=len(self.ids(part, "passage"))
        )
        self._counted = part.counted = part.counted or self._count_words()
        self.mean_vector, self.mean_passage_length = (
            self._counted.mean_vector,
            self._counted.mean_passage,
        )
        self.language, self.languages = self._counted.language, self._counted.languages
        self._lists: dict[tuple[Kind, str], np.ndarray] = {}

    # what is read of all documents is remembered by the whole, which outlives a search

    @cached_property
    def _light(self) -> dict[Kind, tuple[IntArray, FloatArray]]:
        return self._whole._light

    @cached_property
    def _repeating(self) -> tuple[IntArray, FloatArray]:
        return self._whole._repeating

    @cached_property
    def _renamed(self) -> Renamed:
        return self._whole._renamed

    def _count_words(self) -> Counted:
        documents, passages = (self.ids(self._seen, kind) for kind in ("document", "passage"))
        spans, (docs, ranks) = self.tables.passages.spans(passages), self.ranks()
        languages = self._languages_of(documents)
        seen = find_in(documents, docs)[1]
        return Counted(
            np.sort(ranks[seen]),
            self.mean_of(docs[seen], ranks[seen]),
            float((spans[:, 1] - spans[:, 0]).sum()) / max(len(spans), 1),
            {
                kind: self.tables.of(kind).counted(partial(self._seen.holds, kind))
                for kind in get_args(Kind)
            },
            languages,
            rules_of(self.encoding, languages),
        )

    def select(self, where: Filter | None, *, quiet: bool = True) -> Allowed | None:
        return super().select({"$and": [self._where, where]} if where else None, quiet=True)

    def warn_of(self, where: Filter) -> None:
        """Log nothing: a warning names fields of all documents."""

    def has_field(self, field: str) -> bool:
        where: Filter = {"$and": [self._where, {field: {"$exists": True}}]}
        return field in OWN or len(self.tables.matching(where)) > 0

    def advice(self, where: Filter) -> list[str]:
        """Nothing: it names fields of all documents."""
        return []

    def values(self, field: str, where: Filter | None) -> list[tuple[Scalar, int]]:
        if not self.has_field(field):
            raise ConfigError(f"no document can be counted: none has the field {field!r}")
        return super().values(field, {"$and": [self._where, where]} if where else self._where)

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        # what is hidden takes as long as what is nowhere: only ids that can be seen are looked up
        hashes = np.array([sample_rank(name) for name in ids], np.int64)
        _, may_be_seen = find_in(self._counted.hashes, hashes)
        listed = [name for name, seen in zip(ids, may_be_seen.tolist(), strict=True) if seen]
        numbers = super().find(listed)
        _, is_seen = find_in(self._seen.docs, np.array([*numbers.values()], np.int64))
        rows = zip(numbers.items(), is_seen.tolist(), strict=True)
        return {name: doc for (name, doc), seen in rows if seen}

    # --- words -----------------------------------------------------------------------------------

    def by_words(
        self, kind: Kind, words: Sequence[str], k: int, selection: Allowed | None = None
    ) -> list[tuple[int, float]]:
        self.check_open()
        rows, total = self._counted.words[kind]
        numbers, scores = bm25(
            [self._holding(kind, word) for word in words], rows, total / max(rows, 1)
        )
        if selection is not None and selection is not self._seen:
            allowed = selection.holds(kind, numbers)
            numbers, scores = numbers[allowed], scores[allowed]
        scores = scores.astype(np.float32)
        best = np.lexsort((numbers, -scores))[:k]
        return list(zip(numbers[best].tolist(), scores[best].tolist(), strict=True))

    def holding(self, words: Sequence[str]) -> list[int]:
        kind: Kind = "passage" if "passage" in self.kinds else "document"
        return [len(self._holding(kind, word)) for word in words]

    def _holding(self, kind: Kind, word: str) -> np.ndarray:
        """Which rows that can be seen hold a word, as `RowTable.postings` has them."""
        if (kind, word) not in self._lists:
            (self._lists[kind, word],) = self.tables.of(kind).postings(
                [word], partial(self._seen.holds, kind)
            )
        return self._lists[kind, word]

    @property
    def vocabulary(self) -> IndexVocabulary:
        return IndexVocabulary([VisibleWords(super().vocabulary, self.tables, self._seen.docs)], {})


@dataclass(frozen=True)
class VisibleWords:
    """The words of documents that can be seen, as they are written, and how many of these hold
    each.
    """

    words: IndexVocabulary  # of all documents
    tables: Tables
    docs: IntArray  # those that can be seen, ascending

    def count(self, word: str) -> int:
        return dict(self._visible([word])).get(word, 0) if any(self.words.counts([word])) else 0

    def beginning(self, start: str, most: int | None = None) -> Iterator[tuple[str, int]]:
        """The words that begin with some letters: where all documents have too many of these, they
        are looked for in the documents that can be seen, until `most` are found.
        """
        few = len(self.docs) // DOCUMENTS_READ_PER_LOOKUP
        words = self.words.beginning(start, few)
        if len(words) <= few:
            return self._visible(words)
        return self._read(lambda word: word.startswith(start), most)

    def near(self, word: str, edits: int) -> Iterator[tuple[str, int]]:
        return self._visible(self.words.near(word, edits))

    def _visible(self, words: Collection[str]) -> Iterator[tuple[str, int]]:
        """Those of some words that can be seen, with how many documents hold each."""
        if DOCUMENTS_READ_PER_LOOKUP * len(words) >= len(self.docs):
            yield from self._read(set(words).__contains__)
            return
        texts, column = self.tables.texts, self.tables.forms
        for word in words:
            holding = texts.holding((word,), column=column)
            count = int(find_in(self.docs, holding)[1].sum())
            if count:
                yield word, count

    def _read(
        self, is_sought: Callable[[str], bool], most: int | None = None
    ) -> Iterator[tuple[str, int]]:
        """Words that documents hold, out of the words of all that can be seen; where `most` are
        found, no more documents are read.
        """
        texts, column, counts = self.tables.texts, self.tables.forms, Counter[str]()
        for start in range(0, len(self.docs), DOCUMENTS_READ_PER_LOOKUP):
            rows = texts.take(self.docs[start : start + DOCUMENTS_READ_PER_LOOKUP], [column])
            for text in rows[column].to_pylist():
                counts.update(filter(is_sought, set(text.split())))
            if most is not None and len(counts) >= most:
                break
        yield from counts.items()
