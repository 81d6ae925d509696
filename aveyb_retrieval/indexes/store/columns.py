"""The words of many documents at once, in columns: to the letter what `Language.split` makes of
each text by itself.

Texts are laid side by side and split at their blanks by NumPy, each different run of letters is
looked up once, and Arrow puts the columns together: Python's work grows with the different words of
a batch, not with all of them.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aveyb_retrieval.indexes.store.words import runs_of
from aveyb_retrieval.indexes.types import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import IntArray

_BLANKS = bytes(code if code >= 128 or chr(code).isalnum() else ord(" ") for code in range(256))
_LOW = (1 << 32) - 1
_AT_ONCE = 1 << 14  # different words of rows: so many are told apart in a processor's cache
Text: TypeAlias = "tuple[str, str, IntArray, Sequence[str]]"
"""A title, a text, the characters `[start, stop)` of its passages `[n, 2]`, and what stands over
each.
"""


def word_columns(rules: Language, texts: Iterable[Text]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the words of documents, of all their passages, and those of documents as they are
    written.

    No character is looked at twice where spans begin and end beside blanks.
    """
    pieces, of_texts, of_passages = list[str](), list[tuple[int, int]](), list[tuple[int, int]]()
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

    def rows(pieces: Sequence[tuple[int, int]], each: int) -> tuple[IntArray, IntArray]:
        """The runs of rows, each of so many ranges of pieces: their numbers `[m]`, and how many
        there are in each.
        """
        bounds = firsts[np.array(pieces, np.int64).reshape(-1, 2)]
        counts = bounds[:, 1] - bounds[:, 0]
        return numbers[ranges(bounds[:, 0], counts)], counts.reshape(-1, each).sum(axis=1)

    kept, whole = "\n".join(map(rules.kept.__getitem__, different)).split("\n"), rows(of_texts, 1)
    in_order, more = kept[0::3], kept[1::3]
    words = pa.array([*(f" {each}" for each in chain(in_order, more)), " "], pa.large_string())
    beside = np.array([bool(each) for each in more], np.bool_)
    passages = _stored(words, beside, *rows(of_passages, 2))
    return _stored(words, beside, *whole), passages, _written(kept[2::3], *whole)


def _runs(pieces: Iterable[str]) -> tuple[list[str], IntArray, IntArray]:
    """The runs of letters of some pieces: the different ones, which of them each is `[m]`, and each
    piece's first.
    """
    parts = [(piece if piece.isascii() else " ".join(runs_of(piece))).encode() for piece in pieces]
    data = b" ".join([b"", *parts, b""]).translate(_BLANKS)
    blank = np.frombuffer(data, np.uint8) == ord(" ")
    starts = np.flatnonzero(blank[:-1] > blank[1:]) + 1
    edges = pa.py_buffer(np.append(starts, len(data)))
    found = pa.LargeStringArray.from_buffers(
        len(starts), edges, pa.py_buffer(data)
    ).dictionary_encode()
    # each had the blanks behind it
    runs = pc.ascii_rtrim_whitespace(found.dictionary).dictionary_encode()
    firsts = np.searchsorted(starts, np.cumsum([1, *(len(part) + 1 for part in parts)]))
    return runs.dictionary.to_pylist(), runs.indices.to_numpy()[found.indices.to_numpy()], firsts


def _stored(words: pa.Array, beside: np.ndarray, numbers: IntArray, counts: IntArray) -> pa.Array:
    """The words of rows of runs, then what these are found by `beside`, which stands behind all
    words.
    """
    more = np.flatnonzero(beside[numbers])
    rows = np.repeat(np.arange(len(counts)), counts)[more]
    numbers = np.insert(numbers, np.cumsum(counts)[rows], numbers[more] + len(beside))
    return _column(words, numbers, counts + np.bincount(rows, minlength=len(counts)))


def _written(forms: Sequence[str], numbers: IntArray, counts: IntArray) -> pa.Array:
    """The different forms of rows of runs, in the order in which they come first."""
    flat = pa.array(["", *" ".join(forms).split(" ")], pa.large_string()).dictionary_encode()
    form, of_runs = (
        flat.indices.to_numpy()[1:],
        np.array([each.count(" ") + 1 for each in forms], np.int64),
    )
    first, rows = np.cumsum(of_runs) - of_runs, np.repeat(np.arange(len(counts)), counts) << 32
    several = np.flatnonzero((of_runs > 1)[numbers])  # few
    more = of_runs[numbers[several]] - 1
    others = np.repeat(rows[several], more) | form[ranges(first[numbers[several]] + 1, more)]
    every = np.insert(rows | form[first][numbers], np.repeat(several + 1, more), others)
    # where some rows begin: rows ascend
    edges = np.searchsorted(every, np.unique(every[::_AT_ONCE] & ~_LOW))
    once = np.concatenate([pa.array(some).unique().to_numpy() for some in np.split(every, edges)])
    once = once[(once & _LOW) > 0]  # without ""
    words = pa.array(
        [*(f" {each}" for each in flat.dictionary.to_pylist()), " "], pa.large_string()
    )
    return _column(words, once & _LOW, np.bincount(once >> 32, minlength=len(counts)))


def _column(words: pa.Array, numbers: IntArray, counts: IntArray) -> pa.Array:
    """A text for each row `[n]`, of `counts` of some words by their numbers `[m]`, and the last of
    these words.
    """
    ends, some = np.cumsum(counts), counts > 0
    found = words.take(pa.array(np.insert(numbers, ends[some], len(words) - 1)))
    edges = np.concatenate([[0], ends + np.cumsum(some)])
    _, places, data = found.buffers()
    return pa.LargeStringArray.from_buffers(
        len(counts), pa.py_buffer(np.frombuffer(places, np.int64)[edges]), data
    )
