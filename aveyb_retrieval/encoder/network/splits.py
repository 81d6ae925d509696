"""The flat batch of splits: a table of which document each split belongs to and how long it is.

After the ranker every split goes through the neural processor alone, so splits of any documents
share batches.

Where everything lies follows from the documents' lengths. They are known on the host, so it is
computed there (`layout.py`): a device is never waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from aveyb_retrieval.encoder.network.layout import SplitLayout
from aveyb_retrieval.kernels.dispatch import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class SplitGroup:
    """Splits of similar length that go through the layers together, with the indices that this
    takes on their device.

    Attributes:
        rows: int64 `[m]`, splits of the table.
        width: T, the length that they are padded to.
        places: for how many splits the sequence is made that a GPU replays, m or more; None where
            there is none.
        tokens: int64 `[t]`, which of the `m T` places hold tokens, in order; None where all do.
        alone: none of them has a candidate to retrieve.
    """

    rows: torch.Tensor
    width: int
    places: int | None
    tokens: torch.Tensor | None
    alone: bool


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
        *,
        full_width: bool,
        max_tokens: int,
        replays: bool = False,
    ) -> list[SplitGroup]:
        """Return the groups of `SplitLayout.groups`, or of `SplitLayout.replays`, on the table's
        device.
        """
        layout = self.layout
        found: list[tuple[np.ndarray, int, int | None]]
        if replays:
            found = list(layout.replays(full_width=full_width))
        else:
            found = [
                (*group, None)
                for group in layout.groups(full_width=full_width, max_tokens=max_tokens)
            ]
        tokens = [_tokens(layout.lengths[rows], width) for rows, width, _ in found]
        sent = iter(
            to_device(
                [*(rows for rows, *_ in found), *(t for t in tokens if t is not None)],
                self.ids.device,
            )
        )
        on_device = [next(sent) for _ in found]
        return [
            SplitGroup(
                there,
                width,
                places,
                None if t is None else next(sent),
                not layout.earlier[rows].any(),
            )
            for there, (rows, width, places), t in zip(on_device, found, tokens, strict=True)
        ]

    def slots(self, group: SplitGroup) -> torch.Tensor:
        """Return the slots of a group's tokens, int64 `[t]`."""
        columns = torch.arange(group.width, device=group.rows.device)
        slots = (group.rows[:, None] * self.layout.size + columns).flatten()
        return slots if group.tokens is None else slots[group.tokens]


def split_table(
    tokens: torch.Tensor | np.ndarray,
    counts: Sequence[int] | np.ndarray,
    size: int,
    device: torch.device | None = None,
) -> SplitTable:
    """Cut documents of `counts` tokens into splits on a device (None: the CPU).

    Their token ids, int `[T]` on the host, come one document after another.
    """
    layout = SplitLayout.of(counts, size)
    arrays = [layout.spread(np.asarray(tokens)).reshape(-1, size), layout.lengths, layout.first]
    ids, lengths, first = to_device(arrays, device or torch.device("cpu"))
    return SplitTable(ids, lengths, first, layout)


def padded_table(
    input_ids: torch.Tensor, present: np.ndarray | None, split_size: int
) -> tuple[SplitTable, torch.Tensor]:
    """Cut a padded batch int64 `[B, T]` into splits, without waiting for the device that holds it.

    `present` is bool `[B, T]` on the host, where a token exists; None: all exist. Returns the
    table, and int64 `[n S]`: for each slot the place of its token in the flattened batch (0 where
    it is free).
    """
    batch, width = input_ids.shape
    counts = np.full(batch, width) if present is None else present.sum(1)
    layout = SplitLayout.of(counts, split_size)
    every = np.arange(input_ids.numel()) if present is None else np.flatnonzero(present)
    lengths, first, places = to_device(
        [layout.lengths, layout.first, layout.spread(every)], input_ids.device
    )
    ids = input_ids.flatten()[places].view(-1, split_size)
    if int(layout.lengths.sum()) < ids.numel():
        columns = torch.arange(split_size, device=ids.device)
        ids = ids.masked_fill(columns >= lengths[:, None], 0)
    return SplitTable(ids, lengths, first, layout), places


def _tokens(lengths: np.ndarray, width: int) -> np.ndarray | None:
    """Return `SplitGroup.tokens` of splits of these lengths."""
    taken = np.arange(width) < lengths[:, None]
    return None if taken.all() else np.flatnonzero(taken)
