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

    With `m[u, j] = max over distinct ids v of split j of cos(E_u, E_v)`, `score(i, j) = sum over u of count_i(u) m[u, j]`.
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
    split_of = torch.arange(n, device=ids.device)[:, None].expand(n, width)[valid]
    distinct, inverse = torch.unique(ids[valid], return_inverse=True)
    counts = torch.zeros(n, len(distinct), device=ids.device)
    counts.index_put_((split_of, inverse), torch.ones((), device=ids.device), accumulate=True)
    last_seen = torch.zeros(len(distinct), dtype=torch.int64, device=ids.device)
    last_seen.scatter_reduce_(0, inverse, split_of, "amax")
    order = torch.argsort(last_seen, stable=True, descending=True)
    distinct, counts, last_seen = distinct[order], counts[:, order], last_seen[order]
    unit = unit_rows(table[distinct], eps)

    candidates = _distinct_ids_per_split(counts[:-1])
    scores = torch.zeros(n, n, device=ids.device)
    step = max(1, _BLOCK_ELEMENTS // max(1, candidates.numel()))
    for start in range(0, len(distinct), step):
        block = slice(start, start + step)
        earlier = int(last_seen[start])  # ids in this block are asked for by no split after this one
        if earlier == 0:
            break
        cosines = unit[block] @ unit[candidates[:earlier].reshape(-1)].T
        best = cosines.view(-1, earlier, candidates.shape[1]).amax(-1)
        scores[:, :earlier] += counts[:, block] @ best
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


def _distinct_ids_per_split(counts: torch.Tensor) -> torch.Tensor:
    """`counts` `[n, U]` -> int64 `[n, W]`: the columns that occur in each row, padded by repeating one of them."""
    present = counts > 0
    width = max(1, int(present.sum(1).max())) if len(counts) else 1
    columns = torch.topk(present.to(torch.int8), min(width, counts.shape[1]), dim=1).indices
    padding = ~torch.gather(present, 1, columns)
    return torch.where(padding, columns[:, :1], columns)


def _not_earlier(n: int, device: torch.device) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=device).triu()
