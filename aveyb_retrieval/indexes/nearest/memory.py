"""Vectors held in memory and searched exactly: those that no FAISS file covers yet or, on a GPU, all.

They lie in blocks that never change and that versions of an index share. When one comes, it is joined with those before
it that are not much larger, so there are few blocks, and each vector is copied a number of times that grows with the
logarithm of their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aveyb_retrieval.indexes.types import FloatArray, IntArray

LARGEST_BLOCK = 1 << 18  # vectors: on a GPU, `_QUERIES` then take 128 MiB of scores
_QUERIES = 256  # that a GPU searches at once


def top(scores: FloatArray, ids: IntArray, k: int) -> tuple[FloatArray, IntArray]:
    """The `k` best of candidates `[n, m]` per row, best first, ties by the lower id; padded with -inf and -1 to `k`."""
    if (scores[:, 1:] < scores[:, :-1]).all():  # as a library returns them, mostly
        scores, ids = scores[:, :k], ids[:, :k]
    else:
        order = np.lexsort((ids, -scores), axis=1)[:, :k]
        scores, ids = np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)
    ids = np.where(np.isneginf(scores), -1, ids)
    if scores.shape[1] == k:
        return scores, ids
    missing = ((0, 0), (0, k - scores.shape[1]))
    return np.pad(scores, missing, constant_values=-np.inf), np.pad(ids, missing, constant_values=-1)


def best(blocks: Iterable[tuple[IntArray, FloatArray]], n: int, k: int) -> tuple[FloatArray, IntArray]:
    """The `k` best of candidates that come in blocks, whatever the sizes of the blocks.

    Args:
        blocks: (ids `[m]`, scores `[n, m]`) pairs.
        n: How many rows of scores.
        k: How many to keep of each row.

    Returns:
        Scores and ids `[n, k]`, best first, ties by the lower id; -inf and -1 where there are fewer than `k`.
    """
    kept = np.full((n, 0), -np.inf, dtype=np.float32), np.full((n, 0), -1, dtype=np.int64)
    for ids, scores in blocks:
        if len(ids) > k:
            # every score that ties with the k-th is kept, so that `top` decides between equals and not the partition
            least = np.partition(scores, len(ids) - k, axis=1)[:, len(ids) - k]
            columns = np.flatnonzero((scores >= least[:, None]).any(axis=0))
            ids, scores = ids[columns], scores[:, columns]
        rows = np.broadcast_to(ids, scores.shape)
        kept = top(np.concatenate([kept[0], scores], axis=1), np.concatenate([kept[1], rows], axis=1), k)
    return top(*kept, k)


ALIKE = 1e-5  # by which sums in float32 of the same numbers may differ


def scored(vectors: FloatArray, ids: IntArray, queries: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """Those of vectors `[m, d]` with ids `[m]` that may be among the `k` best of a query `[n, d]`, and their scores.

    These are summed in float64, so that equal vectors have equal scores wherever they stand.
    """
    if len(ids) > k:
        rough = queries @ vectors.T
        least = np.partition(rough, len(ids) - k, axis=1)[:, len(ids) - k] - ALIKE
        columns = np.flatnonzero((rough >= least[:, None]).any(axis=0))
        ids, vectors = ids[columns], vectors[columns]
    return ids, (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)


def search(blocks: Iterable[tuple[IntArray, FloatArray]], queries: FloatArray, k: int) -> tuple[FloatArray, IntArray]:
    """The `k` vectors of highest inner product with each query.

    Args:
        blocks: (ids `[m]`, vectors `[m, d]`) pairs.
        queries: `[n, d]`.
        k: How many.

    Returns:
        Scores and ids `[n, k]`, best first, ties by the lower id; -inf and -1 where there are fewer than `k` vectors.
    """
    return best((scored(vectors, ids, queries, k) for ids, vectors in blocks), len(queries), k)


@dataclass(frozen=True)
class Block:
    """Numbers `[m]`, ascending, and their vectors `[m, d]`: numpy float32, or torch float16 on a device."""

    numbers: IntArray
    vectors: Any

    def __len__(self) -> int:
        return len(self.numbers)


class Memory:
    """Vectors in memory. Never changes: `with_blocks` and `from_number` make another one that shares the blocks."""

    def __init__(self, dim: int, device: str = "cpu", blocks: tuple[Block, ...] = ()) -> None:
        """Hold blocks on "cpu" or a device of torch.

        Raises:
            BackendError: there is no such device.
        """
        self.dim = dim
        self.device = device
        self.blocks = blocks
        if device != "cpu" and not blocks:
            check_device(device)

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
                blocks.append(Block(np.ascontiguousarray(numbers, dtype=np.int64), self._put(vectors)))
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
                kept = block.vectors[start:]
                blocks.append(
                    Block(block.numbers[start:].copy(), kept.copy() if self.device == "cpu" else kept.clone())
                )
        return Memory(self.dim, self.device, tuple(blocks))

    def search(self, queries: FloatArray, k: int, among: IntArray | None = None) -> tuple[FloatArray, IntArray]:
        """The `k` nearest to queries `[n, d]`: cosines and numbers `[n, k]`, padded with -inf and -1.

        `among`: ascending numbers that the search is limited to; those that are not held here are fine.
        """
        if self.device == "cpu":
            return search(self._vectors(among), queries, k)
        return self._search_on_device(queries, k, among)

    def _vectors(self, among: IntArray | None) -> Iterator[tuple[IntArray, FloatArray]]:
        for block, rows in self._selected(among):
            yield (block.numbers, block.vectors) if rows is None else (block.numbers[rows], block.vectors[rows])

    def _search_on_device(self, queries: FloatArray, k: int, among: IntArray | None) -> tuple[FloatArray, IntArray]:
        """`search` by torch: the best of each block by products in float16, scored again in float32."""
        import torch

        found = []
        for start in range(0, len(queries), _QUERIES):
            wanted = torch.from_numpy(queries[start : start + _QUERIES]).to(self.device)
            scores, numbers = [wanted[:, :0]], [torch.empty(len(wanted), 0, dtype=torch.int64, device=self.device)]
            for block, rows in self._selected(among):
                held, ids = block.vectors, torch.from_numpy(block.numbers if rows is None else block.numbers[rows])
                if rows is not None:
                    held = held[torch.from_numpy(rows).to(self.device)]
                _, order = (wanted.to(held.dtype) @ held.T).topk(min(2 * k + 16, len(held)), dim=1)
                scores.append(torch.bmm(held[order].float(), wanted[:, :, None])[..., 0])
                numbers.append(ids.to(self.device)[order])
            together, places = torch.cat(numbers, 1).sort(dim=1)
            by_number = torch.cat(scores, 1).gather(1, places)
            ordered, order = by_number.sort(dim=1, descending=True, stable=True)  # ties by the lower number
            found.append((ordered[:, :k].cpu().numpy(), together.gather(1, order[:, :k]).cpu().numpy()))
        return top(np.concatenate([part[0] for part in found]), np.concatenate([part[1] for part in found]), k)

    def _selected(self, among: IntArray | None) -> Iterator[tuple[Block, IntArray | None]]:
        """All blocks, each with the rows that are among some numbers, or None for all of them."""
        for block in self.blocks:
            if among is None:
                yield block, None
                continue
            here = between(among, int(block.numbers[0]), int(block.numbers[-1]) + 1)
            rows = np.searchsorted(block.numbers, here)
            rows = rows[block.numbers[rows] == here]
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
        while start and len(blocks[start - 1]) <= min(2 * joined, LARGEST_BLOCK - joined):
            start -= 1
            joined += len(blocks[start])
        if start < len(blocks) - 1:
            vectors = [block.vectors for block in blocks[start:]]
            if self.device == "cpu":
                together = np.concatenate(vectors)
            else:
                import torch

                together = torch.cat(vectors)
            blocks[start:] = [Block(np.concatenate([block.numbers for block in blocks[start:]]), together)]


def between(numbers: IntArray, first: int, stop: int) -> IntArray:
    """Those of ascending numbers that are in `[first, stop)`."""
    start, end = np.searchsorted(numbers, [first, stop])
    return numbers[start:end]


def check_device(device: str) -> None:
    """Check that vectors can be searched on a device: "cpu", or "cuda" (optionally "cuda:1").

    Raises:
        BackendError: they cannot.
    """
    if device == "cpu":
        return
    if not device.startswith("cuda"):
        raise BackendError(f"device {device!r}: vectors are searched on 'cpu' or 'cuda'")
    import torch

    if not torch.cuda.is_available():
        raise BackendError(
            f"device {device!r}: no GPU is visible to torch; install a CUDA build of torch, or search with device='cpu'"
        )


def check_room(device: str, count: int, dim: int) -> None:
    """Check, before any is taken, that a device has memory for `count` vectors of `dim` float16 and a search of them.

    Raises:
        BackendError: it has not; says how many would fit.
    """
    if not device.startswith("cuda"):
        return
    import torch

    free, _ = torch.cuda.mem_get_info(torch.device(device))
    each, spare = 2 * dim, 2 * LARGEST_BLOCK * (dim + _QUERIES)  # blocks are copied when they are joined; scores of one
    if count * each + spare > free:
        gib = 2**30
        raise BackendError(
            f"device {device!r}: {count:,} vectors of {dim} components take {count * each / gib:.2f} GiB and a search "
            f"{spare / gib:.2f} GiB, where {free / gib:.2f} GiB are free, enough for "
            f"{max(0, free - spare) // each:,} vectors: free memory of the card, divide the index into shards, or "
            "search with device='cpu'"
        )
