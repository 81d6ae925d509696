"""Fusion of two rankings of documents, by vectors and by words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RRF_K = 60  # ranks: Cormack, Clarke and Buettcher, SIGIR 2009


def reciprocal_rank(rankings: Sequence[Sequence[tuple[int, float]]]) -> dict[int, float]:
    """Reciprocal rank fusion: the sum of 1 / (60 + rank) over a document's rankings; equal scores
    share one.
    """
    fused: dict[int, float] = {}
    for ranking in rankings:
        rank, last = 0, math.nan
        for place, (doc, score) in enumerate(ranking, start=1):
            if score != last:
                rank, last = place, score
            fused[doc] = fused.get(doc, 0.0) + 1.0 / (RRF_K + rank)
    return fused


def fuse_scores(
    dense: np.ndarray,
    lexical: np.ndarray,
    *,
    background: float,
    weight: float,
    known: np.ndarray | float = 1.0,
) -> np.ndarray:
    """Return the weighted sums float64 `[n]` of cosines `dense` and BM25 `lexical`, both `[n]`,
    which are NaN where a document has none.

    Each counts as its share of the way from a document at random to the best one. A document at
    random has none of the query's words, so BM25's way begins at 0; cosines begin at `background`.
    `known` `[n]` says how well the model knows each document and the question, 0 to 1: the cosines
    of what it does not know weigh less.
    """
    above = np.where(np.isnan(dense), background, dense) - background
    near = above * known
    words = np.where(np.isnan(lexical), 0.0, lexical)
    nearest = above[near.argmax()] if near.max(initial=0.0) > 0 else 0.0
    highest = words.max(initial=0.0)
    near = near / nearest if nearest > 0 else np.zeros_like(near)
    words = words / highest if highest > 0 else np.zeros_like(words)
    fused: np.ndarray = weight * near + (1 - weight) * words
    return fused


def ranked(scores: Mapping[int, float]) -> list[tuple[int, float]]:
    """Documents by score, best first; ties by the lower number."""
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
