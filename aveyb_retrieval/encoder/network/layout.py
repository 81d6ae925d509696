"""How documents of known lengths are cut into splits, in NumPy: where each token lies and which
splits go together.

Only the last split of a document can be short; splits are grouped by length, so that a ten-token
query costs about ten tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Upper bounds of the classes of short splits; a group is padded to its longest member.
_GROUP_WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192)
# The sizes of a sequence of launches that a GPU repeats (`cuda_graphs.py`): so many splits of S
# tokens. On an H100 launches alone take as long as the arithmetic of six more splits (0.16 ms each;
# an estimate from 2 to 64 splits).
REPLAY_SIZES = (1, 4, 16, 64, 256)
_REPLAY_COST_SPLITS = 6
_MIN_REPLAY_SPLITS = 16


def group_widths(size: int) -> list[int]:
    """Return the widest split of each class of short splits, ascending; full ones are a class of
    their own.
    """
    return [w for w in _GROUP_WIDTHS if w < size - 1] + [size - 1]


@dataclass(frozen=True)
class SplitLayout:
    """How documents of known lengths are cut into splits: NumPy arrays on the host.

    Documents stand one after another, splits in reading order. A slot is a place for a token: split
    i owns the slots `i * S` to `(i + 1) * S`, of which the first `lengths[i]` are taken.

    Attributes:
        counts: int64 `[B]`, tokens of each document; a document without tokens has no split.
        size: S.
        lengths: int64 `[n]`, tokens of each split, 1 to S; S for every split but a document's last.
        first: int64 `[n]`, index of the first split of the same document.
    """

    counts: np.ndarray
    size: int
    lengths: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, counts: Sequence[int] | np.ndarray, size: int) -> SplitLayout:
        """Cut documents of `counts` tokens into splits of `size`."""
        counts = np.asarray(counts, dtype=np.int64)
        splits_of = -(-counts // size)
        first = np.repeat(splits_of.cumsum() - splits_of, splits_of)
        position = np.arange(len(first)) - first
        return cls(
            counts, size, np.minimum(np.repeat(counts, splits_of) - position * size, size), first
        )

    @cached_property
    def earlier(self) -> np.ndarray:
        """How many earlier splits of the same document each split has, int64 `[n]`."""
        return np.arange(len(self.first)) - self.first

    @cached_property
    def starts(self) -> list[int]:
        """The first split of each document that has one, and n at the end."""
        return [*np.flatnonzero(self.earlier == 0).tolist(), len(self.first)]

    def documents(self) -> Iterator[slice]:
        """Yield the splits of each document that has at least one token, in order."""
        for start, stop in pairwise(self.starts):
            yield slice(start, stop)

    def taken(self) -> Iterator[slice]:
        """Yield the slots that each document's tokens take, in order; an empty slice for a document
        without tokens.
        """
        first = 0
        for count in self.counts.tolist():
            yield slice(first, first + count)
            first += -(-count // self.size) * self.size

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Put one value for each token, int `[T]`, into its slot: int64 `[n S]`, 0 where there is
        none.
        """
        slots = np.zeros(len(self.lengths) * self.size, dtype=np.int64)
        start = 0
        for place in self.taken():
            stop = start + place.stop - place.start
            slots[place] = values[start:stop]
            start = stop
        return slots

    def groups(self, *, full_width: bool, max_tokens: int) -> Iterator[tuple[np.ndarray, int]]:
        """Yield (int64 `[m]` splits, padded width) so that every split is in exactly one group.

        Full splits are grouped together, short ones with others of
        similar length, or all padded to S. Groups of more than `max_tokens` are cut into several.
        """
        # S falls beyond the last class: a group of its own.
        classes = (
            np.zeros_like(self.lengths)
            if full_width
            else np.searchsorted(group_widths(self.size), self.lengths)
        )
        for group in np.unique(classes):
            rows = np.flatnonzero(classes == group)
            width = self.size if full_width else int(self.lengths[rows].max())
            most = max(1, max_tokens // width)
            for start in range(0, len(rows), most):
                yield rows[start : start + most], width

    def replays(self, *, full_width: bool) -> Iterator[tuple[np.ndarray, int, int]]:
        """Yield (int64 `[m]` splits, padded width, n) so that every split is in exactly one group
        of n places.

        n times the width is one of `REPLAY_SIZES` times S, or less where n is the largest of them.
        The longest splits come first, so that short ones fill the places that they leave. Arguments
        are those of `groups`.
        """
        rows = np.arange(len(self.lengths))
        widths = replay_widths(self.size)
        width_of = np.full(len(rows), self.size)
        if not full_width:
            width_of = np.asarray(widths)[np.searchsorted(widths, self.lengths[rows])]
            order = np.argsort(-self.lengths[rows], kind="stable")
            rows, width_of = rows[order], width_of[order]
        start = 0
        while start < len(rows):
            width = int(width_of[start])
            of_this_width = int((width_of[start:] == width).sum())
            n = replay_places(of_this_width, width, self.size)
            yield np.sort(rows[start : start + n]), width, n
            start += n


def replay_widths(size: int) -> list[int]:
    """Return the widths that splits are padded to in replays, ascending: powers of two below S, and
    S.
    """
    return [1 << i for i in range(_MIN_REPLAY_SPLITS.bit_length() - 1, (size - 1).bit_length())] + [
        size
    ]


def replay_places(count: int, width: int, size: int) -> int:
    """Return for how many splits to make the next replay: the size that costs least for each of
    `count` of a width.
    """
    # Each has k splits of S tokens to retrieve: more than the largest would take more memory than
    # so many of S tokens.
    places = {n: min(n * size // width, REPLAY_SIZES[-1]) for n in REPLAY_SIZES}
    return places[min(places, key=lambda n: (n + _REPLAY_COST_SPLITS) / min(count, places[n]))]
