"""Texts split at their blanks: what stands between two blanks is a segment.

Nearly all that is made of a segment does not depend on its neighbors, and a batch of documents has
few different ones. So each is looked at once, and NumPy and Arrow put the texts together again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from aveyb_retrieval.indexes.store.called import NamingTexts
    from aveyb_retrieval.indexes.types import IntArray

_BLANK = ord(" ")
_BLANKS = "\t\n\v\f\r "
_ONE_BLANK = bytes.maketrans(_BLANKS.encode(), b" " * len(_BLANKS))
Text: TypeAlias = "tuple[str, str, IntArray, Sequence[str], NamingTexts]"
"""A title, a text, the characters `[start, stop)` of its passages `[n, 2]`, what stands over each,
and the texts whose words call the document.
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
    different: pa.LargeStringArray
    numbers: IntArray
    starts: IntArray
    firsts: IntArray

    @classmethod
    def of(cls, pieces: Iterable[str]) -> Segments:
        """Split pieces, which begin and end beside blanks."""
        offsets, encoded = offsets_and_bytes(text_array(pieces))
        data = encoded.tobytes()
        spaced = np.frombuffer(data.translate(_ONE_BLANK), np.uint8)
        different, numbers, starts = split_at_blanks(spaced)
        return cls(data, different, numbers, starts, np.searchsorted(starts, offsets))

    def before(self, place: int) -> Segments:
        """Leave out what stands at a place and behind it."""
        # they are numbered as they come first
        count = int(self.numbers[:place].max(initial=-1)) + 1
        data = self.data[: self.starts[place]] if place < len(self.starts) else self.data
        numbers, starts = self.numbers[:place], self.starts[:place]
        return Segments(data, self.different.slice(0, count), numbers, starts, self.firsts)

    def source(self, first: int, last: int) -> str:
        """The text of places `[first, last)`, with the blanks behind it."""
        stop = self.starts[last] if last < len(self.starts) else len(self.data)
        return self.data[self.starts[first] : stop].decode()


@dataclass(frozen=True)
class Layout:
    """Some texts as pieces for `Segments.of`, and which pieces belong to what.

    Attributes:
        pieces: Titles, parts of texts, headings, then what documents are called by, with blanks
            between.
        texts: The pieces of each text with its title, `[n, 2]`.
        bodies: The pieces of each text, `[n, 2]`.
        headings: The piece of each passage's heading, `[p, 2]`.
        passages: The pieces of each passage, `[p, 2]`.
        paths, names, beginnings: The piece, or pieces, of each text of `NamingTexts`, `[n, 2]`.
    """

    pieces: list[str]
    texts: IntArray
    bodies: IntArray
    headings: IntArray
    passages: IntArray
    paths: IntArray
    names: IntArray
    beginnings: IntArray

    @classmethod
    def of(cls, texts: Iterable[Text]) -> Layout:
        """Cut texts where passages begin and end.

        Passages are ranges of their text's pieces, unless one begins or ends within a segment.
        Nearly all titles, and the beginnings of short texts, have their pieces already.
        """
        texts, pieces = [*texts], list[str]()
        # pairs of numbers one after the other: a tuple for each pair would keep the collection of
        # garbage busy
        titled, bodies, headed, passages, paths, names, beginnings = (list[int]() for _ in range(7))
        for title, text, spans, headings, _ in texts:
            pieces += (" ", title, " ")
            first = len(pieces)
            parts, last, ranges_of_passages = _cut(text, spans.ravel().tolist(), first)
            pieces += parts
            titled += (first - 2, last)
            bodies += (first, last)
            passages += ranges_of_passages
            for heading in headings:
                headed += _add(pieces, heading)
        places = zip(titled[::2], bodies[::2], bodies[1::2], strict=True)
        for (title, text, _, _, (path, name, beginning)), (at_title, first, last) in zip(
            texts, places, strict=True
        ):
            paths += _add(pieces, path)
            names += (at_title, at_title + 1) if name == title else _add(pieces, name)
            beginnings += (first, last) if beginning == text else _add(pieces, beginning)
        every = (titled, bodies, headed, passages, paths, names, beginnings)
        return cls(pieces, *(np.array(pairs, np.int64).reshape(-1, 2) for pairs in every))


def _add(pieces: list[str], piece: str) -> tuple[int, int]:
    """Add a piece behind a blank, and return which it is."""
    pieces += (" ", piece)
    return len(pieces) - 1, len(pieces)


def _cut(text: str, edges: Sequence[int], first: int) -> tuple[list[str], int, list[int]]:
    """The pieces of a text, which are numbered from `first`, the number behind its own, and the
    pieces of its passages, first and behind the last, one after the other, as are their `edges`.
    """
    if edges == [0, len(text)]:  # as of most short texts
        return [text], first + 1, [first, first + 1]
    cuts = sorted({0, len(text), *edges})
    if all(text[cut - 1] in _BLANKS or text[cut] in _BLANKS for cut in cuts[1:-1]):
        number = dict(zip(cuts, count(first), strict=False))
        parts = [text[start:stop] for start, stop in pairwise(cuts)]
        return parts, first + len(parts), [number[edge] for edge in edges]
    parts, places = [text], list[int]()
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        parts += (" ", text[start:stop])
        places += (first + len(parts) - 1, first + len(parts))
    return parts, first + 1, places


def text_array(texts: Iterable[str]) -> pa.LargeStringArray:
    """A column of texts `[n]`."""
    return pa.array([*texts], pa.large_string())


def after_blanks(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    """Texts `[n]`, each behind a blank."""
    nothing, blank = text_array(["", " "])
    return pc.binary_join_element_wise(nothing, texts, blank)


def offsets_and_bytes(texts: pa.LargeStringArray) -> tuple[IntArray, npt.NDArray[np.uint8]]:
    """Where each of some texts begins in the bytes of all, and where the last one ends, `[n + 1]`;
    and these bytes, in UTF-8.
    """
    _, offsets, data = texts.buffers()
    places = np.frombuffer(offsets, np.int64)[texts.offset :][: len(texts) + 1]
    return places, np.frombuffer(data or b"", np.uint8)


def split_at_blanks(
    data: npt.NDArray[np.uint8],
) -> tuple[pa.LargeStringArray, IntArray, IntArray]:
    """Split a text in UTF-8 whose only blanks are spaces.

    Returns what different words it has, which of these each word is `[m]`, and where each begins
    `[m]`.
    """
    is_blank = np.ones(len(data) + 1, np.bool_)  # also before the first one
    np.equal(data, _BLANK, out=is_blank[1:])
    starts = np.flatnonzero(is_blank[:-1] > is_blank[1:])
    edges = pa.py_buffer(np.append(starts, len(data)))
    encoded = pa.LargeStringArray.from_buffers(
        len(starts), edges, pa.py_buffer(data)
    ).dictionary_encode()
    # each had the blanks behind it
    words = pc.ascii_rtrim_whitespace(encoded.dictionary).dictionary_encode()
    numbers = words.indices.to_numpy()[encoded.indices.to_numpy()]
    return words.dictionary, numbers, starts
