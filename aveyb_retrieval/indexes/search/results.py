"""The last step of a search: hits of a page.

Titles and passages are read, the rest of a hit when it is needed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.search.best_passages import ScoredPassage
from aveyb_retrieval.indexes.search.evidence import joined_passages
from aveyb_retrieval.indexes.search.hit import Result
from aveyb_retrieval.indexes.search.hit_reader import Chosen, HitReader, make_hit
from aveyb_retrieval.indexes.search.passage_scores import word_weights
from aveyb_retrieval.indexes.search.sentences import Sentences
from aveyb_retrieval.indexes.search.step_times import in_step
from aveyb_retrieval.indexes.search.suggestions import suggest
from aveyb_retrieval.indexes.types import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aveyb_retrieval.indexes.search.best_passages import PassageScorer
    from aveyb_retrieval.indexes.search.evidence import Evidence
    from aveyb_retrieval.indexes.search.matches import Matches
    from aveyb_retrieval.indexes.search.page import ResultsPage
    from aveyb_retrieval.indexes.store.tables import ShownPassage
    from aveyb_retrieval.indexes.store.words import Language

# parts of scores that hits show; the others are for steps
SHOWN_PARTS = ("dense", "lexical", "passage", "maxsim", "cross-encoder", "boost")


@in_step("hits")
def make_result(
    evidence: Evidence,
    passages: PassageScorer | None,
    page: ResultsPage,
    rules: Language,
) -> Result:
    """Make the hits of a page, with what is known of the question."""
    question, view, matches = evidence.question, evidence.view, page.matches
    docs = list(dict.fromkeys(matches.docs.tolist()))
    evidence.documents.prefetch(docs)
    scores_shown = _shown_scores(passages, matches)
    contexts = _contexts(evidence, [scores[0].number for scores in scores_shown if scores])
    numbers = [passage.number for scores in scores_shown for passage in scores]
    texts = evidence.passages([*numbers, *(n for context in contexts.values() for n in context)])
    documents = evidence.documents.read(docs)
    reader = HitReader(view, documents, _sentences(evidence, rules))
    copies = _names_of_folded(evidence, page.copies)
    earlier = _names_of_folded(evidence, page.earlier)
    hits = []
    for row, scores in enumerate(scores_shown):
        context = contexts.get(scores[0].number) if scores else None
        hits.append(
            make_hit(
                documents[int(matches.docs[row])],
                float(matches.scores[row]),
                [_chosen(passage, texts) for passage in scores],
                _shown_parts(matches, row),
                context=joined_passages([texts[n] for n in context]) if context else None,
                confidence=scores[0].confidence if scores and evidence.knows_confidence else None,
                duplicates=copies.get(int(matches.keys[row]), ()),
                earlier=earlier.get(int(matches.keys[row]), ()),
                reader=reader,
            )
        )
    return Result(hits, question.words, question.unmet, partial(suggest, question.text, view))


@in_step("hits")
def make_pairs(evidence: Evidence, page: ResultsPage) -> list[tuple[str, float]]:
    """Name what a page shows: (id of the document, score)."""
    docs = page.matches.docs.tolist()
    listed = list(dict.fromkeys(docs))
    names = evidence.view.documents(listed, ())
    evidence.check_stored("document", listed, names)
    return [
        (names[doc].id, score)
        for doc, score in zip(docs, page.matches.scores.tolist(), strict=True)
    ]


def _shown_scores(passages: PassageScorer | None, matches: Matches) -> list[list[ScoredPassage]]:
    """The passages that each match shows, best first."""
    if passages is not None:
        best = passages.scores_shown(matches)
        return [best[doc] for doc in matches.docs.tolist()]
    confidences = matches.part("confidence")
    return [
        [
            ScoredPassage(
                int(matches.keys[row]),
                float(matches.scores[row]),
                _shown_parts(matches, row),
                None if np.isnan(confidences[row]) else float(confidences[row]),
            )
        ]
        for row in range(len(matches))
    ]


def _shown_parts(matches: Matches, row: int) -> dict[str, float]:
    parts = matches.parts_of(row)
    return {name: parts[name] for name in SHOWN_PARTS if name in parts}


def _contexts(evidence: Evidence, passages: list[int]) -> dict[int, range]:
    """The neighbors of passages that the options ask for, themselves included, by number."""
    size = evidence.options.context
    if size is None or not passages:
        return {}
    numbers = np.array(passages, np.int64)
    first = numbers >> PASSAGE_BITS << PASSAGE_BITS
    last = first + evidence.view.passage_counts(numbers >> PASSAGE_BITS) - 1
    starts, stops = np.maximum(first, numbers - size), np.minimum(last, numbers + size) + 1
    ends = zip(starts.tolist(), stops.tolist(), strict=True)
    return dict(zip(passages, (range(*pair) for pair in ends), strict=True))


def _chosen(passage: ScoredPassage, passages: Mapping[int, ShownPassage]) -> Chosen:
    span, text = joined_passages([passages[passage.number]])
    return Chosen(span, text, passages[passage.number].heading, passage.score, passage.parts)


def _names_of_folded(
    evidence: Evidence, folded: Mapping[int, Sequence[int]]
) -> dict[int, tuple[str, ...]]:
    """The ids of documents that were folded into a match, by its key."""
    documents = evidence.documents.read(doc for docs in folded.values() for doc in docs)
    return {
        key: tuple(dict.fromkeys(documents[doc].id for doc in docs)) for key, docs in folded.items()
    }


def _sentences(evidence: Evidence, rules: Language) -> Sentences:
    """Make what finds a question's words and best sentences; a search by words loads no model."""
    question = evidence.question
    named = evidence.named
    by_meaning = question.words and evidence.options.mode != "lexical"

    def weigh() -> dict[str, float]:
        words = question.search_words
        is_question = len(words) == len(question.words)
        weights = evidence.word_weights if is_question else word_weights(evidence.view, words)
        weighed = dict(zip(words, weights.tolist(), strict=True))
        if named is not None:  # names say which document is meant, not which sentence
            in_rest = zip(question.words, named.word_shares.tolist(), strict=True)
            weighed.update({word: weighed[word] * share for word, share in in_rest})
        return weighed

    find = question.finder(rules)
    rest = "" if named is None else named.named.rest
    text = rest or question.text
    return Sentences(text, find, weigh, evidence.model.load if by_meaning else None)
