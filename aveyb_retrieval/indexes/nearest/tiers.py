"""`VectorSearcher`: the vectors of one kind of one version of an index, searchable.

FAISS files ("tiers") cover ranges of documents as they were when each was made. Candidates are
looked up among the stored vectors: those that are gone fall out, and the others get their true
cosines, whatever code the file keeps.

Vectors that no file covers yet are in memory and searched exactly; on a GPU that cannot search the
files, all are. They lie in blocks that never change and that versions share; a new one is joined
with those before it that are not much larger, so that there are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import BackendError, IndexFormatError
from aveyb_retrieval.indexes.nearest.faiss_file import (
    SHARED_QUERIES,
    FaissSearcher,
    best_halves,
    card_takes,
    copied_to_cards,
)
from aveyb_retrieval.indexes.types import (
    END_NUMBER,
    PASSAGE_BITS,
    ascending,
    find_in,
    number_range,
    products,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.store.manifest import Tier
    from aveyb_retrieval.indexes.store.tables import StoredVectors
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind


MAX_BLOCK_VECTORS = 1 << 18  # vectors: on a GPU, `_QUERIES` then take 128 MiB of scores
_QUERIES = 256  # that a GPU searches at once


def top(scores: FloatArray, ids: IntArray, k: int) -> tuple[FloatArray, IntArray]:
    """The `k` best of candidates `[n, m]` per row, best first, ties by the lower id; padded with
    -inf and -1 to `k`.
    """
    order, rows = np.lexsort((ids, -scores), axis=1)[:, :k], np.arange(len(scores))[:, None]
    scores, ids = scores[rows, order], ids[rows, order]
    ids = np.where(np.isneginf(scores), -1, ids)
    if scores.shape[1] == k:
        return scores, ids
    missing = ((0, 0), (0, k - scores.shape[1]))
    return np.pad(scores, missing, constant_values=-np.inf), np.pad(
        ids, missing, constant_values=-1
    )


def best(
    blocks: Iterable[tuple[IntArray, FloatArray]], n: int, k: int
) -> tuple[FloatArray, IntArray]:
    """The `k` best of candidates that come in blocks of ids `[m]` and scores `[n, m]`, as `top`
    gives them.
    """
    so_far = np.full((n, 0), -np.inf, dtype=np.float32), np.full((n, 0), -1, dtype=np.int64)
    for ids, scores in blocks:
        if len(ids) > k:
            # every score that ties with the k-th is kept, so that `top` decides between equals and
            # not the partition
            least = np.partition(scores, len(ids) - k, axis=1)[:, len(ids) - k]
            columns = np.flatnonzero((scores >= least[:, None]).any(axis=0))
            ids, scores = ids[columns], scores[:, columns]
        rows = np.broadcast_to(ids, scores.shape)
        values = np.concatenate([so_far[0], scores], axis=1)
        so_far = top(values, np.concatenate([so_far[1], rows], axis=1), k)
    return so_far if so_far[0].shape[1] == k else top(*so_far, k)


SAME_SUM_ERROR = 1e-5  # by which sums in float32 of the same numbers may differ


def scored(
    vectors: np.ndarray, ids: IntArray, queries: FloatArray, k: int
) -> tuple[IntArray, FloatArray]:
    """Which vectors may be among the `k` best of a query, and their scores: in float64, alike for
    equal vectors.
    """
    if len(ids) > k:
        if vectors.dtype == np.float16:
            columns = best_halves(vectors, queries, k, SAME_SUM_ERROR)
        else:
            rough = products(queries, vectors)
            least = np.partition(rough, len(ids) - k, axis=1)[:, len(ids) - k] - SAME_SUM_ERROR
            columns = np.flatnonzero((rough >= least[:, None]).any(axis=0))
        ids, vectors = ids[columns], vectors[columns]
    return ids, products(queries.astype(np.float64), vectors.astype(np.float64)).astype(np.float32)


def search_exactly(
    blocks: Iterable[tuple[IntArray, np.ndarray]], queries: FloatArray, k: int
) -> tuple[FloatArray, IntArray]:
    """The `k` best of blocks of ids `[m]` and vectors `[m, d]` for each query `[n, d]`, as `top`
    gives them.
    """
    return best((scored(vectors, ids, queries, k) for ids, vectors in blocks), len(queries), k)


@dataclass(frozen=True)
class Block:
    """Numbers `[m]`, ascending, and their vectors `[m, d]`: numpy float32, or torch float16 on a
    device.
    """

    numbers: IntArray
    vectors: Any

    def __len__(self) -> int:
        return len(self.numbers)


class Memory:
    """Vectors in memory.

    Never changes: `with_blocks` and `from_number` make another one that shares the blocks.
    """

    def __init__(self, dim: int, device: str = "cpu", blocks: tuple[Block, ...] = ()) -> None:
        self.dim = dim
        self.device = device
        self.blocks = blocks

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def next_number(self) -> int:
        """One more than the highest number in it; 0 where there is none."""
        return int(self.blocks[-1].numbers[-1]) + 1 if self.blocks else 0

    def with_blocks(self, added: Iterable[tuple[IntArray, FloatArray]]) -> Memory:
        """The same with vectors whose numbers are all higher."""
        blocks = list(self.blocks)
        for numbers, vectors in added:
            if len(numbers):
                blocks.append(
                    Block(np.ascontiguousarray(numbers, dtype=np.int64), self._put(vectors))
                )
                self._join_last(blocks)
        return Memory(self.dim, self.device, tuple(blocks))

    def from_number(self, first: int) -> Memory:
        """The same without numbers below `first`."""
        blocks = []
        for block in self.blocks:
            start = int(np.searchsorted(block.numbers, first))
            if start == 0:
                blocks.append(block)
            elif start < len(block):  # copied, so that what is left out does not stay in memory
                remaining = block.vectors[start:]
                blocks.append(
                    Block(
                        block.numbers[start:].copy(),
                        remaining.copy() if self.device == "cpu" else remaining.clone(),
                    )
                )
        return Memory(self.dim, self.device, tuple(blocks))

    def search(
        self, queries: FloatArray, k: int, among: IntArray | None = None
    ) -> tuple[FloatArray, IntArray]:
        """The `k` nearest to queries `[n, d]`: cosines and numbers `[n, k]`, padded with -inf and
        -1.
        """
        if self.device == "cpu":
            return search_exactly(self._vectors(among), queries, k)
        return self._search_on_device(queries, k, among)

    def _vectors(self, among: IntArray | None) -> Iterator[tuple[IntArray, FloatArray]]:
        for block, rows in self._selected(among):
            vectors = block.vectors if rows is None else block.vectors.take(rows, axis=0)
            yield block.numbers if rows is None else block.numbers[rows], vectors

    def _search_on_device(
        self, queries: FloatArray, k: int, among: IntArray | None
    ) -> tuple[FloatArray, IntArray]:
        """`search` by torch: the best of each block by products in float16, scored again in
        float32.
        """
        import torch

        results = []
        for start in range(0, len(queries), _QUERIES):
            query_rows = torch.from_numpy(queries[start : start + _QUERIES]).to(self.device)
            scores, numbers = (
                [query_rows[:, :0]],
                [torch.empty(len(query_rows), 0, dtype=torch.int64, device=self.device)],
            )
            for block, rows in self._selected(among):
                held, ids = (
                    block.vectors,
                    torch.from_numpy(block.numbers if rows is None else block.numbers[rows]),
                )
                if rows is not None:
                    held = held[torch.from_numpy(rows).to(self.device)]
                _, order = (query_rows.to(held.dtype) @ held.T).topk(
                    min(2 * k + 16, len(held)), dim=1
                )
                scores.append(torch.bmm(held[order].float(), query_rows[:, :, None])[..., 0])
                numbers.append(ids.to(self.device)[order])
            together, places = torch.cat(numbers, 1).sort(dim=1)
            by_number = torch.cat(scores, 1).gather(1, places)
            # ties by the lower number
            ordered, order = by_number.sort(dim=1, descending=True, stable=True)
            results.append(
                (ordered[:, :k].cpu().numpy(), together.gather(1, order[:, :k]).cpu().numpy())
            )
        return top(
            np.concatenate([part[0] for part in results]),
            np.concatenate([part[1] for part in results]),
            k,
        )

    def _selected(self, among: IntArray | None) -> Iterator[tuple[Block, IntArray | None]]:
        """All blocks, each with the rows that are among some numbers, or None for all of them."""
        for block in self.blocks:
            if among is None:
                yield block, None
                continue
            here = between(among, int(block.numbers[0]), int(block.numbers[-1]) + 1)
            places, is_present = find_in(block.numbers, here)
            rows = places[is_present]
            if len(rows):
                yield block, rows

    def _put(self, vectors: FloatArray) -> Any:
        if self.device == "cpu":
            return np.array(vectors, dtype=np.float32, order="C")
        import torch

        return torch.from_numpy(np.ascontiguousarray(vectors)).to(self.device, torch.float16)

    def _join_last(self, blocks: list[Block]) -> None:
        """Join the last blocks with those before that are not larger than twice them together."""
        start, joined = len(blocks) - 1, len(blocks[-1])
        while start and len(blocks[start - 1]) <= min(2 * joined, MAX_BLOCK_VECTORS - joined):
            start -= 1
            joined += len(blocks[start])
        if start < len(blocks) - 1:
            vectors = [block.vectors for block in blocks[start:]]
            if self.device == "cpu":
                together = np.concatenate(vectors)
            else:
                import torch

                together = torch.cat(vectors)
            blocks[start:] = [
                Block(np.concatenate([block.numbers for block in blocks[start:]]), together)
            ]


def between(numbers: IntArray, first: int, stop: int) -> IntArray:
    """Those of ascending numbers that are in `[first, stop)`."""
    start, end = np.searchsorted(numbers, [first, stop])
    return numbers[start:end]


def check_device(device: str) -> None:
    """Check that vectors can be searched on a device: "cpu", or "cuda" (optionally "cuda:1")."""
    if device == "cpu":
        return
    if not device.startswith("cuda"):
        raise BackendError(f"device {device!r}: vectors are searched on 'cpu' or 'cuda'")
    from aveyb_retrieval.encoder.embedders.embedder import check_device as check_machine

    check_machine(device)


def check_room(device: str, count: int, dim: int) -> None:
    """Check, before any is taken, that a device has memory to search `count` vectors of `dim`
    float16.
    """
    if not device.startswith("cuda"):
        return
    import torch

    free, _ = torch.cuda.mem_get_info(torch.device(device))
    # blocks are copied when they are joined; scores of one
    bytes_per_vector, spare = (2 * dim, 2 * MAX_BLOCK_VECTORS * (dim + _QUERIES))
    if count * bytes_per_vector + spare > free:
        gib = 2**30
        raise BackendError(
            f"device {device!r}: {count:,} vectors of {dim} components take"
            f" {count * bytes_per_vector / gib:.2f} GiB and a search {spare / gib:.2f} GiB, but"
            f" {free / gib:.2f} GiB are free, enough for"
            f" {max(0, free - spare) // bytes_per_vector:,} vectors: free memory of the card,"
            " divide the index into shards, or search with device='cpu'"
        )


# vectors in memory that are not stored any more, before memory is filled again
MAX_DEAD_VECTORS_IN_MEMORY = 128
# codes that are scanned, and their best vectors read, while one vector is read and multiplied
CODES_PER_VECTOR_READ = 12
BLOCK_VECTORS = 16384  # vectors read at once by their numbers
CANDIDATE_GROWTH_FACTOR = 8  # how many times more candidates are asked for when too few remained


class VectorSearcher:
    """The vectors of one kind of one version, searchable.

    Safe to use from many threads; never changes.
    """

    def __init__(
        self,
        files: Sequence[FaissSearcher],
        memory: Memory,
        covered: int,
        vectors: StoredVectors,
        count: int,
    ) -> None:
        self.count = count
        self._files = [file for file in files if file.live]
        self._memory = memory
        self._covered = covered  # number of the first document that is in memory
        self._vectors = vectors
        self._dead_in_memory = len(memory) - (count - sum(file.live for file in self._files))

    @classmethod
    def open(
        cls,
        root: Path,
        kind: Kind,
        tiers: Sequence[Tier],
        vectors: StoredVectors,
        count: int,
        *,
        device: str = "cpu",
        mapped: bool = True,
        before: VectorSearcher | None = None,
    ) -> VectorSearcher:
        """Open the vectors of one kind, of which `count` are stored.

        A device of "cuda" ("cuda:1") takes copies of the files where FAISS has their types there,
        and else holds all vectors and searches them exactly. `mapped` leaves on disk what FAISS can
        map. Open files of `before`, an earlier version, and what it read serve again.
        """
        tiers = sorted((tier for tier in tiers if tier.kind == kind), key=lambda tier: tier.first)
        open_files = {} if before is None else {file.tier.file: file for file in before._files}
        files: list[FaissSearcher] = []
        check_device(device)
        if device == "cpu" or (tiers and card_takes(tiers)):
            for tier in tiers:
                if opened := open_files.get(tier.file):
                    files.append(opened.followed_by(tier))
                    continue
                opened = FaissSearcher.open(root, tier, mapped=mapped)
                files.append(
                    opened if device == "cpu" else copied_to_cards(opened, root / tier.file, device)
                )
        covered = max((file.tier.stop for file in files), default=0)
        if before is not None and before._memory.device == device and before._covered <= covered:
            memory = before._memory.from_number(number_range(kind, covered, END_NUMBER)[0])
            number = before._memory.next_number  # of documents with only higher numbers, the first
            read = max(covered, number if kind == "document" else -(-number >> PASSAGE_BITS))
            nearest = cls(
                files, memory.with_blocks(vectors.blocks(read, END_NUMBER)), covered, vectors, count
            )
            if 0 <= nearest._dead_in_memory <= MAX_DEAD_VECTORS_IN_MEMORY:
                return nearest
        memory = Memory(vectors.dim, device)
        check_room(device, count - sum(file.live for file in files), vectors.dim)
        memory = memory.with_blocks(vectors.blocks(covered, END_NUMBER))
        nearest = cls(files, memory, covered, vectors, count)
        if nearest._dead_in_memory:
            raise IndexFormatError(
                f"{root}: {len(memory):,} {kind} vectors are stored outside of the FAISS files,"
                f" but {len(memory) - nearest._dead_in_memory:,} are counted: the index is damaged;"
                " restore it from a copy or build it again"
            )
        return nearest

    def search(
        self, queries: FloatArray, k: int, among: IntArray | None = None, *, exact: bool = False
    ) -> tuple[FloatArray, IntArray]:
        """Find the `k` vectors nearest to each query, unit rows `[n, d]` float32.

        `among`: ascending numbers `[m]` that the search is limited to; each once, all of stored
        vectors. `exact` compares with every vector rather than trust FAISS's files. Returns true
        cosines and numbers `[n, k]`, best first, ties by the lower number; fewer columns if there
        are fewer.
        """
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        k = min(k, self.count if among is None else len(among))
        if k <= 0 or not len(queries):
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        results = [self._in_memory(queries, k, among)] if len(self._memory) else []
        ranges: list[tuple[FaissSearcher, IntArray | None]] = []
        for file in self._files:
            here = None if among is None else between(among, file.first, file.stop)
            if here is not None and not len(here):
                continue
            if exact or self._cheaper_exactly(file, k, here):
                results.append(self._exactly(file, queries, k, here))
            else:
                ranges.append((file, here))
        if ranges:
            results.append(self._by_files(ranges, queries, k))
        return results[0] if len(results) == 1 and not ranges else _top(results, k)

    def _in_memory(
        self, queries: FloatArray, k: int, among: IntArray | None
    ) -> tuple[FloatArray, IntArray]:
        if not self._dead_in_memory or among is not None:
            return self._memory.search(queries, k, among)
        scores, numbers = self._memory.search(queries, k + self._dead_in_memory)
        stored = self._vectors.stored(ascending(numbers[numbers >= 0]))
        return top(np.where(np.isin(numbers, stored), scores, -np.inf), numbers, k)

    def _cheaper_exactly(self, file: FaissSearcher, k: int, here: IntArray | None) -> bool:
        """Whether reading all vectors (or the selected ones) costs less than asking the file and
        reading candidates.
        """
        # all still stored, and scored as they are: no look-up
        true = file.traits.keeps_floats and not file.tier.dead
        candidates = 0 if true else file.candidates_for(k)
        read = file.live if here is None else len(here)
        return read <= candidates + file.live // CODES_PER_VECTOR_READ or (
            here is None and 4 * k >= file.live
        )

    def _exactly(
        self, file: FaissSearcher, queries: FloatArray, k: int, here: IntArray | None
    ) -> tuple[FloatArray, IntArray]:
        """The best of all vectors that a file covers, or of the selected ones, as they
        are stored.
        """
        if here is None:
            return search_exactly(self._vectors.blocks(file.tier.first, file.tier.stop), queries, k)
        if len(queries) < SHARED_QUERIES:
            return search_exactly(self._vectors.selected(here, BLOCK_VECTORS), queries, k)
        blocks = (
            self._vectors.live(here[start : start + BLOCK_VECTORS])
            for start in range(0, len(here), BLOCK_VECTORS)
        )
        return search_exactly(blocks, queries, k)

    def _by_files(
        self, files: Sequence[tuple[FaissSearcher, IntArray | None]], queries: FloatArray, k: int
    ) -> tuple[FloatArray, IntArray]:
        """The best that files find, looked up among the stored vectors; all, where there are not
        `k`.
        """
        width = max(file.candidates_for(k) for file, _ in files)
        enough = min(k, sum(file.live if here is None else len(here) for file, here in files))
        grown = 1
        while True:
            results = [file.candidates(queries, width, here, grown=grown) for file, here in files]
            rankings, complete = [], True
            for query, numbers in zip(queries, _top(results, width * grown)[1], strict=True):
                candidates = ascending(numbers[numbers >= 0])
                stored = self._vectors.stored(candidates)
                # of few left, the best is not that of all
                complete &= len(stored) >= max(enough, len(candidates) // 2)
                rankings.append(
                    search_exactly(self._vectors.selected(stored, BLOCK_VECTORS), query[None], k)
                )
            if complete:
                scores, best = map(np.concatenate, zip(*rankings, strict=True))
                return scores, best
            if all(file.exhausted(width, grown) for file, _ in files):
                break
            grown *= CANDIDATE_GROWTH_FACTOR
        return _top([self._exactly(file, queries, k, here) for file, here in files], k)


def _top(results: Sequence[tuple[FloatArray, IntArray]], k: int) -> tuple[FloatArray, IntArray]:
    """The `k` best of several scores and numbers `[n, m]` a row."""
    scores, numbers = zip(*results, strict=True)
    return top(np.concatenate(scores, axis=1), np.concatenate(numbers, axis=1), k)
