"""Combining rankings of the same documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

RRF_K = 60  # Cormack, Clarke and Buettcher, SIGIR 2009

Ranking = Sequence[tuple[int, float]]
"""(document, score), best first."""


def reciprocal_rank(rankings: Sequence[Ranking]) -> dict[int, float]:
    """Reciprocal rank fusion: the sum of 1 / (60 + rank) over the rankings a document is in, rank from 1."""
    fused: dict[int, float] = {}
    for ranking in rankings:
        for rank, (doc, _) in enumerate(ranking, start=1):
            fused[doc] = fused.get(doc, 0.0) + 1.0 / (RRF_K + rank)
    return fused


def weighted(rankings: Sequence[Ranking], weights: Sequence[float]) -> dict[int, float]:
    """Weighted sum of scores, each ranking scaled to 0..1 by its own lowest and highest; absent counts as 0."""
    fused: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        scores = [score for _, score in ranking]
        low, high = min(scores, default=0.0), max(scores, default=0.0)
        for doc, score in ranking:
            share = (score - low) / (high - low) if high > low else 1.0
            fused[doc] = fused.get(doc, 0.0) + weight * share
    return fused


def ranked(scores: Mapping[int, float]) -> list[tuple[int, float]]:
    """Documents by score, best first; ties by the lower number, so that the order never depends on anything else."""
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
