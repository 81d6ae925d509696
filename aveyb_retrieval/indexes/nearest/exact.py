"""Exact nearest vectors by brute force, in blocks: the truth that indexes are tuned against, and selective filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aveyb_retrieval.indexes.types import FloatArray, IntArray


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


def search(blocks: Iterable[tuple[IntArray, FloatArray]], queries: FloatArray, k: int) -> tuple[FloatArray, IntArray]:
    """The `k` vectors of highest inner product with each query.

    Args:
        blocks: (ids `[m]`, vectors `[m, d]`) pairs.
        queries: `[n, d]`.
        k: How many.

    Returns:
        Scores and ids `[n, k]`, best first, ties by the lower id; -inf and -1 where there are fewer than `k` vectors.
    """
    return best(((ids, queries @ vectors.T) for ids, vectors in blocks), len(queries), k)
