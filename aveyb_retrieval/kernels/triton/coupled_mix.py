"""Coupled contextualizer as kernels: the learned matrix times cosines, tile by tile, for contexts of any length.

No sum over a row is needed, so a program makes one tile of `A = tril(V) * S` from nothing but its rows and columns, and
the static kernel multiplies it with the tokens and the gate. Tiles above the diagonal are left at zero.

Gradient (S the cosines, N the unit rows, dO = grad * gate, G = dO Z^T below the diagonal):
    dV = sum over contexts of G * S,   H = dS = G * V
    dZ = A^T dO + (Y - (Y . N) N) / |z|,   Y = (H + H^T) N
dV and H are one kernel, which sums dV in a fixed order (every program adds up one group of contexts); the gate's
gradient is the static kernel with A made again; the two products of dZ are the library's.
"""

# Arguments of kernels are typed by Triton at launch, those of autograd hooks by torch.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.static_mix import mix
from aveyb_retrieval.kernels.triton.tiles import (
    architecture,
    blocks,
    config_for,
    load_tile,
    power_of_two,
    precision,
    store_tile,
)

_MAX_PARTIALS = 64  # groups of contexts whose weight gradients are summed apart: bounds memory, fills the device
_ALIGNED = 16  # columns: rows of A begin where a vector load may begin


@triton.jit
def _row_products(a_base, b_base, rows, columns, a_row, b_row, T, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
                  K: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """`a_i . b_j` [M, N]."""
    products = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, D, K):
        d = k + tl.arange(0, K)
        a = load_tile(a_base, rows, d, a_row, T, D, D % K == 0)
        b = load_tile(b_base, columns, d, b_row, T, D, D % K == 0)
        products = tl.dot(a, tl.trans(b), products, input_precision=PRECISION)
    return products


@triton.jit(do_not_specialize=["T"])
def shares_kernel(
    mixed, weight, inverse_norms, shares, mixed_split, mixed_row, weight_row, shares_row, T,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (contexts, blocks of M rows, blocks of N columns). shares `[n, T, shares_row]`: A, where it is not zero."""
    split = tl.program_id(0).to(tl.int64)
    rows, columns = tl.program_id(1) * M + tl.arange(0, M), tl.program_id(2) * N + tl.arange(0, N)
    if tl.program_id(2) * N < (tl.program_id(1) + 1) * M:
        mixed += split * mixed_split
        value = _row_products(mixed, mixed, rows, columns, mixed_row, mixed_row, T, D, M, N, K, PRECISION)
        value *= tl.load(inverse_norms + split * T + rows, mask=rows < T, other=0.0)[:, None]
        value *= tl.load(inverse_norms + split * T + columns, mask=columns < T, other=0.0)[None, :]
        value *= load_tile(weight, rows, columns, weight_row, T, T, False).to(tl.float32)
        value = tl.where(columns[None, :] <= rows[:, None], value, 0.0)
        store_tile(shares + split * T * shares_row, rows, columns, shares_row, value, T, T, False)


@triton.jit(do_not_specialize=["T", "n_splits"])
def backward_kernel(
    outer, mixed, weight, inverse_norms, cosine_grads, weight_partials,
    mixed_split, mixed_row, weight_row, T, n_splits,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (groups, blocks of M rows, blocks of N columns). Group g takes the contexts g, g + groups, ...

    outer `[n, T, D]` contiguous: dO. cosine_grads `[n, T, T]`: H; weight_partials float32 `[groups, T, T]`: dV; both
    where they are not zero.
    """
    group, n_groups = tl.program_id(0), tl.num_programs(0)
    rows, columns = tl.program_id(1) * M + tl.arange(0, M), tl.program_id(2) * N + tl.arange(0, N)
    if tl.program_id(2) * N < (tl.program_id(1) + 1) * M:
        v = load_tile(weight, rows, columns, weight_row, T, T, False).to(tl.float32)
        below = columns[None, :] <= rows[:, None]
        weight_grad = tl.zeros((M, N), dtype=tl.float32)
        split = group.to(tl.int64)
        for _ in range(group, n_splits, n_groups):
            z, o = mixed + split * mixed_split, outer + split * T * D
            cosines = _row_products(z, z, rows, columns, mixed_row, mixed_row, T, D, M, N, K, PRECISION)
            cosines *= tl.load(inverse_norms + split * T + rows, mask=rows < T, other=0.0)[:, None]
            cosines *= tl.load(inverse_norms + split * T + columns, mask=columns < T, other=0.0)[None, :]
            share_grads = _row_products(o, z, rows, columns, D, mixed_row, T, D, M, N, K, PRECISION)
            share_grads = tl.where(below, share_grads, 0.0)
            weight_grad += share_grads * cosines
            store_tile(cosine_grads + split * T * T, rows, columns, T, share_grads * v, T, T, False)
            split += n_groups
        store_tile(weight_partials + group.to(tl.int64) * T * T, rows, columns, T, weight_grad, T, T, False)


def _shares(mixed: torch.Tensor, weight: torch.Tensor, inverse_norms: torch.Tensor) -> torch.Tensor:
    """`tril(V) * cosines`, `[n, T, T]` or a few columns of zeros wider."""
    n, width, dim = mixed.shape
    columns = blocks(width, _ALIGNED) * _ALIGNED
    shares = torch.zeros((n, width, columns), dtype=mixed.dtype, device=mixed.device)
    tile = config_for("coupled_mix", architecture(mixed.device), mixed.element_size())
    side = power_of_two(width)
    m, across = min(tile.m, side), min(tile.n, side)
    if n:
        with torch.cuda.device_of(mixed):
            shares_kernel[n, blocks(width, m), blocks(width, across)](
                mixed, weight, inverse_norms, shares,
                mixed.stride(0), mixed.stride(1), weight.stride(0), columns, width,
                D=dim, M=m, N=across, K=min(tile.k, power_of_two(dim)), PRECISION=precision(mixed.dtype),
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return shares


@torch.library.custom_op("aveyb::coupled_mix", mutates_args=())
def coupled_mix_op(
    mixed: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mixed and gated `[n, T, D]`; 1 / sqrt(|z|^2 + eps), float32 `[n, T]`, for the backward."""
    norms = torch.linalg.vector_norm(mixed, dim=-1, dtype=torch.float32)
    inverse_norms = norms.square_().add_(eps).rsqrt_()
    return mix(mixed, gate, _shares(mixed, weight, inverse_norms), None, None, False), inverse_norms


@coupled_mix_op.register_fake
def _(mixed, *_) -> tuple[torch.Tensor, torch.Tensor]:
    return mixed.new_empty(mixed.shape), mixed.new_empty(mixed.shape[:2], dtype=torch.float32)


@torch.library.custom_op("aveyb::coupled_mix_backward", mutates_args=())
def coupled_mix_backward_op(
    grad: torch.Tensor, mixed: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, inverse_norms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `mixed` and `gate` `[n, T, D]`, and of V before its last sum, float32 `[groups, T, T]`."""
    n, width, dim = mixed.shape
    groups = min(n, _MAX_PARTIALS)
    weight_partials = torch.zeros((groups, width, width), dtype=torch.float32, device=mixed.device)
    if n == 0:
        return torch.empty_like(grad), torch.empty_like(grad), weight_partials
    shares = _shares(mixed, weight, inverse_norms)
    grad_gate = mix(mixed, grad, shares, None, None, False)
    outer = (grad * gate).contiguous()
    cosine_grads = torch.zeros((n, width, width), dtype=mixed.dtype, device=mixed.device)
    tile = config_for("coupled_mix_backward", architecture(mixed.device), mixed.element_size())
    side = power_of_two(width)
    m, across = min(tile.m, side), min(tile.n, side)
    with torch.cuda.device_of(mixed):
        backward_kernel[groups, blocks(width, m), blocks(width, across)](
            outer, mixed, weight, inverse_norms, cosine_grads, weight_partials,
            mixed.stride(0), mixed.stride(1), weight.stride(0), width, n,
            D=dim, M=m, N=across, K=min(tile.k, power_of_two(dim)), PRECISION=precision(mixed.dtype),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    scale = inverse_norms[..., None]
    unit = mixed * scale.to(mixed.dtype)
    through = torch.bmm(cosine_grads + cosine_grads.mT, unit).float()
    along = (through * unit).sum(-1, keepdim=True)
    grad_mixed = torch.bmm(shares[..., :width].mT, outer) + (scale * (through - along * unit)).to(mixed.dtype)
    return grad_mixed, grad_gate, weight_partials


@coupled_mix_backward_op.register_fake
def _(grad, mixed, *_) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    groups, width = torch.sym_min(mixed.shape[0], _MAX_PARTIALS), mixed.shape[1]
    partials = mixed.new_empty((groups, width, width), dtype=torch.float32)
    return mixed.new_empty(mixed.shape), mixed.new_empty(mixed.shape), partials


def _setup_context(ctx, inputs, output) -> None:
    mixed, gate, weight, _ = inputs
    ctx.save_for_backward(mixed, gate, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad, _):
    mixed, gate, weight, inverse_norms = ctx.saved_tensors
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    grad_mixed, grad_gate, partials = coupled_mix_backward_op(grad, mixed, gate, weight, inverse_norms)
    return grad_mixed, grad_gate, partials.sum(0).to(weight.dtype), None


coupled_mix_op.register_autograd(_backward, setup_context=_setup_context)
