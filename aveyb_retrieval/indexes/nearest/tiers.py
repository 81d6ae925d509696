"""`Nearest`: the vectors of one kind of one version of an index, searchable.

FAISS files ("tiers") cover ranges of documents as they were when each was made. Vectors of later documents are in
memory and searched exactly. What was deleted since stays in a file, so candidates are looked up among the stored
vectors: those that are gone fall out, and the others get their true cosines, whatever code the file keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.nearest.faiss_file import FaissSearcher
from aveyb_retrieval.indexes.nearest.memory import Memory, between, check_room, top
from aveyb_retrieval.indexes.nearest.memory import search as search_exactly
from aveyb_retrieval.indexes.store.numbering import END, PASSAGE_BITS, number_range
from aveyb_retrieval.indexes.types import inner_products

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.store.manifest import Tier
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

MOST_GONE = 128  # vectors in memory that are not stored any more, before memory is filled again
READ = 100  # codes that are scanned while one vector is read
BLOCK = 8192  # vectors read at once by their numbers
HARDER = 8  # how many times more candidates are asked for when too few remained


class Vectors(Protocol):
    """The stored vectors of one kind of one version.

    The vector of a number never changes, no number is given twice, and later documents have higher ones.
    """

    @property
    def dim(self) -> int:
        """Their width, d."""

    def live(self, numbers: IntArray) -> tuple[IntArray, FloatArray]:
        """Those of numbers `[n]` that are still stored, in their order: numbers `[m]`, vectors `[m, d]` float32."""

    def blocks(self, first: int, stop: int, rows: int = 16384) -> Iterator[tuple[IntArray, FloatArray]]:
        """All stored vectors of documents numbered in `[first, stop)`, ascending by number."""


class Nearest:
    """The vectors of one kind of one version, searchable. Safe to use from many threads; never changes.

    Attributes:
        count: How many vectors can be found.
    """

    def __init__(
        self, files: Sequence[FaissSearcher], memory: Memory, covered: int, vectors: Vectors, count: int
    ) -> None:
        self.count = count
        self._files = [file for file in files if file.live]
        self._memory = memory
        self._covered = covered  # number of the first document that is in memory
        self._vectors = vectors
        self._gone = len(memory) - (count - sum(file.live for file in self._files))

    @classmethod
    def open(
        cls,
        root: Path,
        kind: Kind,
        tiers: Sequence[Tier],
        vectors: Vectors,
        count: int,
        *,
        device: str = "cpu",
        mapped: bool = True,
        before: Nearest | None = None,
    ) -> Nearest:
        """Open the vectors of one kind.

        Args:
            root: The index directory.
            kind: The kind.
            tiers: Its FAISS files, as the manifest describes them.
            vectors: Its stored vectors.
            count: How many are stored.
            device: "cpu", or "cuda" ("cuda:1"), which holds all vectors and searches them exactly.
            mapped: Leave on disk what FAISS can map.
            before: The same of an earlier version of this index: its open files and what it read serve again.

        Raises:
            IndexFormatError: a file is damaged, or the numbers of vectors contradict each other.
            BackendError: there is no such device, or it has too little memory.
        """
        tiers = sorted((tier for tier in tiers if tier.kind == kind), key=lambda tier: tier.first)
        known = {} if before is None else {file.tier.file: file for file in before._files}
        files: list[FaissSearcher] = []
        if device == "cpu":
            for tier in tiers:
                opened = known.get(tier.file)
                files.append(opened.followed_by(tier) if opened else FaissSearcher.open(root, tier, mapped=mapped))
        covered = max((file.tier.stop for file in files), default=0)
        if before is not None and before._memory.device == device and before._covered <= covered:
            memory = before._memory.from_number(number_range(kind, covered, END)[0])
            read = max(covered, _document(kind, before._memory.next_number))
            nearest = cls(files, memory.with_blocks(vectors.blocks(read, END)), covered, vectors, count)
            if 0 <= nearest._gone <= MOST_GONE:
                return nearest
        memory = Memory(vectors.dim, device)
        check_room(device, count, vectors.dim)
        memory = memory.with_blocks(vectors.blocks(covered, END))
        nearest = cls(files, memory, covered, vectors, count)
        if nearest._gone:
            raise IndexFormatError(
                f"{root}: {len(memory):,} {kind} vectors are stored beside the FAISS files, where "
                f"{len(memory) - nearest._gone:,} are counted: the index is damaged; restore it from a copy or "
                "build it again"
            )
        return nearest

    @classmethod
    def of_file(cls, file: FaissSearcher, vectors: Vectors) -> Nearest:
        """Only what one file covers."""
        return cls([file], Memory(vectors.dim), file.tier.stop, vectors, file.live)

    def search(
        self, queries: FloatArray, k: int, among: IntArray | None = None, *, exact: bool = False
    ) -> tuple[FloatArray, IntArray]:
        """Find the `k` vectors nearest to each query.

        Args:
            queries: `[n, d]` float32 unit rows.
            k: How many.
            among: Ascending numbers `[m]` that the search is limited to; each once, all of stored vectors.
            exact: Compare with every vector rather than trust FAISS's files.

        Returns:
            True cosines and numbers `[n, k]`, best first, ties by the lower number; fewer columns if there are fewer.
        """
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        k = min(k, self.count if among is None else len(among))
        if k <= 0 or not len(queries):
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        found = [self._in_memory(queries, k, among)]
        ranges: list[tuple[FaissSearcher, IntArray | None]] = []
        for file in self._files:
            here = None if among is None else between(among, file.first, file.stop)
            if here is not None and not len(here):
                continue
            if exact or self._cheaper_exactly(file, k, here):
                found.append(self._exactly(file, queries, k, here))
            else:
                ranges.append((file, here))
        if ranges:
            found.append(self._by_files(ranges, queries, k))
        return _top(found, k)

    def _in_memory(self, queries: FloatArray, k: int, among: IntArray | None) -> tuple[FloatArray, IntArray]:
        """The best in memory."""
        if not self._gone or among is not None:
            return self._memory.search(queries, k, among)
        scores, numbers = self._memory.search(queries, k + self._gone)
        stored, _ = self._vectors.live(np.unique(numbers[numbers >= 0]))
        return np.where(np.isin(numbers, stored), scores, -np.inf), numbers

    def _cheaper_exactly(self, file: FaissSearcher, k: int, here: IntArray | None) -> bool:
        """Whether reading all vectors (or the selected ones) costs less than asking the file and reading candidates."""
        asked = 0 if file.scores_are_true else file.wanted(k)
        read = file.live if here is None else len(here)
        return read <= asked + file.live // READ or (here is None and 4 * k >= file.live)

    def _exactly(
        self, file: FaissSearcher, queries: FloatArray, k: int, here: IntArray | None
    ) -> tuple[FloatArray, IntArray]:
        """The best of all vectors that a file covers, or of the selected ones, as they are stored."""
        if here is None:
            return search_exactly(self._vectors.blocks(file.tier.first, file.tier.stop), queries, k)
        blocks = (self._vectors.live(here[start : start + BLOCK]) for start in range(0, len(here), BLOCK))
        return search_exactly(blocks, queries, k)

    def _by_files(
        self, files: Sequence[tuple[FaissSearcher, IntArray | None]], queries: FloatArray, k: int
    ) -> tuple[FloatArray, IntArray]:
        """The best that files find, looked up among the stored vectors; all, where there are not `k`."""
        wanted = max(file.wanted(k) for file, _ in files)
        enough = min(k, sum(file.live if here is None else len(here) for file, here in files))
        grown = 1
        while True:
            asked = [file.candidates(queries, wanted, here, grown=grown) for file, here in files]
            scores, numbers = _top(asked, wanted * grown)
            candidates = (numbers >= 0).sum(axis=1)
            scores, numbers = self._looked_up(queries, scores, numbers)
            found = np.isfinite(scores).sum(axis=1)
            if ((found >= enough) & (found >= candidates // 2)).all():  # what is left of few is not the best of all
                return scores, numbers
            if all(file.exhausted(wanted, grown) for file, _ in files):
                break
            grown *= HARDER
        return _top([self._exactly(file, queries, k, here) for file, here in files], k)

    def _looked_up(self, queries: FloatArray, scores: FloatArray, numbers: IntArray) -> tuple[FloatArray, IntArray]:
        """True cosines of candidates `[n, m]`; -inf for those that are gone."""
        stored, vectors = self._vectors.live(np.unique(numbers[numbers >= 0]))
        if not len(stored):
            return np.full_like(scores, -np.inf), numbers
        places = np.minimum(np.searchsorted(stored, numbers), len(stored) - 1)
        true = np.stack([inner_products(vectors[row], query) for row, query in zip(places, queries, strict=True)])
        return np.where(stored[places] == numbers, true, -np.inf), numbers


def _top(found: Sequence[tuple[FloatArray, IntArray]], k: int) -> tuple[FloatArray, IntArray]:
    """The `k` best of several scores and numbers `[n, m]` a row."""
    scores, numbers = zip(*found, strict=True)
    return top(np.concatenate(scores, axis=1), np.concatenate(numbers, axis=1), k)


def _document(kind: Kind, number: int) -> int:
    """The first document all of whose vectors have at least this number."""
    return number if kind == "document" else -(-number >> PASSAGE_BITS)
