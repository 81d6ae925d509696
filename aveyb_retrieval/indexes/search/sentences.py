"""Which sentence of a passage answers a query, and what stands over it.

    score(sentence) = sum over the query's tokens t of  w(t) * max over the sentence's tokens u of  cos(t, u)

The vectors are the model's embeddings of tokens, which know synonyms and need no layer to run: looking them up and
multiplying them takes about a millisecond for a passage. w(t) is the weight of the word that a token belongs to, by
how few passages hold it, and 0 of a word that is not looked up. Without such vectors a cosine is 1 for an equal word,
else 0.
"""

from __future__ import annotations

from bisect import bisect
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aveyb_retrieval.encoder.text.outline import outline
from aveyb_retrieval.indexes.types import WordVectors, token_width

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aveyb_retrieval.indexes.store.words import Finder
    from aveyb_retrieval.indexes.types import EmbedderLike, FloatArray

Span = tuple[int, int]


class Cited(NamedTuple):
    """What a passage is cited by.

    sentence: Characters `[start, stop)` of the passage: its best sentence; None where no word of the query is in it.
    heading: The nearest one over that sentence, or over the beginning of the passage.
    headings: All that parts of the passage are under, in order.
    """

    sentence: Span | None
    heading: str
    headings: tuple[str, ...]


class Sentences:
    """Finds the sentences that answer one query, in any passage.

    Attributes:
        find: Finds the query's words in a text.
    """

    def __init__(
        self,
        query: str,
        find: Finder,
        weights: Callable[[], Mapping[str, float]],
        model: Callable[[], EmbedderLike] | None,
    ) -> None:
        """Take a query's text, what finds its words, what weighs them and what loads the model; None: without one."""
        self.find = find
        self._query = query
        self._weights = weights
        self._load = model

    def cite(self, passage: str, heading: str, breaks: Sequence[int] = ()) -> Cited:
        """Find the best sentence of a passage, the first of several, and its heading.

        Args:
            passage: Its text.
            heading: The one over its beginning.
            breaks: Characters at which its pages begin: of a sentence that goes on, the parts are compared.
        """
        found = outline(passage)
        starts = sorted({0, *found.places.tolist(), *breaks})
        marks = [each.start for each in found.headings]
        names = [heading, *(each.words for each in found.headings)]
        under = names[1:] if marks and not passage[: marks[0]].strip() else names
        best = self._best(passage, starts)
        if best is None:
            return Cited(None, under[0], tuple(dict.fromkeys(filter(None, under))))
        start, stop = starts[best], ([*starts, len(passage)])[best + 1]
        inside = [each.stop for each in found.headings if start <= each.start < stop]  # they begin it
        body = inside[-1] if inside and passage[inside[-1] : stop].strip() else start
        text = passage[body:stop]
        first = body + len(text) - len(text.lstrip())
        sentence = first, first + len(text.strip())
        above = bisect(marks, first)
        return Cited(sentence, names[above] or under[0], tuple(dict.fromkeys(filter(None, under))))

    @cached_property
    def _model(self) -> WordVectors | None:
        """The model, if it knows what words mean; else they have to be equal."""
        model = None if self._load is None else self._load()
        return model if isinstance(model, WordVectors) and token_width(model) else None

    @cached_property
    def _asked(self) -> tuple[FloatArray, FloatArray]:
        """The query's tokens that count: unit rows `[T, D]`, and their weights `[T]`."""
        assert self._model is not None  # else words are compared
        rows, places = self._model.word_vectors(self._query)
        weights, words = self._weights(), self.find(self._query)
        counted = np.zeros(len(rows), np.float32)
        for word in words:
            counted[(places[:, 0] >= word.start) & (places[:, 0] < word.stop)] = weights[word.word]
        return rows[counted > 0], counted[counted > 0]

    def _best(self, passage: str, starts: Sequence[int]) -> int | None:
        """The number of the best of the sentences that begin at `starts`, ascending; None where none is any good."""
        scores = self._by_words(passage, starts) if self._model is None else self._by_meaning(passage, starts)
        best = int(np.argmax(scores))
        return best if scores[best] > 0 else None

    def _by_words(self, passage: str, starts: Sequence[int]) -> FloatArray:
        held = {(bisect(starts, word.start) - 1, word.word) for word in self.find(passage)}
        scores, weights = np.zeros(len(starts), np.float32), self._weights() if held else {}
        for sentence, word in sorted(held):
            scores[sentence] += weights[word]
        return scores

    def _by_meaning(self, passage: str, starts: Sequence[int]) -> FloatArray:
        assert self._model is not None  # else words are compared
        asked, weights = self._asked
        rows, places = self._model.word_vectors(passage)
        if not len(asked) or not len(rows):
            return np.zeros(len(starts), np.float32)
        cosines = asked @ rows.T
        bounds = [*np.searchsorted(places[:, 0], starts).tolist(), len(rows)]
        nearest = [cosines[:, a:b].max(axis=1, initial=0.0) for a, b in pairwise(bounds)]
        return np.stack(nearest) @ weights
