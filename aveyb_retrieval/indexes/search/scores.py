"""The step that adds to the score of each document that of its best passage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.search.matches import aligned
from aveyb_retrieval.indexes.search.passage_scores import PassageScores, score_hybrid
from aveyb_retrieval.indexes.search.question import NO_VECTOR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.search.best_passages import PassageScorer
    from aveyb_retrieval.indexes.search.evidence import Evidence
    from aveyb_retrieval.indexes.search.matches import Matches
    from aveyb_retrieval.indexes.types import IntArray

# documents whose passages are read together: reading those of all candidates gained .0015 at most
# on development sets (benchmarks/cpu/quality.py)
DOCUMENTS_SCORED_TOGETHER = 50


def score_passages(evidence: Evidence, ids: IntArray) -> PassageScores:
    """Score passages, numbers `[n]` ascending, in the way that the mode asks for."""
    mode = evidence.options.mode
    cosine = NO_VECTOR if mode == "lexical" else evidence.cosines(ids)
    if mode == "dense":
        return PassageScores(ids, cosine, cosine, cosine)
    held = evidence.held(ids)
    if len(held) < len(ids):
        evidence.check_stored("passage", ids.tolist(), set(held.numbers.tolist()))
    words = evidence.word_scores(held, evidence.word_weights)
    if mode == "hybrid":
        vector_weights = evidence.vector_weights("passage", ids)
        scored = score_hybrid(ids, cosine, words, evidence.background, vector_weights)
        named = evidence.named
        return scored if named is None else named.adjust(evidence, held, scored)
    return PassageScores(ids, words.bm25, words.bm25, words=words)


def score_documents(
    evidence: Evidence, passages: PassageScorer, candidates: Matches
) -> Iterator[Matches]:
    """Add to each document's fused score that of its best passage, times the share of passages that
    are not the only one of their document.

    Those read together are put in order: a document never passes another of an earlier group of
    `DOCUMENTS_SCORED_TOGETHER`. All candidates are scored together where they are ranked again.
    Other modes and fusions have their scores already.
    """
    options = evidence.options
    if options.mode != "hybrid" or options.fusion == "rrf" or "passage" not in options.kinds:
        yield candidates
        return
    ranked_again = options.rerank is not None or options.boost is not None
    size = max(len(candidates), 1) if ranked_again else DOCUMENTS_SCORED_TOGETHER
    for start in range(0, len(candidates), size):
        yield _with_best_passage(evidence, passages, candidates.take(slice(start, start + size)))


def _with_best_passage(evidence: Evidence, passages: PassageScorer, part: Matches) -> Matches:
    info = evidence.view.info
    by_document = aligned(part.docs, *passages.of_document_scores(part.docs))
    # the only passage of a document says what the document has said already
    share = max(0.0, 1 - info.documents / info.passages) if info.passages else 0.0
    scores = part.scores + share * np.nan_to_num(by_document)
    return part.with_parts(passage=by_document).with_scores(scores).ordered()
