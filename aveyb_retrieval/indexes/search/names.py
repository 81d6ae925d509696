"""Which documents a question names, and what it asks of them: pure functions on words and arrays.

A question such as "what notice must we give under the Osprey contract?" says which document is
meant, and what is looked for in it. A word is a name of a document if the document is called by it
(title, id and path, metadata, first characters) and few of the documents that compete for the
question hold it. docs/ranking.md has the formula.

Shapes: `D` competing documents, `T` terms of a question, `P` passages.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aveyb_retrieval.indexes.store.words import WORD
from aveyb_retrieval.indexes.types import PASSAGE_BITS, find_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aveyb_retrieval.indexes.store.called import CalledBy
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import BoolArray, FloatArray, IntArray

# benchmarks/notes/ranking.md says on which data they were chosen
SURE_SHARE = 0.8  # of what one word is worth that a single competitor has: named from there on
NAMED_SHARE = 0.5  # of the names of the document that has the most: it is named, too
MAX_NAMED_DOCUMENTS = 8  # documents
MAX_PROPOSED_DOCUMENTS = 20  # documents that compete by their names alone
NAME_WEIGHT = 1.0  # of a sure name, in the score of a passage; a half of it weighs nothing
WHOLE_WEIGHT = 0.25  # of the score for the whole question, within a named document
MAX_QUESTION_WORDS = 64  # the first ones of a question are looked at
MAX_JOINED_WORDS = 3  # that a title or path may write as one
SHORT_PASSAGES = 16  # passages of a document whose own score needs no addition

_NUMBER_PART = re.compile(r"\d{4,}")
_BREAK = re.compile(r"[;:?!]|\.\s")  # the end of a clause
_JOINT = re.compile(r"[ \u00a0'\u2019&.-]{1,3}")  # between two words that may be written as one
_POSSESSIVE = re.compile(r"['\u2019]s\b")


class Token(NamedTuple):
    """A run of letters in a question: its characters, its terms (none: a stop word).

    `kept` runs hold a year: they stay in the rest of the question.
    """

    start: int
    stop: int
    terms: tuple[int, ...]
    kept: bool


@dataclass(frozen=True)
class QuestionTerms:
    """The terms of a question by which documents may be called.

    Attributes:
        text: The question.
        terms: As `Language` stores words: first those that are looked up, then parts of others.
        known: How many of the first terms are looked up, in passages, too.
        tokens: In the order of the text.
        later: The words behind the last token.
    """

    text: str
    terms: tuple[str, ...]
    known: int
    tokens: tuple[Token, ...]
    later: frozenset[str]


def question_terms(text: str, words: Sequence[str], language: Language) -> QuestionTerms:
    """Split the beginning of a question into tokens; `words` are those that are looked up."""
    runs = list(islice(WORD.finditer(text), MAX_QUESTION_WORDS))
    head = text[: runs[-1].end()] if runs else ""
    pieces = dict[tuple[int, int], list[str]]()
    for piece in language.finder(words)(head):
        pieces.setdefault((piece.start, piece.stop), []).append(piece.word)
    columns = dict[str, int]()
    for word in chain.from_iterable(pieces.values()):
        columns.setdefault(word, len(columns))
    known = len(columns)
    tokens, spans = list[Token](), sorted(pieces)
    for run in runs:
        first = bisect_left(spans, (run.start(), 0))
        inside = spans[first : bisect_left(spans, (run.end(), 0))]
        numbers = [] if run[0].isdecimal() else _NUMBER_PART.findall(run[0])
        kept = bool(_NUMBER_PART.search(run[0]))
        parts = [columns.setdefault(number, len(columns)) for number in numbers]
        if run.span() in pieces or not inside:
            own = [columns[word] for span in inside for word in pieces[span]]
            terms = tuple(dict.fromkeys([*own, *parts]))
            tokens.append(Token(run.start(), run.end(), terms, kept))
        else:  # a script without spaces: each pair of letters is a word
            for span in inside:
                own = [columns[word] for word in pieces[span]]
                tokens.append(Token(span[0], span[1], tuple(own), kept))
    later = language.words(text[len(head) :]) if len(runs) == MAX_QUESTION_WORDS else ()
    return QuestionTerms(text, tuple(columns), known, tuple(tokens), frozenset(later))


class Joined(NamedTuple):
    """Two or three tokens of a question that a title or path writes as one word.

    Attributes:
        first, stop: The first token, and the one behind the last.
        term: The column of that word.
    """

    first: int
    stop: int
    term: int

    def overlaps(self, other: Joined) -> bool:
        """Whether both have a token in common."""
        return max(self.first, other.first) < min(self.stop, other.stop)


def written_as_one(question: QuestionTerms) -> Iterator[tuple[int, int, str]]:
    """Write neighbors among tokens as one word: first, stop, word."""
    text, tokens = question.text, question.tokens
    together = [
        _JOINT.fullmatch(text, first.stop, second.start) is not None
        for first, second in pairwise(tokens)
    ]
    for first, token in enumerate(tokens):
        for stop in range(first + 2, min(first + MAX_JOINED_WORDS, len(tokens)) + 1):
            if not (together[stop - 2] and token.terms):
                break
            if tokens[stop - 1].terms:
                parts = (text[each.start : each.stop] for each in tokens[first:stop])
                yield first, stop, "".join(parts).casefold()


def naming_words(question: QuestionTerms, language: Language) -> list[str]:
    """Return the words that may call a document: the question's terms, and joined words."""
    joined = language.in_order(" ".join(word for _, _, word in written_as_one(question)))
    return list(dict.fromkeys([*question.terms, *joined]))


def propose(
    question: QuestionTerms, docs: IntArray, found: BoolArray, lists: Mapping[str, IntArray]
) -> IntArray:
    """Find documents that no passage speaks for, and whose names alone would name them surely.

    `docs` `[D]`, ascending, compete already, `found` `[D, question.known]` is what their best
    passages hold, and `lists` the documents that are called by each word, ascending. Returns at
    most `MAX_PROPOSED_DOCUMENTS`, ascending.
    """
    count, columns = len(docs), dict(zip(question.terms, range(question.known), strict=False))
    words, others, holding = list[str](), list[Any](), list[int]()
    for word, called in lists.items():
        places, competes = find_in(docs, called)
        if not competes.all():
            held = found[:, columns[word]].copy() if word in columns else np.zeros(count, np.bool_)
            held[places[competes]] = True
            words.append(word)
            others.append(called[~competes])
            holding.append(int(np.count_nonzero(held)))
    if not words:
        return docs[:0]
    worth = nats(np.array(holding, np.int64), count)
    numbers, rows = np.unique(np.concatenate(others), return_inverse=True)
    sizes = list(map(len, others))
    names = np.bincount(rows, np.repeat(worth, sizes))
    by_word = np.where([word.isdecimal() for word in words], 0, worth)
    names[np.bincount(rows, np.repeat(by_word, sizes)) == 0] = 0  # years alone name nothing
    best = np.lexsort((numbers, -names))[:MAX_PROPOSED_DOCUMENTS]
    return np.sort(numbers[best[names[best] >= SURE_SHARE * sure_nats(count)]])


@dataclass(frozen=True)
class Competitors:
    """The documents that compete for a question, and what they hold of its terms.

    Attributes:
        docs: Their numbers `[D]`, ascending.
        passages: How many passages each has, `[D]`.
        terms: The terms that are counted: those of the question, and joined words.
        joined: Which tokens these are of.
        path, title, beginning: Which terms call each, `[D, T]`, by what.
        found: Which terms their best passages hold, `[D, T]`.
    """

    docs: IntArray
    passages: IntArray
    terms: tuple[str, ...]
    joined: tuple[Joined, ...]
    path: BoolArray
    title: BoolArray
    beginning: BoolArray
    found: BoolArray

    @cached_property
    def called(self) -> BoolArray:
        """Which terms call each document, `[D, T]`."""
        return self.path | self.title | self.beginning

    @property
    def numbers(self) -> BoolArray:
        """Which terms are numbers, `[T]`."""
        return np.array([term.isdecimal() for term in self.terms], np.bool_)


def compare(
    question: QuestionTerms,
    docs: IntArray,
    passages: IntArray,
    called: Sequence[CalledBy],
    found: BoolArray,
    language: Language,
) -> Competitors | None:
    """Look up the terms of a question in what documents `[D]` are called by.

    `found` is what their best passages hold of the first terms, `[D, question.known]`. None: no
    document can be named surely, whatever else holds the terms.
    """
    count = len(docs)
    if not count or not question.tokens:
        return None
    columns = {term: column for column, term in enumerate(question.terms)}
    joined = list[Joined]()
    texts = "".join(each.path + each.title for each in called)
    for first, stop, word in written_as_one(question):
        # a stem may differ from its word in the last letters
        if f" {word[: max(3, len(word) - 3)]}" in texts:
            for term in language.in_order(word):
                joined.append(Joined(first, stop, columns.setdefault(term, len(columns))))
    worth = np.full(len(columns), sure_nats(count), np.float32)
    worth[: question.known] = nats(found.sum(axis=0), count)
    terms = tuple(columns)
    worth[[term.isdecimal() for term in terms]] = sure_nats(count)  # by ids, which may have few
    beginning_worth = _of_beginnings(worth, count)
    valued = [
        (f" {terms[term]} ", float(worth[term]), float(beginning_worth[term]))
        for term in np.flatnonzero(worth)
    ]
    if max(_possible_nats(each, valued) for each in called) < SURE_SHARE * sure_nats(count):
        return None
    words = [f" {term} " for term in terms]
    parts = np.zeros((count, 3, len(terms)), np.bool_)
    for row, each in enumerate(called):
        # what no valued term calls counts for joined words alone
        if joined or any(word in part for word, _, _ in valued for part in each):
            parts[row] = [[word in part for word in words] for part in each]
    for name in joined:  # who is called by the joined word is called by its words
        tokens = question.tokens[name.first : name.stop]
        apart = sorted({column for token in tokens for column in token.terms})
        parts[:, :, apart] |= parts[:, :, name.term, None]
    inside = np.zeros((count, len(terms)), np.bool_)
    inside[:, : question.known] = found
    return Competitors(
        docs, passages, terms, tuple(joined), parts[:, 0], parts[:, 1], parts[:, 2], inside
    )


def _possible_nats(called: CalledBy, valued: Sequence[tuple[str, float, float]]) -> float:
    """What the names of a document may be worth at most: of words with their worth in labels and in
    beginnings.
    """
    labels, total = called.path + called.title, 0.0
    for word, of_labels, of_beginnings in valued:
        if word in labels:
            total += of_labels
        elif of_beginnings and word in called.beginning:
            total += of_beginnings
    return total


@dataclass(frozen=True)
class NameMatch:
    """The documents that a question names, and what it asks of them.

    Attributes:
        docs: Their numbers `[N]`, ascending.
        rest: The question without their names; "" if it is all names.
        dropped: The terms that only names have: they are not in the rest.
        competing: Documents that are called by some name, `[M]`, ascending.
        passage_gain: What is added to each passage of these, `[M]`.
        document_gain: What is added to these themselves, `[M]`.
    """

    docs: IntArray
    rest: str
    dropped: frozenset[str]
    competing: IntArray
    passage_gain: FloatArray
    document_gain: FloatArray

    def passage_gains(self, docs: IntArray) -> FloatArray:
        """What is added to the passages of documents `[n]`, `[n]`."""
        return _values_of(docs, self.competing, self.passage_gain)

    def document_gains(self, docs: IntArray) -> FloatArray:
        """What is added to documents `[n]`, `[n]`."""
        return _values_of(docs, self.competing, self.document_gain)


def _values_of(docs: IntArray, numbers: IntArray, values: FloatArray) -> FloatArray:
    """The values of documents `[n]` out of those of `numbers` `[m]`, ascending; 0 for others."""
    aligned = np.zeros(len(docs), np.float32)
    places, there = find_in(numbers, docs)
    aligned[there] = values[places[there]]
    return aligned


def sure_nats(documents: int) -> float:
    """What one word is worth that a single one of so many documents has, in nats."""
    return float(np.log((documents + 1) / 1.5))


def nats(holding: IntArray, documents: int) -> FloatArray:
    """What terms are worth that so many `[T]` of some documents hold; 0 if half of them do."""
    worth = np.log(1 + (documents - holding + 0.5) / (holding + 0.5))
    return np.where(worth < np.log(2), 0, worth).astype(np.float32)


def _of_beginnings(worth: FloatArray, documents: int) -> FloatArray:
    """What terms are worth `[T]` that only the first lines of a document have: all of a sure name,
    nothing of a word that is half as rare.

    First lines are text. Words of a subject meet there, and several of them would make a name.
    """
    return np.maximum(0, 2 * worth - sure_nats(documents)).astype(np.float32)


def find_named(
    question: QuestionTerms, among: Competitors, within: IntArray | None = None
) -> NameMatch | None:
    """Find the documents that a question names surely; None if there are none.

    Of the competitors only those `within` may be named, numbers ascending; None: all of them.
    """
    values = _Values.of(question, among)
    rows = _named_rows(among, values.total, within)
    if not len(rows):
        return None
    several = rows[among.passages[rows] > 1]  # a single passage needs no order
    names_at = _names_at(question, among, several, values.of_terms > 0)
    rest = _rest(question, among, several, names_at)
    of_passages, of_documents = _gains(question, among, values)
    gained = np.flatnonzero((of_passages > 0) | (of_documents > 0))
    return NameMatch(
        among.docs[rows],
        rest,
        _dropped(question, names_at) if rest else frozenset(),
        among.docs[gained],
        (NAME_WEIGHT * of_passages[gained]).astype(np.float32),
        (NAME_WEIGHT * of_documents[gained]).astype(np.float32),
    )


@dataclass(frozen=True)
class _Values:
    """What the terms of a question are worth as names, in nats.

    Attributes:
        worth: Of each term, by how many competitors hold it, `[T]`.
        of_numbers: Of numbers that call a document by its id or metadata, `[D, T]`.
        of_terms: Of all terms that call a document, `[D, T]`.
        total: Of the names of each document together, `[D]`.
    """

    worth: FloatArray
    of_numbers: FloatArray
    of_terms: FloatArray
    total: FloatArray

    @classmethod
    def of(cls, question: QuestionTerms, among: Competitors) -> _Values:
        """Value the terms for each competitor: those of labels in full, those of beginnings in
        part, and numbers of ids under conditions.
        """
        count = len(among.docs)
        worth = nats(_holding(question, among), count)
        in_labels = among.title | (among.path & ~among.numbers)
        of_beginnings = np.where(among.beginning, _of_beginnings(worth, count), 0)
        of_words = np.maximum(np.where(in_labels, worth, 0), of_beginnings)
        of_numbers = _numbers_of_ids(question, among, of_words)
        of_terms = np.maximum(of_words, of_numbers)
        return cls(worth, of_numbers, of_terms, _total(question, among, of_terms))


def _named_rows(among: Competitors, total: FloatArray, within: IntArray | None) -> IntArray:
    """The rows of the documents that are named, ascending: those that come near the best one, if
    that one is named surely.
    """
    most = float(total.max())
    if most < SURE_SHARE * sure_nats(len(total)):
        return np.zeros(0, np.int64)
    best = np.lexsort((among.docs, -total))[:MAX_NAMED_DOCUMENTS]
    rows = np.sort(best[total[best] >= NAMED_SHARE * most])
    return rows if within is None else rows[find_in(within, among.docs[rows])[1]]


def _gains(
    question: QuestionTerms, among: Competitors, values: _Values
) -> tuple[FloatArray, FloatArray]:
    """What names add to the passages of each competitor, and to the competitor itself, `[D]`, in
    sure names.

    Passages gain by what a document's names are worth above half of a sure name, the less the more
    competitors have a single passage. A document gains by words of its id that are nowhere else in
    it, and by numbers of its id; a long one by its names.
    """
    sure = sure_nats(len(among.docs))
    long_share = float(np.mean(1 - 1 / np.maximum(among.passages, 1)))
    of_passages = long_share * np.maximum(values.total / sure - 0.5, 0)
    only_path = among.path & ~among.title & ~among.beginning & ~among.found
    outside = np.where(only_path & ~among.numbers, values.worth, values.of_numbers)
    short = np.minimum(1, SHORT_PASSAGES / np.maximum(among.passages, 1))
    of_documents = np.maximum(_total(question, among, outside) / sure, (1 - short) * of_passages)
    return of_passages, of_documents


def _numbers_of_ids(question: QuestionTerms, among: Competitors, values: FloatArray) -> FloatArray:
    """What numbers of ids and metadata are worth `[D, T]`, out of what words are worth `[D, T]`.

    A number counts if the words that a document is called by have half of what a sure name is
    worth. So the year in `3M_2018_10K` counts, that of a document which is only numbered `n2018`
    does not. A shorter number also needs a word of the document beside it: `AeroMix 300` names
    `aeromix-300.pdf`, and `chapter 7` does not name the document `7`.
    """
    numbers, count = among.numbers, len(among.docs)
    words = np.where(numbers, 0, values)
    is_named = _total(question, among, words) >= NAMED_SHARE * sure_nats(count)
    counts = among.path & is_named[:, None]
    for column in np.flatnonzero(numbers):
        if _NUMBER_PART.match(among.terms[column]) is None:
            beside = [term for term in _terms_beside(question, column) if not numbers[term]]
            counts[:, column] &= among.called[:, beside].any(axis=1)
    of_path = np.where(numbers, nats(among.path.sum(axis=0), count), 0)
    return np.where(counts, of_path, 0).astype(np.float32)


def _terms_beside(question: QuestionTerms, column: int) -> set[int]:
    """The terms of the tokens before and behind those that have a term."""
    beside = set[int]()
    for first, second in pairwise(question.tokens):
        if column in first.terms:
            beside.update(second.terms)
        if column in second.terms:
            beside.update(first.terms)
    return beside


def _holding(question: QuestionTerms, among: Competitors) -> IntArray:
    """How many competitors hold each term, `[T]`; joined words also count where they are apart."""
    holding = among.found | among.called
    for first, stop, term in among.joined:
        apart = np.ones(len(among.docs), np.bool_)
        for token in question.tokens[first:stop]:
            if token.terms:
                apart &= among.called[:, token.terms].any(axis=1)
        holding[:, term] |= apart
    return holding.sum(axis=0)


def _total(question: QuestionTerms, among: Competitors, values: FloatArray) -> FloatArray:
    """Add the values of terms `[D, T]` up, `[D]`: of each different token the best term's."""
    total = np.zeros(len(values), np.float32)
    of_tokens: dict[tuple[int, ...], FloatArray] = {}
    valued = {*np.flatnonzero(values.any(axis=0)).tolist()}
    for token in question.tokens:
        if not valued.isdisjoint(token.terms) and token.terms not in of_tokens:
            of_tokens[token.terms] = values[:, token.terms].max(axis=1)
            total += of_tokens[token.terms]
    return total + _total_of_joined(question, among, values, of_tokens)


def _total_of_joined(
    question: QuestionTerms,
    among: Competitors,
    values: FloatArray,
    of_tokens: Mapping[tuple[int, ...], FloatArray],
) -> FloatArray:
    """Add up what joined words are worth beyond their tokens and beyond longer joined words that
    share these, `[D]`.
    """
    total = np.zeros(len(values), np.float32)
    added: list[tuple[Joined, FloatArray]] = []
    for joined in sorted(among.joined, key=lambda each: each.first - each.stop):
        tokens = {each.terms for each in question.tokens[joined.first : joined.stop]}
        worth = values[:, joined.term]
        for terms in tokens & of_tokens.keys():
            worth = worth - of_tokens[terms]
        for longer, more in added:
            if longer.term == joined.term or longer.overlaps(joined):
                worth = worth - more
        added.append((joined, np.maximum(worth, 0)))
        total += added[-1][1]
    return total


def _names_at(
    question: QuestionTerms, among: Competitors, rows: IntArray, valued: BoolArray
) -> list[int]:
    """Which tokens are names of some competitors, by row.

    Names are the terms that call a document and are worth something, `valued` `[D, T]`, and the
    words around them that call it, too, with stop words between, up to the end of a clause.
    """
    tokens = question.tokens
    names_at = set[int]()
    for row in rows.tolist():
        calling = {*np.flatnonzero(among.called[row]).tolist()}
        names = {*np.flatnonzero(valued[row]).tolist()}
        calls = [not calling.isdisjoint(each.terms) for each in tokens]
        named = [not names.isdisjoint(each.terms) for each in tokens]
        for first, stop, term in among.joined:
            if term in calling:
                calls[first:stop] = [True] * (stop - first)
            if term in names:
                named[first:stop] = [True] * (stop - first)
        names_at.update(_runs(question.text, tokens, calls, named))
    return sorted(at for at in names_at if not tokens[at].kept)


def _rest(
    question: QuestionTerms, among: Competitors, rows: IntArray, names_at: Sequence[int]
) -> str:
    """The question without its names; "" if it has no word but these and the years of the paths
    that it names.
    """
    tokens, names = question.tokens, {*names_at}
    calling = {*np.flatnonzero(among.called[rows].any(axis=0)).tolist()}
    left = any(
        token.terms and at not in names and not (token.kept and not calling.isdisjoint(token.terms))
        for at, token in enumerate(tokens)
    )
    is_all_name = names and not left and WORD.search(question.text, tokens[-1].stop) is None
    return "" if is_all_name else _without(question, names_at)


def _without(question: QuestionTerms, names_at: Sequence[int]) -> str:
    """The question without some of its tokens, and without what stands between two of them."""
    tokens, text = question.tokens, question.text
    parts, end, last = list[str](), 0, -1
    for at in names_at:
        between = text[end : tokens[at].start]
        is_inside = 0 <= last == at - 1 and not _BREAK.search(between)
        parts.append("" if is_inside else between)
        possessive = _POSSESSIVE.match(text, tokens[at].stop)
        end = max(end, possessive.end() if possessive else tokens[at].stop)
        last = at
    return " ".join("".join([*parts, text[end:]]).split()) if parts else text


def _dropped(question: QuestionTerms, names_at: Sequence[int]) -> frozenset[str]:
    """The terms of some tokens that no other token has."""
    gone, tokens = {*names_at}, question.tokens
    left = {term for at, token in enumerate(tokens) if at not in gone for term in token.terms}
    dropped = {term for at in names_at for term in tokens[at].terms} - left
    return frozenset(question.terms[term] for term in dropped) - question.later


def _runs(
    text: str, tokens: Sequence[Token], calls: Sequence[bool], named: Sequence[bool]
) -> list[int]:
    """Which tokens are names: runs of tokens that call a document, with a name in them."""
    runs, run = list[list[int]](), list[int]()
    for at, token in enumerate(tokens):
        if at and _BREAK.search(text[tokens[at - 1].stop : token.start]):
            runs.append(run)
            run = []
        if calls[at] or not token.terms:
            run.append(at)
        else:
            runs.append(run)
            run = []
    found = list[int]()
    runs.append(run)
    for each in runs:
        calling = [at for at in each if calls[at]]
        if any(named[at] for at in calling):
            found += range(calling[0], calling[-1] + 1)
    return found


def score_within(
    named: NameMatch, ids: IntArray, whole: FloatArray, rest: FloatArray, tops: Mapping[int, Tops]
) -> FloatArray:
    """Score passages `[P]`, numbers ascending: S of docs/ranking.md.

    `whole` are their scores for the whole question, `rest` those for what remains of it (of
    passages of named documents, others are not read), `tops` the best of each named document.
    """
    docs = ids >> PASSAGE_BITS
    score = whole + named.passage_gains(docs)
    for doc, top in tops.items():
        rows = slice(*np.searchsorted(docs, [doc, doc + 1]))
        mixed = (1 - WHOLE_WEIGHT) * rest[rows] + WHOLE_WEIGHT * whole[rows]
        score[rows] += mixed - top.mixed + top.whole - whole[rows]
    return score


def score_beginnings(
    named: NameMatch, ids: IntArray, whole: FloatArray, tops: Mapping[int, Tops]
) -> FloatArray:
    """Score passages as `score_within` does, for a question that is all names: the first passage
    of a named document is its best.
    """
    docs = ids >> PASSAGE_BITS
    gains = named.passage_gains(docs)
    score = whole + gains
    for doc, top in tops.items():
        (row,), (there,) = find_in(ids, np.array([doc << PASSAGE_BITS]))
        if there:
            score[row] = np.float32(top.whole) + gains[row]
    return score


class Tops(NamedTuple):
    """The best scores that passages of a named document have: for the whole question, and mixed
    with the score for the rest of it.
    """

    whole: float
    mixed: float


def best_scores(
    docs: IntArray, ids: IntArray, whole: FloatArray, rest: FloatArray
) -> dict[int, Tops]:
    """Find the best scores of documents `[N]` with several passages among passages `[P]`."""
    found = dict[int, Tops]()
    for doc in docs.tolist():
        rows = slice(*np.searchsorted(ids >> PASSAGE_BITS, [doc, doc + 1]))
        if len(whole[rows]):
            mixed = (1 - WHOLE_WEIGHT) * rest[rows] + WHOLE_WEIGHT * whole[rows]
            found[doc] = Tops(float(whole[rows].max()), float(mixed.max()))
    return found
