"""Split-to-split MaxSim: how relevant each earlier split of a document is to the current one.

`score(i, j) = sum over tokens t of split i of max over tokens s of split j of cos(t, s)`, for `j < i` of one document.
All sums, scores and cosines are float32.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from aveyb_retrieval.kernels.dispatch import Backend, use_triton
from aveyb_retrieval.kernels.masking import row_mask
from aveyb_retrieval.kernels.transfer import to_device
from aveyb_retrieval.kernels.vocabulary import batch_vocabulary, most_ids, vocabulary_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# On a GPU the token-id shortcut costs about 30 launches, which a document of more splits repays alone (an estimate).
SHORTCUT_SPLITS = 64
_PASS_ELEMENTS = 1 << 28  # best cosines of the documents that share a pass of the shortcut on a GPU: 1 GiB of float32


def unit_rows(x: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / (|x| + eps)` in float32 along the last axis: the ranker's form of the cosine (a zero row stays zero)."""
    x = x.float()
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + eps)


def split_scores(
    ids: torch.Tensor,
    lengths: torch.Tensor,
    starts: Sequence[int],
    table: torch.Tensor,
    eps: float,
    *,
    both_ways: bool = False,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Score every split of a batch against the earlier splits of its own document, without gradient.

    Plain torch uses the token-id shortcut, document by document. On a GPU one launch scores all short documents, and
    the long ones take the shortcut together. Both give each document the scores it would get alone.

    Args:
        ids: int64 `[n, S]`, token ids of the splits, documents one after another; entries beyond `lengths` are ignored.
        lengths: int `[n]`, valid tokens of each split; all but a document's last are S.
        starts: the first split of each document, and n at the end; on the host, so that no device is waited for.
        table: `[V, D]` token embeddings.
        eps: added to each norm.
        both_ways: score against later splits, too, in plain torch on every device.

    Returns:
        float32 `[n, W]`, W the splits of the longest document: column j is the document's split j; -inf where that is
        not an earlier (with `both_ways`: another) split of the document.

    Raises:
        BackendError: `backend="triton"` cannot run.
    """
    documents = [slice(start, stop) for start, stop in pairwise(starts)]
    scores = torch.full(
        (len(ids), max((d.stop - d.start for d in documents), default=0)), float("-inf"), device=ids.device
    )
    with torch.no_grad(), torch.autocast(ids.device.type, enabled=False):
        if use_triton(backend, table, operation="split_scores", limit=_limit(both_ways)):
            splits = ids, lengths
            if short := [d for d in documents if d.stop - d.start <= SHORTCUT_SPLITS]:
                _score_short(splits, short, table, eps, scores)
            long = [d for d in documents if d.stop - d.start > SHORTCUT_SPLITS]
            for together in _passes(long, ids.shape[1], len(table), scores.shape[1]):
                _score_long(splits, together, table, eps, scores)
        else:
            for document in documents:
                size = document.stop - document.start
                if size > 1:
                    splits = ids[document], lengths[document]
                    found = maxsim_by_token(*splits, table, eps, both_ways=both_ways)
                    scores[document, :size] = found
    return scores


def _score_short(
    splits: tuple[torch.Tensor, torch.Tensor],
    documents: Sequence[slice],
    table: torch.Tensor,
    eps: float,
    scores: torch.Tensor,
) -> None:
    """Score every pair of splits of some documents by one kernel, into their rows of `scores`."""
    from aveyb_retrieval.kernels.triton import maxsim as kernels

    ids, lengths, chosen = _splits_of(splits, documents)
    starts = _starts(documents)
    (first,) = to_device([np.repeat(starts[:-1], np.diff(starts))], ids.device)
    vectors = table[ids]
    found = kernels.all_pairs(vectors, inverse_norms(vectors, eps), lengths, first, scores.shape[1])
    scores.index_copy_(0, chosen, found)


def _score_long(
    splits: tuple[torch.Tensor, torch.Tensor],
    documents: Sequence[slice],
    table: torch.Tensor,
    eps: float,
    scores: torch.Tensor,
) -> None:
    """Score some documents by the token-id shortcut, all in one pass, into their rows of `scores`."""
    from aveyb_retrieval.kernels.triton import maxsim as kernels

    ids, lengths, chosen = _splits_of(splits, documents)
    vocabulary = batch_vocabulary(ids, lengths, _starts(documents), len(table))
    found = kernels.by_token(table, inverse_norms(table, eps), vocabulary, scores.shape[1])
    scores.index_copy_(0, chosen, found)


def _splits_of(
    splits: tuple[torch.Tensor, torch.Tensor], documents: Sequence[slice]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids and lengths of some documents' splits, and which splits those are, int64 on their device."""
    (ids, lengths), rows = splits, np.concatenate([np.arange(d.start, d.stop) for d in documents])
    (chosen,) = to_device([rows], ids.device)
    return (ids, lengths, chosen) if len(rows) == len(ids) else (ids[chosen], lengths[chosen], chosen)


def _starts(documents: Sequence[slice]) -> list[int]:
    """Return the first split of each document, counted among the splits of these documents, and their number."""
    return [0, *accumulate(d.stop - d.start for d in documents)]


def _passes(documents: Sequence[slice], size: int, rows: int, width: int) -> Iterator[list[slice]]:
    """Yield documents in groups whose best cosines stay below `_PASS_ELEMENTS`; one that has more is alone.

    Args:
        documents: their splits.
        size: S.
        rows: V.
        width: columns of the scores.
    """
    group: list[slice] = []
    for document in documents:
        if group and most_ids(_starts([*group, document]), size, rows) * width > _PASS_ELEMENTS:
            yield group
            group = []
        group.append(document)
    if group:
        yield group


def inverse_norms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """`1 / (|x| + eps)` over the last axis, float32."""
    return 1 / (torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32) + eps)


def maxsim_by_token(
    ids: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor, eps: float, *, both_ways: bool = False
) -> torch.Tensor:
    """Score one document's splits by token ids alone, in plain torch: a cosine depends only on them, and they repeat.

    With `m[u, j] = max over distinct ids v of split j of cos(E_u, E_v)`, the score is
    `score(i, j) = sum over distinct ids u of count_i(u) * m[u, j]`.
    Work grows with (distinct ids of the document) x (distinct ids of its splits) instead of tokens squared. Ids are
    sorted by their last occurrence, so that those which a later split could still ask of split j are a prefix.

    Args:
        ids: int64 `[n, S]`, token ids of one document's splits; entries beyond `lengths` are ignored.
        lengths: int `[n]`, valid tokens of each split; all but the last are S.
        table: `[V, D]` token embeddings.
        eps: added to each norm.
        both_ways: score against later splits, too.

    Returns:
        float32 `[n, n]`; -inf where the column is not an earlier (with `both_ways`: another) split.
    """
    n = len(ids)
    vocabulary = vocabulary_of(ids, lengths)
    unit = unit_rows(table[vocabulary.ids], eps)
    # Ids with a last occurrence after split j, for every j; or all of them.
    asking = [len(unit)] * n
    if not both_ways:
        asking = torch.searchsorted(-vocabulary.last_seen, -torch.arange(n, device=ids.device)).tolist()
    best = unit.new_zeros(len(unit), n)
    starts = vocabulary.starts.tolist()
    for j, u in enumerate(asking):
        if u:
            held = unit[vocabulary.entries[starts[j] : starts[j + 1]]]
            best[:u, j] = torch.matmul(unit[:u], held.T).amax(1)
    splits = torch.repeat_interleave(torch.arange(n, device=ids.device), vocabulary.starts.diff())
    place = torch.stack([splits, vocabulary.entries])
    counts = torch.sparse_coo_tensor(place, vocabulary.counts, (n, len(unit)), check_invariants=False)
    left_out = torch.eye(n, dtype=torch.bool, device=ids.device) if both_ways else _not_earlier(n, ids.device)
    return torch.sparse.mm(counts, best).masked_fill(left_out, float("-inf"))


def maxsim_selected_reference(
    unit: torch.Tensor, lengths: torch.Tensor, current: torch.Tensor, earlier: torch.Tensor, *, both_ways: bool = False
) -> torch.Tensor:
    """Score chosen pairs of splits, differentiably: the only scores that a gradient flows through.

    Args:
        unit: float32 `[n, S, D]`, unit rows.
        lengths: int `[n]`.
        current: int64 `[p]` and earlier: int64 `[p]`, the two splits of each pair.
        both_ways: whether the second ones may be later, and therefore not full.

    Returns:
        float32 `[p]`.
    """
    cosines = torch.matmul(unit[current], unit[earlier].transpose(1, 2))
    if both_ways:
        missing = ~row_mask(lengths[earlier], unit.shape[1]).transpose(1, 2)
        cosines = cosines.masked_fill(missing, float("-inf"))
    best = cosines.amax(-1)
    return best.masked_fill(~row_mask(lengths[current], unit.shape[1])[..., 0], 0).sum(-1)


def maxsim_selected(
    unit: torch.Tensor,
    lengths: torch.Tensor,
    current: torch.Tensor,
    earlier: torch.Tensor,
    *,
    both_ways: bool = False,
    backend: Backend = "auto",
) -> torch.Tensor:
    """`maxsim_selected_reference` by the implementation that `backend` means (see `dispatch.py`).

    The kernel takes `earlier` splits for full ones, which later ones (`both_ways`) need not be.

    Where a token meets several equally similar ones, the reference shares the gradient among them and the kernel gives
    it to the first; tokens of one id, the common case, have one embedding and sum to the same.

    Raises:
        BackendError: `backend="triton"` cannot run.
    """
    if use_triton(backend, unit, operation="maxsim_selected", limit=_limit(both_ways)):
        from aveyb_retrieval.kernels.triton.maxsim import maxsim_selected_op

        return maxsim_selected_op(unit.contiguous(), lengths, current, earlier)[0]
    return maxsim_selected_reference(unit, lengths, current, earlier, both_ways=both_ways)


def _limit(both_ways: bool) -> str | None:
    return "kernels score earlier splits only" if both_ways else None


def _not_earlier(n: int, device: torch.device) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=device).triu()
