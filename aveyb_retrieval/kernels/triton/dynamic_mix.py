"""Dynamic contextualizer as kernels: similarities, row normalization, mixing and gate without a T x T matrix in memory.

A split has at most 256 tokens, so one program holds a block of rows against all columns and needs no running maximum or
rescaling: it builds the similarities over the width, normalizes them in registers, and reads the width a second time
(from L2) to mix and gate.

Gradient (O = P Z, S the cosines, D their row sums, dO the gradient of O, dP = dO Z^T, delta_i = sum_j P_ij dP_ij):
    U  = dS = (dP - sign(S) delta) / D          (without `sign` for "sum")
    dZ = P^T dO + ((U + U^T) N - (N . dN) N) / |z|,   N . dN = sum_j U_ij S_ij + sum_j U_ji S_ji
where the first term of the last sum is 0 for "l1" (normalization forgets a row's scale) and delta eps / D for "sum".
Four kernels, each a plain matrix product with something done on the way: P again; the gate's gradient (the static
kernel, with P for its matrix); U; dZ. P and U are the workspace: 2 T values a token, in the element type of the input.
A zero vector has no direction: its similarities pass no gradient.
"""

# Arguments of kernels are typed by Triton at launch, those of autograd hooks by torch.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.configs import architecture, config_for
from aveyb_retrieval.kernels.triton.operators import inference_operator
from aveyb_retrieval.kernels.triton.static_mix import gated_grad, mix
from aveyb_retrieval.kernels.triton.tiles import (
    activated,
    at_split,
    blocks,
    inverse_norm,
    larger,
    load_tile,
    own_rows,
    power_of_two,
    precision,
    store_tile,
)

_MIN_SUM = tl.constexpr(1e-12)


@triton.jit
def _products(base, rows, columns, stride, n, D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
              PRECISION: tl.constexpr):  # fmt: skip
    """`z_i . z_j` [M, C]."""
    products = tl.zeros((M, C), dtype=tl.float32)
    for k in range(0, D, K):
        d = k + tl.arange(0, K)
        a = load_tile(base, rows, d, stride, n, D, D % K == 0)
        b = load_tile(base, columns, d, stride, n, D, D % K == 0)
        products = tl.dot(a, tl.trans(b), products, input_precision=PRECISION)
    return products


@triton.jit
def _squares(base, rows, stride, n, D: tl.constexpr, M: tl.constexpr, K: tl.constexpr):
    """Squared norms [M], in a loop of their own: a tile that feeds a product feeds nothing else (see `__init__.py`)."""
    squares = tl.zeros((M,), dtype=tl.float32)
    for k in range(0, D, K):
        wide = load_tile(base, rows, k + tl.arange(0, K), stride, n, D, D % K == 0).to(tl.float32)
        squares += tl.sum(wide * wide, 1)
    return squares


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    mixed, gate, bias, lengths, out, inverse_norms, denominators,
    mixed_split, mixed_row, gate_split, gate_row, out_split, out_row, T, eps,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    L1: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr, RAGGED: tl.constexpr, GATE: tl.constexpr,
    NORMED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows). out `[n, T, D]`; inverse_norms and denominators float32 `[n, T]`.

    The gate first goes through the activation GATE ("none": it is used as it is). out may be the gate itself: a program
    reads of it what it writes, and before. NORMED: inverse_norms are given, and denominators not kept.
    """
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows, columns = first + tl.arange(0, M), tl.arange(0, C)
    mixed += split * mixed_split
    gate += split * gate_split
    out += split * out_split
    if first >= n:
        for k in range(0, D, N):
            d = k + tl.arange(0, N)
            store_tile(out, rows, d, out_row, tl.zeros((M, N), dtype=tl.float32), T, D, D % N == 0)
    else:
        if NORMED:
            inverse = tl.load(inverse_norms + split * T + rows, mask=rows < n, other=0.0)
            column_inverse = tl.load(inverse_norms + split * T + columns, mask=columns < n, other=0.0)
        else:
            inverse = inverse_norm(_squares(mixed, rows, mixed_row, n, D, M, K))
            column_inverse = inverse_norm(_squares(mixed, columns, mixed_row, n, D, C, K))
        products = _products(mixed, rows, columns, mixed_row, n, D, C, M, K, PRECISION)
        cosines = products * inverse[:, None] * column_inverse[None, :]
        denominator = larger(tl.sum(tl.abs(cosines), 1), _MIN_SUM) if L1 else tl.sum(cosines, 1) + eps
        if not NORMED:
            tl.store(inverse_norms + split * T + rows, inverse, mask=rows < T)
            tl.store(denominators + split * T + rows, denominator, mask=rows < T)
        shares = (cosines / denominator[:, None]).to(mixed.dtype.element_ty)
        for k in range(0, D, N):
            d = k + tl.arange(0, N)
            value = tl.dot(shares, load_tile(mixed, columns, d, mixed_row, n, D, D % N == 0), input_precision=PRECISION)
            if BIAS:  # read again in each round: registers are short
                value += tl.load(bias + rows, mask=rows < T, other=0.0).to(tl.float32)[:, None]
            if RELU:
                value = larger(value, 0.0)
            value *= activated(load_tile(gate, rows, d, gate_row, n, D, D % N == 0).to(tl.float32), GATE)
            store_tile(out, rows, d, out_row, tl.where(rows[:, None] < n, value, 0.0), T, D, D % N == 0)


@triton.jit(do_not_specialize=["T"])
def backward_shares_kernel(
    mixed, lengths, inverse_norms, denominators, shares, mixed_split, mixed_row, T,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
    RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows). Writes P again, `[n, C, C]`; only rows below a split's length are written."""
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows, columns = first + tl.arange(0, M), tl.arange(0, C)
    if first < n:
        products = _products(mixed + split * mixed_split, rows, columns, mixed_row, n, D, C, M, K, PRECISION)
        inverse = tl.load(inverse_norms + split * T + rows, mask=rows < n, other=0.0)
        denominator = tl.load(denominators + split * T + rows, mask=rows < n, other=1.0)
        column_inverse = tl.load(inverse_norms + split * T + columns, mask=columns < n, other=0.0)
        value = products * (inverse / denominator)[:, None] * column_inverse[None, :]
        store_tile(shares + split * C * C, rows, columns, C, value, n, C, True)


@triton.jit(do_not_specialize=["T"])
def backward_cosines_kernel(
    grad, mixed, gate, out, lengths, inverse_norms, denominators, shares, cosine_grads, row_terms, bias_sums,
    grad_split, grad_row, mixed_split, mixed_row, gate_split, gate_row, out_split, out_row, T, eps,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
    L1: tl.constexpr, RELU: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows). Writes U `[n, C, C]`, rows below the length only.

    row_terms float32 `[n, T]`: sum_j U_ij S_ij; bias_sums float32 `[n, T]`: dO summed over the width.
    """
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows, columns = first + tl.arange(0, M), tl.arange(0, C)
    grad, gate, out = at_split(split, grad, grad_split, gate, gate_split, out, out_split)
    mixed += split * mixed_split
    row_term = tl.zeros((M,), dtype=tl.float32)
    bias_sum = tl.zeros((M,), dtype=tl.float32)
    if first < n:
        share_grads = tl.zeros((M, C), dtype=tl.float32)
        for k in range(0, D, K):
            d = k + tl.arange(0, K)
            z = load_tile(mixed, columns, d, mixed_row, n, D, D % K == 0)
            mixture_grad = gated_grad(grad, gate, out, rows, d, grad_row, gate_row, out_row, n, D, K, RELU)
            bias_sum += tl.sum(mixture_grad, 1)
            share_grads = tl.dot(mixture_grad.to(z.dtype), tl.trans(z), share_grads, input_precision=PRECISION)
        inverse = tl.load(inverse_norms + split * T + rows, mask=rows < n, other=0.0)
        denominator = tl.load(denominators + split * T + rows, mask=rows < n, other=1.0)
        column_inverse = tl.load(inverse_norms + split * T + columns, mask=columns < n, other=0.0)
        share = load_tile(shares + split * C * C, rows, columns, C, n, C, True).to(tl.float32)
        delta = tl.sum(share * share_grads, 1)
        if L1:
            share_grads -= tl.where(share > 0, 1.0, tl.where(share < 0, -1.0, 0.0)) * delta[:, None]
        else:
            share_grads -= delta[:, None]
            row_term = tl.where(inverse > 0, delta * eps / denominator, 0.0)
        directed = (inverse > 0)[:, None] & (column_inverse > 0)[None, :]
        cosine_grad = tl.where(directed, share_grads / denominator[:, None], 0.0)
        store_tile(cosine_grads + split * C * C, rows, columns, C, cosine_grad, n, C, True)
    tl.store(row_terms + split * T + rows, row_term, mask=rows < T)
    tl.store(bias_sums + split * T + rows, bias_sum, mask=rows < T)


@triton.jit(do_not_specialize=["T"])
def backward_input_kernel(
    grad, mixed, gate, out, lengths, inverse_norms, denominators, shares, cosine_grads, row_terms, grad_mixed,
    grad_split, grad_row, mixed_split, mixed_row, gate_split, gate_row, out_split, out_row, T,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    RELU: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (splits, blocks of M rows, blocks of N columns). grad_mixed `[n, T, D]`: dZ."""
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows, d = first + tl.arange(0, M), tl.program_id(2) * N + tl.arange(0, N)
    grad, gate, out = at_split(split, grad, grad_split, gate, gate_split, out, out_split)
    mixed += split * mixed_split
    shares += split * C * C
    cosine_grads += split * C * C
    inverse = tl.load(inverse_norms + split * T + rows, mask=rows < n, other=0.0)
    along = tl.load(row_terms + split * T + rows, mask=rows < n, other=0.0)
    through_cosines = tl.zeros((M, N), dtype=tl.float32)
    through_mixture = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, n, K):
        inner = k + tl.arange(0, K)
        inner_inverse = tl.load(inverse_norms + split * T + inner, mask=inner < n, other=0.0)
        inner_sum = tl.load(denominators + split * T + inner, mask=inner < n, other=0.0)
        z = load_tile(mixed, inner, d, mixed_row, n, D, D % N == 0)
        share = load_tile(shares, inner, rows, C, n, C, True)  # [K, M]
        down = load_tile(cosine_grads, inner, rows, C, n, C, True).to(tl.float32)
        along += tl.sum(down * share.to(tl.float32) * inner_sum[:, None], 0)
        both = load_tile(cosine_grads, rows, inner, C, n, C, True).to(tl.float32) + tl.trans(down)
        weights = (both * inner_inverse[None, :]).to(z.dtype)
        through_cosines = tl.dot(weights, z, through_cosines, input_precision=PRECISION)
        mixture_grad = gated_grad(grad, gate, out, inner, d, grad_row, gate_row, out_row, n, D, N, RELU).to(z.dtype)
        through_mixture = tl.dot(tl.trans(share), mixture_grad, through_mixture, input_precision=PRECISION)
    own = load_tile(mixed, rows, d, mixed_row, n, D, D % N == 0).to(tl.float32)
    value = through_mixture + (through_cosines - (along * inverse)[:, None] * own) * inverse[:, None]
    store_tile(grad_mixed + split * T * D, rows, d, D, tl.where(rows[:, None] < n, value, 0.0), T, D, D % N == 0)


def _mix_by_similarity(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    l1: bool,
    relu: bool,
    out: torch.Tensor,
    inverse_norms: torch.Tensor,
    denominators: torch.Tensor | None,
    gate_activation: str,
) -> None:
    """Write the mixed and gated `[n, T, D]` to `out`; see `forward_kernel`. denominators None: norms are given."""
    n, width, dim = mixed.shape
    normed = denominators is None
    row = "dynamic_mix_normed" if normed else "dynamic_mix"
    tile = config_for(row, architecture(mixed.device), mixed.element_size())
    side = power_of_two(width)
    m = min(tile.m, side)
    if n:
        with torch.cuda.device_of(mixed):
            forward_kernel[n, blocks(width, m)](
                mixed, gate, bias, lengths, out, inverse_norms, denominators,
                *(stride for tensor in (mixed, gate, out) for stride in tensor.stride()[:2]), width, eps,
                D=dim, C=side, M=m, N=min(tile.n, power_of_two(dim)), K=min(tile.k, power_of_two(dim)),
                L1=l1, RELU=relu, BIAS=bias is not None, RAGGED=lengths is not None, GATE=gate_activation,
                NORMED=normed, PRECISION=precision(mixed.dtype), num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip


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
    out = torch.empty(mixed.shape, dtype=mixed.dtype, device=mixed.device)
    inverse_norms = torch.empty(mixed.shape[:2], dtype=torch.float32, device=mixed.device)
    denominators = torch.empty_like(inverse_norms)
    _mix_by_similarity(mixed, gate, lengths, bias, eps, l1, relu, out, inverse_norms, denominators, "none")
    return out, inverse_norms, denominators


def _over_gate(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    inverse_norms: torch.Tensor,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    l1: bool,
    relu: bool,
    gate_activation: str,
) -> None:
    _mix_by_similarity(mixed, gate, lengths, bias, eps, l1, relu, gate, inverse_norms, None, gate_activation)


# `dynamic_mix_op` of a gate that lacks its activation, written over that gate; inverse_norms: 1 / |z|, `[n, T]`.
dynamic_mix_over_gate_op = inference_operator(
    "dynamic_mix_over_gate(Tensor mixed, Tensor(a!) gate, Tensor inverse_norms, Tensor? lengths, Tensor? bias, "
    "float eps, bool l1, bool relu, str gate_activation) -> ()",
    _over_gate,
    lambda *_: None,
)


@dynamic_mix_op.register_fake
def _(mixed, *_) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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
    device, element, arch = mixed.device, mixed.element_size(), architecture(mixed.device)
    grad_mixed = torch.empty((n, width, dim), dtype=mixed.dtype, device=device)
    row_terms, bias_sums = torch.empty_like(inverse_norms), torch.empty_like(inverse_norms)
    if n == 0:
        return grad_mixed, torch.empty_like(grad_mixed), bias_sums
    side, whole = power_of_two(width), power_of_two(dim)
    shares, cosine_grads = torch.empty((2, n, side, side), dtype=mixed.dtype, device=device)
    shared = {"D": dim, "C": side, "RAGGED": lengths is not None, "PRECISION": precision(mixed.dtype)}
    strides = [stride for tensor in (grad, mixed, gate, out) for stride in tensor.stride()[:2]]
    with torch.cuda.device_of(mixed):
        tile = config_for("dynamic_mix_shares", arch, element)
        m = min(tile.m, side)
        backward_shares_kernel[n, blocks(width, m)](
            mixed, lengths, inverse_norms, denominators, shares, mixed.stride(0), mixed.stride(1), width,
            M=m, K=min(tile.k, whole), **shared, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        grad_gate = mix(mixed, grad, shares, lengths, bias, relu)
        tile = config_for("dynamic_mix_cosines", arch, element)
        m = min(tile.m, side)
        backward_cosines_kernel[n, blocks(width, m)](
            grad, mixed, gate, out, lengths, inverse_norms, denominators, shares, cosine_grads, row_terms, bias_sums,
            *strides, width, eps, M=m, K=min(tile.k, whole), L1=l1, RELU=relu, **shared,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        tile = config_for("dynamic_mix_input", arch, element)
        m, columns = min(tile.m, side), min(tile.n, whole)
        backward_input_kernel[n, blocks(width, m), blocks(dim, columns)](
            grad, mixed, gate, out, lengths, inverse_norms, denominators, shares, cosine_grads, row_terms, grad_mixed,
            *strides, width, M=m, N=columns, K=min(tile.k, side), RELU=relu, **shared,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return grad_mixed, grad_gate, bias_sums


@dynamic_mix_backward_op.register_fake
def _(grad, mixed, gate, out, inverse_norms, *_) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return mixed.new_empty(mixed.shape), mixed.new_empty(mixed.shape), torch.empty_like(inverse_norms)


def _setup_context(ctx, inputs, output) -> None:
    mixed, gate, lengths, bias, *ctx.settings = inputs
    ctx.save_for_backward(mixed, gate, lengths, bias, *output)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, grad, *_):
    mixed, gate, lengths, bias, out, inverse_norms, denominators = ctx.saved_tensors
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    grad_mixed, grad_gate, bias_sums = dynamic_mix_backward_op(
        grad, mixed, gate, out, inverse_norms, denominators, lengths, bias, *ctx.settings
    )
    grad_bias = None if bias is None else bias_sums.sum(0).to(bias.dtype)
    return grad_mixed, grad_gate, None, grad_bias, None, None, None


dynamic_mix_op.register_autograd(_backward, setup_context=_setup_context)
