"""The confidence of a hit: the estimated probability that its passage answers the question.

docs/ranking.md has the formula. `CHANCE` is there as the best of more passages comes nearer by
chance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aveyb_retrieval.indexes.search.passage_scores import with_neighbors
from aveyb_retrieval.indexes.types import PASSAGE_BITS, find_in

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.search.passage_scores import PassageScores
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

NEAR, MARGIN, CHANCE, OFFSET = 6.35, 6.56, -0.13, -3.69  # fitted by benchmarks/cpu/confidence.py
MAX_LOG_ODDS = 80.0  # beyond, float32 has no exponential
SAME_COSINE = 1e-5  # by which the cosines of a passage and its copy may differ
# documents from which on a confidence is given: among one or two, any may be the nearest
MIN_COMPARED_DOCUMENTS = 3


class BestPassage(NamedTuple):
    """The best passage for a question: itself and its copies, its s, that of its rival (the best
    one that is no copy and no neighbor), and its cosine.
    """

    copies: IntArray
    score: float
    rival_score: float
    cosine: float


def find_best_passage(scored: PassageScores, named: IntArray | None = None) -> BestPassage | None:
    """Find the best of some passages, and how good its rival is; None where there are none.

    Documents `named` by the question, ascending, are no rivals of each other: both answer.

    Copies have the same cosine, and the same length and words where these are known: another
    version is a rival.
    """
    if scored.cosine is None or not len(scored.ids):
        return None
    best = int(np.argmax(scored.score))
    same = np.abs(scored.cosine - scored.cosine[best]) < SAME_COSINE
    words = scored.words
    if words is not None:
        same &= (words.lengths == words.lengths[best]) & (words.held == words.held[best])
    copies = scored.ids[same]
    docs = scored.ids >> PASSAGE_BITS
    is_rival = ~find_in(with_neighbors(copies), scored.ids)[1]
    if named is not None and find_in(named, docs[best])[1]:
        is_rival &= (docs == docs[best]) | ~find_in(named, docs)[1]
    rival_score = scored.score[is_rival].max(initial=0.0)
    return BestPassage(
        copies, float(scored.score[best]), float(rival_score), float(scored.cosine[best])
    )


def confidence(ids: IntArray, score: FloatArray, best: BestPassage, passages: int) -> FloatArray:
    """Estimate the probability that each passage answers, `[n]`: it orders them as their scores s
    `[n]` do.
    """
    is_best = find_in(best.copies, ids)[1] & (score > best.rival_score)
    margin = np.where(is_best, score - best.rival_score, score - max(best.score, 0.0))
    common = NEAR * best.cosine + CHANCE * math.log(max(passages, 1)) + OFFSET
    odds = np.clip(common + MARGIN * margin, -MAX_LOG_ODDS, MAX_LOG_ODDS)
    estimate: FloatArray = (1 / (1 + np.exp(-odds))).astype(np.float32)
    return estimate
