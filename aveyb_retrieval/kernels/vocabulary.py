"""The distinct token ids of documents, and how often each of their splits holds each of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from aveyb_retrieval.kernels.masking import row_mask
from aveyb_retrieval.kernels.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence


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


@dataclass(frozen=True)
class BatchVocabulary(Vocabulary):
    """The distinct ids of several documents, one document after another, each sorted as in `Vocabulary`.

    Splits and positions in `ids` are counted over all documents. Tensors have sizes that do not depend on the ids: what
    there is comes first, after it `last_seen` is -1, ids are those of some row of the table, and entries lie beyond
    `starts[n]`.

    first: int64 `[n]`, the first split of each split's document.
    asked_from and asked_to: int64 `[n]`; the ids that a later split can ask of split i are those between.
    """

    first: torch.Tensor
    asked_from: torch.Tensor
    asked_to: torch.Tensor


def batch_vocabulary(ids: torch.Tensor, lengths: torch.Tensor, starts: Sequence[int], rows: int) -> BatchVocabulary:
    """Collect the vocabularies of a batch of documents, without waiting for the device that holds them.

    Args:
        ids: int64 `[n, S]`, token ids of the splits, documents one after another; entries beyond `lengths` are ignored.
        lengths: int `[n]`, valid tokens of each split.
        starts: the first split of each document, and n at the end; on the host.
        rows: V, of the embedding table; ids are below it.

    Returns:
        With U = `most_ids(starts, S, V)` and E = n S.
    """
    (n, width), device = ids.shape, ids.device
    bound = most_ids(starts, width, rows)
    splits_of = np.diff(starts)
    first_of, last_of = np.asarray(starts[:-1]), np.asarray(starts[1:]) - 1
    # A split counted from its document's end, and back: ascending, that sorts by documents, latest splits first.
    mirror_of = np.append(np.repeat(first_of + last_of, splits_of) - np.arange(n), n)
    document_of = np.repeat(np.arange(len(splits_of)), splits_of)
    mirror, document, first = to_device([mirror_of, document_of, np.repeat(first_of, splits_of)], device)
    valid = row_mask(lengths, width)[..., 0]
    # Padding belongs to one document more, so that it sorts last; as an entry, to a split n, which is not there.
    keys = (document[:, None] * rows + ids).masked_fill(~valid, len(splits_of) * rows)
    ordered, order = torch.sort(keys.flatten())
    rank = _ranks(ordered)
    distinct = ordered.new_zeros(bound).scatter_(0, rank, ordered) % rows
    id_of = torch.empty_like(rank).scatter_(0, order, rank).view(n, width)
    pairs = torch.arange(n, device=device)[:, None] * bound + id_of
    pairs = torch.sort(pairs.masked_fill(~valid, n * bound).flatten()).values
    entry = _ranks(pairs)
    entries = torch.full_like(pairs, n * bound).scatter_(0, entry, pairs)
    counts = torch.searchsorted(entry, torch.arange(len(pairs) + 1, device=device)).diff()
    entry_split, entry_id = entries // bound, entries % bound
    latest = entries.new_full((bound,), n).scatter_reduce_(0, entry_id, mirror[entry_split], "amin")
    latest, order = torch.sort(latest, stable=True)
    position = torch.empty_like(order).scatter_(0, order, torch.arange(bound, device=device))
    return BatchVocabulary(
        ids=distinct[order],
        last_seen=mirror[latest].masked_fill(latest == n, -1),
        entries=position[entry_id],
        counts=counts.float(),
        starts=torch.searchsorted(entry_split, torch.arange(n + 1, device=device)),
        first=first,
        asked_from=torch.searchsorted(latest, first),
        asked_to=torch.searchsorted(latest, mirror[:n]),
    )


def most_ids(starts: Sequence[int], width: int, rows: int) -> int:
    """Return the largest number of distinct ids that documents of such splits can have together, and one for padding.

    Args:
        starts: the first split of each document, and their number at the end.
        width: S.
        rows: V, of the embedding table.
    """
    return sum(min((stop - start) * width, rows) for start, stop in pairwise(starts)) + 1


def _ranks(ordered: torch.Tensor) -> torch.Tensor:
    """The number of distinct smaller values before each of ascending values `[T]`."""
    return torch.nn.functional.pad(ordered.diff() != 0, (1, 0)).cumsum(0)
