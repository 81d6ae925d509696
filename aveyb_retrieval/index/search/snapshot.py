"""One version of an index, open for searching: finds documents and passages by vector, by words, under a filter."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import OrderedDict
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import AveyBError, IndexFormatError, InputError
from aveyb_retrieval.index.nearest import devices, faiss_file
from aveyb_retrieval.index.nearest.exact import search as search_exactly
from aveyb_retrieval.index.nearest.searcher import Searcher, search_rescored
from aveyb_retrieval.index.search.word_scores import BoolArray, Postings
from aveyb_retrieval.index.storage import directory, filters, store_check
from aveyb_retrieval.index.storage.directory import IndexDirectory
from aveyb_retrieval.index.storage.filter_advice import warn_of_filter
from aveyb_retrieval.index.storage.manifest import Manifest, check_files
from aveyb_retrieval.index.storage.numbering import PASSAGE_BITS
from aveyb_retrieval.index.storage.shards import VectorTable, open_shard
from aveyb_retrieval.index.storage.store import Store, check_readable, dead_ids
from aveyb_retrieval.index.storage.tokens import TokenTable, open_tokens, token_codec
from aveyb_retrieval.index.types import KINDS, FloatArray, IntArray, Kind, unit_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aveyb_retrieval.index.storage.filters import Condition, Filter
    from aveyb_retrieval.index.storage.language import Language

EXACT_ROWS = 20_000  # so many vectors are scored in about ten milliseconds
EXACT_SHARE = 0.02  # below this share of allowed vectors a graph or inverted lists lose recall, whatever the effort
FILTERS_KEPT = 16
MEAN_SAMPLE = 1024  # vectors whose mean stands for that of all


class Match(NamedTuple):
    """A document with its score and, where a passage decided it, that passage's number (else -1)."""

    doc: int
    score: float
    passage: int = -1


class Allowed:
    """The documents that a filter lets through, ascending, and what searches need to know about them."""

    def __init__(self, docs: IntArray, condition: Condition) -> None:
        self.docs = docs
        self.condition = condition
        self.ids: dict[Kind, IntArray] = {"document": docs}
        self.selectors: dict[Kind, Any] = {}


class Snapshot:
    """A version of an index. All methods may be called from many threads at once.

    Attributes:
        manifest: What the version says about itself.
        folder: Where it is.
        kinds: The kinds of vectors it can search.
        tables: The vectors of each kind.
        tokens: The vectors of tokens, for late interaction; None where the index does not keep them.
        device: Where vectors are searched.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, mapped: bool, full_check: bool, device: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.kinds: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind in manifest.indexes)
        self.device = device
        self._stores: queue.LifoQueue[Store] = queue.LifoQueue()
        self._postings = Postings()
        self._filters: OrderedDict[str, Allowed] = OrderedDict()
        self._filters_lock = threading.Lock()
        # runs at `close`, or when nothing refers to the snapshot any more: then its last search has ended
        self._release = weakref.finalize(
            self, _release, directory.lock_shared(folder / directory.MANIFEST), self._stores
        )
        try:
            check_files(manifest, folder, full=full_check)
            with self.store() as store:
                check_readable(store)
                removed = {k: dead_ids(store, k) for k in self.kinds if manifest.indexes[k].tombstones}
            self.tables = _open_tables(folder, manifest)
            self.tokens = _open_tokens(folder, manifest)
            self._searchers = {
                kind: _open_searcher(folder, manifest, kind, self.tables[kind], mapped, device) for kind in self.kinds
            }
            self._without_removed = {
                kind: self._searchers[kind].select_all_but(ids)
                for kind, ids in removed.items()
                if self._searchers[kind].takes_selector
            }
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, root: str | Path, *, mapped: bool = True, full_check: bool = False, device: str = "cpu") -> Snapshot:
        """Open the visible version of an index.

        Raises:
            IndexFormatError: there is no index, or it is damaged.
        """
        index_dir = IndexDirectory(root)
        for _ in range(10):
            name = index_dir.visible()
            try:
                manifest = Manifest.read(index_dir.root / name)
                return cls(index_dir.root / name, manifest, mapped=mapped, full_check=full_check, device=device)
            except (FileNotFoundError, IndexFormatError):
                if index_dir.current() == name:
                    raise  # not a version that a writer replaced and deleted just now
        raise IndexFormatError(f"{root}: it is replaced faster than it can be opened; try again")

    def _open_store(self) -> Store:
        path = self.folder / directory.STORE
        try:
            return Store.open_for_reading(path)
        except store_check.UNREADABLE as error:
            raise IndexFormatError(
                f"{path}: cannot be opened ({error}); run `aveyb-index verify {self.folder.parent}`"
            ) from error

    def close(self) -> None:
        """Let go of the version's files."""
        self._release()

    @contextmanager
    def store(self) -> Iterator[Store]:
        """A connection to the store that nobody else uses meanwhile.

        Raises:
            AveyBError: the snapshot is closed.
            IndexFormatError: the store is not readable.
        """
        if not self._release.alive:
            raise AveyBError(f"{self.folder.parent}: this index was closed; load it again to search it")
        try:
            store = self._stores.get_nowait()
        except queue.Empty:
            store = self._open_store()
        try:
            yield store
        except store_check.UNREADABLE as error:
            store.close()
            raise IndexFormatError(
                f"{store.path}: unreadable ({error}); run `aveyb-index verify {self.folder.parent}`"
            ) from error
        except BaseException:
            store.close()
            raise
        self._stores.put(store)

    # --- filters -----------------------------------------------------------------------------------------------------

    def allowed(self, where: Filter | None) -> Allowed | None:
        """The documents that satisfy a filter; None where there is no filter. Remembered: a version never changes."""
        if where is None:
            return None
        key = filters.filter_key(where)
        with self._filters_lock:
            if key in self._filters:
                self._filters.move_to_end(key)
                return self._filters[key]
        condition = filters.compile_filter(where, self.manifest.index_fields)
        with self.store() as store:
            allowed = Allowed(store.matching(condition), condition)
            if not len(allowed.docs):
                warn_of_filter(store, where)
        with self._filters_lock:
            self._filters[key] = allowed
            while len(self._filters) > FILTERS_KEPT:
                self._filters.popitem(last=False)
        return allowed

    def _ids(self, allowed: Allowed, kind: Kind) -> IntArray:
        if kind not in allowed.ids:
            with self.store() as store:
                allowed.ids[kind] = store.passage_ids(allowed.docs)
        return allowed.ids[kind]

    def _selector(self, allowed: Allowed | None, kind: Kind) -> Any:
        if allowed is None:
            return self._without_removed.get(kind)
        if kind not in allowed.selectors:
            allowed.selectors[kind] = self._searchers[kind].select(self._ids(allowed, kind), dense=kind == "document")
        return allowed.selectors[kind]

    # --- vectors -----------------------------------------------------------------------------------------------------

    def unit_vectors(self, vectors: npt.NDArray[np.floating]) -> FloatArray:
        """Scale query vectors `[n, d]` to unit length.

        Raises:
            InputError: they are of another dimension, or not finite.
        """
        dim = self.manifest.dim
        try:
            rows = np.ascontiguousarray(vectors, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"query vectors are not an array of numbers ({error}); this index needs [n, {dim}]"
            ) from error
        if rows.ndim != 2 or rows.shape[1] != dim:
            raise InputError(f"query vectors of shape {rows.shape}; this index needs [n, {dim}]")
        if not np.isfinite(rows).all():
            raise InputError("a query vector holds NaN or infinity")
        return unit_rows(rows)

    def count(self, kind: Kind, allowed: Allowed | None = None) -> int:
        """How many vectors of a kind can be found."""
        if allowed is not None:
            return len(self._ids(allowed, kind))
        info = self.manifest.indexes[kind]
        return info.count - info.tombstones

    def nearest(
        self, kind: Kind, queries: FloatArray, k: int, allowed: Allowed | None = None, *, exact: bool = False
    ) -> tuple[FloatArray, IntArray]:
        """Vectors nearest to queries `[n, d]`: cosines and ids `[n, k]`, best first; as many as `k` if so many exist.

        A filter that lets few vectors through, an index that cannot be limited to some ids, and `exact` score all of
        them exactly; otherwise the index is searched, a quantised one for more candidates, then scored exactly.
        """
        k = min(k, self.count(kind, allowed))
        searcher = self._searchers[kind]
        if k == 0:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        share = self.count(kind, allowed) / max(searcher.count, 1)
        selective = allowed is not None and (self.count(kind, allowed) <= EXACT_ROWS or share <= EXACT_SHARE)
        needs_selector = allowed is not None or self.manifest.indexes[kind].tombstones > 0
        if exact or selective or (needs_selector and not searcher.takes_selector):
            return search_exactly(self._blocks(kind, allowed), queries, k)
        effort = None if allowed is None or not searcher.knob else int(searcher.params[searcher.knob] / share)
        selector = self._selector(allowed, kind)
        scores, ids = search_rescored(searcher, self.tables[kind], queries, k, selector=selector, effort=effort)
        short = np.flatnonzero((ids < 0).any(axis=1))
        if len(short):
            scores[short], ids[short] = search_exactly(self._blocks(kind, allowed), queries[short], k)
        return scores, ids

    def _blocks(self, kind: Kind, allowed: Allowed | None) -> Iterator[tuple[IntArray, FloatArray]]:
        if allowed is None:
            with self.store() as store:
                ids = store.ids(kind)
        else:
            ids = self._ids(allowed, kind)
        for start in range(0, len(ids), 16384):
            some = ids[start : start + 16384]
            yield some, self.tables[kind].gather(some)

    # --- documents ---------------------------------------------------------------------------------------------------

    def nearest_documents(
        self,
        kinds: tuple[Kind, ...],
        queries: FloatArray,
        k: int,
        allowed: Allowed | None = None,
        *,
        exact: bool = False,
    ) -> list[list[Match]]:
        """The `k` best documents for each query `[n, d]`: by their vector, their best passage, or the better one.

        With both kinds the `k` best of each are enough: a document among the `k` best by the larger of its two scores
        is among the `k` best by that score.
        """
        if len(kinds) == 1:
            return self._by_kind(kinds[0], queries, k, allowed, exact)
        results: list[dict[int, Match]] = [{} for _ in queries]
        for kind in kinds:
            for result, matches in zip(results, self._by_kind(kind, queries, k, allowed, exact), strict=True):
                for match in matches:
                    if match.doc not in result or match.score > result[match.doc].score:
                        result[match.doc] = match
        return [sorted(result.values(), key=lambda m: (-m.score, m.doc))[:k] for result in results]

    def _by_kind(
        self, kind: Kind, queries: FloatArray, k: int, allowed: Allowed | None, exact: bool
    ) -> list[list[Match]]:
        if kind == "document":
            scores, ids = self.nearest(kind, queries, k, allowed, exact=exact)
            return [
                [Match(doc, score) for doc, score in zip(row_ids, row, strict=True)]
                for row_ids, row in zip(ids.tolist(), scores.tolist(), strict=True)
            ]
        return self._by_passage(queries, k, allowed, exact)

    def _by_passage(self, queries: FloatArray, k: int, allowed: Allowed | None, exact: bool) -> list[list[Match]]:
        """Documents by their best passage: fetches passages until they are of `k` documents or there are no more."""
        results: list[list[Match]] = [[] for _ in queries]
        open_rows, wanted, available = np.arange(len(queries)), 4 * k, self.count("passage", allowed)
        while len(open_rows):
            scores, ids = self.nearest("passage", queries[open_rows], wanted, allowed, exact=exact)
            for row, row_ids, row_scores in zip(open_rows.tolist(), ids.tolist(), scores.tolist(), strict=True):
                results[row] = _group(row_ids, row_scores, k)
            if wanted >= available:
                break
            open_rows = np.array([row for row in open_rows if len(results[row]) < k], dtype=np.int64)
            wanted *= 4
        return results

    def nearest_passages(
        self, queries: FloatArray, k: int, allowed: Allowed | None = None, *, exact: bool = False
    ) -> list[list[Match]]:
        """The `k` best passages for each query `[n, d]`."""
        scores, ids = self.nearest("passage", queries, k, allowed, exact=exact)
        return [
            [Match(i >> PASSAGE_BITS, score, i) for i, score in zip(row_ids, row, strict=True)]
            for row_ids, row in zip(ids.tolist(), scores.tolist(), strict=True)
        ]

    def score_documents(self, kinds: tuple[Kind, ...], docs: list[int], query: FloatArray) -> dict[int, float]:
        """Score documents against one query `[d]` as `nearest_documents` does; leave out those without a vector."""
        found: dict[int, float] = {}
        if "document" in kinds and docs:
            scores = self.tables["document"].gather(np.array(docs, dtype=np.int64)) @ query
            found = dict(zip(docs, scores.tolist(), strict=True))
        if "passage" in kinds and docs:
            with self.store() as store:
                ids = store.passage_ids(np.array(docs, dtype=np.int64))
            scores = self.tables["passage"].gather(ids) @ query if len(ids) else np.empty(0, np.float32)
            for doc, score in zip((ids >> PASSAGE_BITS).tolist(), scores.tolist(), strict=True):
                found[doc] = max(score, found.get(doc, score))
        return found

    def background(self, query: FloatArray) -> float:
        """The mean cosine of all vectors with a query `[d]`: what a document scores at random."""
        return float(self.mean_vector @ query)

    @cached_property
    def mean_vector(self) -> FloatArray:
        """The mean `[d]` of a sample of the vectors: its product with a query is what a document scores at random."""
        with self.store() as store:
            ids = store.spread(MEAN_SAMPLE)
            if "document" in self.kinds:
                rows = self.tables["document"].gather(ids)
            else:
                rows = self.tables["passage"].gather(store.passage_ids(ids))
        return rows.mean(axis=0) if len(rows) else np.zeros(self.manifest.dim, dtype=np.float32)

    # --- words -------------------------------------------------------------------------------------------------------

    @cached_property
    def language(self) -> Language:
        """The rules by which this version's words are found."""
        with self.store() as store:
            return store.words.language

    @cached_property
    def has_passage_words(self) -> bool:
        """Whether passages can be found by words: not so in a version of format 1."""
        with self.store() as store:
            return store.words.has_passages

    def documents_by_words(self, text: str, k: int, allowed: Allowed | None = None) -> list[Match]:
        """The `k` best documents by BM25 over title and text; fewer where fewer hold any of the words."""
        expression = self._any_word(text)
        if not expression:
            return []
        condition = allowed.condition if allowed else None
        k = min(k, self.manifest.counts["documents"])
        with self.store() as store:
            return [Match(doc, score) for doc, score in store.words.match(expression, k, condition)]

    def passages_by_words(self, text: str, k: int, allowed: Allowed | None = None) -> list[int]:
        """Find the `k` best passages by BM25; fewer where fewer hold any of the words."""
        expression = self._any_word(text)
        if not expression:
            return []
        condition = allowed.condition if allowed else None
        k = min(k, self.manifest.counts["passages"])
        with self.store() as store:
            return [passage for passage, _ in store.words.match_passages(expression, k, condition)]

    def _any_word(self, text: str) -> str:
        """The FTS5 expression for what holds any word of a text; "" where it has none."""
        return " OR ".join(self.language.terms(text))

    def word_occurrences(self, text: str, ids: IntArray) -> tuple[IntArray, BoolArray]:
        """How many passages hold each word of a text, `[t]`, and which of some `[n]`, ascending, do: `[t, n]`."""
        with self.store() as store:
            return self._postings.look_up(store, self.language.terms(text), ids)

    @cached_property
    def mean_passage_length(self) -> float:
        """The mean length of all passages, in characters."""
        with self.store() as store:
            return store.mean_passage()


def _release(hold: int, stores: queue.LifoQueue[Store]) -> None:
    while not stores.empty():
        stores.get_nowait().close()
    os.close(hold)


def _group(ids: list[int], scores: list[float], k: int) -> list[Match]:
    """The best passage of each document, of passages in descending order."""
    best: dict[int, Match] = {}
    for passage, score in zip(ids, scores, strict=True):
        doc = passage >> PASSAGE_BITS
        if doc not in best:
            if len(best) == k:
                break
            best[doc] = Match(doc, score, passage)
    return list(best.values())


def _open_tables(folder: Path, manifest: Manifest) -> dict[Kind, VectorTable]:
    names = [name for name in manifest.files if name.startswith(directory.VECTORS)]
    views = [open_shard(folder / name, manifest.dim) for name in names]
    return {kind: VectorTable((v[kind] for v in views if kind in v), manifest.dim) for kind in KINDS}


def _open_tokens(folder: Path, manifest: Manifest) -> TokenTable | None:
    codec = token_codec(manifest.settings)
    if codec is None:
        return None
    names = [name for name in manifest.files if name.startswith(directory.VECTORS)]
    return TokenTable((open_tokens(folder / name, codec) for name in names), codec)


def _open_searcher(
    folder: Path, manifest: Manifest, kind: Kind, table: VectorTable, mapped: bool, device: str
) -> Searcher:
    info = manifest.indexes[kind]
    path = folder / directory.faiss_file(kind)
    index = faiss_file.read(path, mapped=mapped)
    if index.d != manifest.dim or index.ntotal != info.count:
        raise IndexFormatError(
            f"{path}: {index.ntotal} vectors of dimension {index.d}, the manifest says {info.count} of "
            f"{manifest.dim}; `aveyb-index verify --repair` rebuilds it"
        )
    return devices.open_searcher(index, table, info.params, info.factory, device)
