"""Split-to-split MaxSim: how relevant each earlier split of a document is to the current one.

`score(i, j) = sum over tokens t of split i of max over tokens s of split j of cos(t, s)`, for `j <
i` of one document. All sums, scores and cosines are float32.

Late interaction scores one query's tokens against those of many documents (ColBERT, Khattab and
Zaharia 2020): `score(n) = sum over query tokens i of max over tokens t of document n of <q_i,
d_t>`.

Without kernels, split scores are those of `host_maxsim.py`, whatever the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, to_device, use_triton
from aveyb_retrieval.kernels.host_maxsim import BLOCK_COLUMNS, all_scores
from aveyb_retrieval.kernels.positionwise import row_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# On a GPU the token-id shortcut costs about 30 launches, which a document of more splits repays
# alone (an estimate).
SHORTCUT_SPLITS = 64
# best cosines of the documents that share a pass of the shortcut on a GPU: 1 GiB of float32
_PASS_ELEMENTS = 1 << 28


def unit_rows(x: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / (|x| + eps)` in float32 along the last axis: the ranker's form of the cosine (a zero row
    stays zero).
    """
    x = x.float()
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + eps)


def split_scores(
    ids: torch.Tensor,
    lengths: torch.Tensor,
    starts: Sequence[int],
    table: torch.Tensor,
    eps: float,
    *,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Score every split of a batch against the earlier splits of its own document, without
    gradient.

    On a GPU one launch scores all short documents, and the long ones take the shortcut by token
    ids together; no device is waited for. Without kernels the host takes the shortcut, document by
    document. Both give each document the scores it would get alone.

    Args:
        ids: int64 `[n, S]`, token ids of the splits, documents one after another; entries beyond
            `lengths` are ignored.
        lengths: int `[n]`, valid tokens of each split; all but a document's last are S.
        starts: the first split of each document, and n at the end; on the host.
        table: `[V, D]` token embeddings.
        eps: added to each norm.

    Returns:
        float32 `[n, W]`, W the splits of the longest document: column j is the document's split j;
        -inf where that is not an earlier split of the document.
    """
    documents = [slice(start, stop) for start, stop in pairwise(starts)]
    width = max((d.stop - d.start for d in documents), default=0)
    scores = torch.full((len(ids), width), float("-inf"), device=ids.device)
    with torch.no_grad(), torch.autocast(ids.device.type, enabled=False):
        if use_triton(backend, table, operation="split_scores"):
            if short := [d for d in documents if d.stop - d.start <= SHORTCUT_SPLITS]:
                starts, own_ids, own_lengths, chosen = _splits_of(ids, lengths, short)
                (first,) = to_device([np.repeat(starts[:-1], np.diff(starts))], ids.device)
                scores.index_copy_(
                    0, chosen, scores_of_short(own_ids, own_lengths, first, table, eps, width)
                )
            long = [d for d in documents if d.stop - d.start > SHORTCUT_SPLITS]
            for together in _passes(long, ids.shape[1], len(table), width):
                starts, own_ids, own_lengths, chosen = _splits_of(ids, lengths, together)
                scores.index_copy_(
                    0, chosen, _scores_of_long(own_ids, own_lengths, starts, table, eps, width)
                )
        else:
            on_host, counts = ids.cpu().numpy(), lengths.cpu().numpy()
            for document in documents:
                if document.stop - document.start > 1:
                    splits = [
                        row[:count]
                        for row, count in zip(on_host[document], counts[document], strict=True)
                    ]
                    found = torch.from_numpy(all_scores(splits, rows_on_host(table), eps))
                    scores[document, : len(splits)] = found.to(scores.device)
    return scores


def rows_on_host(table: torch.Tensor) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of ids int `[U]` to their rows of a table `[V, D]`, float32 on the host."""

    def rows_of(ids: np.ndarray) -> np.ndarray:
        on_device = torch.from_numpy(ids).to(table.device)
        return table.detach()[on_device].float().cpu().numpy()

    return rows_of


def scores_of_short(
    ids: torch.Tensor,
    lengths: torch.Tensor,
    first: torch.Tensor,
    table: torch.Tensor,
    eps: float,
    width: int,
) -> torch.Tensor:
    """Return `split_scores` of documents that one launch scores, by the kernel; nothing comes from
    the host.

    First is int64 `[n]`, the first split of each split's document; width W, the splits of the
    longest one or more.
    """
    from aveyb_retrieval.kernels.triton import maxsim as kernels

    vectors = table[ids]
    return kernels.all_pairs(vectors, inverse_norms(vectors, eps), lengths, first, width)


def _scores_of_long(
    ids: torch.Tensor,
    lengths: torch.Tensor,
    starts: Sequence[int],
    table: torch.Tensor,
    eps: float,
    width: int,
) -> torch.Tensor:
    """Return `split_scores` of some documents by the token-id shortcut, all in one pass, `[n,
    width]`.
    """
    from aveyb_retrieval.kernels.triton import maxsim as kernels

    vocabulary = batch_vocabulary(ids, lengths, starts, len(table))
    return kernels.by_token(table, inverse_norms(table, eps), vocabulary, width)


def _splits_of(
    ids: torch.Tensor, lengths: torch.Tensor, documents: Sequence[slice]
) -> tuple[list[int], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return `_starts`, ids and lengths of some documents' splits, and which splits those are,
    int64.
    """
    rows, starts = (
        np.concatenate([np.arange(d.start, d.stop) for d in documents]),
        _starts(documents),
    )
    (chosen,) = to_device([rows], ids.device)
    return (
        (starts, ids, lengths, chosen)
        if len(rows) == len(ids)
        else (starts, ids[chosen], lengths[chosen], chosen)
    )


def _starts(documents: Sequence[slice]) -> list[int]:
    """Return the first split of each document, counted among the splits of these documents, and
    their number.
    """
    return [0, *accumulate(d.stop - d.start for d in documents)]


def _passes(documents: Sequence[slice], size: int, rows: int, width: int) -> Iterator[list[slice]]:
    """Yield documents in groups whose best cosines stay below `_PASS_ELEMENTS`; one that has more
    is alone.
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


def best_of_long(
    ids: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    eps: float,
    k: int,
    block: int = BLOCK_COLUMNS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score a document's splits by kernels, and keep each split's k best earlier ones.

    All scores at once are a square: 6 GB for a document of ten million tokens. Here they are made
    for a block of columns at a time, in memory linear in the document's length, and each row keeps
    its k best of the blocks so far.

    Returns:
        float32 `[n, k]` scores, best first, equal ones by the lower split, -inf where there are
        fewer than k earlier splits; int64 `[n, k]` their splits, counted in the document.
    """
    from aveyb_retrieval.kernels.triton import maxsim as kernels

    n, device = len(ids), ids.device
    vocabulary = batch_vocabulary(ids, lengths, [0, n], len(table))
    scales = inverse_norms(table, eps)
    scores = torch.full((n, k), float("-inf"), device=device)
    chosen = torch.zeros((n, k), dtype=torch.int64, device=device)
    for first in range(0, n - 1, block):
        stop = min(first + block, n - 1)
        found = kernels.columns_by_token(table, scales, vocabulary, first, stop)[1:]
        # Stable, and what is kept comes first: equal scores stay with the lower split.
        merged, order = torch.sort(
            torch.cat([scores[first + 1 :], found], 1), dim=1, descending=True, stable=True
        )
        numbers = torch.cat(
            [chosen[first + 1 :], torch.arange(first, stop, device=device).expand_as(found)], 1
        )
        scores[first + 1 :], chosen[first + 1 :] = merged[:, :k], numbers.gather(1, order[:, :k])
    return scores, chosen


def maxsim_selected(
    unit: torch.Tensor, lengths: torch.Tensor, current: torch.Tensor, earlier: torch.Tensor
) -> torch.Tensor:
    """Score chosen pairs of splits, float32 `[p]`, differentiably: the only scores that a gradient
    flows through.

    Unit rows are float32 `[n, S, D]`; current and earlier int64 `[p]`, the splits of each pair; an
    earlier one is full.
    """
    best = torch.matmul(unit[current], unit[earlier].transpose(1, 2)).amax(-1)
    return best.masked_fill(~row_mask(lengths[current], unit.shape[1])[..., 0], 0).sum(-1)


@dataclass(frozen=True)
class BatchVocabulary:
    """The distinct ids of several documents, one document after another, latest last occurrence
    first.

    Splits and positions in `ids` are counted over all documents. Tensors have sizes that do not
    depend on the ids: what there is comes first, after it `last_seen` is -1, ids are those of some
    row of the table, and entries lie beyond `starts[n]`.

    Attributes:
        ids: int64 `[U]`, the distinct ids.
        last_seen: int64 `[U]`, the last split that holds each id; descending in a document.
        entries: int64 `[E]`, positions in `ids`; split i holds `entries[starts[i] : starts[i +
            1]]`, each once.
        counts: float32 `[E]`, how often the split holds that id.
        starts: int64 `[n + 1]`.
        first: int64 `[n]`, the first split of each split's document.
        asked_from: int64 `[n]`, and asked_to: int64 `[n]`; the ids that a later split can ask of
            split i are those between.
    """

    ids: torch.Tensor
    last_seen: torch.Tensor
    entries: torch.Tensor
    counts: torch.Tensor
    starts: torch.Tensor
    first: torch.Tensor
    asked_from: torch.Tensor
    asked_to: torch.Tensor


def batch_vocabulary(
    ids: torch.Tensor, lengths: torch.Tensor, starts: Sequence[int], rows: int
) -> BatchVocabulary:
    """Collect the vocabularies of a batch, ids, lengths and starts as for `split_scores`, without
    waiting for a device.

    Of a table of V = rows embeddings: U = `most_ids(starts, S, V)`, E = n S.
    """
    (n, width), device = ids.shape, ids.device
    bound = most_ids(starts, width, rows)
    splits_of = np.diff(starts)
    first_of, last_of = np.asarray(starts[:-1]), np.asarray(starts[1:]) - 1
    # A split counted from its document's end, and back: ascending, that sorts by documents, latest
    # splits first.
    mirror_of = np.append(np.repeat(first_of + last_of, splits_of) - np.arange(n), n)
    document_of = np.repeat(np.arange(len(splits_of)), splits_of)
    mirror, document, first = to_device(
        [mirror_of, document_of, np.repeat(first_of, splits_of)], device
    )
    valid = row_mask(lengths, width)[..., 0]
    # Padding belongs to one document more, so that it sorts last; as an entry, to a split n, which
    # is not there.
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
    """Return the most distinct ids that documents of splits of S = width can have of V = rows, and
    one for padding.
    """
    return sum(min((stop - start) * width, rows) for start, stop in pairwise(starts)) + 1


def _ranks(ordered: torch.Tensor) -> torch.Tensor:
    """The number of distinct smaller values before each of ascending values `[T]`."""
    return torch.nn.functional.pad(ordered.diff() != 0, (1, 0)).cumsum(0)


def late_interaction(
    query: torch.Tensor, documents: torch.Tensor, starts: torch.Tensor, *, backend: Backend = "auto"
) -> torch.Tensor:
    """Score every document against one query; unit rows make the products cosines.

    Products are summed in float32 whatever the dtype. A gradient flows where one is recorded, by
    plain torch; a token that several document tokens match equally well shares its gradient among
    them. A search on a CPU runs `late_interaction_numpy`, which needs no torch.

    Args:
        query: `[q, D]`, its tokens.
        documents: `[R, D]`, the tokens of all documents one after another, on the device of
            `query`; rows whose last axis is contiguous are read in place.
        starts: int64 `[n + 1]`, on the CPU: document i owns the rows `starts[i]` to `starts[i +
            1]`; from 0 to R.

    Returns:
        float32 `[n]`; 0 for a document or a query without tokens.
    """
    wants_grad = torch.is_grad_enabled() and (query.requires_grad or documents.requires_grad)
    limit = "the kernel has no gradient" if wants_grad else None
    if use_triton(backend, documents, operation="late_interaction", limit=limit):
        from aveyb_retrieval.kernels.triton import maxsim as kernels

        query = inner_contiguous(query.to(documents.dtype))
        return kernels.late_interaction(
            query, inner_contiguous(documents), starts[:-1], starts.diff()
        )
    lengths = starts.diff().to(documents.device)
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=documents.device), lengths)
    wide = torch.promote_types(documents.dtype, torch.float32)
    similarity = documents.to(wide) @ query.to(wide).T  # [R, q]
    best = similarity.new_full((len(lengths), len(query)), float("-inf"))
    best = best.scatter_reduce(0, owner[:, None].expand_as(similarity), similarity, "amax")
    return best.sum(1).masked_fill(lengths == 0, 0.0).float()
