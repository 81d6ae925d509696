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
