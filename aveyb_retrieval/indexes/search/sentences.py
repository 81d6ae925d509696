"""The sentences that passages are cited by.

The best sentence of a passage is found by the formula of docs/ranking.md. The vectors are the
model's embeddings of tokens, which know synonyms and need no layer to run: about a millisecond for
a passage. The weight of a word that is not looked up is 0. Words count besides: a cosine is 1 for
an equal word, else 0. A row of a table is a sentence, too.
"""

from __future__ import annotations

import re
from bisect import bisect
from functools import cache, cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import regex

from aveyb_retrieval.encoder.text.passages import names_of, outline
from aveyb_retrieval.indexes.types import WordVectors, products, token_width

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aveyb_retrieval.encoder.text.passages import Heading
    from aveyb_retrieval.indexes.store.words import Finder
    from aveyb_retrieval.indexes.types import EmbedderLike, FloatArray, IntArray

Span = tuple[int, int]  # characters [start, end) of a text

_CELLS = r"(?:\||[^\n|]* \| )"  # how a row of a table begins, in Markdown or not
_ROW = re.compile(rf"^(?={_CELLS})", re.MULTILINE)
# of its columns: the first row
_NAMES = regex.compile(rf"^(?={_CELLS}.*\n{_CELLS})(?<!^{_CELLS}.*\n)", re.MULTILINE)
_QUESTION = re.compile("[?\uff1f\u061f][\\s>\"'\u201d\u00bb]*$")  # of a sentence
# of an item of a list
_MARK = re.compile(r"[\s>]{0,20}\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{2,5})[.)]\s*")
_REPEATED_WEIGHT = 0.3  # of the nearness of a sentence that a mail only repeats
_SHARP, _NAMED, _LEAST = 4, 0.95, 0.001  # as benchmarks/cpu/citations.py found them


class CitedText(NamedTuple):
    """A passage to cite, the heading above it, the characters at which pages begin in it, what it
    is about, and the characters of a mail that it only repeats: quotations, a signature.
    """

    text: str
    heading: str = ""
    breaks: Sequence[int] = ()
    about: str = ""
    repeated: Sequence[Span] = ()


class Citation(NamedTuple):
    """A passage's best sentence (None: it holds no word of the query), the heading over it, and all
    headings in it.
    """

    sentence: Span | None = None
    heading: str = ""
    headings: tuple[str, ...] = ()

    def moved(self, start: int) -> Citation:
        """Return the same, with the sentence's characters counted from `start` before the text."""
        if self.sentence is None:
            return self
        first, stop = self.sentence
        return self._replace(sentence=(start + first, start + stop))


# of a text: which of all that are compared, and where they begin
Words = tuple["IntArray", "IntArray"]


class Sentences:
    """Finds the sentences that answer one query, in any passages."""

    def __init__(
        self,
        query: str,
        find: Finder,
        weights: Callable[[], Mapping[str, float]],
        model: Callable[[], EmbedderLike] | None,
    ) -> None:
        self._query, self._weights, self._load = query, weights, model
        self.find = cache(find)  # highlights ask for the same passages

    def cite(self, excerpts: Sequence[CitedText]) -> list[Citation]:
        """Find the best sentence of each passage and its heading; what several are about is looked
        at once.

        Of a sentence that goes on over a page the parts are compared.
        """
        texts = list(
            dict.fromkeys(text for excerpt in excerpts for text in (excerpt.text, excerpt.about))
        )
        near, weights, words = self._by_words(texts)
        if self._model is not None:
            # tokens may be letters, or stand for any unknown word: all sentences hold them, so
            # equal words count, too
            (by_words, count), (same, more, held) = near.shape, self._by_meaning(texts)
            near, weights = (
                np.pad(near, [(0, size) for size in same.shape]),
                np.concatenate([weights, more]),
            )
            near[by_words:, count:] = same
            both = [
                np.hstack([own, (two[0] + count, two[1])])
                for own, two in zip(words, held, strict=True)
            ]
            words = [(which[order], at[order]) for which, at in both for order in [at.argsort()]]
        words_of = dict(zip(texts, words, strict=True))
        named = {
            excerpt.about: near[:, words_of[excerpt.about][0]].max(axis=1, initial=0)
            for excerpt in excerpts
        }
        return [
            _cite(excerpt, near, words_of[excerpt.text], named[excerpt.about], weights)
            for excerpt in excerpts
        ]

    @cached_property
    def _model(self) -> WordVectors | None:
        """The model, if it knows what words mean; else they have to be equal."""
        model = None if self._load is None else self._load()
        return model if isinstance(model, WordVectors) and token_width(model) else None

    def _by_words(self, texts: Sequence[str]) -> tuple[FloatArray, FloatArray, list[Words]]:
        """Which words `[n]` that texts hold are each of the query's `[T, n]`, the weights of these
        `[T]`, the words.
        """
        places_of_texts = [self.find(text) for text in texts]
        words = {
            word: number
            for number, word in enumerate(
                dict.fromkeys(place.word for place in chain(*places_of_texts))
            )
        }
        weight_of, same = self._weights() if words else {}, np.eye(len(words), dtype=np.float32)
        # not weighed is one that a condition such as begin* found
        weights = np.array([weight_of.get(word, 1.0) for word in words], np.float32)
        held = [
            np.array([(words[place.word], place.start) for place in places], np.int64).reshape(
                -1, 2
            )
            for places in places_of_texts
        ]
        return same, weights, [(rows[:, 0], rows[:, 1]) for rows in held]

    def _by_meaning(self, texts: Sequence[str]) -> tuple[FloatArray, FloatArray, list[Words]]:
        """How near tokens come to the query's that count, `[T, n]`, 0 to 1, the weights of these
        `[T]`, the tokens.
        """
        assert self._model is not None  # else words are compared
        rows, ((query_ids, places), *tokens) = self._model.word_vectors([self._query, *texts])
        weights, counted = self._weights(), np.zeros(len(query_ids), np.float32)
        for word in self.find(self._query):
            counted[(places >= word.start) & (places < word.stop)] = weights.get(word.word, 1.0)
        query_ids, counted = query_ids[counted > 0], counted[counted > 0]
        # one by one: for many at once `products` would wake the threads of BLAS
        cosines = [products(row[None], rows)[0].clip(0, 1) for row in rows[query_ids]]
        near = np.array(cosines, np.float32).reshape(len(query_ids), len(rows))
        return near, counted, tokens


def _cite(
    excerpt: CitedText, near: FloatArray, words: Words, named: FloatArray, weights: FloatArray
) -> Citation:
    """Find the best sentence of a passage, the heading over it, and all headings of the passage."""
    passage, above = excerpt.text, excerpt.heading
    outlined = outline(passage)
    # the passage may begin with a part of a line that looks like a heading
    headings = [
        heading for heading in outlined.headings if heading.start or above.endswith(heading.words)
    ]
    heading_starts = [heading.start for heading in headings]
    names = [above, *names_of(headings, above)]
    begins_with_heading = bool(headings) and not passage[: heading_starts[0]].strip()
    names_inside = names[1:] if begins_with_heading else names
    all_headings = tuple(dict.fromkeys(filter(None, names_inside)))
    sentences = _sentences_of(excerpt, outlined.places.tolist(), headings)
    best = _best(passage, sentences, near, words, named, weights, excerpt.repeated)
    if best is None:
        return Citation(None, names_inside[0], all_headings)
    start, body, stop = sentences[best]
    text = passage[body:stop] if passage[body:stop].strip() else passage[start:stop]
    first = stop - len(text.lstrip())
    span = first, first + len(text.strip())
    return Citation(span, names[bisect(heading_starts, first)] or names_inside[0], all_headings)


def _sentences_of(
    excerpt: CitedText, places: Sequence[int], headings: Sequence[Heading]
) -> list[tuple[int, int, int]]:
    """The sentences of a passage: where each begins, where it goes on behind a heading, and where
    it ends.

    Rows of tables and parts of a page are sentences, too; the mark of an item belongs to the item.
    """
    passage = excerpt.text
    bounds_of_repetitions = chain.from_iterable(excerpt.repeated)
    starts = sorted(
        {
            0,
            *places,
            *excerpt.breaks,
            *(row.start() for row in _ROW.finditer(passage)),
            *(bound for bound in bounds_of_repetitions if bound < len(passage)),
        }
    )
    bodies = _bodies(passage, starts, headings)
    marks = {
        stop
        for start, stop in pairwise(starts)
        if _MARK.fullmatch(passage, bodies.get(start, start), stop)
    }
    starts = sorted({*starts} - (marks - bodies.keys()))
    return [
        (start, bodies.get(start, start), stop) for start, stop in pairwise([*starts, len(passage)])
    ]


def _bodies(passage: str, starts: Sequence[int], headings: Sequence[Heading]) -> dict[int, int]:
    """Where sentences that begin with a heading go on behind it, by where they begin.

    A caption with nothing behind it may be an item of a list, and is a sentence.
    """
    bodies = {}
    for heading in headings:
        place = bisect(starts, heading.start)
        stop = [*starts, len(passage)][place]
        if not heading.caption or passage[heading.stop : stop].strip():
            bodies[starts[place - 1]] = heading.stop
    return bodies


def _count_repetitions_less(
    passage: str,
    parts: Sequence[tuple[int, ...]],
    nearest: FloatArray,
    repeated: Sequence[Span],
) -> None:
    """Let what a mail says count more than what it quotes; what stands behind a question that it
    quotes answers this question.
    """
    question: FloatArray | None = None
    for place, (start, body, stop) in enumerate(parts):
        if any(first <= start < last for first, last in repeated):
            if re.search(r"\w", passage[body:stop]):
                question = nearest[place].copy() if _QUESTION.search(passage, start, stop) else None
            nearest[place] *= _REPEATED_WEIGHT
        elif re.search(r"\w", passage[body:stop]):
            if question is not None:
                nearest[place] = np.maximum(nearest[place], question)
            question = None


def _best(
    passage: str,
    parts: Sequence[tuple[int, ...]],
    near: FloatArray,
    words: Words,
    named: FloatArray,
    weights: FloatArray,
    repeated: Sequence[Span],
) -> int | None:
    """The number of the best sentence, of (start, where it goes on behind headings, stop); None:
    none is any good.
    """
    starts = [part[0] for part in parts]
    bounds = np.searchsorted(words[1], [*starts, len(passage)])
    filled = np.flatnonzero(np.diff(bounds))  # sentences with a token or word
    nearest = np.zeros((len(starts), len(weights)), np.float32)
    if len(filled):
        nearest[filled] = np.maximum.reduceat(near[:, words[0]], bounds[filled], axis=1).T
    bare, over = (
        np.array([not re.search(r"\w", passage[body:stop]) for _, body, stop in parts]),
        nearest[0] * 0,
    )
    for place, (start, body, stop) in enumerate(parts):
        if start < body:
            # headings that no text follows speak for the rows or items below
            over = nearest[place] * bare[place] / 2
        elif not bare[place]:
            nearest[place] = np.maximum(nearest[place], over)
        # it says what is asked for: the next sentences or a reply answer
        if _QUESTION.search(passage, start, stop):
            nearest[place] /= 2
    _count_repetitions_less(passage, parts, nearest, repeated)
    for names in _NAMES.finditer(passage):
        nearest[bisect(starts, names.start()) - 1] /= 2  # so do they, a row below answers
    alike = nearest**_SHARP
    others = (alike.sum(axis=0) - alike.max(axis=0)) / max(len(starts) - 1, 1)
    scores = nearest @ (weights * ((1 - _NAMED * named**_SHARP) * (1 - others) ** _SHARP + _LEAST))
    scores[bare] *= 1e-9  # the best only where nothing else is any good
    best = int(np.argmax(scores))
    return best if scores[best] > 0 else None
