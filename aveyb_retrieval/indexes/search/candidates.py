"""The step that finds candidates, the best by vectors and by words, and gives each its fused score;
more where more are needed.

A ranking does not depend on how much of it is needed. Its first step ranks the `candidates` best of
both rankings; every further one, behind all that came before, the best of four times as many that
were not among them. Pages of hits are slices of one ranking, and a first page costs one step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.search.confidence import confidence, find_best_passage
from aveyb_retrieval.indexes.search.fusion import fuse_scores, reciprocal_rank
from aveyb_retrieval.indexes.search.matches import STRENGTH, Matches, aligned
from aveyb_retrieval.indexes.search.passage_scores import best_by_document, with_neighbors
from aveyb_retrieval.indexes.search.scores import score_passages
from aveyb_retrieval.indexes.types import find_in, inner_products

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.search.best_passages import PassageScorer
    from aveyb_retrieval.indexes.search.confidence import BestPassage
    from aveyb_retrieval.indexes.search.evidence import Evidence, Ranked
    from aveyb_retrieval.indexes.types import BoolArray, IntArray

WIDENING_FACTOR = 4  # times as many candidates in every further step


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidates of one step, best first, and whether there are no others."""

    matches: Matches
    complete: bool


def find_candidates(evidence: Evidence, passages: PassageScorer | None) -> Iterator[Candidates]:
    """Yield the candidates step by step, each only once.

    `passages` are those that speak for documents; None in a search for passages.
    """
    options = evidence.options
    depth, near, best = options.depth, evidence.near, None
    seen = np.empty(0, np.int64)
    while True:
        if passages is None:
            best, candidates = _find_passages(evidence, near.matches, depth, best)
        else:
            candidates = _find_documents(evidence, passages, near.matches, depth)
        is_new = ~find_in(seen, candidates.matches.keys)[1]
        new = candidates.matches.take(np.flatnonzero(is_new))
        seen = np.sort(np.concatenate([seen, new.keys]))
        yield replace(candidates, matches=new)
        if candidates.complete:
            return
        depth *= WIDENING_FACTOR
        if options.mode != "lexical":
            near = evidence.nearest(depth)


def _find_documents(
    evidence: Evidence, passages: PassageScorer, near: Matches, depth: int
) -> Candidates:
    options = evidence.options
    all_near = len(near) < depth
    if options.mode == "dense":
        return Candidates(near.with_parts(dense=near.scores), all_near)
    by_words = evidence.words.best("document", depth)
    complete = all_near and len(by_words) < depth
    docs, bm25 = _columns(by_words)
    if options.mode == "lexical":
        matches = Matches.of_documents(docs, bm25)
        return Candidates(matches.with_parts(lexical=bm25), len(by_words) < depth)
    if options.fusion == "rrf":
        dense = dict(zip(near.docs.tolist(), near.scores.tolist(), strict=True))
        fused = reciprocal_rank([list(dense.items()), by_words])
        every = np.array([*fused], np.int64)
        columns = [aligned(every, near.docs, near.scores), aligned(every, docs, bm25)]
        scores = np.array([*fused.values()], np.float64)
    else:
        proposed = docs if evidence.named is None else np.union1d(docs, evidence.named.named.docs)
        every = np.union1d(near.docs, proposed)
        near = near.take(np.flatnonzero(~_are_decided_by_repetition(evidence, near)))
        others = np.setdiff1d(every, near.docs, assume_unique=True)
        more, cosines = document_cosines(evidence, passages, others)
        dense_docs = np.concatenate([near.docs, more])
        dense_scores = np.concatenate([near.scores, cosines])
        columns = [aligned(every, dense_docs, dense_scores), aligned(every, docs, bm25)]
        scores = fuse_scores(
            *columns,
            background=evidence.background,
            weight=options.weight,
            known=evidence.vector_weights("document", every),
        )
        if evidence.named is not None:
            scores = scores + evidence.named.named.document_gains(every)
    matches = Matches.of_documents(every, scores).with_parts(dense=columns[0], lexical=columns[1])
    return Candidates(matches.ordered(), complete)


def _are_decided_by_repetition(evidence: Evidence, near: Matches) -> BoolArray:
    """Whether the passage that decided each match `[n]` says nothing but what a mail repeats."""
    shares = np.ones(len(near), np.float32)
    is_of_passage = near.passages >= 0
    numbers = near.passages[is_of_passage]
    shares[is_of_passage] = evidence.view.passage_shares(numbers)
    return shares < 1


def document_cosines(
    evidence: Evidence, passages: PassageScorer, docs: IntArray
) -> tuple[IntArray, np.ndarray]:
    """The cosines of documents `[n]`, as `nearest_documents` has them, but that passages which only
    repeat count less: numbers `[m]` of those that have a vector, and float64 `[m]`.
    """
    kinds, cosines = evidence.options.kinds, np.full(len(docs), -np.inf)
    docs = np.sort(docs)
    if "document" in kinds and len(docs):
        vectors = evidence.view.vectors("document", docs)
        cosines = inner_products(vectors, evidence.question.vector).astype(np.float64)
    if "passage" in kinds and len(docs):
        ids = passages.promising(docs)
        shares, background = evidence.view.passage_shares(ids), evidence.background
        above = shares * (evidence.cosines(ids) - np.float32(background))
        counted = (above + np.float32(background)).astype(np.float32)
        with_passages, best = best_by_document(ids, counted)
        rows = np.searchsorted(docs, with_passages)
        cosines[rows] = np.maximum(cosines[rows], best)
    has_vector = cosines > -np.inf
    return docs[has_vector], cosines[has_vector]


def _find_passages(
    evidence: Evidence, near: Matches, depth: int, best: BestPassage | None
) -> tuple[BestPassage | None, Candidates]:
    mode, all_near = evidence.options.mode, len(near) < depth
    if mode == "dense":
        return None, Candidates(near.with_parts(dense=near.scores), all_near)
    by_words = evidence.words.best("passage", depth)
    numbers, bm25 = _columns(by_words)
    if mode == "lexical":
        matches = Matches.of_passages(numbers, bm25).with_parts(lexical=bm25)
        return None, Candidates(matches, len(by_words) < depth)
    candidates = np.union1d(near.keys, numbers)
    if best is None:
        candidates = _with_named(evidence, candidates)
    best, matches = _score_candidates(evidence, candidates, best)
    return best, Candidates(matches, all_near and len(by_words) < depth)


def _with_named(evidence: Evidence, candidates: IntArray) -> IntArray:
    """Candidates of the first step, with the passages of documents that the question names."""
    held = evidence.held(with_neighbors(candidates))  # read together, and needed below
    named = evidence.named
    if named is None:
        return candidates
    evidence.cosines(held.numbers)  # needed, too: read while the rest of the question is encoded
    return np.union1d(candidates, named.passages)


def _score_candidates(
    evidence: Evidence, candidates: IntArray, best: BestPassage | None
) -> tuple[BestPassage | None, Matches]:
    """Score passages, best first, with the best one of the first step, which is `best` if known."""
    # neighbors are scored with them, for `better_neighbor`, but are no candidates
    existing = evidence.held(with_neighbors(candidates)).numbers
    rows = np.flatnonzero(find_in(candidates, existing)[1])
    if len(rows) < len(candidates):
        evidence.check_stored("passage", candidates.tolist(), set(existing.tolist()))
    scored = score_passages(evidence, existing).take(rows)
    best = best or find_best_passage(scored, evidence.named_docs)
    if best is not None and len(scored.ids):
        passages = evidence.view.info.passages
        scored = replace(scored, shown_score=confidence(scored.ids, scored.score, best, passages))
    parts = {name: values.astype(np.float64) for name, values in scored.parts().items()}
    strength = scored.score.astype(np.float64)
    matches = Matches.of_passages(scored.ids, scored.shown_score).with_parts(
        **parts, **{STRENGTH: strength}, confidence=scored.shown_score.astype(np.float64)
    )
    return best, matches.take(np.lexsort((scored.ids, -scored.score)))


def _columns(ranked: Ranked) -> tuple[IntArray, np.ndarray]:
    numbers = np.array([number for number, _ in ranked], np.int64)
    return numbers, np.array([score for _, score in ranked], np.float64)
