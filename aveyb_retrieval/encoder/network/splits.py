"""The flat batch of splits: a table of which document each split belongs to and how long it is.

After the ranker every split goes through the neural processor alone, so splits of any documents share batches.

Where everything lies follows from the documents' lengths. They are known on the host, so it is computed there
(`layout.py`): a device is never waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from aveyb_retrieval.encoder.network.layout import SplitLayout
from aveyb_retrieval.kernels.dispatch import to_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.encoder.network.token_codec import TokenCodec

    Pieces = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class SplitGroup:
    """Splits of similar length that go through the layers together, with the indices that this takes on their device.

    Attributes:
        rows: int64 `[m]`, splits of the table.
        width: T, the length that they are padded to.
        places: for how many splits the sequence is made that a GPU replays, m or more; None where there is none.
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
        needed: np.ndarray | None = None,
        *,
        full_width: bool,
        max_tokens: int,
        replays: bool = False,
    ) -> list[SplitGroup]:
        """Return the groups of `SplitLayout.groups` on the table's device.

        Args:
            needed: bool `[n]`; None: all.
            full_width: pad every split to S.
            max_tokens: larger groups are cut into several.
            replays: the groups are those of `SplitLayout.replays`, and `max_tokens` says nothing.
        """
        layout = self.layout
        found: list[tuple[np.ndarray, int, int | None]]
        if replays:
            found = list(layout.replays(needed, full_width=full_width))
        else:
            found = [(*group, None) for group in layout.groups(needed, full_width=full_width, max_tokens=max_tokens)]
        tokens = [_tokens(layout.lengths[rows], width) for rows, width, _ in found]
        sent = iter(to_device([*(rows for rows, *_ in found), *(t for t in tokens if t is not None)], self.ids.device))
        on_device = [next(sent) for _ in found]
        return [
            SplitGroup(there, width, places, None if t is None else next(sent), not layout.earlier[rows].any())
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


def _tokens(lengths: np.ndarray, width: int) -> np.ndarray | None:
    """Return `SplitGroup.tokens` of splits of these lengths."""
    taken = np.arange(width) < lengths[:, None]
    return None if taken.all() else np.flatnonzero(taken)


class BatchEncoder:
    """Mixed into `SplitEncoder`; `OnnxModel` has the same methods. Token ids come as int32 `[T]`, text after text."""

    embed: Any
    encode_splits: Any
    retrieve: Any
    encode_short: Any
    is_short: Any
    device: torch.device
    split_size: int

    def token_sums(
        self,
        ids: np.ndarray,
        counts: Sequence[int],
        runs: np.ndarray,
        *,
        first_needed: Sequence[int],
        codec: TokenCodec | None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Encode texts and sum their tokens' vectors over runs of tokens.

        Args:
            ids: int `[T]`, the tokens of all texts.
            counts: tokens of each text.
            runs: int64 `[n]`, tokens of each run, none across two texts.
            first_needed: in each text, the first token whose output is needed; earlier ones may be left out of sums.
            codec: makes token vectors small; None: they are not wanted.

        Returns:
            Sums float32 `[n, d]`; codes `[T, row_bytes]`, zeros where none is needed, or None without a codec.
        """
        with torch.inference_mode():
            owner = np.repeat(np.arange(len(runs)), runs)  # the run of a token
            sums = torch.zeros(len(runs), self.embed.embedding_dim, device=self.device)
            if len(counts) == 1 and first_needed[0] == 0 and not codec:  # usually one query: no table is needed
                text, owners = to_device([ids.astype(np.int64)[None], owner], self.device)
                if self.is_short(text):
                    hidden = self.encode_short(text)[0]
                    return sums.index_add_(0, owners, hidden.float()).cpu().numpy(), None
            table, pieces = self._pieces(ids, counts, first_needed)
            (owners,) = to_device([table.layout.spread(owner)], self.device)
            codes = codec.empty(table.ids.numel()) if codec else None
            for slots, hidden in pieces:
                sums.index_add_(0, owners[slots], hidden.float())
                if codec and codes is not None:
                    codes[slots.cpu().numpy()] = codec.encode(hidden)
            if codes is not None:
                codes = np.concatenate([codes[taken] for taken in table.layout.taken()])
            return sums.cpu().numpy(), codes

    def token_rows(self, ids: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """Encode texts, as for `token_sums`, token by token: float32 `[T, d]`, unit rows."""
        with torch.inference_mode():
            table, pieces = self._pieces(ids, counts, [0] * len(counts))
            out = torch.zeros(table.ids.numel(), self.embed.embedding_dim)
            for slots, hidden in pieces:
                out[slots.cpu()] = torch.nn.functional.normalize(hidden.float(), dim=-1).cpu()
            return torch.cat([out[:0], *(out[taken] for taken in table.layout.taken())]).numpy()

    def _pieces(self, ids: np.ndarray, counts: Sequence[int], first_needed: Sequence[int]) -> tuple[SplitTable, Pieces]:
        """Return the splits of some texts, and what `encode_splits` yields for those that are needed."""
        table = split_table(ids, counts, self.split_size, self.device)
        retrieved = self.retrieve(table)
        needed = table.layout.needed(first_needed)
        return table, self.encode_splits(table, retrieved, needed)
