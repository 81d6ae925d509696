"""Dynamic contextualizer as kernels: norms, rows of shares, and the static contextualizer's product
with them.

A split's shares P (cosines divided by their rows' sums) take T values a token, a third of what a
token's mixed part takes at T = 256 and D = 768. The product with them is then that of the static
contextualizer, with as many programs, which matters where splits are few, and its copies run ahead
of it. One program that holds a block of rows of P in registers and never writes them takes twice as
long for 16 splits and as long for 64; forward with a finished gate and backward it loses at every
size.

Captured in a graph on Hopper, the kernels take 64 splits of 256 tokens at a time. Their tokens (25
MB at D = 768 in 16 bits) and shares (8 MB) are then still in the 50 MB of an H100's L2 cache when
the next kernel reads them, and 128 programs of 128 rows are one wave of its 132 SMs. Measured
there, each on inputs of its own: 64 splits 0.065 ms, eight times that 0.52 ms; 512 at once 0.67 ms.
A host's launches cost more than that: without a graph, all splits are launched at once.

Gradient (O = P Z, S the cosines, D their row sums, dO the gradient of O, dP = dO Z^T,
delta_i = sum_j P_ij dP_ij):

    U  = dS = (dP - sign(S) delta) / D          (without `sign` for "sum")
    dZ = P^T dO + W Z,   W_ij = (U + U^T)_ij / (|z_i| |z_j|), of whose diagonal
         N_i . dN_i / |z_i|^2 is taken
    N_i . dN_i = sum_j U_ij S_ij + sum_j U_ji S_ji

where the first of these sums is 0 for "l1" (normalization forgets a row's scale) and delta eps / D
for "sum". Kernels: dO; the gate's gradient (the static kernel, with P for its matrix); U; W; dZ.
Every product reads both of its operands from memory, so that copies run ahead of it. P, U and W
take T values a token each, in the element type of the input. A zero vector has no direction: its
similarities pass no gradient.
"""

# Arguments of kernels are typed by Triton at launch, those of autograd hooks by torch, of operators by their signature.  # noqa: E501
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.static_mix import gated_grad, mix
from aveyb_retrieval.kernels.triton.tiles import (
    architecture,
    at_split,
    blocks,
    config_for,
    inference_operator,
    inverse_norm,
    larger,
    load_tile,
    own_rows,
    power_of_two,
    precision,
    products_of,
    store_tile,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_MIN_SUM = tl.constexpr(1e-12)
_IN_CACHE_TOKENS = 64 * 256  # tokens


@triton.jit(do_not_specialize=["T"])
def norms_kernel(
    mixed, lengths, inverse_norms, mixed_split, mixed_row, T,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows).

    inverse_norms float32 `[n, T]`: 1 / |z|; 0 beyond a split's length.
    """
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows = first + tl.arange(0, M)
    squares = tl.zeros((M,), dtype=tl.float32)
    for k in range(0, D, N):
        wide = load_tile(
            mixed + split * mixed_split, rows, k + tl.arange(0, N), mixed_row, n, D, D % N == 0
        )
        wide = wide.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
    tl.store(inverse_norms + split * T + rows, inverse_norm(squares), mask=rows < T)


@triton.jit(do_not_specialize=["T"])
def shares_kernel(
    mixed, lengths, inverse_norms, denominators, shares, mixed_split, mixed_row, T, eps,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
    L1: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows).

    shares `[n, C, C]`: P; denominators float32 `[n, T]`; rows below lengths.
    """
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows, columns = first + tl.arange(0, M), tl.arange(0, C)
    if first < n:
        mixed += split * mixed_split
        cosines = products_of(
            mixed, rows, mixed_row, n, mixed, columns, mixed_row, n, D, M, C, K, PRECISION
        )
        inverse = tl.load(inverse_norms + split * T + rows, mask=rows < n, other=0.0)
        column_inverse = tl.load(inverse_norms + split * T + columns, mask=columns < n, other=0.0)
        cosines *= inverse[:, None] * column_inverse[None, :]
        denominator = (
            larger(tl.sum(tl.abs(cosines), 1), _MIN_SUM) if L1 else tl.sum(cosines, 1) + eps
        )
        tl.store(denominators + split * T + rows, denominator, mask=rows < n)
        store_tile(
            shares + split * C * C, rows, columns, C, cosines / denominator[:, None], n, C, True
        )


@triton.jit(do_not_specialize=["T"])
def mixture_grad_kernel(
    grad, gate, out, lengths, mixture_grad, bias_sums,
    grad_split, grad_row, gate_split, gate_row, out_split, out_row, T,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, RELU: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows). mixture_grad `[n, T, D]`: dO, rows below a length only.

    bias_sums float32 `[n, T]`: dO summed over the width.
    """
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows = first + tl.arange(0, M)
    grad, gate, out = at_split(split, grad, grad_split, gate, gate_split, out, out_split)
    bias_sum = tl.zeros((M,), dtype=tl.float32)
    for k in range(0, D, N):
        d = k + tl.arange(0, N)
        value = gated_grad(grad, gate, out, rows, d, grad_row, gate_row, out_row, n, D, N, RELU)
        bias_sum += tl.sum(value, 1)
        store_tile(mixture_grad + split * T * D, rows, d, D, value, n, D, D % N == 0)
    tl.store(bias_sums + split * T + rows, bias_sum, mask=rows < T)


@triton.jit(do_not_specialize=["T"])
def backward_cosines_kernel(
    mixture_grad, mixed, lengths, inverse_norms, denominators, shares, cosine_grads, row_terms,
    mixed_split, mixed_row, T, eps,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
    L1: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows). cosine_grads `[n, C, C]`: U; row_terms float32 `[n, T]`:
    sum_j U_ij S_ij.

    Of both rows below the length only.
    """
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows, columns = first + tl.arange(0, M), tl.arange(0, C)
    if first < n:
        mixed += split * mixed_split
        mixture_grad += split * T * D
        value = products_of(
            mixture_grad, rows, D, n, mixed, columns, mixed_row, n, D, M, C, K, PRECISION
        )
        inverse = tl.load(inverse_norms + split * T + rows, mask=rows < n, other=0.0)
        denominator = tl.load(denominators + split * T + rows, mask=rows < n, other=1.0)
        column_inverse = tl.load(inverse_norms + split * T + columns, mask=columns < n, other=0.0)
        share = load_tile(shares + split * C * C, rows, columns, C, n, C, True).to(tl.float32)
        delta = tl.sum(share * value, 1)
        row_term = tl.zeros((M,), dtype=tl.float32)
        if L1:
            value -= tl.where(share > 0, 1.0, tl.where(share < 0, -1.0, 0.0)) * delta[:, None]
        else:
            value -= delta[:, None]
            row_term = tl.where(inverse > 0, delta * eps / denominator, 0.0)
        directed = (inverse > 0)[:, None] & (column_inverse > 0)[None, :]
        value = tl.where(directed, value / denominator[:, None], 0.0)
        store_tile(cosine_grads + split * C * C, rows, columns, C, value, n, C, True)
        tl.store(row_terms + split * T + rows, row_term, mask=rows < n)


@triton.jit(do_not_specialize=["T"])
def backward_weights_kernel(
    lengths, inverse_norms, denominators, shares, cosine_grads, row_terms, weights, T,
    C: tl.constexpr, M: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows). weights `[n, C, C]`: W, rows below a length only."""
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows, columns = first + tl.arange(0, M), tl.arange(0, C)
    if first < n:
        shares += split * C * C
        cosine_grads += split * C * C
        inverse = tl.load(inverse_norms + split * T + rows, mask=rows < n, other=0.0)
        along = tl.load(row_terms + split * T + rows, mask=rows < n, other=0.0)
        column_inverse = tl.load(inverse_norms + split * T + columns, mask=columns < n, other=0.0)
        column_sum = tl.load(denominators + split * T + columns, mask=columns < n, other=0.0)
        share = load_tile(shares, columns, rows, C, n, C, True).to(tl.float32)  # [C, M]
        down = load_tile(cosine_grads, columns, rows, C, n, C, True).to(tl.float32)
        along += tl.sum(down * share * column_sum[:, None], 0)
        value = load_tile(cosine_grads, rows, columns, C, n, C, True).to(tl.float32) + tl.trans(
            down
        )
        value *= inverse[:, None] * column_inverse[None, :]
        value -= tl.where(
            rows[:, None] == columns[None, :], (along * inverse * inverse)[:, None], 0.0
        )
        store_tile(weights + split * C * C, rows, columns, C, value, n, C, True)


@triton.jit(do_not_specialize=["T"])
def backward_input_kernel(
    mixture_grad, mixed, lengths, shares, weights, grad_mixed, mixed_split, mixed_row, T,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows, blocks of N columns). grad_mixed `[n, T, D]`: dZ."""
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows, d = first + tl.arange(0, M), tl.program_id(2) * N + tl.arange(0, N)
    mixed += split * mixed_split
    mixture_grad += split * T * D
    shares += split * C * C
    weights += split * C * C
    value = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, n, K):
        inner = k + tl.arange(0, K)
        share = load_tile(shares, inner, rows, C, n, C, True)  # [K, M]
        own_grad = load_tile(mixture_grad, inner, d, D, n, D, D % N == 0)
        value = tl.dot(tl.trans(share), own_grad, value, input_precision=PRECISION)
    for k in range(0, n, K):
        inner = k + tl.arange(0, K)
        weight = load_tile(weights, rows, inner, C, n, C, True)
        value = tl.dot(
            weight,
            load_tile(mixed, inner, d, mixed_row, n, D, D % N == 0),
            value,
            input_precision=PRECISION,
        )
    store_tile(
        grad_mixed + split * T * D,
        rows,
        d,
        D,
        tl.where(rows[:, None] < n, value, 0.0),
        T,
        D,
        D % N == 0,
    )


def _launch_norms(
    mixed: torch.Tensor, lengths: torch.Tensor | None, inverse_norms: torch.Tensor
) -> None:
    n, width, dim = mixed.shape
    tile = config_for("dynamic_mix_norms", architecture(mixed.device), mixed.element_size())
    if n:
        with torch.cuda.device_of(mixed):
            norms_kernel[n, blocks(width, tile.m)](
                mixed, lengths, inverse_norms, mixed.stride(0), mixed.stride(1), width,
                D=dim, M=tile.m, N=min(tile.n, power_of_two(dim)), RAGGED=lengths is not None,
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip


def _launch_shares(
    mixed: torch.Tensor,
    inverse_norms: torch.Tensor,
    lengths: torch.Tensor | None,
    eps: float,
    l1: bool,
    shares: torch.Tensor,
    denominators: torch.Tensor,
) -> None:
    """Write P to shares `[n, C, C]`, C the power of two that holds T, and the rows' sums float32
    `[n, T]`.
    """
    n, width, dim = mixed.shape
    side = shares.shape[-1]
    tile = config_for("dynamic_mix_shares", architecture(mixed.device), mixed.element_size())
    m = min(tile.m, side)
    if n:
        with torch.cuda.device_of(mixed):
            shares_kernel[n, blocks(width, m)](
                mixed,
                lengths,
                inverse_norms,
                denominators,
                shares,
                mixed.stride(0),
                mixed.stride(1),
                width,
                eps,
                D=dim,
                C=side,
                M=m,
                K=min(tile.k, power_of_two(dim)),
                L1=l1,
                RAGGED=lengths is not None,
                PRECISION=precision(mixed.dtype),
                num_warps=tile.warps,
                num_stages=tile.stages,
            )


def _is_captured(mixed: torch.Tensor) -> bool:
    on_hopper = mixed.is_cuda and architecture(mixed.device) == "sm_90"
    return on_hopper and torch.cuda.is_current_stream_capturing()


def _parts(
    mixed: torch.Tensor, lengths: torch.Tensor | None
) -> Iterator[tuple[slice, torch.Tensor | None]]:
    """Which splits the kernels take one after another, with their lengths: all at once but in a
    captured graph.
    """
    size = max(1, _IN_CACHE_TOKENS // mixed.shape[1] if _is_captured(mixed) else len(mixed))
    for start in range(0, len(mixed), size):
        part = slice(start, start + size)
        yield part, None if lengths is None else lengths[part]


def _empty_shares(mixed: torch.Tensor) -> torch.Tensor:
    side = power_of_two(mixed.shape[1])
    return mixed.new_empty((mixed.shape[0], side, side))


@torch.library.custom_op("aveyb::dynamic_mix", mutates_args=())
def dynamic_mix_op(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    l1: bool,
    relu: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The mixed and gated `[n, T, D]`; for the backward 1 / |z| and the rows' sums, float32 `[n,
    T]`, and P.
    """
    out, shares = mixed.new_empty(mixed.shape), _empty_shares(mixed)
    inverse_norms, denominators = (
        mixed.new_empty(mixed.shape[:2], dtype=torch.float32) for _ in range(2)
    )
    for part, n in _parts(mixed, lengths):
        _launch_norms(mixed[part], n, inverse_norms[part])
        _launch_shares(
            mixed[part], inverse_norms[part], n, eps, l1, shares[part], denominators[part]
        )
        mix(mixed[part], gate[part], shares[part], n, bias, relu, out=out[part])
    return out, inverse_norms, denominators, shares


def _over_gate(mixed, gate, inverse_norms, lengths, bias, eps, l1, relu, gate_activation) -> None:
    for part, n in _parts(mixed, lengths):
        if part.start == 0:  # the largest; those after it overwrite what the cache holds
            memory, denominators = _empty_shares(mixed[part]), torch.empty_like(inverse_norms[part])
        shares = memory[: len(mixed[part])]
        _launch_shares(mixed[part], inverse_norms[part], n, eps, l1, shares, denominators)
        mix(
            mixed[part],
            gate[part],
            shares,
            n,
            bias,
            relu,
            out=gate[part],
            gate_activation=gate_activation,
        )


# `dynamic_mix_op` of a gate that lacks its activation, written over that gate; inverse_norms: 1 /
# |z|, `[n, T]`.
dynamic_mix_over_gate_op = inference_operator(
    "dynamic_mix_over_gate(Tensor mixed, Tensor(a!) gate, Tensor inverse_norms, Tensor? lengths,"
    " Tensor? bias, float eps, bool l1, bool relu, str gate_activation) -> ()",
    _over_gate,
    lambda *_: None,
)


@dynamic_mix_op.register_fake
def _(mixed, *_) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    statistics = mixed.new_empty(mixed.shape[:2], dtype=torch.float32)
    return (
        mixed.new_empty(mixed.shape),
        statistics,
        torch.empty_like(statistics),
        _empty_shares(mixed),
    )


@torch.library.custom_op("aveyb::dynamic_mix_backward", mutates_args=())
def dynamic_mix_backward_op(
    grad: torch.Tensor,
    mixed: torch.Tensor,
    gate: torch.Tensor,
    out: torch.Tensor,
    inverse_norms: torch.Tensor,
    denominators: torch.Tensor,
    shares: torch.Tensor,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    l1: bool,
    relu: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `mixed` and `gate`, `[n, T, D]`, and of the bias before the sum over splits,
    float32 `[n, T]`.
    """
    n, width, dim = mixed.shape
    device, element, arch = mixed.device, mixed.element_size(), architecture(mixed.device)
    grad_mixed, mixture_grad = (
        torch.empty((n, width, dim), dtype=mixed.dtype, device=device) for _ in range(2)
    )
    row_terms, bias_sums = torch.empty_like(inverse_norms), torch.empty_like(inverse_norms)
    if n == 0:
        return grad_mixed, torch.empty_like(grad_mixed), bias_sums
    side, whole = power_of_two(width), power_of_two(dim)
    cosine_grads, weights = torch.empty((2, *shares.shape), dtype=mixed.dtype, device=device)
    ragged, dots = lengths is not None, precision(mixed.dtype)
    place = mixed.stride(0), mixed.stride(1), width
    with torch.cuda.device_of(mixed):
        tile = config_for("dynamic_mix_norms", arch, element)
        mixture_grad_kernel[n, blocks(width, tile.m)](
            grad,
            gate,
            out,
            lengths,
            mixture_grad,
            bias_sums,
            *(stride for tensor in (grad, gate, out) for stride in tensor.stride()[:2]),
            width,
            D=dim,
            M=tile.m,
            N=min(tile.n, whole),
            RELU=relu,
            RAGGED=ragged,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        grad_gate = mix(mixed, grad, shares, lengths, bias, relu)
        tile = config_for("dynamic_mix_cosines", arch, element)
        m = min(tile.m, side)
        backward_cosines_kernel[n, blocks(width, m)](
            mixture_grad,
            mixed,
            lengths,
            inverse_norms,
            denominators,
            shares,
            cosine_grads,
            row_terms,
            *place,
            eps,
            D=dim,
            C=side,
            M=m,
            K=min(tile.k, whole),
            L1=l1,
            RAGGED=ragged,
            PRECISION=dots,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        tile = config_for("dynamic_mix_weights", arch, element)
        m = min(tile.m, side)
        backward_weights_kernel[n, blocks(width, m)](
            lengths,
            inverse_norms,
            denominators,
            shares,
            cosine_grads,
            row_terms,
            weights,
            width,
            C=side,
            M=m,
            RAGGED=ragged,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        tile = config_for("dynamic_mix_input", arch, element)
        m, columns = min(tile.m, side), min(tile.n, whole)
        backward_input_kernel[n, blocks(width, m), blocks(dim, columns)](
            mixture_grad,
            mixed,
            lengths,
            shares,
            weights,
            grad_mixed,
            *place,
            D=dim,
            C=side,
            M=m,
            N=columns,
            K=min(tile.k, side),
            RAGGED=ragged,
            PRECISION=dots,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return grad_mixed, grad_gate, bias_sums


@dynamic_mix_backward_op.register_fake
def _(grad, mixed, gate, out, inverse_norms, *_) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        mixed.new_empty(mixed.shape),
        mixed.new_empty(mixed.shape),
        torch.empty_like(inverse_norms),
    )


def _setup_context(ctx, inputs, output) -> None:
    mixed, gate, lengths, bias, *ctx.settings = inputs
    ctx.save_for_backward(mixed, gate, lengths, bias, *output)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, grad, *_):
    mixed, gate, lengths, bias, out, inverse_norms, denominators, shares = ctx.saved_tensors
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    grad_mixed, grad_gate, bias_sums = dynamic_mix_backward_op(
        grad, mixed, gate, out, inverse_norms, denominators, shares, lengths, bias, *ctx.settings
    )
    grad_bias = None if bias is None else bias_sums.sum(0).to(bias.dtype)
    return grad_mixed, grad_gate, None, grad_bias, None, None, None


dynamic_mix_op.register_autograd(_backward, setup_context=_setup_context)
