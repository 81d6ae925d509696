"""The words of many documents at once, in columns: to the letter what `Language.split` and
`copy_digest` make of each text by itself.

Texts are laid side by side and split at their blanks, each different run of letters is looked up
once, and Arrow puts the columns together: Python's work grows with the different words of a batch,
not with all of them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aveyb_retrieval.indexes.store.called import NO_NAMES, SEPARATOR
from aveyb_retrieval.indexes.store.copies import copy_digest, segment_copy_digests
from aveyb_retrieval.indexes.store.segments import (
    Layout,
    Segments,
    after_blanks,
    offsets_and_bytes,
    split_at_blanks,
    text_array,
)
from aveyb_retrieval.indexes.store.words import BLANKS, runs_of, spaced
from aveyb_retrieval.indexes.types import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aveyb_retrieval.indexes.store.segments import Text
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import BoolArray, IntArray

LONG_TEXT_CHARACTERS = 1 << 22  # characters
_LOW_BITS = (1 << 32) - 1
_WORDS_AT_ONCE = 1 << 14  # different words of rows: so many are told apart in a processor's cache


class TextColumns(NamedTuple):
    """What is stored of texts, `[n]`, and of their passages, `[p]`.

    Attributes:
        words: The words of texts.
        passage_words: The words of passages, with those of their headings.
        forms: The words of texts as they are written.
        copies: The digests of texts, see `copies`.
        passage_copies: The digests of passages.
        names: The different words that documents are called by without their texts.
        called: All words that they are called by, see `CalledBy`.
    """

    words: pa.Array
    passage_words: pa.Array
    forms: pa.Array
    copies: pa.Array
    passage_copies: pa.Array
    names: pa.Array
    called: pa.Array

    @classmethod
    def concatenated(cls, parts: Iterable[TextColumns]) -> TextColumns:
        """Put the columns of some texts behind those of others."""
        return cls(*map(pa.concat_arrays, zip(*parts, strict=True)))

    def take(self, texts: IntArray, passages: IntArray) -> TextColumns:
        """Put texts `[n]` and passages `[p]` into another order."""
        orders = (texts, passages, texts, texts, passages, texts, texts)
        return TextColumns(
            *(column.take(pa.array(order)) for column, order in zip(self, orders, strict=True))
        )


def text_columns(rules: Language, texts: Iterable[Text]) -> TextColumns:
    """Return what is stored of the words of texts.

    A long text is read part by part, as this takes some twenty times the memory of a text.
    """
    columns = []
    for is_long, group in groupby(texts, key=lambda text: len(text[1]) >= LONG_TEXT_CHARACTERS):
        if is_long:
            columns += [_columns_of_long(rules, text) for text in group]
        else:
            layout = Layout.of(group)
            segments = Segments.of(layout.pieces)
            with ThreadPoolExecutor(1) as beside:  # a quarter of the work
                digests = beside.submit(
                    segment_copy_digests, segments, layout.bodies, layout.passages
                )
                words = _Columns.of(rules, layout, segments)
                of_words = words.of_texts, words.of_passages, words.written
                calling = words.calling
                copies, passage_copies = map(pa.array, digests.result())
            columns.append(TextColumns(*of_words, copies, passage_copies, *calling))
    return TextColumns.concatenated(columns)


def different_words(rules: Language, texts: Iterable[str]) -> pa.Array:
    """Return the different words of each text, in the order in which they are stored."""
    segments = Segments.of(piece for text in texts for piece in (text, " "))
    different, numbers, firsts = _runs(segments)
    in_order, second_words, _ = _lines(rules, different)
    followed = _followed(_has_words(second_words), numbers, np.diff(firsts[::2]))
    return _written(pa.concat_arrays([in_order, second_words]), *followed)


def _columns_of_long(rules: Language, text: Text) -> TextColumns:
    """The same of one long text."""
    in_order, second_words, written = list[str](), list[str](), dict[str, None]()
    of_passages, passage_copies = list[pa.Array](), list[pa.Array]()
    layout = Layout.of([("", "", text[2][:0], [], text[4])])
    calling = _Columns.of(rules, layout, Segments.of(layout.pieces)).calling
    for part in _parts(text):
        layout = Layout.of([part])
        segments = Segments.of(layout.pieces)
        columns = _Columns.of(rules, layout, segments)
        of_passages.append(columns.of_passages)
        _, copies = segment_copy_digests(segments, layout.bodies[:0], layout.passages)
        passage_copies.append(pa.array(copies))
        for column, words in zip(columns.of_texts_apart, (in_order, second_words), strict=True):
            words.append(column[0].as_py().strip())
        written |= dict.fromkeys(columns.written[0].as_py().split())
    return TextColumns(
        _spaced(filter(None, [*in_order, *second_words])),
        pa.concat_arrays(of_passages),
        _spaced(written),
        pa.array([copy_digest(text[1])], pa.int64()),
        pa.concat_arrays(passage_copies),
        *calling,
    )


def _spaced(words: Iterable[str]) -> pa.Array:
    """A column of one text, with a blank before and after each word; "" without words."""
    return text_array([spaced(" ".join(words))])


def _parts(text: Text) -> Iterator[Text]:
    """Parts of a text that begin where passages do, of `LONG_TEXT_CHARACTERS` or a little more."""
    title, whole, spans, headings, _ = text
    stops = np.maximum.accumulate(np.append(0, spans[:, 1]))[:-1]  # of all passages before each
    starts = np.minimum.accumulate(spans[::-1, 0])[::-1]  # of each, or of one behind it
    is_apart = (starts == spans[:, 0]) & (starts >= stops) & (starts > 0)
    begin = first = 0
    for row in np.flatnonzero(is_apart).tolist():
        start = int(starts[row])
        if start - begin >= LONG_TEXT_CHARACTERS and whole[start - 1].isspace():
            yield title, whole[begin:start], spans[first:row] - begin, headings[first:row], NO_NAMES
            title, begin, first = "", start, row
    yield title, whole[begin:], spans[first:] - begin, headings[first:], NO_NAMES


@dataclass(frozen=True)
class _Columns:
    """The runs of letters of some texts, and the words that each run stands for.

    Attributes:
        words: All words, " " last; those of the first half are in the order of a text.
        lines: The same, without the blanks before them.
        forms: Of each run, how its words are written.
        has_second_words: Of each run, whether it is found by another word, which is in the second
            half.
        texts, passages: The runs of each `[m]`, and how many there are in each.
        names, paths, titles, beginnings: The same of what documents are called by.
    """

    words: pa.LargeStringArray
    lines: pa.LargeStringArray
    forms: pa.LargeStringArray
    has_second_words: BoolArray
    texts: tuple[IntArray, IntArray]
    passages: tuple[IntArray, IntArray]
    names: tuple[IntArray, IntArray]
    paths: tuple[IntArray, IntArray]
    titles: tuple[IntArray, IntArray]
    beginnings: tuple[IntArray, IntArray]

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

    @property
    def calling(self) -> tuple[pa.Array, pa.Array]:
        """The different words that documents are called by without their texts, and all of
        them.
        """
        parts = (self.paths, self.titles, self.beginnings, self.names)
        numbers, counts = map(np.concatenate, zip(*parts, strict=True))
        numbers, counts = _followed(self.has_second_words, numbers, counts)
        # few of the words of a batch call a document
        calling, numbers = np.unique(numbers, return_inverse=True)
        words = _written(self.lines.take(pa.array(calling)), numbers, counts)
        size = len(self.paths[1])
        *called, names = (words.slice(start, size) for start in range(0, len(words), size))
        separator = pa.scalar(SEPARATOR, pa.large_string())
        return names, pc.binary_join_element_wise(*called, separator)

    @classmethod
    def of(cls, rules: Language, layout: Layout, segments: Segments) -> _Columns:
        """Find the words of texts. No character is looked at twice where spans begin and end beside
        blanks.
        """
        different, numbers, firsts = _runs(segments)

        def rows(*pieces: IntArray) -> tuple[IntArray, IntArray]:
            """The runs of rows `[n]` of some ranges of pieces each: their numbers `[m]`, and how
            many there are in each.
            """
            bounds = firsts[np.stack(pieces, axis=1).reshape(-1, 2)]
            counts = bounds[:, 1] - bounds[:, 0]
            return (
                numbers[ranges(bounds[:, 0], counts)],
                counts.reshape(-1, len(pieces)).sum(axis=1),
            )

        in_order, second_words, forms = _lines(rules, different)
        lines = pa.concat_arrays([in_order, second_words])
        return cls(
            _column_words(lines),
            lines,
            forms,
            _has_words(second_words),
            rows(layout.texts),
            rows(layout.headings, layout.passages),
            rows(layout.paths, layout.names),
            rows(layout.paths),
            rows(layout.names),
            rows(layout.beginnings),
        )


def _runs(segments: Segments) -> tuple[pa.LargeStringArray, IntArray, IntArray]:
    """The runs of letters of some segments: the different ones, which of them each is `[m]`, and
    each piece's first.
    """
    is_other = pc.invert(pc.string_is_ascii(segments.different))
    others = segments.different.filter(is_other).to_pylist()
    of_others = text_array(" ".join(runs_of(segment)) for segment in others)
    parts = pc.replace_with_mask(segments.different, is_other, of_others)
    nothing, blank = text_array(["", " "])
    offsets, data = offsets_and_bytes(pc.binary_join_element_wise(parts, nothing, blank))
    letters = np.frombuffer(data.tobytes().translate(BLANKS), np.uint8)
    different, numbers, starts = split_at_blanks(letters)
    firsts = np.searchsorted(starts, offsets)
    of_segments = pa.LargeListArray.from_arrays(pa.array(firsts), pa.array(numbers))
    in_order = of_segments.take(pa.array(segments.numbers))
    places = in_order.offsets.to_numpy()[segments.firsts]
    return different, in_order.flatten().to_numpy(), places


def _lines(rules: Language, runs: pa.LargeStringArray) -> list[pa.LargeStringArray]:
    """The first lines of runs `[r]`, the second and the third ones, as `Language.split_runs` makes
    them.
    """
    made = "\n".join(map(rules.split_runs.__getitem__, runs.to_pylist()))
    lines = pc.split_pattern(text_array([made]), "\n").flatten()
    return [lines.take(pa.array(np.arange(line, 3 * len(runs), 3))) for line in range(3)]


def _has_words(lines: pa.LargeStringArray) -> BoolArray:
    """Which of some lines `[r]` are not empty."""
    has_words: BoolArray = pc.binary_length(lines).to_numpy() > 0
    return has_words


def _stored(
    words: pa.Array, has_second_words: BoolArray, numbers: IntArray, counts: IntArray
) -> pa.Array:
    """The words of rows of runs, then the second words that these are found by, which lie behind
    all words.
    """
    return _column(words, *_followed(has_second_words, numbers, counts))


def _followed(
    has_second_words: BoolArray, numbers: IntArray, counts: IntArray
) -> tuple[IntArray, IntArray]:
    """The runs of rows, followed by the numbers of their second words."""
    rows, second_words = _second(has_second_words, numbers, counts)
    numbers = np.insert(numbers, np.cumsum(counts)[rows], second_words)
    return numbers, counts + np.bincount(rows, minlength=len(counts))


def _second(
    has_second_words: BoolArray, numbers: IntArray, counts: IntArray
) -> tuple[IntArray, IntArray]:
    """The second words of rows of runs: the row of each `[k]`, ascending, and its number `[k]`."""
    places = np.flatnonzero(has_second_words[numbers])
    rows = np.searchsorted(np.cumsum(counts), places, side="right")
    return rows, numbers[places] + len(has_second_words)


def _written(forms: pa.LargeStringArray, numbers: IntArray, counts: IntArray) -> pa.Array:
    """The different forms of rows of runs, in the order in which they come first."""
    split = pc.split_pattern(forms, " ")
    flat = pa.concat_arrays([text_array([""]), split.flatten()]).dictionary_encode()
    form = flat.indices.to_numpy()[1:]
    of_runs = pc.list_value_length(split).to_numpy().astype(np.int64)
    first, rows = np.cumsum(of_runs) - of_runs, np.repeat(np.arange(len(counts)), counts) << 32
    several = np.flatnonzero((of_runs > 1)[numbers])  # few
    more = of_runs[numbers[several]] - 1
    others = np.repeat(rows[several], more) | form[ranges(first[numbers[several]] + 1, more)]
    every = np.insert(rows | form[first][numbers], np.repeat(several + 1, more), others)
    # where some rows begin: rows ascend
    edges = np.searchsorted(every, np.unique(every[::_WORDS_AT_ONCE] & ~_LOW_BITS))
    once = np.concatenate([pa.array(piece).unique().to_numpy() for piece in np.split(every, edges)])
    once = once[(once & _LOW_BITS) > 0]  # without ""
    words = _column_words(flat.dictionary)
    return _column(words, once & _LOW_BITS, np.bincount(once >> 32, minlength=len(counts)))


def _column_words(words: pa.Array) -> pa.Array:
    """Words as `_column` takes them: each behind a blank, and a blank alone behind all of them."""
    return pa.concat_arrays([after_blanks(words), text_array([" "])])


def _column(words: pa.Array, numbers: IntArray, counts: IntArray) -> pa.Array:
    """A text for each row `[n]`, of `counts` of some words by their numbers `[m]`, and the last of
    these words.
    """
    ends, has_words = np.cumsum(counts), counts > 0
    taken = words.take(pa.array(np.insert(numbers, ends[has_words], len(words) - 1)))
    edges = np.concatenate([[0], ends + np.cumsum(has_words)])
    places, data = offsets_and_bytes(taken)
    return pa.LargeStringArray.from_buffers(
        len(counts), pa.py_buffer(places[edges]), pa.py_buffer(data)
    )
