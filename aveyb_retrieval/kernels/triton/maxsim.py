"""MaxSim between splits as kernels: token similarities live in registers only, their maxima and sums are float32.

Rows may come unnormalized in the table's own dtype with their inverse norms beside them: products of bfloat16 values
are exact in float32, so the cosines are as good as float32 ones at the speed of bfloat16.
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
    load_tile,
    power_of_two,
    precision,
    store_tile,
)

if TYPE_CHECKING:
    from aveyb_retrieval.kernels.maxsim import BatchVocabulary


# How many distinct ids there are only the device knows; so programs take turns at them. 65 splits, the fewest that come
# here, make 1,040 programs.
_PROGRAMS_OF_A_SPLIT = 16


@triton.jit
def _best_match(current, earlier, earlier_scales, rows, n_rows, n_columns,
                D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                SCALED: tl.constexpr, ARGUMENT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """For each row the largest `current[row] . earlier[column]` (float32 [M]), and the lowest column that has it."""
    best = tl.full((M,), float("-inf"), dtype=tl.float32)
    argument = tl.zeros((M,), dtype=tl.int32)
    for first in range(0, n_columns, N):
        columns = first + tl.arange(0, N)
        products = tl.zeros((M, N), dtype=tl.float32)
        for k in range(0, D, K):
            d = k + tl.arange(0, K)
            a = load_tile(current, rows, d, D, n_rows, D, D % K == 0)
            b = load_tile(earlier, columns, d, D, n_columns, D, D % K == 0)
            products = tl.dot(a, tl.trans(b), products, input_precision=PRECISION)
        if SCALED:
            products *= tl.load(earlier_scales + columns, mask=columns < n_columns, other=0.0)[None, :]
        products = tl.where(columns[None, :] < n_columns, products, float("-inf"))
        if ARGUMENT:
            here, where = tl.max(products, 1, return_indices=True)
            argument = tl.where(here > best, first + where, argument)
        best = larger(best, largest(products, 1))
    return best, argument


@triton.jit(do_not_specialize=["S"])
def all_pairs_kernel(
    vectors, scales, lengths, first_split, scores, S,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, splits of the longest document): program (i, j) scores split i against split j of i's document.

    Neighboring programs share the candidate, which then comes from L2. Programs whose candidate is not earlier return.
    """
    split = tl.program_id(0).to(tl.int64)
    earlier = tl.load(first_split + split).to(tl.int64) + tl.program_id(1)
    if earlier < split:
        n, n_columns = tl.load(lengths + split).to(tl.int32), tl.load(lengths + earlier).to(tl.int32)
        score = 0.0
        for first in range(0, n, M):
            rows = first + tl.arange(0, M)
            best, _ = _best_match(
                vectors + split * S * D, vectors + earlier * S * D, scales + earlier * S, rows, n, n_columns,
                D, M, N, K, SCALED, False, PRECISION,
            )  # fmt: skip
            if SCALED:
                best *= tl.load(scales + split * S + rows, mask=rows < n, other=0.0)
            score += tl.sum(tl.where(rows < n, best, 0.0))
        tl.store(scores + split * tl.num_programs(1) + tl.program_id(1), score)


@triton.jit(do_not_specialize=["S"])
def selected_pairs_kernel(
    vectors, lengths, current, earlier, scores, arguments, S,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (pairs,). scores float32 `[p]`; arguments int32 `[p, S]`: the earlier token that each token met."""
    pair = tl.program_id(0).to(tl.int64)
    split, candidate = tl.load(current + pair).to(tl.int64), tl.load(earlier + pair).to(tl.int64)
    n, n_columns = tl.load(lengths + split).to(tl.int32), tl.load(lengths + candidate).to(tl.int32)
    score = 0.0
    for first in range(0, n, M):
        rows = first + tl.arange(0, M)
        best, argument = _best_match(
            vectors + split * S * D, vectors + candidate * S * D, vectors, rows, n, n_columns,
            D, M, N, K, False, True, PRECISION,
        )  # fmt: skip
        score += tl.sum(tl.where(rows < n, best, 0.0))
        tl.store(arguments + pair * S + rows, argument, mask=rows < n)
    tl.store(scores + pair, score)


@triton.jit(do_not_specialize=["S"])
def selected_backward_kernel(
    grad, vectors, lengths, current, earlier, arguments, by_current, current_starts, by_earlier, earlier_starts,
    grad_vectors, S,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows, blocks of N columns): every program gathers what reaches its own tile.

    A token of the current split receives the earlier token that it met; an earlier token receives all that met it,
    as a product with the 0/1 matrix of who met whom. `by_current` lists the pairs by their current split, those of
    split s from `current_starts[s]` to `current_starts[s + 1]`; `by_earlier` likewise.
    """
    split = tl.program_id(0).to(tl.int64)
    rows, d = tl.program_id(1) * M + tl.arange(0, M), tl.program_id(2) * N + tl.arange(0, N)
    n = tl.load(lengths + split).to(tl.int32)
    value = tl.zeros((M, N), dtype=tl.float32)
    for index in range(tl.load(current_starts + split).to(tl.int32), tl.load(current_starts + split + 1).to(tl.int32)):
        pair = tl.load(by_current + index).to(tl.int64)
        met = tl.load(arguments + pair * S + rows, mask=rows < n, other=0)
        base = vectors + tl.load(earlier + pair).to(tl.int64) * S * D
        mask = (rows[:, None] < n) & (d[None, :] < D)
        earlier_token = tl.load(base + met[:, None] * D + d[None, :], mask=mask, other=0.0).to(tl.float32)
        value += tl.load(grad + pair) * earlier_token
    for index in range(tl.load(earlier_starts + split).to(tl.int32), tl.load(earlier_starts + split + 1).to(tl.int32)):
        pair = tl.load(by_earlier + index).to(tl.int64)
        other = tl.load(current + pair).to(tl.int64)
        n_other = tl.load(lengths + other).to(tl.int32)
        gathered = tl.zeros((M, N), dtype=tl.float32)
        for k in range(0, n_other, K):
            tokens = k + tl.arange(0, K)
            met = tl.load(arguments + pair * S + tokens, mask=tokens < n_other, other=-1)
            block = load_tile(vectors + other * S * D, tokens, d, D, n_other, D, D % N == 0)
            who = (rows[:, None] == met[None, :]).to(block.dtype)
            gathered = tl.dot(who, block, gathered, input_precision=PRECISION)
        value += tl.load(grad + pair) * gathered
    store_tile(grad_vectors + split * S * D, rows, d, D, value, S, D, D % N == 0)


@triton.jit(do_not_specialize=["best_row"])
def best_by_id_kernel(
    table, scales, ids, entries, starts, asked_from, asked_to, first_split, best_out, n_vocabulary, best_row,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, programs of a split). best_out float32 `[U, best_row]`: each id's best cosine in each split.

    From ids to asked_to: fields of `BatchVocabulary`. table `[n_vocabulary, D]`; scales float32 `[n_vocabulary]`: what
    each row is multiplied by. A column of best_out is a split counted in its document. Only ids that a later split can
    ask of a split are written; the programs of a split take turns at blocks of M of them.
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
            products = tl.zeros((M, N), dtype=tl.float32)
            for k in range(0, D, K):
                d = k + tl.arange(0, K)
                a = load_tile(table, own, d, D, n_vocabulary, D, D % K == 0)
                b = load_tile(table, theirs, d, D, n_vocabulary, D, D % K == 0)
                products = tl.dot(a, tl.trans(b), products, input_precision=PRECISION)
            products *= tl.load(scales + theirs)[None, :]
            best = larger(best, largest(tl.where(columns[None, :] < n_columns, products, float("-inf")), 1))
        best *= tl.load(scales + own)
        tl.store(best_out + rows.to(tl.int64) * best_row + column, best, mask=rows < end)


@triton.jit(do_not_specialize=["width"])
def count_kernel(best, entries, counts, starts, first_split, scores, width, N: tl.constexpr):
    """Grid (splits, blocks of N columns): `score(i, j) = sum over ids of split i of count * best[id, j]`, j < i.

    best and scores have rows of `width`; columns are splits counted in the document of split i.
    """
    split = tl.program_id(0).to(tl.int64)
    earlier = split - tl.load(first_split + split)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    value = tl.zeros((N,), dtype=tl.float32)
    if tl.program_id(1) * N < earlier:
        for entry in range(tl.load(starts + split).to(tl.int32), tl.load(starts + split + 1).to(tl.int32)):
            row = best + tl.load(entries + entry) * width
            value += tl.load(counts + entry) * tl.load(row + columns, mask=columns < earlier, other=0.0)
    value = tl.where(columns < earlier, value, float("-inf"))
    tl.store(scores + split * width + columns, value, mask=columns < width)


def all_pairs(
    vectors: torch.Tensor, scales: torch.Tensor | None, lengths: torch.Tensor, first: torch.Tensor, width: int
) -> torch.Tensor:
    """Scores of every split against the earlier splits of its document.

    Args:
        vectors: `[n, S, D]` contiguous; scales: float32 `[n, S]`, what each row is multiplied by, or None.
        lengths: int `[n]`; first: int `[n]`, the first split of each split's document.
        width: splits of the longest document.

    Returns:
        float32 `[n, width]`; column j is split `first + j`; -inf where that is not an earlier split.
    """
    n, size, dim = vectors.shape
    scores = torch.full((n, width), float("-inf"), device=vectors.device)
    tile = config_for("maxsim", architecture(vectors.device), vectors.element_size())
    if n and width:
        with torch.cuda.device_of(vectors):
            all_pairs_kernel[n, width](
                vectors, vectors if scales is None else scales, lengths, first, scores, size,
                D=dim, M=min(tile.m, power_of_two(size)), N=min(tile.n, power_of_two(size)),
                K=min(tile.k, power_of_two(dim)), SCALED=scales is not None, PRECISION=precision(vectors.dtype),
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return scores


def by_token(table: torch.Tensor, scales: torch.Tensor, vocabulary: BatchVocabulary, width: int) -> torch.Tensor:
    """Scores of the splits of some documents from their distinct ids.

    Args:
        table: `[V, D]` contiguous, the embeddings; scales: float32 `[V]`, their 1 / norm.
        vocabulary: the documents' distinct ids and which split holds which.
        width: W, at least the splits of the longest document.

    Returns:
        float32 `[n, W]`; column j is the document's split j; -inf where that is not an earlier split.
    """
    n, n_ids, (n_vocabulary, dim), device = len(vocabulary.first), len(vocabulary.ids), table.shape, table.device
    entries, starts, first = vocabulary.entries, vocabulary.starts, vocabulary.first
    tile = config_for("best_by_id", architecture(device), table.element_size())
    count_tile = config_for("count_by_id", architecture(device), 4)  # its scores are always float32
    side = min(count_tile.n, power_of_two(width))
    best = torch.empty((n_ids, width), dtype=torch.float32, device=device)
    scores = torch.empty((n, width), dtype=torch.float32, device=device)
    if n:
        with torch.cuda.device_of(table):
            best_by_id_kernel[n, _PROGRAMS_OF_A_SPLIT](
                table, scales, vocabulary.ids, entries, starts, vocabulary.asked_from, vocabulary.asked_to, first, best,
                n_vocabulary, width,
                D=dim, M=tile.m, N=tile.n, K=min(tile.k, power_of_two(dim)), PRECISION=precision(table.dtype),
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
            count_kernel[n, blocks(width, side)](
                best, entries, vocabulary.counts, starts, first, scores, width,
                N=side, num_warps=count_tile.warps, num_stages=count_tile.stages,
            )  # fmt: skip
    return scores


@torch.library.custom_op("aveyb::maxsim_selected", mutates_args=())
def maxsim_selected_op(
    unit: torch.Tensor, lengths: torch.Tensor, current: torch.Tensor, earlier: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores float32 `[p]`, and int32 `[p, S]`: which token of the earlier split each token of the current one met."""
    size, dim = unit.shape[1:]
    scores = torch.empty(len(current), dtype=torch.float32, device=unit.device)
    arguments = torch.empty((len(current), size), dtype=torch.int32, device=unit.device)
    tile = config_for("maxsim_selected", architecture(unit.device), unit.element_size())
    if len(current):
        with torch.cuda.device_of(unit):
            selected_pairs_kernel[len(current),](
                unit, lengths, current, earlier, scores, arguments, size,
                D=dim, M=min(tile.m, power_of_two(size)), N=min(tile.n, power_of_two(size)),
                K=min(tile.k, power_of_two(dim)), PRECISION=precision(unit.dtype),
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return scores, arguments


@maxsim_selected_op.register_fake
def _(unit, lengths, current, earlier) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = current.shape[0]
    return unit.new_empty(pairs, dtype=torch.float32), unit.new_empty((pairs, unit.shape[1]), dtype=torch.int32)


@torch.library.custom_op("aveyb::maxsim_selected_backward", mutates_args=())
def maxsim_selected_backward_op(
    grad: torch.Tensor,
    unit: torch.Tensor,
    lengths: torch.Tensor,
    current: torch.Tensor,
    earlier: torch.Tensor,
    arguments: torch.Tensor,
) -> torch.Tensor:
    """Gradient of `unit`, `[n, S, D]`: without atomics, in a fixed order."""
    n, size, dim = unit.shape
    grad_unit = torch.empty((n, size, dim), dtype=unit.dtype, device=unit.device)
    tile = config_for("maxsim_input", architecture(unit.device), unit.element_size())
    m, columns = min(tile.m, power_of_two(size)), min(tile.n, power_of_two(dim))
    if n:
        with torch.cuda.device_of(unit):
            selected_backward_kernel[n, blocks(size, m), blocks(dim, columns)](
                grad, unit, lengths, current, earlier, arguments, *_grouped(current, n), *_grouped(earlier, n),
                grad_unit, size,
                D=dim, M=m, N=columns, K=min(tile.k, power_of_two(size)), PRECISION=precision(unit.dtype),
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return grad_unit


@maxsim_selected_backward_op.register_fake
def _(grad, unit, *_) -> torch.Tensor:
    return unit.new_empty(unit.shape)


def _grouped(owners: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of `owners` (int `[p]`) owner after owner, and where each owner's begin, `[n + 1]`."""
    order = torch.argsort(owners, stable=True)
    return order, torch.searchsorted(owners[order], torch.arange(n + 1, device=owners.device, dtype=owners.dtype))


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad, _):
    return maxsim_selected_backward_op(grad.contiguous(), *ctx.saved_tensors), None, None, None


maxsim_selected_op.register_autograd(_backward, setup_context=_setup_context)


@triton.jit(do_not_specialize=["n_query"])
def late_interaction_kernel(
    query, documents, begins, lengths, scores, query_row, document_row, n_query,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (documents,). scores float32 `[n]`; begins and lengths int64. M document and N query tokens at a time."""
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
                products = tl.zeros((M, N), dtype=tl.float32)
                for k in range(0, D, K):
                    d = k + tl.arange(0, K)
                    a = load_tile(documents, rows, d, document_row, n, D, D % K == 0)
                    b = load_tile(query, columns, d, query_row, n_query, D, D % K == 0)
                    products = tl.dot(a, tl.trans(b), products, input_precision=PRECISION)
                best = larger(best, largest(tl.where(rows[:, None] < n, products, float("-inf")), 0))
            score += tl.sum(tl.where(columns < n_query, best, 0.0))
    tl.store(scores + document, score)


def late_interaction(
    query: torch.Tensor, rows: torch.Tensor, begins: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Late interaction by a kernel; no gradient.

    Args:
        query: `[q, D]` and rows `[R, D]`, of one dtype, last axis contiguous.
        begins: int64 `[n]` and lengths: int64 `[n]`, the rows of each document; moved to the device of `rows`.

    Returns:
        float32 `[n]`.
    """
    scores = torch.empty(len(lengths), dtype=torch.float32, device=rows.device)
    dim = query.shape[1]
    tile = config_for("late_interaction", architecture(rows.device), rows.element_size())
    if len(scores):
        begins, lengths = (t.to(rows.device, non_blocking=True) for t in (begins, lengths))
        with torch.cuda.device_of(rows):
            late_interaction_kernel[len(scores),](
                query, rows, begins, lengths, scores, query.stride(0), rows.stride(0), len(query),
                D=dim, M=tile.m, N=min(tile.n, power_of_two(len(query))), K=min(tile.k, power_of_two(dim)),
                PRECISION=precision(rows.dtype), num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return scores
