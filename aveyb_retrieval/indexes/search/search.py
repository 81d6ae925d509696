"""A search of documents or of passages: from a question to hits.

A ranking does not depend on how much of it is asked for. Its first step ranks the `candidates` best
by vectors and by words, every further one, behind all that came before, the best of four times as
many that were not among them: pages of hits are slices of one ranking, and a first page costs one
step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.search import rerank, scoring
from aveyb_retrieval.indexes.search.hits import (
    Chosen,
    Copies,
    Later,
    Result,
    Sentences,
    make_hit,
    suggest,
)
from aveyb_retrieval.indexes.search.operators import ask, with_synonyms
from aveyb_retrieval.indexes.search.scoring import (
    NO_COSINES,
    Cosines,
    Near,
    PassageScores,
    Scored,
    WordScores,
    begin,
    gains,
    nearest_vectors,
)  # fmt: skip
from aveyb_retrieval.indexes.store.tables import PARTS, StoredPassages
from aveyb_retrieval.indexes.types import PASSAGE_BITS, find_in, inner_products

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.indexes.engine import EngineView
    from aveyb_retrieval.indexes.search.operators import Sought
    from aveyb_retrieval.indexes.search.options import Options
    from aveyb_retrieval.indexes.search.scoring import Foremost
    from aveyb_retrieval.indexes.store.tables import Part, ShownPassage, StoredDocument
    from aveyb_retrieval.indexes.store.words import Finder, Language
    from aveyb_retrieval.indexes.types import EmbedderLike, FloatArray, IntArray, Kind

REMEMBERED = 512  # documents that a search keeps while it ranks, chooses and shows them
# passages that the ranking by words has for each candidate document, as the one by vectors has
LISTED = 4
WHOLE = 16  # passages of a document that are all read; of a longer one those that were found
COMPARED = 25  # passages of each ranking among which the best one is, for the confidence
WIDEN = 4  # every further step of a ranking takes this many times as many candidates
NO_VECTOR = np.empty(0, np.float32)


@dataclass(eq=False)
class Query:
    """A query, what was read for it, each passage and vector once, and what was found.

    Attributes:
        text: As it was given (with operators: the question), "" where only a vector was.
        words, beside: Those of the text that are looked up, and what else they are found by: with
            and without accents.
        unmet: Conditions that must be fulfilled and that nothing fulfills, as they were written;
            else all as one.
        vector, weights: Its unit vector `[d]`, or `NO_VECTOR`; those of the words, `[t]`, once they
            are needed.
        passages, shown: What was read of passages: which of the words they hold (not in dense
            mode), and what is shown.
        begun: Searches by words, perhaps in other threads, by the kind and the number of what is
            looked for.
        near, by_words: The passages of the first step by vectors, and the best by words, by how
            many were asked for.
        own: The best passages of documents that the rankings of all passages lack, ascending, once
            looked for.
        read: Documents whose passages were scored together last, ascending, and these passages.
        strengths: s of the passages that were ranked, by number.
        foremost: The best passage of the first step, once it is needed.
        best: The passages to show of documents, best first, once they are known.
        scores, duplicates: Every score by name, and the ids of documents with copies, each by the
            number of a document or, in a search for passages, of a passage.
    """

    text: str = ""
    words: Sequence[str] = ()
    beside: Sequence[str] = ()
    conditions: Sequence[Sought] = ()
    unmet: Sequence[str] = ()
    vector: FloatArray = field(default_factory=lambda: NO_VECTOR)
    weights: FloatArray | None = None
    passages: StoredPassages | None = None
    shown: dict[int, ShownPassage] = field(default_factory=dict)
    cosines: Cosines = NO_COSINES
    begun: dict[tuple[Kind, int], Callable[[], list[tuple[int, float]]]] = field(
        default_factory=dict
    )
    near: IntArray | None = None
    by_words: dict[int, IntArray] = field(default_factory=dict)
    own: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    read: tuple[IntArray, PassageScores] | None = None
    strengths: dict[int, float] = field(default_factory=dict)
    foremost: Foremost | None = None
    best: dict[int, list[Best]] = field(default_factory=dict)
    matches: list[Scored] = field(default_factory=list)
    scores: dict[str, dict[int, float]] = field(default_factory=dict)
    confidence: dict[int, float] = field(default_factory=dict)
    duplicates: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def sought(self) -> list[str]:
        """The words that candidates are found by: of the question, and of what must be there."""
        more = (word for each in self.conditions if each.condition.must for word in each.words)
        return list(dict.fromkeys([*self.words, *self.beside, *more]))

    def finder(self, rules: Language) -> Finder:
        """Make what finds the words of the question in texts, and those that fulfilled
        a condition.
        """
        must = [each for each in self.conditions if each.condition.must]
        alone = {
            word for each in must if not each.forms for phrase in each.phrases for word in phrase
        }
        forms = {form for each in must for form in each.forms}
        stems = {word for each in must if each.forms for phrase in each.phrases for word in phrase}
        return rules.finder({*(set(self.words) - stems), *self.beside, *alone}, forms)

    def found(self, near: Near) -> None:
        new = ~find_in(self.cosines.ids, near.passages.ids)[1]
        self.cosines = self.cosines.joined(near.passages.ids[new], near.passages.values[new])
        if self.near is None:
            self.near = near.passages.best_first()

    def add_scores(self, name: str, found: Mapping[int, float]) -> None:
        """Keep scores of some documents or passages; those that are there stay."""
        self.scores[name] = {**found, **self.scores.get(name, {})}

    def scores_of(self, key: int) -> dict[str, float]:
        return {name: found[key] for name, found in self.scores.items() if key in found}


class Best(NamedTuple):
    """A passage to show: its number, its score, what that was made of, by name, and its confidence,
    if it has one.
    """

    number: int
    score: float
    scores: dict[str, float]
    confidence: float | None


class Search(ABC):
    """One search: what is asked of which state of an engine, and where the model comes from (and
    runs) if needed.
    """

    def __init__(
        self, view: EngineView, options: Options, model: Callable[[], EmbedderLike], device: str
    ) -> None:
        self._view = view
        self._options = options
        self._model = model
        self._device = device
        self._among = self._selection = view.select(options.where)
        rules, more = view.language, options.synonyms
        self._rules = rules if more is None else with_synonyms(rules, more)
        self._documents: dict[int, StoredDocument] = {}
        self._begun: list[Callable[[], object]] = []  # documents that are being read
        ranked_by: tuple[Part, ...] = ("title", "metadata") if options.boost else ("title",)
        self._parts_read = ranked_by if view.lasting else PARTS
        if options.rerank == rerank.STORED_MAXSIM and view.tokens is None:
            raise ConfigError(
                f"{view.info.name}: rerank={options.rerank!r}: this index keeps no token vectors;"
                " build it with token_vectors='int8' (--token-vectors int8), or use"
                " rerank='maxsim', which encodes texts again"
            )

    @property
    def _knows_confidence(self) -> bool:
        """Whether there are enough documents to compare with, and both words and vectors."""
        return self._options.mode == "hybrid" and self._view.info.documents >= scoring.FEWEST

    @property
    def _least(self) -> float | None:
        """The least score asked for; None where none is, or where it is a confidence and that is
        not known.
        """
        options = self._options
        on_confidence = options.mode == "hybrid" and options.rerank is None
        return None if on_confidence and not self._knows_confidence else options.min_score

    @property
    def needs_text(self) -> bool:
        """Whether vectors alone cannot be searched for."""
        options = self._options
        return options.mode != "dense" or options.rerank is not None or options.operators

    def rank_texts(self, texts: Sequence[str]) -> Iterator[Query]:
        """Rank documents or passages for each text; where there are none, without the model."""
        if self._options.operators:
            return (query for text in texts for query in self._rank_all([self._asked(text)]))
        return self._rank_all([self._query(text) for text in texts])

    def _query(self, text: str, conditions: Sequence[Sought] = ()) -> Query:
        return Query(text, self._rules.words(text), self._rules.beside(text), conditions)

    def _asked(self, text: str) -> Query:
        """A query with operators; what follows is among what fulfills its conditions."""
        view, unit = self._view, self._options.unit
        question, conditions = ask(text, view)
        query = self._query(question, conditions)
        self._selection = view.narrow(self._among, unit, conditions) if conditions else self._among
        if not view.count(unit, self._selection):
            must = [each for each in conditions if each.condition.must]
            alone = [[each] for each in must]
            unmet = [some for some in alone if not view.count(unit, view.narrow(None, unit, some))]
            for together in (must, [*conditions]):
                if (
                    not unmet
                    and together
                    and not view.count(unit, view.narrow(None, unit, together))
                ):
                    unmet = [together]
            query.unmet = [" ".join(each.condition.written for each in some) for some in unmet]
        return query

    def _rank_all(self, asked: list[Query]) -> Iterator[Query]:
        if not self._view.count(self._options.unit, self._selection):
            return iter(asked)
        if self._options.mode == "lexical":
            return (self._rank(query, Near([])) for query in asked)
        if self._options.mode == "hybrid" and len(asked) == 1 and self._view.lasting:
            (query,), depth = asked, self._options.depth
            passages = self._options.unit == "document" and "passage" in self._view.info.kinds
            first: list[tuple[Kind, int]] = [
                (self._options.unit, depth),
                ("passage", self._listed(COMPARED)),
            ]
            for kind, most in first[: 1 + passages]:
                found = partial(self._view.by_words, kind, query.sought, most, self._selection)
                query.begun[kind, most] = begin(found)
        vectors = self._model().encode_queries([query.text for query in asked])
        return self._rank_near(asked, scoring.unit_queries(vectors, self._view.info.dim))

    def _listed(self, least: int) -> int:
        """How many passages of documents are looked for by words: more than `least` where most
        documents are long.
        """
        info = self._view.info
        return (
            max(least, LISTED * self._options.depth)
            if info.passages > WHOLE * info.documents
            else least
        )

    def _by_words(self, query: Query, kind: Kind, depth: int) -> list[tuple[int, float]]:
        begun = query.begun.pop((kind, depth), None)
        return (
            self._view.by_words(kind, query.sought, depth, self._selection)
            if begun is None
            else begun()
        )

    def rank_vectors(self, vectors: FloatArray) -> Iterator[Query]:
        """Rank documents or passages for each unit vector `[n, d]`; the options ask for nothing
        that needs a text.
        """
        return self._rank_near([Query() for _ in vectors], vectors)

    def _rank_near(self, asked: list[Query], vectors: FloatArray) -> Iterator[Query]:
        for query, vector in zip(asked, vectors, strict=True):
            query.vector = vector
        found = zip(asked, self._nearest(vectors, self._options.depth), strict=True)
        return (self._rank(query, near) for query, near in found)

    def result(self, query: Query) -> Result:
        """Make hits of what was found: titles and passages are read, the rest of a hit when it is
        asked for.
        """
        shown = [match.doc for match in query.matches]
        self._fetching(shown)
        best = self._best_passages(query, query.matches)
        contexts = self._contexts([chosen[0].number for chosen in best.values() if chosen])
        numbers = list(
            chain((each.number for chosen in best.values() for each in chosen), *contexts.values())
        )
        self._shown_passages(query, numbers)
        documents = self._fetch(shown)
        later = Later(self._view, documents, self._sentences(query))
        hits = []
        for match in query.matches:
            key = self._key(match)
            mine = best.get(key, [])
            context = contexts.get(mine[0].number) if mine else None
            hits.append(
                make_hit(
                    documents[match.doc],
                    match.score,
                    [_chosen(each, query.shown) for each in mine],
                    query.scores_of(key),
                    context=None if context is None else _together(context, query.shown),
                    confidence=mine[0].confidence if mine and self._knows_confidence else None,
                    duplicates=query.duplicates.get(key, ()),
                    later=later,
                )
            )
        return Result(hits, query.words, query.unmet, partial(suggest, query.text, self._view))

    def _sentences(self, query: Query) -> Sentences:
        """Return what finds a query's words and sentences; the model is not loaded for a search of
        words.
        """
        model = self._model if query.words and self._options.mode != "lexical" else None

        def weigh() -> dict[str, float]:
            sought = query.sought
            alone = len(sought) == len(query.words)
            known = self._weights(query) if alone else scoring.word_weights(self._view, sought)
            return dict(zip(sought, known.tolist(), strict=True))

        return Sentences(query.text, query.finder(self._rules), weigh, model)

    @abstractmethod
    def _best_passages(self, query: Query, matches: list[Scored]) -> dict[int, list[Best]]:
        """The passages to show of each of some matches, best first, by key; none where
        it has none.
        """

    def pairs(self, query: Query) -> list[tuple[str, float]]:
        """Name what was found: (id of the document, score)."""
        wanted = list(dict.fromkeys(match.doc for match in query.matches))
        names = self._view.documents(wanted, ())
        self._check_stored("document", wanted, names)
        return [(names[match.doc].id, match.score) for match in query.matches]

    def _rank(self, query: Query, near: Near) -> Query:
        """Rank for one query, given its first candidates by vectors (none in lexical mode): one
        page of the ranking.
        """
        chosen = self._choose(query, self._parts(query, near))
        scores = accumulate((match.score for match in chosen), _at_most)
        matches = [match._replace(score=score) for match, score in zip(chosen, scores, strict=True)]
        query.matches = matches[self._options.offset :]
        return query

    def _parts(self, query: Query, near: Near) -> Iterator[list[Scored]]:
        """Yield the ranking, best first, in parts; a step with candidates below the least score is
        the last one.
        """
        options, depth, seen = self._options, self._options.depth, set[int]()
        while True:
            query.found(near)
            candidates, all_found = self._candidates(query, near, depth)
            new = [match for match in candidates if self._key(match) not in seen]
            seen.update(map(self._key, new))
            kept = 0
            for scored in self._scored_parts(query, new):
                size = options.depth if options.rerank is not None else max(len(scored), 1)
                for start in range(0, len(scored), size):
                    part = scored[start : start + size]
                    if options.rerank is not None:
                        part = self._reranked(query, part)
                    part = self._boosted(query, self._above_least(query, part))
                    kept += len(part)
                    yield part
            if all_found or kept < len(new):
                return
            depth *= WIDEN
            if options.mode != "lexical":
                (near,) = self._nearest(query.vector[None], depth)

    def _choose(self, query: Query, parts: Iterable[list[Scored]]) -> list[Scored]:
        """Take matches from the ranking, as many as the page and those before it have; name copies
        beside them.
        """
        chosen, duplicates = list[Scored](), dict[int, list[int]]()
        for match, first in self._in_turn(query, parts, chosen):
            if first is not None:
                duplicates.setdefault(first, []).append(match.doc)
                continue
            chosen.append(match)
            if len(chosen) == self._options.last:
                break
        query.duplicates.update(self._names(duplicates))
        return chosen

    @abstractmethod
    def _in_turn(
        self, query: Query, parts: Iterable[list[Scored]], chosen: list[Scored]
    ) -> Iterator[tuple[Scored, int | None]]:
        """Yield matches, best first, with the key of a better one that each is a copy of, if it is
        to be folded.

        The caller appends to `chosen` a match that it keeps, before it asks for the next.
        """

    @abstractmethod
    def _nearest(self, vectors: FloatArray, depth: int) -> list[Near]:
        """Find what is nearest to each unit vector `[n, d]`: the candidates by vectors."""

    @abstractmethod
    def _candidates(self, query: Query, near: Near, depth: int) -> tuple[list[Scored], bool]:
        """Return the candidates of both rankings, best first, and whether there are no more; their
        scores are kept.
        """

    def _scored_parts(self, query: Query, new: list[Scored]) -> Iterable[list[Scored]]:
        """Yield the candidates of a step, best first, scored by what is only read for as many as
        are needed.
        """
        return [new]

    def _above_least(self, query: Query, part: list[Scored]) -> list[Scored]:
        least = self._least
        return part if least is None else [match for match in part if match.score >= least]

    @abstractmethod
    def _key(self, match: Scored) -> int:
        """Return the number that scores of a match are kept under: its document's or
        its passage's.
        """

    @abstractmethod
    def _closest(self, query: Query, part: list[Scored]) -> dict[int, int]:
        """Return by key the passage of each match that is looked at again, or the document where it
        has none.
        """

    @abstractmethod
    def _closest_texts(self, query: Query, part: list[Scored]) -> dict[int, str]:
        """Return by key the text of each match that is looked at again."""

    @abstractmethod
    def _with_maxsim(
        self, query: Query, part: list[Scored], maxsim: dict[int, float]
    ) -> dict[int, float]:
        """Add late interaction to the scores of a hybrid search, both by key."""

    def _reranked(self, query: Query, part: list[Scored]) -> list[Scored]:
        options = self._options
        if options.rerank in rerank.LATE_INTERACTION:
            name, found = "maxsim", self._maxsim(query, part)
            scores = self._with_maxsim(query, part, found) if options.mode == "hybrid" else found
        else:
            assert options.rerank is not None  # else there is nothing to do
            name, texts = "cross-encoder", self._closest_texts(query, part)
            values = rerank.cross_encode(
                options.rerank, self._device, query.text, list(texts.values())
            )
            scores = found = dict(zip(texts, values, strict=True))
        by_key = {self._key(match): match for match in part}
        query.add_scores(name, found)
        return [by_key[key]._replace(score=score) for key, score in scoring.ranked(scores)]

    def _boosted(self, query: Query, part: list[Scored]) -> list[Scored]:
        if not self._options.boost or not part:
            return part
        documents = self._fetch(match.doc for match in part)
        best, shares = (
            max(abs(match.score) for match in part),
            gains(self._options.boost, documents, self._view),
        )
        added = {self._key(match): best * shares[match.doc] for match in part}
        query.add_scores("boost", added)
        moved = [match._replace(score=match.score + added[self._key(match)]) for match in part]
        return sorted(moved, key=lambda match: -match.score)

    def _maxsim(self, query: Query, part: list[Scored]) -> dict[int, float]:
        """Score every match by late interaction, by key: with stored token vectors where the index
        keeps them.
        """
        tokens, device = self._view.tokens, self._device
        if tokens is None:
            texts = self._closest_texts(query, part)
            return dict(
                zip(
                    texts,
                    rerank.maxsim(self._model(), device, query.text, list(texts.values())),
                    strict=True,
                )
            )
        closest = self._closest(query, part)
        scores = rerank.stored_maxsim(
            self._model(), tokens, device, query.text, list(closest.values())
        )
        return {self._key(match): 0.0 for match in part} | dict(zip(closest, scores, strict=True))

    def _scored(self, query: Query, ids: IntArray) -> PassageScores:
        """Score passages, numbers `[n]` ascending, in the way that the mode asks for."""
        mode, view = self._options.mode, self._view
        cosine = NO_VECTOR if mode == "lexical" else self._cosines(query, ids)
        if mode == "dense":
            return PassageScores(ids, cosine, cosine, cosine)
        stored = self._passages_there(query, ids)
        if len(stored) < len(ids):
            self._check_stored("passage", ids.tolist(), set(stored.numbers.tolist()))
        words = WordScores.of(stored, self._weights(query), view.mean_passage_length)
        if mode == "hybrid":
            return scoring.score_hybrid(ids, cosine, words, scoring.background(view, query.vector))
        return PassageScores(ids, words.bm25, words.bm25, words=words)

    def _weights(self, query: Query) -> FloatArray:
        if query.weights is None:
            query.weights = scoring.word_weights(self._view, query.words)
        return query.weights

    def _with_confidence(self, query: Query, scored: PassageScores) -> PassageScores:
        best = query.foremost
        if best is None or not len(scored.ids):
            return scored
        return replace(
            scored,
            shown=scoring.confidence(scored.ids, scored.score, best, self._view.info.passages),
        )

    def _cosines(self, query: Query, ids: IntArray) -> FloatArray:
        """Cosines `[n]` of passages with the query; only what is not known yet is computed."""
        new = ids[~find_in(query.cosines.ids, ids)[1]]
        if len(new):
            query.cosines = query.cosines.joined(
                new, inner_products(self._view.vectors("passage", new), query.vector)
            )
        return query.cosines.of(ids)

    def _contexts(self, passages: list[int]) -> dict[int, range]:
        most = self._options.context
        if most is None or not passages:
            return {}
        wanted = np.array(passages, np.int64)
        first = wanted >> PASSAGE_BITS << PASSAGE_BITS
        last = first + self._view.passage_counts(wanted >> PASSAGE_BITS) - 1
        ends = np.stack(
            [np.maximum(first, wanted - most), np.minimum(last, wanted + most) + 1], axis=1
        )
        return dict(zip(passages, (range(*pair) for pair in ends.tolist()), strict=True))

    def _names(self, duplicates: dict[int, list[int]]) -> dict[int, tuple[str, ...]]:
        found = self._fetch(doc for docs in duplicates.values() for doc in docs)
        return {
            first: tuple(dict.fromkeys(found[doc].id for doc in docs))
            for first, docs in duplicates.items()
        }

    def _fetch(self, docs: Iterable[int]) -> Mapping[int, StoredDocument]:
        while self._begun:
            self._begun.pop()()
        return self._read(list(dict.fromkeys(docs)))

    def _fetching(self, docs: Sequence[int]) -> None:
        """Begin to fetch documents beside this thread, if any is not there and none are on their
        way.
        """
        if self._view.lasting and not self._begun and not self._documents.keys() >= set(docs):
            self._begun.append(begin(partial(self._read, list(dict.fromkeys(docs)))))

    def _read(self, wanted: list[int]) -> Mapping[int, StoredDocument]:
        if len(self._documents.keys() | wanted) > REMEMBERED:  # the queries of a long list
            self._documents.clear()
        if new := [number for number in wanted if number not in self._documents]:
            self._documents.update(self._view.documents(new, self._parts_read))
        self._check_stored("document", wanted, self._documents)
        return {number: self._documents[number] for number in wanted}

    def _passages_there(self, query: Query, numbers: IntArray) -> StoredPassages:
        """Fetch passages by numbers `[n]`, ascending; those that are not there are left out."""
        words = () if self._options.mode == "dense" else query.words
        known = StoredPassages.none(len(words)) if query.passages is None else query.passages
        rows = known.rows(numbers)
        if (rows < 0).any():
            known = known.joined(self._view.passages(numbers[rows < 0], words))
            rows = known.rows(numbers)
        query.passages = known
        return known.take(rows[rows >= 0])

    def _shown_passages(self, query: Query, numbers: Iterable[int]) -> Mapping[int, ShownPassage]:
        wanted = list(dict.fromkeys(numbers))
        if new := [number for number in wanted if number not in query.shown]:
            query.shown.update(self._view.shown_passages(new))
        self._check_stored("passage", wanted, query.shown)
        return query.shown

    def _texts(self, query: Query, numbers: Sequence[int]) -> dict[int, str]:
        shown = self._shown_passages(query, numbers)
        return {number: _together([number], shown)[1] for number in numbers}

    def _check_stored(
        self, kind: Kind, wanted: Iterable[int], found: Mapping[int, object] | set[int]
    ) -> None:
        missing = next((number for number in wanted if number not in found), None)
        if missing is not None:
            info = self._view.info
            raise IndexFormatError(
                f"{info.name}: the index has {kind} number {missing}, which the store does not"
                f" have; {info.remedy}"
            )


def _at_most(last: float, score: float) -> float:
    """A score that orders behind the last one: a little lower where it is higher, as equal ones may
    change places.
    """
    return score if score <= last else math.nextafter(last, -math.inf)


def _together(
    numbers: Sequence[int], shown: Mapping[int, ShownPassage]
) -> tuple[tuple[int, int], str]:
    passages = [shown[number] for number in numbers]
    first, last = passages[0].span, passages[-1].span
    parts = [one.text[: following.span[0] - one.span[0]] for one, following in pairwise(passages)]
    return (first[0], last[1]), "".join([*parts, passages[-1].text[: last[1] - last[0]]])


def _chosen(best: Best, shown: Mapping[int, ShownPassage]) -> Chosen:
    span, text = _together([best.number], shown)
    return Chosen(span, text, shown[best.number].heading, best.score, best.scores)


class PassageSearch(Search):
    """A search for passages."""

    def _best_passages(self, query: Query, matches: list[Scored]) -> dict[int, list[Best]]:
        found = {}
        for match in matches:
            scores, confidence = query.scores_of(match.passage), query.confidence.get(match.passage)
            found[match.passage] = [Best(match.passage, match.score, scores, confidence)]
        return found

    def _nearest(self, vectors: FloatArray, depth: int) -> list[Near]:
        return nearest_vectors(
            self._view, "passage", vectors, depth, self._selection, exact=self._options.exact
        )

    def _key(self, match: Scored) -> int:
        return match.passage

    def _candidates(self, query: Query, near: Near, depth: int) -> tuple[list[Scored], bool]:
        mode = self._options.mode
        few = len(near.matches) < depth
        if mode == "dense":
            query.add_scores("dense", {match.passage: match.score for match in near.matches})
            return near.matches, few
        found = self._by_words(query, "passage", depth)
        if mode == "lexical":
            query.add_scores("lexical", dict(found))
            return [Scored(i >> PASSAGE_BITS, score, i) for i, score in found], len(found) < depth
        candidates = np.unique(
            np.concatenate([near.passages.ids, np.array([i for i, _ in found], np.int64)])
        )
        return self._scored_candidates(query, candidates), few and len(found) < depth

    def _scored_candidates(self, query: Query, candidates: IntArray) -> list[Scored]:
        # neighbors are scored with them, for `better_neighbor`, but are not candidates
        there = self._passages_there(query, scoring.with_neighbors(candidates)).numbers
        rows = np.flatnonzero(find_in(candidates, there)[1])
        if len(rows) < len(candidates):
            self._check_stored("passage", candidates.tolist(), set(there.tolist()))
        scored = self._scored(query, there).take(rows)
        query.foremost = query.foremost or scoring.foremost(scored)
        scored = self._with_confidence(query, scored)
        query.strengths.update(zip(scored.ids.tolist(), scored.score.tolist(), strict=True))
        order = np.lexsort((scored.ids, -scored.score))
        scored_in_order = zip(scored.ids[order].tolist(), scored.shown[order].tolist(), strict=True)
        matches = [Scored(i >> PASSAGE_BITS, score, i) for i, score in scored_in_order]
        for name, values in scored.parts().items():
            query.add_scores(name, dict(zip(scored.ids.tolist(), values.tolist(), strict=True)))
        query.confidence = {match.passage: match.score for match in matches} | query.confidence
        return matches

    def _closest(self, query: Query, part: list[Scored]) -> dict[int, int]:
        return {match.passage: match.passage for match in part}

    def _closest_texts(self, query: Query, part: list[Scored]) -> dict[int, str]:
        return self._texts(query, [match.passage for match in part])

    def _with_maxsim(
        self, query: Query, part: list[Scored], maxsim: dict[int, float]
    ) -> dict[int, float]:
        weight = scoring.MAXSIM_CONFIDENCE
        return {
            match.passage: query.strengths[match.passage] + weight * maxsim[match.passage]
            for match in part
        }

    def _in_turn(
        self, query: Query, parts: Iterable[list[Scored]], chosen: list[Scored]
    ) -> Iterator[tuple[Scored, int | None]]:
        options, copies, texts, taken = self._options, Copies(), dict[int, str](), Counter[int]()
        for part in parts:
            for at, match in enumerate(
                self._by_diversity(part, chosen) if options.diversity else part
            ):
                if options.per_document is not None and taken[match.doc] >= options.per_document:
                    continue
                first = None
                if options.fold:
                    if (
                        match.passage not in texts
                    ):  # read as they are needed, those that come next together
                        following = [match] if options.diversity else part[at : at + options.last]
                        self._fetching(
                            [each.doc for each in following[max(0, options.offset - len(chosen)) :]]
                        )
                        texts = self._texts(query, [each.passage for each in following])
                    first = copies.find_or_remember(match.passage, texts[match.passage])
                taken[match.doc] += first is None
                yield match, first

    def _by_diversity(self, matches: list[Scored], chosen: list[Scored]) -> Iterator[Scored]:
        """Yield matches by maximal marginal relevance: score against likeness to what was chosen
        before.
        """
        if not matches:
            return
        ids = np.array([match.passage for match in [*matches, *chosen]], dtype=np.int64)
        order = np.argsort(ids)
        vectors = np.empty((len(ids), self._view.info.dim), dtype=np.float32)
        vectors[order] = self._view.vectors("passage", ids[order])
        vectors, before = vectors[: len(matches)], vectors[len(matches) :]
        scores = np.array([match.score for match in matches], dtype=np.float32)
        relevance = scores / max(float(np.abs(scores).max()), 1e-9)
        weight, nearest = self._options.diversity, (vectors @ before.T).max(axis=1, initial=0.0)
        left = np.ones(len(matches), dtype=bool)
        for _ in matches:
            row = int(
                np.argmax(np.where(left, (1 - weight) * relevance - weight * nearest, -np.inf))
            )
            left[row] = False
            kept = len(chosen)
            yield matches[row]
            if len(chosen) > kept:
                nearest = np.maximum(nearest, vectors @ vectors[row])
