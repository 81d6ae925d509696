"""The flat batch of splits: a table of which document each split belongs to and how long it is.

After the ranker every split goes through the neural processor alone, so splits of any documents share batches. Only the
last split of a document can be short; splits are grouped by length, so that a ten-token query costs about ten tokens.

Where everything lies follows from the documents' lengths. They are known on the host, so it is computed there
(`SplitLayout`): a device is never waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from aveyb_retrieval.kernels.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Upper bounds of the classes of short splits; a group is padded to its longest member.
_GROUP_WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192)


def group_widths(size: int) -> list[int]:
    """Return the widest split of each class of short splits, ascending; full ones are a class of their own."""
    return [w for w in _GROUP_WIDTHS if w < size - 1] + [size - 1]


@dataclass(frozen=True)
class SplitLayout:
    """How documents of known lengths are cut into splits: NumPy arrays on the host.

    Documents stand one after another, splits in reading order. A slot is a place for a token: split i owns the slots
    `i * S` to `(i + 1) * S`, of which the first `lengths[i]` are taken.

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
        return cls(counts, size, np.minimum(np.repeat(counts, splits_of) - position * size, size), first)

    @cached_property
    def earlier(self) -> np.ndarray:
        """How many earlier splits of the same document each split has, int64 `[n]`."""
        return np.arange(len(self.first)) - self.first

    @cached_property
    def others(self) -> np.ndarray:
        """How many other splits the document of each split has, int64 `[n]`."""
        return np.repeat(np.diff(self.starts), np.diff(self.starts)) - 1

    @cached_property
    def starts(self) -> list[int]:
        """The first split of each document that has one, and n at the end."""
        return [*np.flatnonzero(self.earlier == 0).tolist(), len(self.first)]

    def documents(self) -> Iterator[slice]:
        """Yield the splits of each document that has at least one token, in order."""
        for start, stop in pairwise(self.starts):
            yield slice(start, stop)

    def taken(self) -> Iterator[slice]:
        """Yield the slots that each document's tokens take, in order; an empty slice for a document without tokens."""
        first = 0
        for count in self.counts.tolist():
            yield slice(first, first + count)
            first += -(-count // self.size) * self.size

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Put one value for each token, int `[T]`, into its slot: int64 `[n S]`, 0 where there is none."""
        slots = np.zeros(len(self.lengths) * self.size, dtype=np.int64)
        start = 0
        for place in self.taken():
            stop = start + place.stop - place.start
            slots[place] = values[start:stop]
            start = stop
        return slots

    def groups(
        self, needed: np.ndarray | None = None, *, full_width: bool, max_tokens: int
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Yield (int64 `[m]` splits, padded width) so that every needed split is in exactly one group.

        Full splits are grouped together, short ones with others of similar length.

        Args:
            needed: bool `[n]`; None: all.
            full_width: pad every split to S.
            max_tokens: larger groups are cut into several.
        """
        # S falls beyond the last class: a group of its own.
        classes = np.zeros_like(self.lengths) if full_width else np.searchsorted(group_widths(self.size), self.lengths)
        if needed is not None:
            classes[~needed] = -1
        for group in np.unique(classes[classes >= 0]):
            rows = np.flatnonzero(classes == group)
            width = self.size if full_width else int(self.lengths[rows].max())
            most = max(1, max_tokens // width)
            for start in range(0, len(rows), most):
                yield rows[start : start + most], width


@dataclass(frozen=True)
class SplitGroup:
    """Splits of similar length that go through the layers together, with the indices that this takes on their device.

    Attributes:
        rows: int64 `[m]`, splits of the table.
        width: T, the length that they are padded to.
        tokens: int64 `[t]`, which of the `m T` places hold tokens, in order; None where all do.
        with_candidates: for d = 1, 2, ..., k which of the group's splits have at least d candidates (earlier splits of
            their document, or all others), int64; None where all have.
    """

    rows: torch.Tensor
    width: int
    tokens: torch.Tensor | None
    with_candidates: tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class SplitTable:
    """All splits of a batch of documents.

    Attributes:
        ids: int64 `[n, S]`, token ids; 0 at and beyond `lengths`.
        lengths: int64 `[n]` and first: int64 `[n]`, as in the layout, on the device of `ids`.
        layout: where everything lies, on the host.
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    first: torch.Tensor
    layout: SplitLayout

    def groups(
        self,
        needed: np.ndarray | None = None,
        *,
        full_width: bool,
        max_tokens: int,
        retrieved: int = 0,
        both_ways: bool = False,
    ) -> list[SplitGroup]:
        """Return the groups of `SplitLayout.groups` on the table's device.

        Args:
            needed: bool `[n]`; None: all.
            full_width: pad every split to S.
            max_tokens: larger groups are cut into several.
            retrieved: k, for `SplitGroup.with_candidates`.
            both_ways: whether later splits are candidates, too.
        """
        layout = self.layout
        found = list(layout.groups(needed, full_width=full_width, max_tokens=max_tokens))
        candidates = layout.others if both_ways else layout.earlier
        indices = [_indices(layout, rows, width, retrieved, candidates) for rows, width in found]
        sent = iter(to_device([a for group in indices for a in group if a is not None], self.ids.device))
        groups = []
        for (_, width), group in zip(found, indices, strict=True):
            rows, tokens, *with_candidates = (None if a is None else next(sent) for a in group)
            assert rows is not None
            groups.append(SplitGroup(rows, width, tokens, tuple(with_candidates)))
        return groups

    def slots(self, group: SplitGroup) -> torch.Tensor:
        """Return the slots of a group's tokens, int64 `[t]`."""
        columns = torch.arange(group.width, device=group.rows.device)
        slots = (group.rows[:, None] * self.layout.size + columns).flatten()
        return slots if group.tokens is None else slots[group.tokens]


def split_table(
    tokens: torch.Tensor | np.ndarray,
    counts: Sequence[int] | np.ndarray,
    split_size: int,
    device: torch.device | None = None,
) -> SplitTable:
    """Cut a batch of documents into splits.

    Args:
        tokens: int `[T]` on the host, the token ids of all documents, one after another.
        counts: int `[B]`, tokens of each document.
        split_size: S.
        device: where the table goes; None: the CPU.
    """
    layout = SplitLayout.of(counts, split_size)
    ids = layout.spread(np.asarray(tokens)).reshape(-1, split_size)
    device = torch.device("cpu") if device is None else device
    on_device, lengths, first = to_device([ids, layout.lengths, layout.first], device)
    return SplitTable(on_device, lengths, first, layout)


def padded_table(
    input_ids: torch.Tensor, present: np.ndarray | None, split_size: int
) -> tuple[SplitTable, torch.Tensor]:
    """Cut a padded batch into splits, without waiting for the device that holds it.

    Args:
        input_ids: int64 `[B, T]`.
        present: bool `[B, T]` on the host, where a token exists; None: all exist.
        split_size: S.

    Returns:
        The table, and int64 `[n S]`: for each slot the place of its token in the flattened batch (0 where it is free).
    """
    batch, width = input_ids.shape
    counts = np.full(batch, width) if present is None else present.sum(1)
    layout = SplitLayout.of(counts, split_size)
    every = np.arange(input_ids.numel()) if present is None else np.flatnonzero(present)
    lengths, first, places = to_device([layout.lengths, layout.first, layout.spread(every)], input_ids.device)
    ids = input_ids.flatten()[places].view(-1, split_size)
    if int(layout.lengths.sum()) < ids.numel():
        columns = torch.arange(split_size, device=ids.device)
        ids = ids.masked_fill(columns >= lengths[:, None], 0)
    return SplitTable(ids, lengths, first, layout), places


def _indices(
    layout: SplitLayout, rows: np.ndarray, width: int, retrieved: int, candidates: np.ndarray
) -> list[np.ndarray | None]:
    """Return what `SplitGroup` holds of some splits: rows, tokens, and `with_candidates`."""
    lengths = layout.lengths[rows]
    whole = bool((lengths == width).all())
    tokens = None if whole else np.flatnonzero(np.arange(width) < lengths[:, None])
    enough = (candidates[rows] >= d for d in range(1, retrieved + 1))
    return [rows, tokens, *(None if has.all() else np.flatnonzero(has) for has in enough)]
