"""A layer's two linear maps as kernels: one matrix product with everything that stands around it.

Enricher: `act(rstd (X W^T) + b)`. RMSNorm is a factor of a row (`norm.py`), which commutes with the product, so that no
normalized copy exists. The norm's weight is a factor of a column: the caller multiplies it into W.

Fuser: `C Wc^T + B Wb^T + b + alpha X`, two products into one accumulator, so that nothing is concatenated.

Float8: the rows come quantized (`quantize.py`) with one factor a row, the weight with one factor an output column.

A tile's shape does not depend on the number of rows: a row's result is the same in any batch.
"""

# Arguments of kernels are typed by Triton at launch, those of autograd hooks by torch.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.configs import architecture, config_for
from aveyb_retrieval.kernels.triton.norm import inverse_rms
from aveyb_retrieval.kernels.triton.tiles import activated, blocks, load_tile, power_of_two, precision, store_tile


@triton.jit
def add_product(value, a, weight, rows, columns, a_row, weight_row, n_rows, n_columns,
                WIDTH: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Value `[M, N]` += a[rows] weight[columns]^T."""
    for k in range(0, WIDTH, K):
        d = k + tl.arange(0, K)
        x = load_tile(a, rows, d, a_row, n_rows, WIDTH, WIDTH % K == 0)
        w = load_tile(weight, columns, d, weight_row, n_columns, WIDTH, WIDTH % K == 0)
        # Hopper adds up float8 products in fewer bits than float32 has; this way only those of one tile.
        value = tl.dot(x, tl.trans(w), value, input_precision=PRECISION, max_num_imprecise_acc=K)
    return value


@triton.jit(do_not_specialize=["n_rows"])
def linear_kernel(
    a, b, a_weight, b_weight, bias, row_scales, column_scales, residual, alpha, out,
    a_row, b_row, a_weight_row, b_weight_row, residual_row, n_rows,
    A: tl.constexpr, B: tl.constexpr, COLUMNS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ROW_SCALED: tl.constexpr, COLUMN_SCALED: tl.constexpr, ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr,
    ALPHA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of N columns, blocks of M rows): programs that run together read the same rows.

    a `[rows, A]`, b `[rows, B]` (B 0: none), a_weight `[COLUMNS, A]`, b_weight `[COLUMNS, B]`, out `[rows, COLUMNS]`
    contiguous. ROW_SCALED: products are multiplied by row_scales `[rows]`, COLUMN_SCALED: by column_scales `[COLUMNS]`.
    ACTIVATION: "none", "gelu", "relu2". RESIDUAL: `[rows, COLUMNS]`, times alpha if ALPHA.
    """
    first = tl.program_id(1).to(tl.int64) * M
    left = tl.minimum(n_rows - first, M).to(tl.int32)
    rows, columns = tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N)
    value = tl.zeros((M, N), dtype=tl.float32)
    value = add_product(
        value, a + first * a_row, a_weight, rows, columns, a_row, a_weight_row, left, COLUMNS, A, K, PRECISION
    )
    if B > 0:
        value = add_product(
            value, b + first * b_row, b_weight, rows, columns, b_row, b_weight_row, left, COLUMNS, B, K, PRECISION
        )
    if ROW_SCALED:
        value *= tl.load(row_scales + first + rows, mask=rows < left, other=0.0)[:, None]
    if COLUMN_SCALED:
        value *= tl.load(column_scales + columns, mask=columns < COLUMNS, other=0.0)[None, :]
    value += tl.load(bias + columns, mask=columns < COLUMNS, other=0.0).to(tl.float32)[None, :]
    value = activated(value, ACTIVATION)
    whole: tl.constexpr = COLUMNS % N == 0
    if RESIDUAL:
        x = load_tile(residual + first * residual_row, rows, columns, residual_row, left, COLUMNS, whole).to(tl.float32)
        if ALPHA:
            x *= tl.load(alpha).to(tl.float32)
        value += x
    store_tile(out + first * COLUMNS, rows, columns, COLUMNS, value, left, COLUMNS, whole)


def product(
    kernel: str,
    a: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_dtype: torch.dtype,
    row_scales: torch.Tensor | None = None,
    column_scales: torch.Tensor | None = None,
    *,
    b: torch.Tensor | None = None,
    b_weight: torch.Tensor | None = None,
    activation: str = "none",
    residual: torch.Tensor | None = None,
    alpha: torch.Tensor | None = None,
) -> torch.Tensor:
    """`act(r (a weight^T + b b_weight^T) c + bias) + alpha residual`, `[rows, columns]`; see `linear_kernel`.

    Args:
        kernel: the row of the table of tiles.
        a: `[rows, A]` and b `[rows, B]`; any row stride.
        weight: `[columns, A]` and b_weight `[columns, B]`; any row stride.
        out_dtype: of the result.
        row_scales: r, float32 `[rows]`, and column_scales: c, float32 `[columns]`; None: 1.
    """
    n_rows, width = a.shape
    columns = weight.shape[0]
    out = torch.empty((n_rows, columns), dtype=out_dtype, device=a.device)
    if n_rows == 0:
        return out
    tile = config_for(kernel, architecture(a.device), a.element_size())
    n, inner = min(tile.n, power_of_two(columns)), min(tile.k, power_of_two(width))
    with torch.cuda.device_of(a):
        linear_kernel[blocks(columns, n), blocks(n_rows, tile.m)](
            a, b, weight, b_weight, bias, row_scales, column_scales, residual, alpha, out,
            a.stride(0), _row(b), weight.stride(0), _row(b_weight), _row(residual), n_rows,
            A=width, B=0 if b is None else b.shape[1], COLUMNS=columns, M=tile.m, N=n, K=inner,
            ROW_SCALED=row_scales is not None, COLUMN_SCALED=column_scales is not None, ACTIVATION=activation,
            RESIDUAL=residual is not None, ALPHA=alpha is not None, PRECISION=precision(a.dtype),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out


def _row(matrix: torch.Tensor | None) -> int:
    return 0 if matrix is None else matrix.stride(0)


@torch.library.custom_op("aveyb::enrich", mutates_args=())
def enrich_op(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, activation: str) -> torch.Tensor:
    """`act(x / rms(x) @ weight^T + bias)`, `[rows, M]` from `[rows, D]`; the norm's weight is in `weight` `[M, D]`."""
    return product("enrich", x, weight, bias, x.dtype, row_scales=inverse_rms(x, eps), activation=activation)


@enrich_op.register_fake
def _(x, weight, *_) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


@torch.library.custom_op("aveyb::fuse", mutates_args=())
def fuse_op(
    context: torch.Tensor,
    bypass: torch.Tensor,
    context_weight: torch.Tensor,
    bypass_weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    alpha: torch.Tensor | None,
) -> torch.Tensor:
    """`context Wc^T + bypass Wb^T + bias + alpha residual`, `[rows, D]`."""
    dtype = torch.promote_types(context.dtype, residual.dtype)
    return product(
        "fuse", context, context_weight, bias, dtype, b=bypass, b_weight=bypass_weight, residual=residual, alpha=alpha
    )


@fuse_op.register_fake
def _(context, bypass, context_weight, bypass_weight, bias, residual, *_) -> torch.Tensor:
    dtype = torch.promote_types(context.dtype, residual.dtype)
    return residual.new_empty(residual.shape, dtype=dtype)


# The gradients are plain matrix products, which cuBLAS does best; nothing but the inputs is kept for them.


def _enrich_context(ctx, inputs, output) -> None:
    x, weight, bias, ctx.eps, ctx.activation = inputs
    ctx.save_for_backward(x, weight, bias)


def _enrich_backward(ctx, grad) -> tuple[Any, ...]:
    x, weight, bias = ctx.saved_tensors
    wide = x.float()
    rstd = (wide.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
    unit = (wide * rstd).to(x.dtype)
    before = torch.nn.functional.linear(unit, weight, bias.to(unit.dtype))
    gelu = ctx.activation == "gelu"
    before_grad = torch.ops.aten.gelu_backward(grad, before) if gelu else grad * (2 * before.relu())
    unit_grad = (before_grad @ weight).float()
    along = (unit_grad * unit.float()).mean(-1, keepdim=True)
    x_grad = (rstd * (unit_grad - along * unit.float())).to(x.dtype)
    return x_grad, before_grad.mT @ unit, before_grad.sum(0).to(bias.dtype), None, None


enrich_op.register_autograd(_enrich_backward, setup_context=_enrich_context)


def _fuse_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _fuse_backward(ctx, grad) -> tuple[Any, ...]:
    context, bypass, context_weight, bypass_weight, bias, residual, alpha = ctx.saved_tensors
    own = grad.to(context.dtype)
    return (
        own @ context_weight,
        own @ bypass_weight,
        own.mT @ context,
        own.mT @ bypass,
        grad.sum(0).to(bias.dtype),
        (grad if alpha is None else alpha * grad).to(residual.dtype),
        None if alpha is None else (grad * residual).sum().to(alpha.dtype),
    )


fuse_op.register_autograd(_fuse_backward, setup_context=_fuse_context)
