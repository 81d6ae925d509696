"""The flat batch of splits: a table of which document each split belongs to and how long it is.

After the ranker every split goes through the neural processor alone, so splits of any documents share batches. Only the
last split of a document can be short; splits are grouped by length, so that a ten-token query costs about ten tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUP_WIDTHS = (
    8,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
)  # upper bounds of the classes; a group is padded to its longest member


@dataclass(frozen=True)
class SplitTable:
    """All splits of a batch of documents, documents one after another, splits in reading order.

    Attributes:
        ids: int64 `[n, S]`, token ids; 0 at and beyond `lengths`.
        lengths: int64 `[n]`, valid tokens, 1 to S; S for every split but a document's last.
        first: int64 `[n]`, index of the first split of the same document; a split's position is its index - first.
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    first: torch.Tensor

    def documents(self) -> Iterator[slice]:
        """Yield the rows of each document that has at least one token, in order."""
        starts = torch.unique_consecutive(self.first).tolist()
        for start, stop in pairwise([*starts, len(self.first)]):
            yield slice(start, stop)

    def groups(
        self, needed: torch.Tensor | None = None, *, full_width: bool, max_tokens: int
    ) -> Iterator[tuple[torch.Tensor, int]]:
        """Yield (int64 `[m]` rows, padded width) so that every needed split is in exactly one group.

        Full splits are grouped together, short ones with others of similar length.

        Args:
            needed: bool `[n]`; None: all.
            full_width: pad every split to S.
            max_tokens: larger groups are cut into several.
        """
        size = self.ids.shape[1]
        if full_width:
            group_of = torch.zeros_like(self.lengths)
        else:
            widths = torch.tensor([w for w in _GROUP_WIDTHS if w < size - 1] + [size - 1], device=self.lengths.device)
            group_of = torch.searchsorted(widths, self.lengths)  # S falls beyond the last class: a group of its own
        if needed is not None:
            group_of = group_of.masked_fill(~needed, -1)
        for group in torch.unique(group_of).tolist():
            if group < 0:
                continue
            rows = torch.nonzero(group_of == group)[:, 0]
            width = size if full_width else int(self.lengths[rows].max())
            for part in rows.split(max(1, max_tokens // width)):
                yield part, width


def split_table(tokens: torch.Tensor, counts: torch.Tensor, split_size: int) -> tuple[SplitTable, torch.Tensor]:
    """Cut a batch of documents into splits.

    Args:
        tokens: int64 `[T]`, the token ids of all documents, one after another.
        counts: int64 `[B]`, tokens of each document; a document without tokens has no split.
        split_size: S.

    Returns:
        The table, and int64 `[T]`: for each token its index in the flattened `[n * S]` slots of the table.
    """
    device = tokens.device
    splits_of = (counts + split_size - 1) // split_size
    first_of = splits_of.cumsum(0) - splits_of
    n = int(splits_of.sum())
    document = torch.repeat_interleave(torch.arange(len(counts), device=device), splits_of, output_size=n)
    position = torch.arange(n, device=device) - first_of[document]
    lengths = (counts[document] - position * split_size).clamp_max(split_size)

    owner = torch.repeat_interleave(torch.arange(len(counts), device=device), counts, output_size=len(tokens))
    offset = torch.arange(len(tokens), device=device) - (counts.cumsum(0) - counts)[owner]
    slots = first_of[owner] * split_size + offset
    ids = torch.zeros(n * split_size, dtype=tokens.dtype, device=device)
    ids[slots] = tokens
    return SplitTable(ids.view(n, split_size), lengths, first_of[document]), slots
