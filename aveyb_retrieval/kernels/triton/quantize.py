"""Rows to float8: every row divided by its largest magnitude, in one pass, with the factor that undoes it."""

# Arguments of kernels are typed by Triton at launch.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.configs import architecture, config_for
from aveyb_retrieval.kernels.triton.tiles import blocks, larger, largest, load_tile, power_of_two, store_tile

_LARGEST = tl.constexpr(448.0)  # of float8_e4m3fn


@triton.jit(do_not_specialize=["n_rows"])
def quantize_kernel(
    a, b, out, scales, a_row, b_row, n_rows, eps,
    A: tl.constexpr, B: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr, M: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of M rows). out float8 `[rows, A + B]` contiguous, scales float32 `[rows]`.

    a `[rows, A]` is read as a block of BLOCK_A columns, b `[rows, B]` as one of BLOCK_B (B 0: none). NORM: the factor
    also divides the row (of a) by its root mean square.
    """
    first_row = tl.program_id(0).to(tl.int64) * M
    left = tl.minimum(n_rows - first_row, M).to(tl.int32)
    rows = tl.arange(0, M)
    a_columns, b_columns = tl.arange(0, BLOCK_A), tl.arange(0, BLOCK_B)
    first = load_tile(a + first_row * a_row, rows, a_columns, a_row, left, A, A == BLOCK_A).to(tl.float32)
    extreme = largest(tl.abs(first), 1)
    if B > 0:
        second = load_tile(b + first_row * b_row, rows, b_columns, b_row, left, B, B == BLOCK_B).to(tl.float32)
        extreme = larger(extreme, largest(tl.abs(second), 1))
    factor = tl.where(extreme > 0, _LARGEST / extreme, 0.0)[:, None]
    out += first_row * (A + B)
    store_tile(out, rows, a_columns, A + B, first * factor, left, A, A == BLOCK_A)
    if B > 0:
        store_tile(out + A, rows, b_columns, A + B, second * factor, left, B, B == BLOCK_B)
    scale = extreme / _LARGEST
    if NORM:
        scale *= tl.rsqrt(tl.sum(first * first, 1) / A + eps)
    tl.store(scales + first_row + rows, scale, mask=rows < left)


def quantize(
    a: torch.Tensor, b: torch.Tensor | None = None, *, eps: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of `[a | b]` as float8 `[rows, A + B]`, and float32 `[rows]` factors that undo the scaling.

    eps: the factors also divide by the root mean square of `a`; None: they do not.
    """
    n_rows, width = a.shape
    more = 0 if b is None else b.shape[1]
    out = torch.empty((n_rows, width + more), dtype=torch.float8_e4m3fn, device=a.device)
    scales = torch.empty(n_rows, dtype=torch.float32, device=a.device)
    if n_rows == 0:
        return out, scales
    tile = config_for("quantize", architecture(a.device), a.element_size())
    with torch.cuda.device_of(a):
        quantize_kernel[blocks(n_rows, tile.m),](
            a, b, out, scales, a.stride(0), 0 if b is None else b.stride(0), n_rows, eps or 0.0,
            A=width, B=more, BLOCK_A=power_of_two(width), BLOCK_B=power_of_two(more), M=tile.m, NORM=eps is not None,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out, scales
