"""The step that ranks: a reranker's closer look, the least score, and boosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.search import rerank
from aveyb_retrieval.indexes.search.boost import gains
from aveyb_retrieval.indexes.search.candidates import find_candidates
from aveyb_retrieval.indexes.search.fusion import ranked, reciprocal_rank
from aveyb_retrieval.indexes.search.matches import STRENGTH
from aveyb_retrieval.indexes.search.passage_scores import COSINE_WEIGHT, NEIGHBOR_WEIGHT
from aveyb_retrieval.indexes.search.scores import score_documents
from aveyb_retrieval.indexes.search.step_times import in_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aveyb_retrieval.indexes.search.best_passages import PassageScorer
    from aveyb_retrieval.indexes.search.evidence import Evidence
    from aveyb_retrieval.indexes.search.matches import Matches
    from aveyb_retrieval.indexes.types import EmbedderLike

# weights of late interaction: fitted by benchmarks/cpu/fit.py
MAXSIM_WEIGHT = 2.0  # where it is added to a weighted fusion of documents
PASSAGE_MAXSIM_WEIGHT = 0.75  # where it is added to s(p)
WEIGHTS = {"cosine": COSINE_WEIGHT, "neighbor": NEIGHBOR_WEIGHT, "maxsim": PASSAGE_MAXSIM_WEIGHT}


@dataclass(frozen=True)
class QueryModel:
    """The model that encodes questions, loaded when it is needed, and the device it runs on."""

    load: Callable[[], EmbedderLike]
    device: str


def rank(evidence: Evidence, passages: PassageScorer | None) -> Iterator[Matches]:
    """Yield the whole ranking, best first, part by part, as far as it is needed.

    A step that loses candidates to the least score is the last one: those of the next would score
    lower still.
    """
    for candidates in find_candidates(evidence, passages):
        count = 0
        for scored in score(evidence, passages, candidates.matches):
            for part in _rerank_groups(evidence, scored):
                ranking = order(evidence, passages, part)
                count += len(ranking)
                yield ranking
        if count < len(candidates.matches):
            return


def score(
    evidence: Evidence, passages: PassageScorer | None, candidates: Matches
) -> Iterator[Matches]:
    """Yield the candidates of a step with their scores; passages have them already."""
    if passages is None:
        yield candidates
    else:
        yield from score_documents(evidence, passages, candidates)


def order(evidence: Evidence, passages: PassageScorer | None, part: Matches) -> Matches:
    """Put candidates into their last order: rerank, drop those below the least score, boost."""
    if evidence.options.rerank is not None:
        part = _reranked(evidence, passages, part)
    part = _above_least(evidence, passages, part)
    return _boosted(evidence, part)


def _rerank_groups(evidence: Evidence, scored: Matches) -> Iterator[Matches]:
    """Parts of a step that are reranked together: as many as the first step has."""
    options = evidence.options
    size = options.depth if options.rerank is not None else max(len(scored), 1)
    for start in range(0, len(scored), size):
        yield scored.take(slice(start, start + size))


# --- the least score -----------------------------------------------------------------------------


def _above_least(evidence: Evidence, passages: PassageScorer | None, part: Matches) -> Matches:
    options = evidence.options
    least = least_score(evidence)
    if least is None:
        return part
    scores = part.scores
    if passages is not None and options.mode == "hybrid" and options.rerank is None:
        best = passages.best(part.docs.tolist(), 1)
        confidence_by_doc = {doc: first[0].confidence or 0.0 for doc, first in best.items()}
        scores = np.array(
            [confidence_by_doc.get(doc, -np.inf) for doc in part.docs.tolist()], np.float64
        )
    return part.take(np.flatnonzero(scores >= least))


def least_score(evidence: Evidence) -> float | None:
    """The least score that is asked for; None where none is, or where it is of a confidence that is
    not known.
    """
    options = evidence.options
    of_confidence = options.mode == "hybrid" and options.rerank is None
    return None if of_confidence and not evidence.knows_confidence else options.min_score


# --- rerankers -----------------------------------------------------------------------------------


@in_step("rerank")
def _reranked(evidence: Evidence, passages: PassageScorer | None, part: Matches) -> Matches:
    options = evidence.options
    assert options.rerank is not None  # else there is nothing to do
    if options.rerank in rerank.LATE_INTERACTION:
        name, by_key = "maxsim", _maxsim(evidence, passages, part)
        values = _by_match(part, by_key)
        scores = values
        if options.mode == "hybrid":
            scores = _with_maxsim(evidence, passages, part, values)
    else:
        name, texts = "cross-encoder", _closest_texts(evidence, passages, part)
        encoded = rerank.cross_encode(
            options.rerank, evidence.model.device, evidence.question.text, list(texts.values())
        )
        values = scores = _by_match(part, dict(zip(texts, encoded, strict=True)))
    return part.with_parts(**{name: values}).with_scores(scores).ordered()


def _by_match(part: Matches, by_key: Mapping[int, float]) -> np.ndarray:
    return np.array([by_key[key] for key in part.keys.tolist()], np.float64)


def _maxsim(evidence: Evidence, passages: PassageScorer | None, part: Matches) -> dict[int, float]:
    """Score every match by late interaction, by key: with stored token vectors where the index
    keeps them.
    """
    question, tokens, model = evidence.question.text, evidence.view.tokens, evidence.model
    if tokens is None:
        texts = _closest_texts(evidence, passages, part)
        values = rerank.maxsim(model.load(), model.device, question, list(texts.values()))
        return dict(zip(texts, values, strict=True))
    closest = _closest(evidence, passages, part)
    values = rerank.stored_maxsim(
        model.load(), tokens, model.device, question, list(closest.values())
    )
    without = dict.fromkeys(part.keys.tolist(), 0.0)
    return without | dict(zip(closest, values, strict=True))


def _with_maxsim(
    evidence: Evidence, passages: PassageScorer | None, part: Matches, maxsim: np.ndarray
) -> np.ndarray:
    """Add late interaction to the scores of a hybrid search, both `[n]`."""
    if passages is None:
        return part.part(STRENGTH) + PASSAGE_MAXSIM_WEIGHT * maxsim
    if evidence.options.fusion != "rrf":
        return part.scores + MAXSIM_WEIGHT * maxsim
    keys = part.keys.tolist()
    before = list(zip(keys, part.scores.tolist(), strict=True))
    after = ranked(dict(zip(keys, maxsim.tolist(), strict=True)))
    return _by_match(part, reciprocal_rank([before, after]))


def _closest(evidence: Evidence, passages: PassageScorer | None, part: Matches) -> dict[int, int]:
    """By key, the passage of each match that is looked at again, or the document where the index
    has no passages; documents without any are left out.
    """
    keys = part.keys.tolist()
    if passages is None or "passage" not in evidence.view.info.kinds:
        return dict(zip(keys, keys, strict=True))
    best = passages.best(keys, 1)
    return {doc: best[doc][0].number for doc in keys if doc in best}


def _closest_texts(
    evidence: Evidence, passages: PassageScorer | None, part: Matches
) -> dict[int, str]:
    """By key, the text of each match that is looked at again: a passage, or the whole document
    where it has none.
    """
    keys = part.keys.tolist()
    if passages is None:
        return evidence.texts(keys)
    best = {
        doc: passages_of_doc[0].number for doc, passages_of_doc in passages.best(keys, 1).items()
    }
    texts = evidence.texts(list(best.values()))
    documents = evidence.document_texts([doc for doc in keys if doc not in best])
    return {doc: texts[best[doc]] if doc in best else documents[doc] for doc in keys}


# --- boosts --------------------------------------------------------------------------------------


def _boosted(evidence: Evidence, part: Matches) -> Matches:
    boost = evidence.options.boost
    if not boost or not len(part):
        return part
    documents = evidence.documents.read(part.docs.tolist())
    shares = gains(boost, documents, evidence.view)
    best = float(np.abs(part.scores).max())
    added = best * np.array([shares[doc] for doc in part.docs.tolist()], np.float64)
    moved = part.with_parts(boost=added).with_scores(part.scores + added)
    return moved.take(np.argsort(-moved.scores, kind="stable"))
