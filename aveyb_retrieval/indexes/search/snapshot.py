"""One version of an index, open for searching: finds documents and passages by vector, by words, under a filter."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import OrderedDict
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.engines.base import BoolArray, EngineInfo
from aveyb_retrieval.indexes.nearest import devices, faiss_file
from aveyb_retrieval.indexes.nearest.exact import search as search_exactly
from aveyb_retrieval.indexes.nearest.searcher import Searcher, search_rescored
from aveyb_retrieval.indexes.search.word_scores import Postings
from aveyb_retrieval.indexes.store import directory, filters, sample, store_check
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from aveyb_retrieval.indexes.store.filter_advice import warn_of_filter
from aveyb_retrieval.indexes.store.manifest import Manifest, check_files
from aveyb_retrieval.indexes.store.vectors import VectorTable, open_shard
from aveyb_retrieval.indexes.store.store import Store, check_readable, dead_ids
from aveyb_retrieval.indexes.store.tokens import TokenTable, open_tokens, token_codec
from aveyb_retrieval.indexes.types import KINDS, FloatArray, IntArray, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.store.filters import Condition, Filter
    from aveyb_retrieval.indexes.store.language import Language
    from aveyb_retrieval.indexes.store.store import StoredDocument, StoredPassage

EXACT_ROWS = 20_000  # so many vectors are scored in about ten milliseconds
EXACT_SHARE = 0.02  # below this share of allowed vectors a graph or inverted lists lose recall, whatever the effort
FILTERS_KEPT = 16


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
        info: The same, as every engine says it.
        folder: Where it is.
        kinds: The kinds of vectors it can search.
        tables: The vectors of each kind.
        tokens: The vectors of tokens, for late interaction; None where the index does not keep them.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, mapped: bool, full_check: bool, device: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.kinds: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind in manifest.indexes)
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
                self.info = _info(folder, manifest, passage_words=store.words.has_passages)
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

    def select(self, where: Filter | None) -> Allowed | None:
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
            selection = Allowed(store.matching(condition), condition)
            if not len(selection.docs):
                warn_of_filter(store, where)
        with self._filters_lock:
            self._filters[key] = selection
            while len(self._filters) > FILTERS_KEPT:
                self._filters.popitem(last=False)
        return selection

    def _ids(self, selection: Allowed, kind: Kind) -> IntArray:
        if kind not in selection.ids:
            with self.store() as store:
                selection.ids[kind] = store.passage_ids(selection.docs)
        return selection.ids[kind]

    def _selector(self, selection: Allowed | None, kind: Kind) -> Any:
        if selection is None:
            return self._without_removed.get(kind)
        if kind not in selection.selectors:
            selection.selectors[kind] = self._searchers[kind].select(
                self._ids(selection, kind), dense=kind == "document"
            )
        return selection.selectors[kind]

    # --- vectors -----------------------------------------------------------------------------------------------------

    def count(self, kind: Kind, selection: Allowed | None = None) -> int:
        """How many vectors of a kind can be found."""
        if selection is not None:
            return len(self._ids(selection, kind))
        info = self.manifest.indexes[kind]
        return info.count - info.tombstones

    def nearest(
        self, kind: Kind, queries: FloatArray, k: int, selection: Allowed | None = None, *, exact: bool = False
    ) -> tuple[FloatArray, IntArray]:
        """Vectors nearest to queries `[n, d]`: cosines and ids `[n, k]`, best first; as many as `k` if so many exist.

        A filter that lets few vectors through, an index that cannot be limited to some ids, and `exact` score all of
        them exactly; otherwise the index is searched, a quantised one for more candidates, then scored exactly.
        """
        k = min(k, self.count(kind, selection))
        searcher = self._searchers[kind]
        if k == 0:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        share = self.count(kind, selection) / max(searcher.count, 1)
        selective = selection is not None and (self.count(kind, selection) <= EXACT_ROWS or share <= EXACT_SHARE)
        needs_selector = selection is not None or self.manifest.indexes[kind].tombstones > 0
        if exact or selective or (needs_selector and not searcher.takes_selector):
            return search_exactly(self._blocks(kind, selection), queries, k)
        effort = None if selection is None or not searcher.knob else int(searcher.params[searcher.knob] / share)
        selector = self._selector(selection, kind)
        scores, ids = search_rescored(searcher, self.tables[kind], queries, k, selector=selector, effort=effort)
        short = np.flatnonzero((ids < 0).any(axis=1))
        if len(short):
            scores[short], ids[short] = search_exactly(self._blocks(kind, selection), queries[short], k)
        return scores, ids

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """Vectors `[n, d]` of documents or passages, by numbers `[n]`, in their order."""
        return self.tables[kind].gather(numbers)

    def _blocks(self, kind: Kind, selection: Allowed | None) -> Iterator[tuple[IntArray, FloatArray]]:
        if selection is None:
            with self.store() as store:
                ids = store.ids(kind)
        else:
            ids = self._ids(selection, kind)
        for start in range(0, len(ids), 16384):
            some = ids[start : start + 16384]
            yield some, self.tables[kind].gather(some)

    # --- documents ---------------------------------------------------------------------------------------------------

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Numbers of documents by their ids; those that are not there are left out."""
        with self.store() as store:
            found = {document_id: store.find(document_id) for document_id in ids}
        return {document_id: row[0] for document_id, row in found.items() if row is not None}

    def matching(self, selection: Allowed) -> IntArray:
        """Numbers of the documents of a selection, ascending."""
        return selection.docs

    def documents(self, docs: Sequence[int], *, texts: bool = True) -> dict[int, StoredDocument]:
        """Documents by number; those that are not there are left out. Without `texts`, texts are empty."""
        with self.store() as store:
            return store.documents(docs, texts=texts)

    def passages(self, passages: Sequence[int]) -> dict[int, StoredPassage]:
        """Passages by number; those that are not there are left out. Looking one up is an IndexFormatError."""
        with self.store() as store:
            return store.some_passages(passages)

    def passage_numbers(self, docs: Sequence[int]) -> IntArray:
        """Numbers of the passages of some documents, `[n]`, ascending."""
        with self.store() as store:
            return store.passage_ids(np.array(docs, dtype=np.int64))

    def passage_spans(self, docs: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Passages of some documents, ascending: numbers `[n]` and characters of the text `[n, 2]`."""
        with self.store() as store:
            return store.passages(docs)

    @cached_property
    def mean_vector(self) -> FloatArray:
        """The mean `[d]` of chosen vectors (`sample.py`): its product with a query is a random document's score."""
        with self.store() as store:
            ids = sample.documents(store)
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

    def by_words(self, kind: Kind, text: str, k: int, selection: Allowed | None = None) -> list[tuple[int, float]]:
        """The `k` best documents (over title and text) or passages by BM25; fewer where fewer hold any of the words."""
        expression = self._any_word(text)
        if not expression:
            return []
        condition = selection.condition if selection else None
        with self.store() as store:
            if kind == "document":
                return store.words.match(expression, min(k, self.info.documents), condition)
            return store.words.match_passages(expression, min(k, self.info.passages), condition)

    def _any_word(self, text: str) -> str:
        """The FTS5 expression for what holds any word of a text; "" where it has none."""
        return " OR ".join(self.language.terms(text))

    def occurrences(self, text: str, passages: IntArray) -> tuple[IntArray, BoolArray]:
        """How many passages hold each word of a text, `[t]`, and which of some `[n]`, ascending, do: `[t, n]`."""
        with self.store() as store:
            return self._postings.look_up(store, self.language.terms(text), passages)

    @cached_property
    def mean_passage_length(self) -> float:
        """The mean length of all passages, in characters."""
        with self.store() as store:
            return store.mean_passage()


def _release(hold: int, stores: queue.LifoQueue[Store]) -> None:
    while not stores.empty():
        stores.get_nowait().close()
    os.close(hold)


def _info(folder: Path, manifest: Manifest, *, passage_words: bool) -> EngineInfo:
    return EngineInfo(
        name=str(folder.parent),
        version=manifest.version,
        dim=manifest.dim,
        granularity=manifest.granularity,
        documents=manifest.counts["documents"],
        passages=manifest.counts["passages"],
        model=manifest.model,
        model_source=manifest.settings["model_source"],
        remedy=f"run `aveyb-index verify {folder.parent}`",
        passage_words=passage_words,
    )


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
