"""The words of many documents at once, in columns: to the letter what `Language.split` makes of
each text by itself.

Texts are laid side by side and split at their blanks by NumPy, each different run of letters is
looked up once, and Arrow puts the columns together: Python's work grows with the different words of
a batch, not with all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aveyb_retrieval.indexes.store.words import runs_of, spaced
from aveyb_retrieval.indexes.types import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import BoolArray, IntArray

_BLANKS = bytes(code if code >= 128 or chr(code).isalnum() else ord(" ") for code in range(256))
LONG_TEXT_CHARACTERS = 1 << 22  # characters
_LOW_BITS = (1 << 32) - 1
_WORDS_AT_ONCE = 1 << 14  # different words of rows: so many are told apart in a processor's cache
Text: TypeAlias = "tuple[str, str, IntArray, Sequence[str]]"
"""A title, a text, the characters `[start, stop)` of its passages `[n, 2]`, and what stands over
each.
"""


def word_columns(rules: Language, texts: Iterable[Text]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the words of documents, of all their passages, and those of documents as they are
    written.

    A long text is read part by part, as this takes some twenty times the memory of a text.
    """
    columns = []
    for is_long, group in groupby(texts, key=lambda text: len(text[1]) >= LONG_TEXT_CHARACTERS):
        if is_long:
            columns += [_columns_of_long(rules, text) for text in group]
        else:
            short_columns = _Columns.of(rules, group)
            columns.append(
                (short_columns.of_texts, short_columns.of_passages, short_columns.written)
            )
    of_texts, of_passages, forms = (pa.concat_arrays(parts) for parts in zip(*columns, strict=True))
    return of_texts, of_passages, forms


def _columns_of_long(rules: Language, text: Text) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The same of one long text."""
    in_order, second_words, written, of_passages = list[str](), list[str](), dict[str, None](), []
    for part in _parts(text):
        columns = _Columns.of(rules, [part])
        of_passages.append(columns.of_passages)
        for column, words in zip(columns.of_texts_apart, (in_order, second_words), strict=True):
            words.append(column[0].as_py().strip())
        written |= dict.fromkeys(columns.written[0].as_py().split())
    of_text = _spaced(filter(None, [*in_order, *second_words]))
    return of_text, pa.concat_arrays(of_passages), _spaced(written)


def _spaced(words: Iterable[str]) -> pa.Array:
    """A column of one text, with a blank before and after each word; "" without words."""
    return pa.array([spaced(" ".join(words))], pa.large_string())


def _parts(text: Text) -> Iterator[Text]:
    """Parts of a text that begin where passages do, of `LONG_TEXT_CHARACTERS` or a little more."""
    title, whole, spans, headings = text
    stops = np.maximum.accumulate(np.append(0, spans[:, 1]))[:-1]  # of all passages before each
    starts = np.minimum.accumulate(spans[::-1, 0])[::-1]  # of each, or of one behind it
    is_apart = (starts == spans[:, 0]) & (starts >= stops) & (starts > 0)
    begin = first = 0
    for row in np.flatnonzero(is_apart).tolist():
        start = int(starts[row])
        if start - begin >= LONG_TEXT_CHARACTERS and whole[start - 1].isspace():
            yield title, whole[begin:start], spans[first:row] - begin, headings[first:row]
            title, begin, first = "", start, row
    yield title, whole[begin:], spans[first:] - begin, headings[first:]


@dataclass(frozen=True)
class _Columns:
    """The runs of letters of some texts, and the words that each run stands for.

    Attributes:
        words: All words, " " last; those of the first half are in the order of a text.
        forms: Of each run, how its words are written.
        has_second_words: Of each run, whether it is found by another word, which is in the second
            half.
        texts, passages: The runs of each `[m]`, and how many there are in each.
    """

    words: pa.Array
    forms: Sequence[str]
    has_second_words: BoolArray
    texts: tuple[IntArray, IntArray]
    passages: tuple[IntArray, IntArray]

    @property
    def of_texts(self) -> pa.Array:
        return _stored(self.words, self.has_second_words, *self.texts)

    @property
    def of_texts_apart(self) -> tuple[pa.Array, pa.Array]:
        """The words in order, and those that stand behind them."""
        numbers, counts = self.texts
        rows, second_words = _second(self.has_second_words, numbers, counts)
        in_order = _column(self.words, numbers, counts)
        second_counts = np.bincount(rows, minlength=len(counts))
        return in_order, _column(self.words, second_words, second_counts)

    @property
    def of_passages(self) -> pa.Array:
        return _stored(self.words, self.has_second_words, *self.passages)

    @property
    def written(self) -> pa.Array:
        return _written(self.forms, *self.texts)

    @classmethod
    def of(cls, rules: Language, texts: Iterable[Text]) -> _Columns:
        """Find the words of texts. No character is looked at twice where spans begin and end beside
        blanks.
        """
        pieces, of_texts, of_passages = (
            list[str](),
            list[tuple[int, int]](),
            list[tuple[int, int]](),
        )
        for title, text, spans, headings in texts:
            cuts, first = sorted({0, len(text), *spans.reshape(-1).tolist()}), len(pieces) + 1
            if all(text[cut - 1].isspace() or text[cut].isspace() for cut in cuts[1:-1]):
                parts = [text[slice(*piece)] for piece in pairwise(cuts)]
                number = {cut: place for place, cut in enumerate(cuts, start=first)}
                last, bodies = (
                    first + len(parts),
                    [(number[start], number[stop]) for start, stop in spans.tolist()],
                )
            else:
                parts = [text, *(text[slice(*span)] for span in spans.tolist())]
                last, bodies = (
                    first + 1,
                    [(place, place + 1) for place in range(first + 1, first + len(parts))],
                )
            of_texts.append((first - 1, last))
            for place, (_, body) in enumerate(
                zip(headings, bodies, strict=True), start=first + len(parts)
            ):
                of_passages += [(place, place + 1), body]
            pieces += [title, *parts, *headings]
        different, numbers, firsts = _runs(pieces)

        def rows(
            pieces: Sequence[tuple[int, int]], ranges_per_row: int
        ) -> tuple[IntArray, IntArray]:
            """The runs of rows, each of so many ranges of pieces: their numbers `[m]`, and how many
            there are in each.
            """
            bounds = firsts[np.array(pieces, np.int64).reshape(-1, 2)]
            counts = bounds[:, 1] - bounds[:, 0]
            return numbers[ranges(bounds[:, 0], counts)], counts.reshape(-1, ranges_per_row).sum(
                axis=1
            )

        run_lines = "\n".join(map(rules.split_runs.__getitem__, different)).split("\n")
        in_order, more = run_lines[0::3], run_lines[1::3]
        words = pa.array([*(f" {line}" for line in chain(in_order, more)), " "], pa.large_string())
        has_second_words = np.array([bool(line) for line in more], np.bool_)
        return cls(
            words, run_lines[2::3], has_second_words, rows(of_texts, 1), rows(of_passages, 2)
        )


def _runs(pieces: Iterable[str]) -> tuple[list[str], IntArray, IntArray]:
    """The runs of letters of some pieces: the different ones, which of them each is `[m]`, and each
    piece's first.
    """
    parts = [(piece if piece.isascii() else " ".join(runs_of(piece))).encode() for piece in pieces]
    data = b" ".join([b"", *parts, b""]).translate(_BLANKS)
    blank = np.frombuffer(data, np.uint8) == ord(" ")
    starts = np.flatnonzero(blank[:-1] > blank[1:]) + 1
    edges = pa.py_buffer(np.append(starts, len(data)))
    encoded = pa.LargeStringArray.from_buffers(
        len(starts), edges, pa.py_buffer(data)
    ).dictionary_encode()
    # each had the blanks behind it
    runs = pc.ascii_rtrim_whitespace(encoded.dictionary).dictionary_encode()
    firsts = np.searchsorted(starts, np.cumsum([1, *(len(part) + 1 for part in parts)]))
    return runs.dictionary.to_pylist(), runs.indices.to_numpy()[encoded.indices.to_numpy()], firsts


def _stored(
    words: pa.Array, has_second_words: BoolArray, numbers: IntArray, counts: IntArray
) -> pa.Array:
    """The words of rows of runs, then the second words that these are found by, which lie behind
    all words.
    """
    rows, second_words = _second(has_second_words, numbers, counts)
    numbers = np.insert(numbers, np.cumsum(counts)[rows], second_words)
    return _column(words, numbers, counts + np.bincount(rows, minlength=len(counts)))


def _second(
    has_second_words: BoolArray, numbers: IntArray, counts: IntArray
) -> tuple[IntArray, IntArray]:
    """The second words of rows of runs: the row of each `[k]`, ascending, and its number `[k]`."""
    places = np.flatnonzero(has_second_words[numbers])
    rows = np.repeat(np.arange(len(counts)), counts)[places]
    return rows, numbers[places] + len(has_second_words)


def _written(forms: Sequence[str], numbers: IntArray, counts: IntArray) -> pa.Array:
    """The different forms of rows of runs, in the order in which they come first."""
    flat = pa.array(["", *" ".join(forms).split(" ")], pa.large_string()).dictionary_encode()
    form, of_runs = (
        flat.indices.to_numpy()[1:],
        np.array([form.count(" ") + 1 for form in forms], np.int64),
    )
    first, rows = np.cumsum(of_runs) - of_runs, np.repeat(np.arange(len(counts)), counts) << 32
    several = np.flatnonzero((of_runs > 1)[numbers])  # few
    more = of_runs[numbers[several]] - 1
    others = np.repeat(rows[several], more) | form[ranges(first[numbers[several]] + 1, more)]
    every = np.insert(rows | form[first][numbers], np.repeat(several + 1, more), others)
    # where some rows begin: rows ascend
    edges = np.searchsorted(every, np.unique(every[::_WORDS_AT_ONCE] & ~_LOW_BITS))
    once = np.concatenate([pa.array(piece).unique().to_numpy() for piece in np.split(every, edges)])
    once = once[(once & _LOW_BITS) > 0]  # without ""
    words = pa.array(
        [*(f" {form}" for form in flat.dictionary.to_pylist()), " "], pa.large_string()
    )
    return _column(words, once & _LOW_BITS, np.bincount(once >> 32, minlength=len(counts)))


def _column(words: pa.Array, numbers: IntArray, counts: IntArray) -> pa.Array:
    """A text for each row `[n]`, of `counts` of some words by their numbers `[m]`, and the last of
    these words.
    """
    ends, has_words = np.cumsum(counts), counts > 0
    taken = words.take(pa.array(np.insert(numbers, ends[has_words], len(words) - 1)))
    edges = np.concatenate([[0], ends + np.cumsum(has_words)])
    _, places, data = taken.buffers()
    return pa.LargeStringArray.from_buffers(
        len(counts), pa.py_buffer(np.frombuffer(places, np.int64)[edges]), data
    )
