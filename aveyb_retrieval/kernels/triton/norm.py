"""A layer's residual and the next layer's RMSNorm in one pass over memory."""

# Arguments of kernels are typed by Triton at launch.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.configs import architecture, config_for
from aveyb_retrieval.kernels.triton.operators import inference_operator
from aveyb_retrieval.kernels.triton.tiles import blocks, load_tile, power_of_two, store_tile


@triton.jit(do_not_specialize=["n_rows"])
def add_norm_kernel(
    branch, residual, alpha, weight, out, normed, branch_row, residual_row, n_rows, eps,
    A: tl.constexpr, BLOCK_A: tl.constexpr, M: tl.constexpr, ALPHA: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of M rows). out and normed `[rows, A]` contiguous: `x = branch + alpha residual`, RMSNorm of x.

    The norm is that of x as it is written, rounded.
    """
    first = tl.program_id(0).to(tl.int64) * M
    left = tl.minimum(n_rows - first, M).to(tl.int32)
    rows, columns = tl.arange(0, M), tl.arange(0, BLOCK_A)
    whole: tl.constexpr = A == BLOCK_A
    x = load_tile(residual + first * residual_row, rows, columns, residual_row, left, A, whole).to(tl.float32)
    if ALPHA:
        x *= tl.load(alpha).to(tl.float32)
    x += load_tile(branch + first * branch_row, rows, columns, branch_row, left, A, whole).to(tl.float32)
    rounded = x.to(out.dtype.element_ty)
    store_tile(out + first * A, rows, columns, A, rounded, left, A, whole)
    wide = rounded.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 1) / A + eps)[:, None]
    wide *= tl.load(weight + columns, mask=columns < A, other=0.0).to(tl.float32)[None, :]
    store_tile(normed + first * A, rows, columns, A, wide, left, A, whole)


def _add_norm(
    branch: torch.Tensor, residual: torch.Tensor, alpha: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    n_rows, width = branch.shape
    out, normed = (torch.empty((n_rows, width), dtype=branch.dtype, device=branch.device) for _ in range(2))
    tile = config_for("add_norm", architecture(branch.device), branch.element_size())
    if n_rows:
        with torch.cuda.device_of(branch):
            add_norm_kernel[blocks(n_rows, tile.m),](
                branch, residual, alpha, weight, out, normed, branch.stride(0), residual.stride(0), n_rows, eps,
                A=width, BLOCK_A=power_of_two(width), M=tile.m, ALPHA=alpha is not None,
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return out, normed


def _add_norm_shapes(branch: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return branch.new_empty(branch.shape), branch.new_empty(branch.shape)


# `x = branch + alpha residual` and RMSNorm(x), both `[rows, D]`.
add_norm_op = inference_operator(
    "add_norm(Tensor branch, Tensor residual, Tensor? alpha, Tensor weight, float eps) -> (Tensor, Tensor)",
    _add_norm,
    _add_norm_shapes,
)
