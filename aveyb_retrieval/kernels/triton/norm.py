"""RMSNorm's factor of each row, in one pass: it commutes with a product, so the rows themselves stay as they are."""

# Arguments of kernels are typed by Triton at launch.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.configs import architecture, config_for
from aveyb_retrieval.kernels.triton.tiles import blocks, load_tile, power_of_two


@triton.jit(do_not_specialize=["n_rows"])
def inverse_rms_kernel(a, out, a_row, n_rows, eps, A: tl.constexpr, BLOCK_A: tl.constexpr, M: tl.constexpr):
    """Grid (blocks of M rows). out float32 `[rows]`: `1 / sqrt(mean(a^2) + eps)` of the rows of a `[rows, A]`."""
    first = tl.program_id(0).to(tl.int64) * M
    left = tl.minimum(n_rows - first, M).to(tl.int32)
    rows = tl.arange(0, M)
    wide = load_tile(a + first * a_row, rows, tl.arange(0, BLOCK_A), a_row, left, A, A == BLOCK_A).to(tl.float32)
    tl.store(out + first + rows, tl.rsqrt(tl.sum(wide * wide, 1) / A + eps), mask=rows < left)


def inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """float32 `[rows]`: `1 / sqrt(mean(x^2) + eps)` of the rows of `[rows, D]`, whatever their stride."""
    n_rows, width = x.shape
    out = torch.empty(n_rows, dtype=torch.float32, device=x.device)
    if n_rows == 0:
        return out
    tile = config_for("inverse_rms", architecture(x.device), x.element_size())
    with torch.cuda.device_of(x):
        inverse_rms_kernel[blocks(n_rows, tile.m),](
            x, out, x.stride(0), n_rows, eps, A=width, BLOCK_A=power_of_two(width), M=tile.m,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out
