"""Combining rankings of the same documents; `DocumentSearch` adds the scores of best passages (`relevance.py`)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Document = TypeVar("Document", bound=Hashable)

RRF_K = 60  # Cormack, Clarke and Buettcher, SIGIR 2009
MAXSIM = 3.0  # weight of late interaction, where it is added to a weighted fusion

Ranking = Sequence[tuple[int, float]]
"""(document, score), best first."""


def reciprocal_rank(rankings: Sequence[Ranking]) -> dict[int, float]:
    """Reciprocal rank fusion: the sum of 1 / (60 + rank) over the rankings a document is in, rank from 1."""
    fused: dict[int, float] = {}
    for ranking in rankings:
        for rank, (doc, _) in enumerate(ranking, start=1):
            fused[doc] = fused.get(doc, 0.0) + 1.0 / (RRF_K + rank)
    return fused


def weighted(
    dense: Mapping[Document, float], lexical: Mapping[Document, float], *, background: float, weight: float
) -> dict[Document, float]:
    """Weighted sum of the two scores, each as a share of the way from a document at random to the best one.

    A document at random has none of the query's words, so BM25's way begins at 0; cosines begin at `background`.

    Args:
        dense: cosine of each candidate.
        lexical: BM25 of those that have words of the query; 0 for the others.
        background: the mean cosine of all documents with the query.
        weight: of the dense share, 0 to 1; the lexical one gets the rest.
    """
    nearest = max(dense.values(), default=background) - background
    highest = max(lexical.values(), default=0.0)
    fused = {}
    for doc in dense.keys() | lexical.keys():
        near = (dense.get(doc, background) - background) / nearest if nearest > 0 else 0.0
        words = lexical.get(doc, 0.0) / highest if highest > 0 else 0.0
        fused[doc] = weight * near + (1 - weight) * words
    return fused


def ranked(scores: Mapping[int, float]) -> list[tuple[int, float]]:
    """Documents by score, best first; ties by the lower number, so that the order never depends on anything else."""
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
