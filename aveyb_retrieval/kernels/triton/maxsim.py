"""MaxSim between splits as kernels: token similarities live in registers only, their maxima and
sums are float32.

Rows may come unnormalized in the table's own dtype with their inverse norms beside them: products
of bfloat16 values are exact in float32, so the cosines are as good as float32 ones at the speed of
bfloat16.
"""

# Arguments of kernels are typed by Triton at launch, those of autograd hooks by torch.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.tiles import (
    architecture,
    blocks,
    config_for,
    larger,
    largest,
    power_of_two,
    precision,
    products_of,
)

if TYPE_CHECKING:
    from aveyb_retrieval.kernels.maxsim import BatchVocabulary


# How many distinct ids there are only the device knows; so programs take turns at them. 65 splits,
# the fewest that come here, make 1,040 programs.
_PROGRAMS_OF_A_SPLIT = 16


@triton.jit
def _best_match(current, earlier, earlier_scales, rows, n_rows, n_columns,
                D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                PRECISION: tl.constexpr):  # fmt: skip
    """Return float32 `[M]`: each row's largest product with a column, times the column's scale."""
    best = tl.full((M,), float("-inf"), dtype=tl.float32)
    for first in range(0, n_columns, N):
        columns = first + tl.arange(0, N)
        products = products_of(
            current, rows, D, n_rows, earlier, columns, D, n_columns, D, M, N, K, PRECISION
        )
        products *= tl.load(earlier_scales + columns, mask=columns < n_columns, other=0.0)[None, :]
        products = tl.where(columns[None, :] < n_columns, products, float("-inf"))
        best = larger(best, largest(products, 1))
    return best


@triton.jit(do_not_specialize=["S"])
def all_pairs_kernel(
    vectors, scales, lengths, first_split, scores, S,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, splits of the longest document): program (i, j) scores split i against split j
    of i's document.

    Neighboring programs share the candidate, which then comes from L2. Programs whose candidate is
    not earlier return.
    """
    split = tl.program_id(0).to(tl.int64)
    earlier = tl.load(first_split + split).to(tl.int64) + tl.program_id(1)
    if earlier < split:
        n, n_columns = (
            tl.load(lengths + split).to(tl.int32),
            tl.load(lengths + earlier).to(tl.int32),
        )
        score = 0.0
        for first in range(0, n, M):
            rows = first + tl.arange(0, M)
            best = _best_match(
                vectors + split * S * D,
                vectors + earlier * S * D,
                scales + earlier * S,
                rows,
                n,
                n_columns,
                D,
                M,
                N,
                K,
                PRECISION,
            )
            best *= tl.load(scales + split * S + rows, mask=rows < n, other=0.0)
            score += tl.sum(tl.where(rows < n, best, 0.0))
        tl.store(scores + split * tl.num_programs(1) + tl.program_id(1), score)


@triton.jit(do_not_specialize=["best_row"])
def best_by_id_kernel(
    table,
    scales,
    ids,
    entries,
    starts,
    asked_from,
    asked_to,
    first_split,
    best_out,
    n_vocabulary,
    best_row,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (splits, programs of a split). best_out float32 `[U, best_row]`: each id's best cosine
    in each split.

    From ids to asked_to: fields of `BatchVocabulary`. table `[n_vocabulary, D]`; scales float32
    `[n_vocabulary]`: what each row is multiplied by. A column of best_out is a split counted in its
    document. Only ids that a later split can ask of a split are written; the programs of a split
    take turns at blocks of M of them.
    """
    split = tl.program_id(0).to(tl.int64)
    column = split - tl.load(first_split + split)
    start = tl.load(starts + split)
    n_columns = (tl.load(starts + split + 1) - start).to(tl.int32)
    begin, end = tl.load(asked_from + split).to(tl.int32), tl.load(asked_to + split).to(tl.int32)
    for block in range(begin + tl.program_id(1) * M, end, tl.num_programs(1) * M):
        rows = block + tl.arange(0, M)
        own = tl.load(ids + rows, mask=rows < end, other=0)
        best = tl.full((M,), float("-inf"), dtype=tl.float32)
        for first in range(0, n_columns, N):
            columns = first + tl.arange(0, N)
            held = tl.load(entries + start + columns, mask=columns < n_columns, other=0)
            theirs = tl.load(ids + held)
            products = products_of(
                table, own, D, n_vocabulary, table, theirs, D, n_vocabulary, D, M, N, K, PRECISION
            )
            products *= tl.load(scales + theirs)[None, :]
            best = larger(
                best, largest(tl.where(columns[None, :] < n_columns, products, float("-inf")), 1)
            )
        best *= tl.load(scales + own)
        tl.store(best_out + rows.to(tl.int64) * best_row + column, best, mask=rows < end)


@triton.jit(do_not_specialize=["width"])
def count_kernel(best, entries, counts, starts, first_split, scores, width, N: tl.constexpr):
    """Grid (splits, blocks of N columns): `score(i, j) = sum over ids of split i of count *
    best[id, j]`, j < i.

    best and scores have rows of `width`; columns are splits counted in the document of split i.
    """
    split = tl.program_id(0).to(tl.int64)
    earlier = split - tl.load(first_split + split)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    value = tl.zeros((N,), dtype=tl.float32)
    if tl.program_id(1) * N < earlier:
        for entry in range(
            tl.load(starts + split).to(tl.int32), tl.load(starts + split + 1).to(tl.int32)
        ):
            row = best + tl.load(entries + entry) * width
            value += tl.load(counts + entry) * tl.load(
                row + columns, mask=columns < earlier, other=0.0
            )
    value = tl.where(columns < earlier, value, float("-inf"))
    tl.store(scores + split * width + columns, value, mask=columns < width)


def all_pairs(
    vectors: torch.Tensor,
    scales: torch.Tensor,
    lengths: torch.Tensor,
    first: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """Scores of every split against the earlier splits of its document, float32 `[n, width]`.

    Column j is split `first + j`; -inf where that is not an earlier split. Vectors are `[n, S, D]`
    contiguous; scales, float32 `[n, S]`, multiply their rows; first is int `[n]`, the first split
    of each split's document.
    """
    n, size, dim = vectors.shape
    scores = torch.full((n, width), float("-inf"), device=vectors.device)
    tile = config_for("maxsim", architecture(vectors.device), vectors.element_size())
    if n and width:
        with torch.cuda.device_of(vectors):
            all_pairs_kernel[n, width](
                vectors, scales, lengths, first, scores, size,
                D=dim, M=min(tile.m, power_of_two(size)), N=min(tile.n, power_of_two(size)),
                K=min(tile.k, power_of_two(dim)), PRECISION=precision(vectors.dtype),
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return scores


def by_token(
    table: torch.Tensor, scales: torch.Tensor, vocabulary: BatchVocabulary, width: int
) -> torch.Tensor:
    """Scores of the splits of some documents from their distinct ids, float32 `[n, width]`.

    Column j is the document's split j; -inf where that is not an earlier split. The table of
    embeddings is `[V, D]` contiguous; scales: float32 `[V]`, their 1 / norm.
    """
    n, columns = len(vocabulary.first), slice(0, len(vocabulary.first))
    best = _best_by_id(table, scales, vocabulary, columns, vocabulary.first, width)
    return _counted(best, vocabulary, slice(0, n), vocabulary.first)


def columns_by_token(
    table: torch.Tensor, scales: torch.Tensor, vocabulary: BatchVocabulary, first: int, stop: int
) -> torch.Tensor:
    """Columns first to stop of `by_token` of one document, rows from first on: float32 `[n - first,
    stop - first]`.
    """
    n = len(vocabulary.first)
    # Counted from the first column on, as if the document began there.
    begin = torch.zeros_like(vocabulary.first)
    best = _best_by_id(table, scales, vocabulary, slice(first, stop), begin, stop - first)
    return _counted(best, vocabulary, slice(first, n), begin)


def _best_by_id(
    table: torch.Tensor,
    scales: torch.Tensor,
    vocabulary: BatchVocabulary,
    splits: slice,
    first: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """Each id's best cosine in each of some splits, float32 `[U, width]`.

    The column of the i-th of them is `i - first[i]`, first int64 `[n]`.
    """
    n, n_ids, (n_vocabulary, dim) = splits.stop - splits.start, len(vocabulary.ids), table.shape
    tile = config_for("best_by_id", architecture(table.device), table.element_size())
    best = torch.empty((n_ids, width), dtype=torch.float32, device=table.device)
    if n:
        with torch.cuda.device_of(table):
            best_by_id_kernel[n, _PROGRAMS_OF_A_SPLIT](
                table,
                scales,
                vocabulary.ids,
                vocabulary.entries,
                vocabulary.starts[splits.start :],
                vocabulary.asked_from[splits.start :],
                vocabulary.asked_to[splits.start :],
                first,
                best,
                n_vocabulary,
                width,
                D=dim,
                M=tile.m,
                N=tile.n,
                K=min(tile.k, power_of_two(dim)),
                PRECISION=precision(table.dtype),
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
    return best


def _counted(
    best: torch.Tensor, vocabulary: BatchVocabulary, splits: slice, first: torch.Tensor
) -> torch.Tensor:
    """Scores of some splits from `_best_by_id`, float32 `[n, width]`; first as there."""
    n, width = splits.stop - splits.start, best.shape[1]
    tile = config_for("count_by_id", architecture(best.device), 4)  # scores are always float32
    side = min(tile.n, power_of_two(width))
    scores = torch.empty((n, width), dtype=torch.float32, device=best.device)
    if n:
        with torch.cuda.device_of(best):
            count_kernel[n, blocks(width, side)](
                best,
                vocabulary.entries,
                vocabulary.counts,
                vocabulary.starts[splits.start :],
                first,
                scores,
                width,
                N=side,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
    return scores


@triton.jit(do_not_specialize=["n_query"])
def late_interaction_kernel(
    query, documents, begins, lengths, scores, query_row, document_row, n_query,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (documents,).

    scores float32 `[n]`; begins and lengths int64. M document and N query tokens at a time.
    """
    document = tl.program_id(0).to(tl.int64)
    documents += tl.load(begins + document) * document_row
    n = tl.load(lengths + document).to(tl.int32)
    score = 0.0
    if n > 0:
        for first in range(0, n_query, N):
            columns = first + tl.arange(0, N)
            best = tl.full((N,), float("-inf"), dtype=tl.float32)
            for token in range(0, n, M):
                rows = token + tl.arange(0, M)
                products = products_of(
                    documents,
                    rows,
                    document_row,
                    n,
                    query,
                    columns,
                    query_row,
                    n_query,
                    D,
                    M,
                    N,
                    K,
                    PRECISION,
                )
                best = larger(
                    best, largest(tl.where(rows[:, None] < n, products, float("-inf")), 0)
                )
            score += tl.sum(tl.where(columns < n_query, best, 0.0))
    tl.store(scores + document, score)


def late_interaction(
    query: torch.Tensor, rows: torch.Tensor, begins: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Late interaction by a kernel, float32 `[n]`; no gradient.

    Query is `[q, D]` and rows `[R, D]`, of one dtype, last axis contiguous; begins and lengths
    int64 `[n]`.
    """
    scores = torch.empty(len(lengths), dtype=torch.float32, device=rows.device)
    dim = query.shape[1]
    tile = config_for("late_interaction", architecture(rows.device), rows.element_size())
    if len(scores):
        begins, lengths = (t.to(rows.device, non_blocking=True) for t in (begins, lengths))
        with torch.cuda.device_of(rows):
            late_interaction_kernel[len(scores),](
                query,
                rows,
                begins,
                lengths,
                scores,
                query.stride(0),
                rows.stride(0),
                len(query),
                D=dim,
                M=tile.m,
                N=min(tile.n, power_of_two(len(query))),
                K=min(tile.k, power_of_two(dim)),
                PRECISION=precision(rows.dtype),
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
    return scores
