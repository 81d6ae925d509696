"""The distinct token ids of a document, and how often each of its splits holds each of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aveyb_retrieval.kernels.masking import row_mask


@dataclass(frozen=True)
class Vocabulary:
    """The distinct ids of one document, latest last occurrence first, and the number of times each split holds each.

    ids: int64 `[U]`, the distinct ids.
    last_seen: int64 `[U]`, the last split that holds each id; descending.
    entries: int64 `[E]`, positions in `ids`; split i holds `entries[starts[i] : starts[i + 1]]`, each once.
    counts: float32 `[E]`, how often the split holds that id.
    starts: int64 `[n + 1]`.
    """

    ids: torch.Tensor
    last_seen: torch.Tensor
    entries: torch.Tensor
    counts: torch.Tensor
    starts: torch.Tensor


def vocabulary_of(ids: torch.Tensor, lengths: torch.Tensor) -> Vocabulary:
    """Collect the vocabulary of one document.

    Args:
        ids: int64 `[n, S]`, token ids of its splits; entries beyond `lengths` are ignored.
        lengths: int `[n]`, valid tokens of each split.
    """
    n, width = ids.shape
    valid = row_mask(lengths, width)[..., 0]
    distinct, inverse = torch.unique(ids[valid], return_inverse=True)
    split_of = torch.arange(n, device=ids.device)[:, None].expand(n, width)[valid]
    pairs, counts = torch.unique(split_of * len(distinct) + inverse, return_counts=True)
    entry_split, entry_id = pairs // len(distinct), pairs % len(distinct)
    last_seen = torch.zeros(len(distinct), dtype=torch.int64, device=ids.device)
    last_seen.scatter_reduce_(0, entry_id, entry_split, "amax")
    last_seen, order = torch.sort(last_seen, stable=True, descending=True)
    position = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=ids.device))
    starts = torch.searchsorted(entry_split, torch.arange(n + 1, device=ids.device))
    return Vocabulary(distinct[order], last_seen, position[entry_id], counts.float(), starts)


def bounded_vocabulary(ids: torch.Tensor, lengths: torch.Tensor, rows: int) -> Vocabulary:
    """Collect the vocabulary of one document into tensors of sizes that do not depend on the ids.

    So nothing waits for the device that holds them. What `vocabulary_of` gives comes first. After it `last_seen` is -1,
    ids are those of some row of the table, and entries lie beyond `starts[n]`.

    Args:
        ids: int64 `[n, S]`, token ids of its splits; entries beyond `lengths` are ignored.
        lengths: int `[n]`, valid tokens of each split.
        rows: V, of the embedding table; ids are below it.

    Returns:
        With U = min(n S, V) + 1 and E = n S.
    """
    n, width = ids.shape
    bound, device = min(ids.numel(), rows) + 1, ids.device
    valid = row_mask(lengths, width)[..., 0]
    # Padding has the id V, which sorts last; as an entry it belongs to a split n, which is not there.
    ordered, order = torch.sort(ids.masked_fill(~valid, rows).flatten())
    rank = _ranks(ordered)
    distinct = ordered.new_zeros(bound).scatter_(0, rank, ordered).clamp_max_(rows - 1)
    id_of = torch.empty_like(rank).scatter_(0, order, rank).view(n, width)
    pairs = torch.arange(n, device=device)[:, None] * bound + id_of
    pairs = torch.sort(pairs.masked_fill(~valid, n * bound).flatten()).values
    entry = _ranks(pairs)
    entries = torch.full_like(pairs, n * bound).scatter_(0, entry, pairs)
    counts = torch.searchsorted(entry, torch.arange(len(pairs) + 1, device=device)).diff()
    entry_split, entry_id = entries // bound, entries % bound
    last_seen = entries.new_full((bound,), -1)
    last_seen.scatter_reduce_(0, entry_id, entry_split.masked_fill(entry_split == n, -1), "amax")
    last_seen, order = torch.sort(last_seen, stable=True, descending=True)
    position = torch.empty_like(order).scatter_(0, order, torch.arange(bound, device=device))
    starts = torch.searchsorted(entry_split, torch.arange(n + 1, device=device))
    return Vocabulary(distinct[order], last_seen, position[entry_id], counts.float(), starts)


def _ranks(ordered: torch.Tensor) -> torch.Tensor:
    """The number of distinct smaller values before each of ascending values `[T]`."""
    return torch.nn.functional.pad(ordered.diff() != 0, (1, 0)).cumsum(0)
