"""A search, step by step: question, candidates, scores, ranking, page, hits.

Each step is a file of its own and returns frozen values. The page pulls the ranking, and the
ranking pulls the candidates, only as far as they are needed. What an index says about the question
is read through `Evidence`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search import rerank
from aveyb_retrieval.indexes.search.best_passages import PassageScorer
from aveyb_retrieval.indexes.search.by_vector import NOTHING_NEAR, unit_queries
from aveyb_retrieval.indexes.search.evidence import (
    DocumentReader,
    Evidence,
    WordRankings,
    nearest,
    passages_listed,
)
from aveyb_retrieval.indexes.search.named_documents import PASSAGES_COMPETING
from aveyb_retrieval.indexes.search.page import NOTHING_SHOWN, take_page
from aveyb_retrieval.indexes.search.question import Question, read_operators, read_question
from aveyb_retrieval.indexes.search.ranking import rank
from aveyb_retrieval.indexes.search.results import make_pairs, make_result
from aveyb_retrieval.indexes.search.step_times import in_step
from aveyb_retrieval.indexes.types import QueryWeights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.indexes.engine import EngineView, Selection
    from aveyb_retrieval.indexes.search.by_vector import NearestMatches
    from aveyb_retrieval.indexes.search.hit import Result
    from aveyb_retrieval.indexes.search.options import Options
    from aveyb_retrieval.indexes.search.page import ResultsPage
    from aveyb_retrieval.indexes.search.ranking import QueryModel
    from aveyb_retrieval.indexes.types import FloatArray


@dataclass(frozen=True, eq=False)
class Search:
    """What all questions of one search share: the state of an engine, options, and a model.

    Attributes:
        view: What is searched.
        options: How.
        model: What encodes questions, where vectors are searched.
        selection: What the filter lets through; None for all.
        documents: Reads documents for all questions.
    """

    view: EngineView
    options: Options
    model: QueryModel
    selection: Selection | None
    documents: DocumentReader

    @classmethod
    def of(cls, view: EngineView, options: Options, model: QueryModel) -> Search:
        """Prepare a search; raises ConfigError where the index lacks what the options ask for."""
        if options.rerank == rerank.STORED_MAXSIM and view.tokens is None:
            raise ConfigError(
                f"{view.info.name}: rerank={options.rerank!r}: this index has no token vectors;"
                " build it with token_vectors='int8' (--token-vectors int8), or use"
                " rerank='maxsim', which encodes texts again"
            )
        selection = _select(view, options)
        return cls(view, options, model, selection, DocumentReader(view, options))


@in_step("filter")
def _select(view: EngineView, options: Options) -> Selection | None:
    return view.select(options.where)


def search_texts(search: Search, texts: Sequence[str]) -> Iterator[Result]:
    """Find the hits of each question."""
    for evidence in gather_evidence(search, texts):
        yield find_hits(search, evidence)


def search_vectors(search: Search, vectors: FloatArray) -> Iterator[Result]:
    """Find the hits of each question that is a unit vector `[n, d]` already."""
    questions = [Question(selection=search.selection) for _ in vectors]
    words = [WordRankings(search.view, question) for question in questions]
    for evidence in _with_nearest(search, questions, words, vectors):
        yield find_hits(search, evidence)


def rank_texts(search: Search, texts: Sequence[str]) -> Iterator[list[tuple[str, float]]]:
    """Find (id, score) of what answers each question."""
    for evidence in gather_evidence(search, texts):
        passages = best_passages(search, evidence)
        yield make_pairs(evidence, find_page(evidence, passages, reads_documents=False))


def find_hits(search: Search, evidence: Evidence) -> Result:
    """All steps for one question, whose evidence was gathered."""
    passages = best_passages(search, evidence)
    page = find_page(evidence, passages, reads_documents=True)
    return make_result(evidence, passages, page, search.view.language)


@in_step("rank")
def find_page(
    evidence: Evidence, passages: PassageScorer | None, *, reads_documents: bool
) -> ResultsPage:
    """Rank candidates and take the page that the options ask for; see `take_page`."""
    if not evidence.view.count(evidence.options.unit, evidence.question.selection):
        return NOTHING_SHOWN
    ranking = rank(evidence, passages)
    return take_page(evidence, ranking, passages, reads_documents=reads_documents)


def best_passages(search: Search, evidence: Evidence) -> PassageScorer | None:
    """Return what scores the passages of documents, when they are asked for; None in a search for
    passages.
    """
    return PassageScorer(evidence) if search.options.unit == "document" else None


def gather_evidence(search: Search, texts: Sequence[str]) -> Iterator[Evidence]:
    """Read questions, encode them, and find what is nearest: of all questions at once, unless
    operators give each a selection of its own.
    """
    view, options = search.view, search.options
    if options.operators:
        for text in texts:
            question = read_operators(text, view, view.language, search.selection, options.unit)
            yield from _gather(search, [question])
    else:
        questions = [read_question(text, search.view.language, search.selection) for text in texts]
        yield from _gather(search, questions)


def _gather(search: Search, questions: Sequence[Question]) -> Iterator[Evidence]:
    """Evidence of questions with one selection; the model is not loaded where that is empty."""
    view, options = search.view, search.options
    words = [WordRankings(view, question) for question in questions]
    is_empty = not view.count(options.unit, questions[0].selection) if questions else True
    if options.mode == "lexical" or is_empty:
        for question, ranked in zip(questions, words, strict=True):
            yield _evidence(search, question, ranked, NOTHING_NEAR)
        return
    if options.mode == "hybrid" and len(questions) == 1 and view.lasting:
        _start_words(view, options, words[0])
    weighted, vectors = _encode(search, questions)
    yield from _with_nearest(search, weighted, words, vectors)


@in_step("encode")
def _encode(search: Search, questions: Sequence[Question]) -> tuple[list[Question], FloatArray]:
    """The questions with how well the model knows them, and their unit vectors `[n, d]`."""
    model, texts = search.model.load(), [question.text for question in questions]
    vectors = unit_queries(model.encode_queries(texts), search.view.info.dim)
    if not isinstance(model, QueryWeights):
        return list(questions), vectors
    weights = model.query_weights(texts).tolist()
    weighted = [
        replace(question, known=weight) for question, weight in zip(questions, weights, strict=True)
    ]
    return weighted, vectors


def _start_words(view: EngineView, options: Options, words: WordRankings) -> None:
    """Start the rankings by words that a hybrid search needs first, while the model encodes."""
    words.start(options.unit, options.depth)
    if options.unit == "document" and "passage" in view.info.kinds:
        words.start("passage", passages_listed(view, options, PASSAGES_COMPETING))


def _with_nearest(
    search: Search,
    questions: Sequence[Question],
    words: Sequence[WordRankings],
    vectors: FloatArray,
) -> Iterator[Evidence]:
    """Evidence of questions with their unit vectors `[n, d]`."""
    view, options = search.view, search.options
    selection = questions[0].selection if questions else None
    near = nearest(view, vectors, options.depth, selection, options)
    for question, vector, ranked, of_question in zip(questions, vectors, words, near, strict=True):
        encoded = replace(question, vector=vector)
        yield _evidence(search, encoded, ranked, of_question)


def _evidence(
    search: Search, question: Question, words: WordRankings, near: NearestMatches
) -> Evidence:
    return Evidence(
        search.view,
        question,
        search.options,
        search.documents,
        words,
        near,
        search.model,
    )
