"""One version of an index, open for searching: finds documents and passages by vector, by words,
under a filter.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.encoding import AUTO
from aveyb_retrieval.indexes.engine import MAX_DOCUMENTS_CALLED, SAMPLE_DOCUMENTS, EngineInfo
from aveyb_retrieval.indexes.nearest.tiers import VectorSearcher
from aveyb_retrieval.indexes.search.named_documents import MAX_CALLED_DOCUMENTS, read_called
from aveyb_retrieval.indexes.search.remembered import Remembered
from aveyb_retrieval.indexes.search.selections import Allowed, SelectionCache
from aveyb_retrieval.indexes.store import filters
from aveyb_retrieval.indexes.store.called import CalledBy
from aveyb_retrieval.indexes.store.filters import no_such_field, warn_of_filter
from aveyb_retrieval.indexes.store.lance_session import check_fork
from aveyb_retrieval.indexes.store.languages import MAIN, rules_of
from aveyb_retrieval.indexes.store.manifest import IndexDirectory, Manifest, check_files
from aveyb_retrieval.indexes.store.place import hold_visible, open_directory
from aveyb_retrieval.indexes.store.rows import NAME_WORDS, WORDS
from aveyb_retrieval.indexes.store.tables import (
    PARTS,
    StoredDocument,
    StoredTokens,
    StoredVectors,
    Tables,
    count_values,
)
from aveyb_retrieval.indexes.types import PASSAGE_BITS, ascending, find_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.search.operators import Sought
    from aveyb_retrieval.indexes.store.filters import Filter, Scalar
    from aveyb_retrieval.indexes.store.postings import Keep
    from aveyb_retrieval.indexes.store.tables import (
        Part,
        ShownPassage,
        StoredPassages,
    )
    from aveyb_retrieval.indexes.store.vocabulary import IndexVocabulary
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

# bytes: of selections by the filters of searches, and of parts that `visible` shows
FILTER_CACHE_BYTES = PART_CACHE_BYTES = 128 << 20
MAX_TITLED_DOCUMENTS = 512  # whose titles are remembered: most found are found again
MAX_REMEMBERED_VALUES = 1_000  # of a field, which are remembered


@dataclass(frozen=True)
class Renamed:
    """Documents whose ids or metadata have changed since the lists of their names were made.

    Attributes:
        docs: Their numbers `[n]`, ascending.
        called: Which of these each word calls now, ascending.
    """

    docs: IntArray
    called: Mapping[str, IntArray]

    @classmethod
    def of(cls, names: Mapping[int, str]) -> Renamed:
        """Take the words that each is called by now, by number."""
        called: dict[str, list[int]] = {}
        for doc, words in sorted(names.items()):
            for word in words.split():
                called.setdefault(word, []).append(doc)
        arrays = {word: np.array(docs, np.int64) for word, docs in called.items()}
        return cls(np.array(sorted(names), np.int64), arrays)

    def corrected(self, word: str, docs: IntArray, keep: Keep) -> IntArray:
        """The documents that a word calls, ascending, given those `[n]` that its list has."""
        if not len(self.docs):
            return np.sort(docs)
        docs = docs[~find_in(self.docs, docs)[1]]
        new = self.called.get(word, docs[:0])
        return np.sort(np.concatenate([docs, new[keep(new)]]))


class Snapshot:
    """A version of an index. All methods may be called from many threads at once.

    `manifest` is what the version says about itself, `info` the same as every engine says it,
    `tables` its datasets.
    """

    everything: Allowed | None = None  # what there is where not all can be seen

    def __init__(
        self,
        index_dir: IndexDirectory,
        manifest: Manifest,
        held: BinaryIO,
        *,
        mapped: bool,
        full_check: bool,
        device: str,
        before: Snapshot | None,
    ) -> None:
        # runs at `close`, or when nothing refers to the snapshot any more: then its last search has
        # ended
        self._release = weakref.finalize(self, held.close)
        self.encoding = encoding = manifest.encoding
        self.root = root = index_dir.root
        self.place = index_dir.place
        self.manifest = manifest
        self.kinds = encoding.kinds
        self.info = EngineInfo(
            name=str(index_dir.place),
            version=manifest.version,
            dim=encoding.dim,
            granularity=encoding.granularity,
            documents=manifest.counts.documents,
            passages=manifest.counts.passages,
            model=encoding.model,
            model_places=encoding.model_places(index_dir.location),
            remedy=f"run `aveyb-index verify {index_dir.place}`",
            build=manifest.build,
        )
        self._filters = SelectionCache(FILTER_CACHE_BYTES)
        self._parts = SelectionCache(PART_CACHE_BYTES)
        self._titled = Remembered[StoredDocument](MAX_TITLED_DOCUMENTS)
        self._called = Remembered[CalledBy](MAX_CALLED_DOCUMENTS)
        old = before if before is not None and before.manifest.build == manifest.build else None
        if not index_dir.holds_checked:
            check_files(manifest, root, full=full_check, known=old.manifest.files if old else None)
        self.tables: Tables = Tables.open(
            root, manifest, old.tables if old else None, index_dir.address(manifest)
        )
        codec = encoding.token_codec
        self.tokens = (
            None if codec is None else StoredTokens(self.tables, encoding.tokens_of, codec)
        )
        self._nearest: dict[Kind, VectorSearcher] = {
            kind: VectorSearcher.open(
                root,
                kind,
                manifest.tiers,
                StoredVectors(self.tables, kind, encoding.dim),
                self.manifest.counts.of(kind),
                device=device,
                mapped=mapped,
                before=old._nearest[kind] if old else None,
            )
            for kind in self.kinds
        }

    @classmethod
    def open(
        cls,
        root: str | Path | IndexDirectory,
        *,
        mapped: bool = True,
        full_check: bool = False,
        device: str = "cpu",
        before: Snapshot | None = None,
    ) -> Snapshot:
        """Open the visible version of an index; `before` is another version, of which much need not
        be read again.
        """
        index_dir = root.apart() if isinstance(root, IndexDirectory) else open_directory(root)
        real_root = index_dir.root.resolve()
        if not index_dir.is_copy and real_root != index_dir.root:
            # a version stays whole where a link is turned to another index
            index_dir = IndexDirectory(real_root)
        options: Any = {
            "mapped": mapped,
            "full_check": full_check,
            "device": device,
            "before": before,
        }
        while True:
            manifest, held = hold_visible(index_dir)
            try:
                return cls(index_dir, manifest, held, **options)
            except (OSError, IndexFormatError) as error:
                if index_dir.current() != manifest.name:
                    continue  # it was removed and made again just now
                if isinstance(error, IndexFormatError):
                    raise
                raise IndexFormatError(f"{index_dir.place}: cannot be read ({error})") from error

    def close(self) -> None:
        self._release()

    def check_open(self) -> None:
        """Raise AveyBError where it is closed, or the process was forked."""
        check_fork()
        if not self._release.alive:
            raise AveyBError(f"{self.place}: this index was closed; load it again to search it")

    def select(self, where: Filter | None, *, quiet: bool = False) -> Allowed | None:
        """The documents that satisfy a filter, remembered; where there are none, a warning says
        why, unless `quiet`.
        """
        self.check_open()
        if where is None:
            return self.everything
        return self._selected(where, self._filters, quiet)

    def select_part(self, where: Filter) -> Allowed:
        """The documents that `visible` shows, remembered apart from the filters of searches."""
        self.check_open()
        return self._selected(where, self._parts, quiet=True)

    def _selected(self, where: Filter, cache: SelectionCache, quiet: bool) -> Allowed:
        key = filters.filter_key(where)
        remembered = cache.get(key)
        if remembered is not None:
            return remembered
        docs = self.tables.matching(where)
        # numbers are places in memory
        if len(docs) and not 0 <= docs[0] <= docs[-1] < self.manifest.next_doc:
            raise IndexFormatError(
                f"{self.place}: numbers of documents are damaged; {self.info.remedy}"
            )
        if not len(docs) and not quiet:
            self.warn_of(where)
        selection = Allowed(docs)
        cache.add(key, selection)
        return selection

    def warn_of(self, where: Filter) -> None:
        """Log why a filter matches nothing, where a field's name or type says so."""
        warn_of_filter(self.tables, where)

    def has_field(self, field: str) -> bool:
        return field in filters.OWN or no_such_field(self.tables, field) is None

    def advice(self, where: Filter) -> list[str]:
        """Say why a filter may match nothing."""
        return filters.advice_on(self.tables, where)

    def values(self, field: str, where: Filter | None) -> list[tuple[Scalar, int]]:
        """Values of a field with the number of documents that have them, as `count_values` says.

        Remembered, too.
        """
        among = {} if where is None else where
        selection = self.select(among)
        assert selection is not None  # `among` is a filter
        counted = selection.values.get(field)
        if counted is None:
            counted = count_values(self.tables, field, among)
            # a field that nearly every document has another value of is counted anew
            if len(counted) <= MAX_REMEMBERED_VALUES:
                selection.remember_values(field, counted)
        return counted

    def ids(self, selection: Allowed, kind: Kind) -> IntArray:
        """The numbers of a selection, ascending."""
        if kind == "document":
            return selection.docs
        passages = selection.passages
        if passages is None:
            passages = self.tables.passage_numbers(selection.docs)
            selection.passages = passages
        return passages

    # --- vectors ---------------------------------------------------------------------------------

    def count(self, kind: Kind, selection: Allowed | None = None) -> int:
        selection = selection or self.everything
        return (
            self.manifest.counts.of(kind) if selection is None else len(self.ids(selection, kind))
        )

    def nearest(
        self,
        kind: Kind,
        queries: FloatArray,
        k: int,
        selection: Allowed | None = None,
        *,
        exact: bool = False,
    ) -> tuple[FloatArray, IntArray]:
        """Vectors nearest to queries `[n, d]`: cosines and ids `[n, k]`, best first; fewer where
        fewer exist.
        """
        self.check_open()
        selection = selection or self.everything
        among = None if selection is None else self.ids(selection, kind)
        return self._nearest[kind].search(queries, k, among, exact=exact)

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        return self.tables.vectors(kind, numbers)

    @cached_property
    def language(self) -> Language:
        """The rules by which words are found."""
        return rules_of(self.encoding, self.languages)

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """The languages of the documents, most frequent first, where each has its own rules."""
        return self._languages_of(None)

    def _languages_of(self, docs: IntArray | None) -> tuple[str, ...]:
        """The same of some documents, ascending; None: of all."""
        return tuple(self.tables.languages(docs)) if self.encoding.language == AUTO else ()

    @cached_property
    def _light(self) -> dict[Kind, tuple[IntArray, FloatArray]]:
        return {kind: self.tables.light(kind) for kind in ("document", "passage")}

    def vector_weights(self, kind: Kind, numbers: IntArray) -> FloatArray:
        return _below_one(self._light[kind], numbers)

    @cached_property
    def _repeating(self) -> tuple[IntArray, FloatArray]:
        return self.tables.repeating()

    def passage_shares(self, numbers: IntArray) -> FloatArray:
        return _below_one(self._repeating, numbers)

    @cached_property
    def mean_vector(self) -> FloatArray:
        return self.mean_of(*self.ranks())

    def ranks(self) -> tuple[IntArray, IntArray]:
        """All documents `[n]`, and the hashes of their ids `[n]`."""
        return self.tables.ranks()

    def mean_of(self, docs: IntArray, ranks: IntArray) -> FloatArray:
        """The mean `[d]` of the vectors of those of some documents whose ids have the
        least hashes.
        """
        if len(docs) > SAMPLE_DOCUMENTS:
            docs = docs[np.argpartition(ranks, SAMPLE_DOCUMENTS)[:SAMPLE_DOCUMENTS]]
        kind: Kind = "document" if "document" in self.kinds else "passage"
        numbers = np.sort(docs) if kind == "document" else self.tables.passage_numbers(docs)
        vectors = self.vectors(kind, numbers)
        return (
            vectors.mean(axis=0)
            if len(vectors)
            else np.zeros(self.manifest.encoding.dim, dtype=np.float32)
        )

    # --- documents -------------------------------------------------------------------------------

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        self.check_open()
        return {name: doc for name, (doc, _) in self.tables.find(ids).items()}

    def matching(self, selection: Allowed) -> IntArray:
        return selection.docs

    def documents(
        self, docs: Sequence[int], parts: Sequence[Part] = PARTS
    ) -> dict[int, StoredDocument]:
        self.check_open()
        if tuple(parts) != ("title",):
            return self.tables.read_documents(docs, parts)
        return self._titled.get(docs, partial(self.tables.read_documents, parts=parts))

    def called(self, docs: Sequence[int]) -> Mapping[int, CalledBy]:
        self.check_open()
        return self._called.get(docs, self._read_called)

    def _read_called(self, docs: Sequence[int]) -> dict[int, CalledBy]:
        numbers = np.array(docs, np.int64)
        is_renamed = find_in(self._renamed.docs, numbers)[1]
        called = self.tables.called(numbers[~is_renamed])
        if is_renamed.any():
            codes = self.tables.languages_of(numbers[is_renamed])
            languages = {
                doc: rules_of(self.encoding, [code or MAIN]) for doc, code in codes.items()
            }
            called |= read_called(self, list(languages), languages)
        return called

    def documents_called(
        self, words: Sequence[str], selection: Allowed | None = None
    ) -> list[IntArray]:
        self.check_open()
        selection = selection or self.everything
        texts, renamed = self.tables.texts, self._renamed
        keep = texts.alive if selection is None else partial(selection.holds, "document")
        counts = texts.vocabulary(NAME_WORDS).counts(words)
        if self.everything is not None:  # most of these may be hidden
            counts = [min(count, MAX_DOCUMENTS_CALLED) for count in counts]
        listed = [
            word
            for word, count in zip(words, counts, strict=True)
            if 0 < count <= MAX_DOCUMENTS_CALLED
        ]
        lists = dict(zip(listed, texts.postings(listed, keep, NAME_WORDS), strict=True))
        called = []
        for word in words:
            docs = lists[word]["number"] if word in lists else np.empty(0, np.int64)
            docs = renamed.corrected(word, docs, keep)
            called.append(docs[: len(docs) if len(docs) <= MAX_DOCUMENTS_CALLED else 0])
        return called

    @cached_property
    def _renamed(self) -> Renamed:
        return Renamed.of(self.tables.renamed())

    def passages(self, numbers: IntArray, words: Sequence[str] = ()) -> StoredPassages:
        return self.tables.read_passages(numbers, words)

    def shown_passages(self, numbers: Sequence[int]) -> dict[int, ShownPassage]:
        self.check_open()
        return self.tables.read_shown(numbers)

    def copies(self, kind: Kind, numbers: IntArray) -> IntArray:
        self.check_open()
        return self.tables.copies(kind, numbers)

    def threads(self, docs: IntArray) -> IntArray:
        self.check_open()
        return self.tables.threads(docs)

    def passage_counts(self, docs: IntArray) -> IntArray:
        return self.tables.passage_counts(docs)

    def best_passages(
        self, docs: IntArray, query: FloatArray, words: Sequence[str], count: int
    ) -> IntArray:
        """Numbers of passages among which are the `count` best of each of some documents `[n]`.

        Those nearest to a unit vector `[d]` or, where it is empty, the best by words: among the
        passages of all these documents, then of those of which too few were found, and so on.
        """
        docs = ascending(docs)
        best = [np.empty(0, np.int64)]
        k = 4 * count * len(docs)
        while len(docs):
            least = np.minimum(self.passage_counts(docs), count)
            among = Allowed(docs)
            if len(query):
                numbers = self.nearest("passage", query[None], k, among)[1][0]
            else:
                ranked = self.by_words("passage", words, k, among)
                numbers = np.array([number for number, _ in ranked], np.int64)
            best.append(numbers)
            counts = np.bincount(
                np.searchsorted(docs, numbers >> PASSAGE_BITS), minlength=len(docs)
            )
            docs = docs[counts < least] if len(numbers) == k else docs[:0]
            k = 4 * k
        return ascending(np.concatenate(best))

    lasting = True  # its files stay as long as it is open

    # --- words -----------------------------------------------------------------------------------

    def by_words(
        self, kind: Kind, words: Sequence[str], k: int, selection: Allowed | None = None
    ) -> list[tuple[int, float]]:
        """The `k` best documents (over title and text) or passages by BM25; fewer where fewer hold
        any of the words.
        """
        self.check_open()
        table = self.tables.of(kind)
        if selection is None:
            numbers, scores = table.by_words(words, k)
        else:
            numbers, scores = table.scored(words, k, partial(selection.holds, kind))
        return list(zip(numbers.tolist(), scores.tolist(), strict=True))

    def holding(self, words: Sequence[str]) -> list[int]:
        kind: Kind = "passage" if "passage" in self.kinds else "document"
        total = self.manifest.counts.of(kind)  # what was deleted may still be counted
        return [min(count, total) for count in self.tables.of(kind).vocabulary().counts(words)]

    @property
    def vocabulary(self) -> IndexVocabulary:
        return self.tables.texts.vocabulary(self.tables.forms)

    def narrow(
        self, selection: Allowed | None, kind: Kind, conditions: Sequence[Sought]
    ) -> Allowed:
        selection = selection or self.everything
        numbers = None if selection is None else self.ids(selection, kind)
        for sought in sorted(conditions, key=lambda sought: not sought.condition.must):
            fulfilling = self._fulfilling(kind, sought)
            if not sought.condition.must:
                numbers = self.tables.numbers(kind) if numbers is None else numbers
                numbers = np.setdiff1d(numbers, fulfilling, assume_unique=True)
            elif numbers is None:
                numbers = fulfilling[self.tables.live(kind, fulfilling)]
            else:
                numbers = np.intersect1d(numbers, fulfilling, assume_unique=True)
        numbers = self.tables.numbers(kind) if numbers is None else numbers
        return Allowed(numbers) if kind == "document" else Allowed.of_passages(numbers)

    def _fulfilling(self, kind: Kind, sought: Sought) -> IntArray:
        """Numbers of all documents or passages that fulfill one condition, ascending."""
        tables, phrases = self.tables, sought.phrases
        if not sought.forms:
            return tables.of(kind).holding(*phrases)
        written, column = [(form,) for form in sought.forms], tables.forms
        if kind == "passage" and column == WORDS:
            return tables.passages.holding(*written)
        # stemmed passages have no list of words as they are written: the document does, and the
        # passage has some form
        docs = tables.texts.holding(*written, column=column)
        if kind == "document":
            return docs
        passages = tables.passages.holding(*phrases)
        return passages[np.isin(passages >> PASSAGE_BITS, docs)]

    @cached_property
    def mean_passage_length(self) -> float:
        counts = self.manifest.counts
        return counts.characters / counts.passages if counts.passages else 0.0


def _below_one(known: tuple[IntArray, FloatArray], numbers: IntArray) -> FloatArray:
    """The values `[n]` of some numbers `[n]`, 1 of all but those that are `known` to be less."""
    below, of_below = known
    values = np.ones(len(numbers), np.float32)
    if len(below):
        places, is_below = find_in(below, numbers)
        values[is_below] = of_below[places[is_below]]
    return values
