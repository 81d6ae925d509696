"""Split-to-split MaxSim: how relevant each earlier split of a document is to the current one.

`score(i, j) = sum over tokens t of split i of max over tokens s of split j of cos(t, s)`, for `j < i` of one document.
All sums, scores and cosines are float32.
"""

from __future__ import annotations

import torch

from aveyb_retrieval.kernels.masking import row_mask, zero_padding

_BLOCK_ELEMENTS = 1 << 25  # similarities held at once: 128 MiB of float32


def unit_rows(x: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / (|x| + eps)` in float32 along the last axis: the ranker's form of the cosine (a zero row stays zero)."""
    x = x.float()
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + eps)


def maxsim_reference(unit: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Scores of every split of one document against its earlier splits.

    Args:
        unit: float32 `[n, S, D]`, the document's token embeddings, unit rows. All splits but the last are full.
        lengths: int `[n]`, valid tokens of each split.

    Returns:
        float32 `[n, n]`; -inf where the column is not an earlier split.
    """
    n, width, dim = unit.shape
    scores = unit.new_full((n, n), float("-inf"))
    candidates = unit.reshape(n * width, dim)
    step = max(1, _BLOCK_ELEMENTS // (width * n * width))
    for start in range(1, n, step):
        stop = min(n, start + step)
        earlier = stop - 1
        cosines = unit[start:stop].reshape(-1, dim) @ candidates[: earlier * width].T
        best = cosines.view(stop - start, width, earlier, width).amax(-1)
        scores[start:stop, :earlier] = zero_padding(best, lengths[start:stop]).sum(1)
    return scores.masked_fill(_not_earlier(n, scores.device), float("-inf"))


def maxsim_by_token(ids: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor, eps: float) -> torch.Tensor:
    """The same scores from token ids alone: `max over s of cos(t, s)` depends only on the ids, and ids repeat.

    With `m[u, j] = max over distinct ids v of split j of cos(E_u, E_v)`, the score is
    `score(i, j) = sum over distinct ids u of count_i(u) * m[u, j]`.
    Work grows with (distinct ids of the document) x (distinct ids of its splits) instead of tokens squared, and no
    more than `_BLOCK_ELEMENTS` similarities exist at once. Ids are taken in the order of their last occurrence, so
    that a block of ids is compared only with splits that some later split could still ask for.

    Args:
        ids: int64 `[n, S]`, token ids of one document's splits; entries beyond `lengths` are ignored.
        lengths: int `[n]`, valid tokens of each split; all but the last are S.
        table: `[V, D]` token embeddings.
        eps: added to each norm.

    Returns:
        float32 `[n, n]`; -inf where the column is not an earlier split.
    """
    n, width = ids.shape
    valid = row_mask(lengths, width)[..., 0]
    distinct, inverse = torch.unique(ids[valid], return_inverse=True)
    split_of = torch.arange(n, device=ids.device)[:, None].expand(n, width)[valid]
    pairs, counts = torch.unique(inverse * n + split_of, return_counts=True)  # one entry per (distinct id, split)
    entry_id, entry_split = pairs // n, pairs % n
    last_seen = torch.zeros_like(distinct).scatter_reduce_(0, entry_id, entry_split, "amax")
    order = torch.argsort(last_seen, stable=True, descending=True)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=ids.device))
    by_rank = torch.argsort(rank[entry_id], stable=True)
    entry_rank, entry_split, counts = rank[entry_id][by_rank], entry_split[by_rank], counts[by_rank].float()
    unit = unit_rows(table[distinct[order]], eps)
    candidates = _distinct_per_split(entry_rank, entry_split, n)

    scores = torch.zeros(n, n, device=ids.device)
    step = max(1, _BLOCK_ELEMENTS // candidates.numel())
    for start in range(0, len(distinct), step):
        stop = min(len(distinct), start + step)
        earlier = int(last_seen[order[start]])  # the ids of this block occur in no split after this one
        if earlier == 0:
            break
        cosines = unit[start:stop] @ unit[candidates[:earlier].reshape(-1)].T
        best = cosines.view(stop - start, earlier, -1).amax(-1)
        inside = slice(*torch.searchsorted(entry_rank, torch.tensor([start, stop], device=ids.device)).tolist())
        count = torch.sparse_coo_tensor(
            torch.stack([entry_split[inside], entry_rank[inside] - start]),
            counts[inside],
            (n, stop - start),
            check_invariants=False,  # built right above from in-range indices
        )
        scores[:, :earlier] += torch.sparse.mm(count, best)
    return scores.masked_fill(_not_earlier(n, ids.device), float("-inf"))


def maxsim_selected(
    unit: torch.Tensor, lengths: torch.Tensor, current: torch.Tensor, earlier: torch.Tensor
) -> torch.Tensor:
    """Differentiable scores of chosen pairs of splits: the only ones a gradient flows through.

    Args:
        unit: float32 `[n, S, D]`, unit rows.
        lengths: int `[n]`.
        current: int64 `[p]` and earlier: int64 `[p]`, the two splits of each pair (`earlier` ones are full).

    Returns:
        float32 `[p]`.
    """
    best = torch.matmul(unit[current], unit[earlier].transpose(1, 2)).amax(-1)
    return best.masked_fill(~row_mask(lengths[current], unit.shape[1])[..., 0], 0).sum(-1)


def _distinct_per_split(entry_rank: torch.Tensor, entry_split: torch.Tensor, n: int) -> torch.Tensor:
    """int64 `[n, W]`: the distinct ids of each split, rows shorter than W filled by repeating their first."""
    by_split = torch.argsort(entry_split, stable=True)
    sizes = torch.bincount(entry_split, minlength=n)
    starts = sizes.cumsum(0) - sizes
    column = torch.arange(int(sizes.max()), device=entry_rank.device)
    return entry_rank[by_split][starts[:, None] + torch.where(column < sizes[:, None], column, 0)]


def _not_earlier(n: int, device: torch.device) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=device).triu()
