"""Dynamic contextualizer as kernels: similarities, row normalisation, mixing and gate without a T x T matrix in memory.

A split has at most 256 tokens, so one program holds a block of rows against all columns and needs no running maximum or
rescaling: it builds the similarities over the width, normalises them in registers, and reads the width a second time
(from L2) to mix and gate.

Gradient (O = P Z, S the cosines, D the row sums, dO the gradient of O, delta_i = dO_i . O_i):
    U  = dS = (dO Z^T - sign(S) delta) / D      (without `sign` for "sum")
    dZ = P^T dO + ((U + U^T) N - (N . dN) N) / |z|,   N . dN = sum_j U_ij S_ij + sum_j U_ji S_ji
where the first term of the last sum is 0 for "l1" (a row's normalisation forgets its scale) and delta eps / D for "sum".
The first kernel writes P again, the second works by rows and writes U (2 T values a token together, in the element type
of the input) and, per block of rows, the column sums of U S; the third reads both by columns. A zero vector has no direction: its similarities pass no gradient.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.configs import architecture, config_for
from aveyb_retrieval.kernels.triton.tiles import blocks, load_tile, power_of_two, precision, store_tile, valid_rows

MAX_TOKENS = 256  # columns that one program holds in registers
_FLOOR = tl.constexpr(1e-12)


@triton.jit
def _products(base, rows, columns, stride, n, D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
                  PRECISION: tl.constexpr):  # fmt: skip
    """`z_i . z_j` [M, C] and the squared norms of the rows [M] and of the columns [C]."""
    products = tl.zeros((M, C), dtype=tl.float32)
    row_squares = tl.zeros((M,), dtype=tl.float32)
    column_squares = tl.zeros((C,), dtype=tl.float32)
    for k in range(0, D, K):
        d = k + tl.arange(0, K)
        a = load_tile(base, rows, d, stride, n, D, D % K == 0)
        b = load_tile(base, columns, d, stride, n, D, D % K == 0)
        products = tl.dot(a, tl.trans(b), products, input_precision=PRECISION)
        wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
        row_squares += tl.sum(wide_a * wide_a, 1)
        column_squares += tl.sum(wide_b * wide_b, 1)
    return products, row_squares, column_squares


@triton.jit
def _inverse_norm(squares):
    norm = tl.sqrt(squares)
    return tl.where(norm > _FLOOR, 1.0 / norm, 0.0)


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    mixed, gate, bias, lengths, out, inverse_norms, denominators,
    mixed_split, mixed_row, gate_split, gate_row, T, eps,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    L1: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows). out `[n, T, D]` contiguous; inverse_norms and denominators float32 `[n, T]`."""
    split = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * M
    rows, columns = first + tl.arange(0, M), tl.arange(0, C)
    n = valid_rows(lengths, split, T, RAGGED)
    mixed += split * mixed_split
    gate += split * gate_split
    out += split * T * D
    if first >= n:
        for k in range(0, D, N):
            d = k + tl.arange(0, N)
            store_tile(out, rows, d, D, tl.zeros((M, N), dtype=tl.float32), T, D, D % N == 0)
    else:
        products, row_squares, column_squares = _products(mixed, rows, columns, mixed_row, n, D, C, M, K, PRECISION)
        inverse = _inverse_norm(row_squares)
        cosines = products * inverse[:, None] * _inverse_norm(column_squares)[None, :]
        if L1:
            denominator = tl.maximum(tl.sum(tl.abs(cosines), 1), _FLOOR)
        else:
            denominator = tl.sum(cosines, 1) + eps
        tl.store(inverse_norms + split * T + rows, inverse, mask=rows < T)
        tl.store(denominators + split * T + rows, denominator, mask=rows < T)
        shares = (cosines / denominator[:, None]).to(mixed.dtype.element_ty)
        if BIAS:
            shift = tl.load(bias + rows, mask=rows < T, other=0.0).to(tl.float32)[:, None]
        for k in range(0, D, N):
            d = k + tl.arange(0, N)
            value = tl.dot(shares, load_tile(mixed, columns, d, mixed_row, n, D, D % N == 0), input_precision=PRECISION)
            if BIAS:
                value += shift
            if RELU:
                value = tl.maximum(value, 0.0)
            value *= load_tile(gate, rows, d, gate_row, n, D, D % N == 0).to(tl.float32)
            store_tile(out, rows, d, D, tl.where(rows[:, None] < n, value, 0.0), T, D, D % N == 0)


@triton.jit(do_not_specialize=["T"])
def backward_shares_kernel(
    mixed, lengths, inverse_norms, denominators, shares, mixed_split, mixed_row, T,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
    RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows). Writes P again, `[n, C, C]`; only rows below a split's length are written."""
    split = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * M
    rows, columns = first + tl.arange(0, M), tl.arange(0, C)
    n = valid_rows(lengths, split, T, RAGGED)
    if first < n:
        products, _, _ = _products(mixed + split * mixed_split, rows, columns, mixed_row, n, D, C, M, K, PRECISION)
        inverse = tl.load(inverse_norms + split * T + rows, mask=rows < n, other=0.0)
        denominator = tl.load(denominators + split * T + rows, mask=rows < n, other=1.0)
        column_inverse = tl.load(inverse_norms + split * T + columns, mask=columns < n, other=0.0)
        value = products * (inverse / denominator)[:, None] * column_inverse[None, :]
        store_tile(shares + split * C * C, rows, columns, C, value, n, C, True)


@triton.jit(do_not_specialize=["T"])
def backward_rows_kernel(
    grad, mixed, gate, bias, lengths, inverse_norms, denominators, shares,
    grad_gate, cosine_grads, column_sums, row_terms, bias_sums,
    grad_split, grad_row, mixed_split, mixed_row, gate_split, gate_row, T, eps,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    L1: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows). Writes grad_gate `[n, T, D]`, U `[n, C, C]` (rows below the length), and sums.

    column_sums float32 `[n, blocks, C]`: sums of U S over the block's rows; row_terms and bias_sums float32 `[n, T]`.
    """
    split = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    first = block * M
    rows, columns = first + tl.arange(0, M), tl.arange(0, C)
    n = valid_rows(lengths, split, T, RAGGED)
    grad += split * grad_split
    mixed += split * mixed_split
    gate += split * gate_split
    grad_gate += split * T * D
    shares += split * C * C
    column_sums += (split * tl.num_programs(1) + block) * C
    if first >= n:
        for k in range(0, D, N):
            d = k + tl.arange(0, N)
            store_tile(grad_gate, rows, d, D, tl.zeros((M, N), dtype=tl.float32), T, D, D % N == 0)
        tl.store(column_sums + columns, tl.zeros((C,), dtype=tl.float32))
        tl.store(row_terms + split * T + rows, tl.zeros((M,), dtype=tl.float32), mask=rows < T)
        tl.store(bias_sums + split * T + rows, tl.zeros((M,), dtype=tl.float32), mask=rows < T)
    else:
        valid = rows < n
        if BIAS:
            shift = tl.load(bias + rows, mask=rows < T, other=0.0).to(tl.float32)[:, None]
        share = load_tile(shares, rows, columns, C, n, C, True)
        share_grads = tl.zeros((M, C), dtype=tl.float32)
        delta = tl.zeros((M,), dtype=tl.float32)
        bias_sum = tl.zeros((M,), dtype=tl.float32)
        for k in range(0, D, N):
            d = k + tl.arange(0, N)
            z = load_tile(mixed, columns, d, mixed_row, n, D, D % N == 0)
            mixture = tl.dot(share, z, input_precision=PRECISION)
            upstream = load_tile(grad, rows, d, grad_row, n, D, D % N == 0).to(tl.float32)
            mixture_grad = upstream * load_tile(gate, rows, d, gate_row, n, D, D % N == 0).to(tl.float32)
            active = mixture
            if BIAS:
                active += shift
            if RELU:
                mixture_grad = tl.where(active > 0, mixture_grad, 0.0)
                active = tl.maximum(active, 0.0)
            store_tile(grad_gate, rows, d, D, tl.where(valid[:, None], upstream * active, 0.0), T, D, D % N == 0)
            delta += tl.sum(mixture_grad * mixture, 1)
            bias_sum += tl.sum(mixture_grad, 1)
            share_grads = tl.dot(mixture_grad.to(z.dtype), tl.trans(z), share_grads, input_precision=PRECISION)
        inverse = tl.load(inverse_norms + split * T + rows, mask=valid, other=0.0)
        denominator = tl.load(denominators + split * T + rows, mask=valid, other=1.0)
        column_inverse = tl.load(inverse_norms + split * T + columns, mask=columns < n, other=0.0)
        # Read again rather than kept: the registers of the loop above have no room for it.
        scores = load_tile(shares, rows, columns, C, n, C, True).to(tl.float32)
        if L1:
            sign = tl.where(scores > 0, 1.0, tl.where(scores < 0, -1.0, 0.0))
            cosine_grad = (share_grads - sign * delta[:, None]) / denominator[:, None]
            row_term = tl.zeros((M,), dtype=tl.float32)
        else:
            cosine_grad = (share_grads - delta[:, None]) / denominator[:, None]
            row_term = delta * eps / denominator
        directed = (inverse > 0)[:, None] & (column_inverse > 0)[None, :]
        cosine_grad = tl.where(directed, cosine_grad, 0.0)
        tl.store(column_sums + columns, tl.sum(cosine_grad * scores * denominator[:, None], 0))
        tl.store(row_terms + split * T + rows, tl.where(inverse > 0, row_term, 0.0), mask=rows < T)
        tl.store(bias_sums + split * T + rows, bias_sum, mask=rows < T)
        store_tile(cosine_grads + split * C * C, rows, columns, C, cosine_grad, n, C, True)


@triton.jit(do_not_specialize=["T"])
def backward_input_kernel(
    grad, mixed, gate, out, lengths, inverse_norms, shares, cosine_grads, column_sums, row_terms, grad_mixed,
    grad_split, grad_row, mixed_split, mixed_row, gate_split, gate_row, out_split, out_row, T, n_blocks,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    RELU: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows). grad_mixed `[n, T, D]`: P^T dO + ((U + U^T) N - (N . dN) N) / |z|."""
    split = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * M
    rows, columns = first + tl.arange(0, M), tl.arange(0, C)
    n = valid_rows(lengths, split, T, RAGGED)
    grad += split * grad_split
    mixed += split * mixed_split
    gate += split * gate_split
    out += split * out_split
    grad_mixed += split * T * D
    if first >= n:
        for k in range(0, D, N):
            d = k + tl.arange(0, N)
            store_tile(grad_mixed, rows, d, D, tl.zeros((M, N), dtype=tl.float32), T, D, D % N == 0)
    else:
        element = mixed.dtype.element_ty
        square = split * C * C
        inside = (rows[:, None] < n) & (columns[None, :] < n)
        across, down = rows[:, None] * C + columns[None, :], columns[None, :] * C + rows[:, None]
        transposed = tl.load(shares + square + down, mask=inside, other=0.0)
        weights = tl.load(cosine_grads + square + across, mask=inside, other=0.0).to(tl.float32)
        weights += tl.load(cosine_grads + square + down, mask=inside, other=0.0).to(tl.float32)
        column_inverse = tl.load(inverse_norms + split * T + columns, mask=columns < n, other=0.0)
        weights = (weights * column_inverse[None, :]).to(element)
        inverse = tl.load(inverse_norms + split * T + rows, mask=rows < n, other=0.0)
        along = tl.load(row_terms + split * T + rows, mask=rows < n, other=0.0)
        for block in range(0, n_blocks):
            along += tl.load(column_sums + (split * n_blocks + block) * C + rows, mask=rows < C, other=0.0)
        for k in range(0, D, N):
            d = k + tl.arange(0, N)
            z = load_tile(mixed, columns, d, mixed_row, n, D, D % N == 0)
            value = tl.dot(weights, z, input_precision=PRECISION) * inverse[:, None]
            own = load_tile(mixed, rows, d, mixed_row, n, D, D % N == 0).to(tl.float32)
            value -= (along * inverse * inverse)[:, None] * own
            mixture_grad = load_tile(grad, columns, d, grad_row, n, D, D % N == 0).to(tl.float32)
            mixture_grad *= load_tile(gate, columns, d, gate_row, n, D, D % N == 0).to(tl.float32)
            if RELU:  # where sigma was shut the output is zero
                shut = load_tile(out, columns, d, out_row, n, D, D % N == 0) == 0
                mixture_grad = tl.where(shut, 0.0, mixture_grad)
            value = tl.dot(transposed, mixture_grad.to(element), value, input_precision=PRECISION)
            store_tile(grad_mixed, rows, d, D, tl.where(rows[:, None] < n, value, 0.0), T, D, D % N == 0)


@torch.library.custom_op("aveyb::dynamic_mix", mutates_args=())
def dynamic_mix_op(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    l1: bool,
    relu: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The mixed and gated `[n, T, D]`; 1 / |z| and the rows' sums, float32 `[n, T]`, for the backward."""
    n, width, dim = mixed.shape
    out = torch.empty((n, width, dim), dtype=mixed.dtype, device=mixed.device)
    inverse_norms = torch.empty((n, width), dtype=torch.float32, device=mixed.device)
    denominators = torch.empty_like(inverse_norms)
    tile = config_for("dynamic_mix", architecture(mixed.device), mixed.element_size())
    side = power_of_two(width)
    m = min(tile.m, side)
    if n:
        with torch.cuda.device_of(mixed):
            forward_kernel[n, blocks(width, m)](
                mixed, gate, bias, lengths, out, inverse_norms, denominators,
                mixed.stride(0), mixed.stride(1), gate.stride(0), gate.stride(1), width, eps,
                D=dim, C=side, M=m, N=min(tile.n, power_of_two(dim)), K=min(tile.k, power_of_two(dim)),
                L1=l1, RELU=relu, BIAS=bias is not None, RAGGED=lengths is not None,
                PRECISION=precision(mixed.dtype), num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return out, inverse_norms, denominators


@dynamic_mix_op.register_fake
def _(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    l1: bool,
    relu: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    statistics = mixed.new_empty(mixed.shape[:2], dtype=torch.float32)
    return mixed.new_empty(mixed.shape), statistics, torch.empty_like(statistics)


@torch.library.custom_op("aveyb::dynamic_mix_backward", mutates_args=())
def dynamic_mix_backward_op(
    grad: torch.Tensor,
    mixed: torch.Tensor,
    gate: torch.Tensor,
    out: torch.Tensor,
    inverse_norms: torch.Tensor,
    denominators: torch.Tensor,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    l1: bool,
    relu: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `mixed` and `gate`, `[n, T, D]`, and of the bias before the sum over splits, float32 `[n, T]`."""
    n, width, dim = mixed.shape
    device, element = mixed.device, mixed.element_size()
    grad_mixed = torch.empty((n, width, dim), dtype=mixed.dtype, device=device)
    grad_gate = torch.empty_like(grad_mixed)
    row_terms, bias_sums = torch.empty_like(inverse_norms), torch.empty_like(inverse_norms)
    if n == 0:
        return grad_mixed, grad_gate, bias_sums
    by_shares, by_rows, by_input = (
        config_for(f"dynamic_mix_{part}", architecture(device), element) for part in ("shares", "rows", "input")
    )
    side, whole = power_of_two(width), power_of_two(dim)
    n_blocks = blocks(width, min(by_rows.m, side))
    squares = torch.empty((2, n, side, side), dtype=mixed.dtype, device=device)
    column_sums = torch.empty((n, n_blocks, side), dtype=torch.float32, device=device)
    shared = {"D": dim, "C": side, "RAGGED": lengths is not None, "PRECISION": precision(mixed.dtype)}
    with torch.cuda.device_of(mixed):
        m = min(by_shares.m, side)
        backward_shares_kernel[n, blocks(width, m)](
            mixed, lengths, inverse_norms, denominators, squares[0], mixed.stride(0), mixed.stride(1), width,
            M=m, K=min(by_shares.k, whole), **shared, num_warps=by_shares.warps, num_stages=by_shares.stages,
        )  # fmt: skip
        backward_rows_kernel[n, n_blocks](
            grad, mixed, gate, bias, lengths, inverse_norms, denominators, squares[0],
            grad_gate, squares[1], column_sums, row_terms, bias_sums,
            grad.stride(0), grad.stride(1), mixed.stride(0), mixed.stride(1), gate.stride(0), gate.stride(1), width, eps,
            M=min(by_rows.m, side), N=min(by_rows.n, whole), L1=l1, RELU=relu, BIAS=bias is not None, **shared,
            num_warps=by_rows.warps, num_stages=by_rows.stages,
        )  # fmt: skip
        m = min(by_input.m, side)
        backward_input_kernel[n, blocks(width, m)](
            grad, mixed, gate, out, lengths, inverse_norms, squares[0], squares[1], column_sums, row_terms, grad_mixed,
            grad.stride(0), grad.stride(1), mixed.stride(0), mixed.stride(1), gate.stride(0), gate.stride(1),
            out.stride(0), out.stride(1), width, n_blocks,
            M=m, N=min(by_input.n, whole), RELU=relu, **shared, num_warps=by_input.warps, num_stages=by_input.stages,
        )  # fmt: skip
    return grad_mixed, grad_gate, bias_sums


@dynamic_mix_backward_op.register_fake
def _(
    grad: torch.Tensor,
    mixed: torch.Tensor,
    gate: torch.Tensor,
    out: torch.Tensor,
    inverse_norms: torch.Tensor,
    denominators: torch.Tensor,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    l1: bool,
    relu: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return mixed.new_empty(mixed.shape), mixed.new_empty(mixed.shape), torch.empty_like(inverse_norms)


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    mixed, gate, lengths, bias, *ctx.settings = inputs
    ctx.save_for_backward(mixed, gate, lengths, bias, *output)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, grad, *_):  # type: ignore[no-untyped-def]
    mixed, gate, lengths, bias, out, inverse_norms, denominators = ctx.saved_tensors
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    grad_mixed, grad_gate, bias_sums = dynamic_mix_backward_op(
        grad, mixed, gate, out, inverse_norms, denominators, lengths, bias, *ctx.settings
    )
    grad_bias = None if bias is None else bias_sums.sum(0).to(bias.dtype)
    return grad_mixed, grad_gate, None, grad_bias, None, None, None


dynamic_mix_op.register_autograd(_backward, setup_context=_setup_context)
