"""A search for documents: by their own vectors and words, and by their best passages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.engine import passage_numbers
from aveyb_retrieval.indexes.search import scoring
from aveyb_retrieval.indexes.search.hits import Copies
from aveyb_retrieval.indexes.search.scoring import (
    Scored,
    first_of_each,
    nearest_documents,
    nearest_vectors,
)
from aveyb_retrieval.indexes.search.search import COMPARED, LISTED, WHOLE, Best, Search
from aveyb_retrieval.indexes.types import PASSAGE_BITS, ascending, find_in, inner_products

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aveyb_retrieval.indexes.search.scoring import Near, PassageScores
    from aveyb_retrieval.indexes.search.search import Query
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

# documents whose passages are read together: of all candidates they gained .0015 at most on
# development sets
READ = 50
EACH = 6  # passages of a longer document that are taken from each ranking of passages


class DocumentSearch(Search):
    """A search for documents."""

    def _nearest(self, vectors: FloatArray, depth: int) -> list[Near]:
        options = self._options
        return nearest_documents(
            self._view, options.kinds, vectors, depth, self._selection, exact=options.exact
        )

    def _key(self, match: Scored) -> int:
        return match.doc

    def _candidates(self, query: Query, near: Near, depth: int) -> tuple[list[Scored], bool]:
        options, few = self._options, len(near.matches) < depth
        dense = {match.doc: match.score for match in near.matches}
        if options.mode == "dense":
            query.add_scores("dense", dense)
            return near.matches, few
        found = self._by_words(query, "document", depth)
        words = dict(found)
        query.add_scores("lexical", words)
        if options.mode == "lexical":
            return [Scored(doc, score) for doc, score in found], len(found) < depth
        if options.fusion == "rrf":
            fused = scoring.reciprocal_rank([list(dense.items()), found])
        else:
            dense |= self._cosines_of_documents(
                query, np.array([doc for doc in words if doc not in dense], np.int64)
            )
            fused = scoring.weighted(
                dense,
                words,
                background=scoring.background(self._view, query.vector),
                weight=options.weight,
            )
        query.add_scores("dense", dense)
        return [Scored(doc, score) for doc, score in scoring.ranked(fused)], few and len(
            found
        ) < depth

    def _cosines_of_documents(self, query: Query, docs: IntArray) -> dict[int, float]:
        """The cosines of documents `[n]`, as `nearest_documents` has them; those without a vector
        are left out.
        """
        found, docs = dict[int, float](), np.sort(docs)
        if "document" in self._options.kinds and len(docs):
            vectors = self._view.vectors("document", docs)
            found = dict(
                zip(docs.tolist(), inner_products(vectors, query.vector).tolist(), strict=True)
            )
        if "passage" in self._options.kinds and len(docs):
            ids = self._promising(query, docs)
            for doc, score in scoring.best_by_document(ids, self._cosines(query, ids)).items():
                found[doc] = max(score, found.get(doc, score))
        return found

    def _scored_parts(self, query: Query, new: list[Scored]) -> Iterable[list[Scored]]:
        """Add to each document's score its best passage's, and order those read together; if ranked
        again, all are.
        """
        options = self._options
        if options.mode != "hybrid" or options.fusion == "rrf" or "passage" not in options.kinds:
            return [new]
        size = READ if options.rerank is None and options.boost is None else max(len(new), 1)
        return (
            self._with_best_passages(query, new[at : at + size]) for at in range(0, len(new), size)
        )

    def _with_best_passages(self, query: Query, part: list[Scored]) -> list[Scored]:
        info = self._view.info
        best = self._scored_of(query, [match.doc for match in part]).best(self._options.weight)
        query.add_scores("passage", best)
        # the only passage of a document says what the document has said already
        share = max(0.0, 1 - info.documents / info.passages) if info.passages else 0.0
        summed = {match.doc: match.score + share * best.get(match.doc, 0.0) for match in part}
        return [Scored(doc, score) for doc, score in scoring.ranked(summed)]

    def _above_least(self, query: Query, part: list[Scored]) -> list[Scored]:
        options, least = self._options, self._least
        if least is None or options.mode != "hybrid" or options.rerank is not None:
            return super()._above_least(query, part)
        best = self._best_of(query, [match.doc for match in part], 1)
        return [
            match
            for match in part
            if match.doc in best and (best[match.doc][0].confidence or 0.0) >= least
        ]

    def _in_turn(
        self, query: Query, parts: Iterable[list[Scored]], chosen: list[Scored]
    ) -> Iterator[tuple[Scored, int | None]]:
        copies, known = Copies(), set[int]()
        last = (
            self._options.last
            if "passage" in self._view.info.kinds
            else min(self._options.last, READ)
        )
        for part in parts:
            alike = (
                self._of_one_length([match.doc for match in [*chosen, *part]])
                if self._options.fold
                else set[int]()
            )
            for match in (match for match in chosen if match.doc in alike - known):
                beginning = self._beginnings(query, [match], alike)[match.doc]
                copies.find_or_remember(match.doc, beginning, partial(self._whole_text, match.doc))
            known |= alike
            beginnings: dict[int, str] = {}
            for at, match in enumerate(part):
                doc, first = match.doc, None
                if doc in alike:
                    if (
                        doc not in beginnings
                    ):  # read as they are needed, those that come next together
                        beginnings = self._beginnings(query, part[at - at % last :][:last], alike)
                    first = copies.find_or_remember(
                        doc, beginnings[doc], partial(self._whole_text, doc)
                    )
                yield match, first

    def _of_one_length(self, docs: list[int]) -> set[int]:
        """The documents that have about as many passages as another: only these can be copies."""
        if "passage" not in self._view.info.kinds:
            return set(docs)
        numbers = ascending(np.array(docs, np.int64))
        counts = self._view.passage_counts(numbers)
        order = np.argsort(counts, kind="stable")
        order = order[counts[order] > 0]
        near = np.flatnonzero(
            np.diff(counts[order]) <= counts[order][:-1] // 10
        )  # blank lines may move a cut
        return set(numbers[order][np.union1d(near, near + 1)].tolist())

    def _beginnings(self, query: Query, following: list[Scored], alike: set[int]) -> dict[int, str]:
        """The first passages of those documents that are `alike`; where there are none, texts of
        the first ones.

        What is shown of the page's documents is read with them: it costs little more than these
        alone.
        """
        docs = [match.doc for match in following if match.doc in alike]
        if "passage" not in self._view.info.kinds:
            return self._whole_texts(docs)
        first, shown = [doc << PASSAGE_BITS for doc in docs], following[self._options.offset :]
        self._fetching([match.doc for match in shown])
        best = self._best_passages(query, shown)
        self._shown_passages(
            query, [*first, *(each.number for chosen in best.values() for each in chosen)]
        )
        return {number >> PASSAGE_BITS: text for number, text in self._texts(query, first).items()}

    def _whole_text(self, doc: int) -> str:
        return self._whole_texts([doc])[doc]

    def _whole_texts(self, docs: list[int]) -> dict[int, str]:
        found = self._view.documents(docs, ("text",))
        self._check_stored("document", docs, found)
        return {doc: found[doc].text for doc in docs}

    def _scored_of(self, query: Query, documents: list[int]) -> PassageScores:
        """Score the passages among which the best of documents are: those of a page were scored for
        the ranking.
        """
        docs = ascending(np.array(documents, np.int64))
        if query.read is None or not find_in(query.read[0], docs)[1].all():
            query.read = docs, self._scored(query, self._promising(query, docs))
        scored = query.read[1]
        return scored.take(np.flatnonzero(find_in(docs, scored.ids >> PASSAGE_BITS)[1]))

    def _promising(self, query: Query, docs: IntArray) -> IntArray:
        """Numbers, ascending, of the passages among which the best of documents `[n]` are: all of a
        short one.

        Of a longer one those that the rankings of all passages have and, where they are too few,
        the best of its own.
        """
        options, each = self._options, max(EACH, self._options.passages)
        long = self._view.passage_counts(docs) > max(WHOLE, each)
        whole, docs = passage_numbers(self._view, docs[~long]), docs[long]
        if not len(docs):
            return whole
        rankings = self._rankings(query, LISTED * options.depth)
        listed = (ids[find_in(docs, ids >> PASSAGE_BITS)[1]] for ids in rankings)
        found = ascending(np.concatenate([first_of_each(ids, each) for ids in listed]))
        counts = np.bincount(np.searchsorted(docs, found >> PASSAGE_BITS), minlength=len(docs))
        lacking = docs[counts < options.passages]
        new = lacking[~find_in(query.own >> PASSAGE_BITS, lacking)[1]]
        if len(new):
            more = self._view.best_passages(new, query.vector, query.sought, options.passages)
            query.own = ascending(np.concatenate([query.own, more]))
        own = query.own[find_in(lacking, query.own >> PASSAGE_BITS)[1]]
        return ascending(np.concatenate([whole, found, own]))

    def _rankings(self, query: Query, least: int) -> list[IntArray]:
        """Passages by vectors and by words, best first, of these at least the `least` best: as many
        each time.
        """
        listed = self._listed(least)
        if (
            by_words := next((ids for most, ids in query.by_words.items() if most >= listed), None)
        ) is None:
            found = (
                [] if self._options.mode == "dense" else self._by_words(query, "passage", listed)
            )
            by_words = query.by_words[listed] = np.array([number for number, _ in found], np.int64)
        return [by_words[:listed]] if query.near is None else [query.near, by_words[:listed]]

    def _best_passages(self, query: Query, matches: list[Scored]) -> dict[int, list[Best]]:
        options, left = self._options, [match for match in matches if match.doc not in query.best]
        if (
            options.mode == "dense" and options.passages == 1
        ):  # what decided a document is its best passage
            numbers = np.array([match.passage for match in left if match.passage >= 0], np.int64)
            for number, score in zip(
                numbers.tolist(), query.cosines.of(numbers).tolist(), strict=True
            ):
                query.best[number >> PASSAGE_BITS] = [Best(number, score, {"dense": score}, None)]
        docs = [match.doc for match in left if match.doc not in query.best]
        query.best |= {doc: [] for doc in docs} | self._best_of(query, docs, options.passages)
        return {match.doc: query.best[match.doc] for match in matches}

    def _best_of(self, query: Query, docs: list[int], count: int) -> dict[int, list[Best]]:
        """The best passages of documents, best first, by document; none where one has none."""
        if "passage" not in self._view.info.kinds or not docs:
            return {}
        scored, hybrid = self._scored_of(query, docs), self._options.mode == "hybrid"
        if hybrid:
            scored = self._with_confidence(query, self._with_neighbors(query, scored, count + 2))
        order = first_of_each(scored.ids[np.lexsort((scored.ids, -scored.score))], count)
        scored = scored.take(np.searchsorted(scored.ids, order))
        parts = scored.parts()
        values = zip(*(column.tolist() for column in parts.values()), strict=True)
        best: dict[int, list[Best]] = {}
        for number, score, row in zip(
            scored.ids.tolist(), scored.shown.tolist(), values, strict=True
        ):
            one = Best(number, score, dict(zip(parts, row, strict=True)), score if hybrid else None)
            best.setdefault(number >> PASSAGE_BITS, []).append(one)
        return best

    def _first(self, query: Query) -> IntArray:
        """Passages among which the best of all is: the first by vectors and by words, whatever is
        asked for.
        """
        if query.near is None or not len(query.near):  # documents were ranked by their own vectors
            (near,) = nearest_vectors(
                self._view, "passage", query.vector[None], COMPARED, self._selection, exact=False
            )
            query.found(near)
        return ascending(
            np.concatenate([ids[:COMPARED] for ids in self._rankings(query, COMPARED)])
        )

    def _with_neighbors(self, query: Query, scored: PassageScores, most: int) -> PassageScores:
        """Score passages, `most` of a longer document, and the first of all, together with their
        neighbors.
        """
        docs, counts = np.unique(scored.ids >> PASSAGE_BITS, return_counts=True)
        whole = find_in(
            docs[counts == self._view.passage_counts(docs)], scored.ids >> PASSAGE_BITS
        )[1]
        first = self._first(query) if query.foremost is None else scored.ids[:0]
        if whole.all() and not len(first):
            return scored
        best_first = np.lexsort((scored.ids, -scored.score))
        longer = first_of_each(scored.ids[best_first[~whole[best_first]]], most)
        kept = ascending(np.concatenate([scored.ids[whole], longer]))
        beside = scoring.with_neighbors(np.concatenate([longer, first]))
        together = ascending(np.concatenate([kept, self._passages_there(query, beside).numbers]))
        found = self._scored(query, together)
        if len(first):
            query.foremost = scoring.foremost(
                found.take(np.flatnonzero(find_in(first, together)[1]))
            )
        return found.take(np.searchsorted(together, kept))

    def _closest(self, query: Query, part: list[Scored]) -> dict[int, int]:
        docs = [match.doc for match in part]
        if "passage" not in self._view.info.kinds:
            return dict(zip(docs, docs, strict=True))
        best = self._best_of(query, docs, 1)
        return {doc: best[doc][0].number for doc in docs if doc in best}

    def _closest_texts(self, query: Query, part: list[Scored]) -> dict[int, str]:
        """The best passage of each document, or its whole text where it has none."""
        best = {
            doc: chosen[0].number
            for doc, chosen in self._best_of(query, [m.doc for m in part], 1).items()
        }
        texts = self._texts(query, list(best.values()))
        others = [match.doc for match in part if match.doc not in best]
        whole = self._view.documents(others, ("text",)) if others else {}
        self._check_stored("document", others, whole)
        return {m.doc: texts[best[m.doc]] if m.doc in best else whole[m.doc].text for m in part}

    def _with_maxsim(
        self, query: Query, part: list[Scored], maxsim: dict[int, float]
    ) -> dict[int, float]:
        first = [(match.doc, match.score) for match in part]
        if self._options.fusion == "rrf":
            return scoring.reciprocal_rank([first, scoring.ranked(maxsim)])
        return {doc: score + scoring.MAXSIM_WEIGHT * maxsim[doc] for doc, score in first}
