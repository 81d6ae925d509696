"""Texts split at their blanks: what stands between two blanks is a segment.

Nearly all that is made of a segment does not depend on its neighbors, and a batch of documents has
few different ones. So each is looked at once, and NumPy and Arrow put the texts together again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, count, pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aveyb_retrieval.indexes.types import IntArray

_BLANK = ord(" ")
_BLANKS = "\t\n\v\f\r "
_ONE_BLANK = bytes.maketrans(_BLANKS.encode(), b" " * len(_BLANKS))
Text: TypeAlias = "tuple[str, str, IntArray, Sequence[str]]"
"""A title, a text, the characters `[start, stop)` of its passages `[n, 2]`, and what stands over
each.
"""


@dataclass(frozen=True)
class Segments:
    """The segments of pieces of text, which follow each other in `data`, in UTF-8.

    Attributes:
        different: Each different segment, `[s]`.
        numbers: Which of these stands at each place, in order, `[m]`.
        starts: Where each place begins in `data`, `[m]`.
        firsts: How many places are before each piece, and how many in all, `[p + 1]`.
    """

    data: bytes
    different: list[str]
    numbers: IntArray
    starts: IntArray
    firsts: IntArray

    @classmethod
    def of(cls, pieces: Iterable[str]) -> Segments:
        """Split pieces, which begin and end beside blanks."""
        encoded = [piece.encode() for piece in pieces]
        data = b"".join(encoded)
        split, numbers, starts = split_at_blanks(data.translate(_ONE_BLANK))
        sizes = np.array([0, *map(len, encoded)], np.int64)
        firsts = np.searchsorted(starts, np.cumsum(sizes))
        return cls(data, split, numbers, starts, firsts)

    def source(self, first: int, last: int) -> str:
        """The text of places `[first, last)`, with the blanks behind it."""
        stop = self.starts[last] if last < len(self.starts) else len(self.data)
        return self.data[self.starts[first] : stop].decode()


@dataclass(frozen=True)
class Layout:
    """Some texts as pieces for `Segments.of`, and which pieces belong to what.

    Attributes:
        pieces: Titles, parts of texts, headings, with blanks between.
        texts: The pieces of each text with its title, `[n, 2]`.
        bodies: The pieces of each text, `[n, 2]`.
        headings: The piece of each passage's heading, `[p, 2]`.
        passages: The pieces of each passage, `[p, 2]`.
    """

    pieces: list[str]
    texts: IntArray
    bodies: IntArray
    headings: IntArray
    passages: IntArray

    @classmethod
    def of(cls, texts: Iterable[Text]) -> Layout:
        """Cut texts where passages begin and end.

        Passages are ranges of their text's pieces, unless one begins or ends within a segment.
        """
        pieces = list[str]()
        titled, bodies, headed, passages = (list[tuple[int, int]]() for _ in range(4))
        for title, text, spans, headings in texts:
            pieces += (" ", title, " ")
            first = len(pieces)
            parts, last, ranges_of_passages = _cut(text, spans.tolist(), first)
            pieces += parts
            titled.append((first - 2, last))
            bodies.append((first, last))
            passages += ranges_of_passages
            for heading in headings:
                pieces += (" ", heading)
                headed.append((len(pieces) - 1, len(pieces)))
        ranges = (
            np.array(pairs, np.int64).reshape(-1, 2) for pairs in (titled, bodies, headed, passages)
        )
        return cls(pieces, *ranges)


def _cut(
    text: str, passages: Sequence[Sequence[int]], first: int
) -> tuple[list[str], int, list[tuple[int, int]]]:
    """The pieces of a text, which are numbered from `first`, the number behind its own, and the
    pieces of its passages.
    """
    if passages == [[0, len(text)]]:  # as of most short texts
        return [text], first + 1, [(first, first + 1)]
    cuts = sorted({0, len(text), *chain.from_iterable(passages)})
    if all(text[cut - 1] in _BLANKS or text[cut] in _BLANKS for cut in cuts[1:-1]):
        number = dict(zip(cuts, count(first), strict=False))
        parts = [text[start:stop] for start, stop in pairwise(cuts)]
        return (
            parts,
            first + len(parts),
            [(number[start], number[stop]) for start, stop in passages],
        )
    parts, places = [text], list[tuple[int, int]]()
    for start, stop in passages:
        parts += (" ", text[start:stop])
        places.append((first + len(parts) - 1, first + len(parts)))
    return parts, first + 1, places


def split_at_blanks(data: bytes) -> tuple[list[str], IntArray, IntArray]:
    """Split a text in UTF-8 whose only blanks are spaces.

    Returns what different words it has, which of these each word is `[m]`, and where each begins
    `[m]`.
    """
    blank = np.frombuffer(b" " + data + b" ", np.uint8) == _BLANK
    starts = np.flatnonzero(blank[:-1] > blank[1:])
    edges = pa.py_buffer(np.append(starts, len(data)))
    encoded = pa.LargeStringArray.from_buffers(
        len(starts), edges, pa.py_buffer(data)
    ).dictionary_encode()
    # each had the blanks behind it
    words = pc.ascii_rtrim_whitespace(encoded.dictionary).dictionary_encode()
    numbers = words.indices.to_numpy()[encoded.indices.to_numpy()]
    return words.dictionary.to_pylist(), numbers, starts
