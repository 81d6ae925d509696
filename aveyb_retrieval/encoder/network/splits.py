"""The flat batch of splits: a table of which document each split belongs to and how long it is.

After the ranker every split goes through the neural processor alone, so splits of any documents share batches.

Where everything lies follows from the documents' lengths. They are known on the host, so it is computed there
(`layout.py`): a device is never waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from aveyb_retrieval.encoder.network.layout import SplitLayout
from aveyb_retrieval.kernels.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence


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
