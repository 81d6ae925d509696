"""The enricher's activation as one pass over memory: in place around the gate, or ReLU squared with
its gradient.

And a layer's residual and the next layer's RMSNorm in one pass.
"""

# Arguments of kernels are typed by Triton at launch, those of autograd hooks by torch, of operators by their signature.  # noqa: E501
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.tiles import (
    activated,
    architecture,
    blocks,
    config_for,
    inference_operator,
    inverse_norm,
    larger,
    load_tile,
    power_of_two,
    store_tile,
)


@triton.jit
def _activate(
    x,
    out,
    rows,
    left,
    BEGIN: tl.constexpr,
    END: tl.constexpr,
    ROW: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Activate the columns BEGIN to END of some rows; float32 [M], the sums of the squares of what
    was written.
    """
    squares = tl.zeros((M,), dtype=tl.float32)
    whole: tl.constexpr = (END - BEGIN) % N == 0
    for start in range(BEGIN, END, N):
        columns = start + tl.arange(0, N)
        value = load_tile(x, rows, columns, ROW, left, END, whole).to(tl.float32)
        value = activated(value, ACTIVATION).to(out.dtype.element_ty)
        store_tile(out, rows, columns, ROW, value, left, END, whole)
        wide = value.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
    return squares


@triton.jit(do_not_specialize=["n_rows"])
def activate_kernel(
    x,
    out,
    inverse_norms,
    n_rows,
    START: tl.constexpr,
    STOP: tl.constexpr,
    COLUMNS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    ACTIVATION: tl.constexpr,
    NORMS: tl.constexpr,
):
    """Grid (blocks of M rows). x and out (which may be x) `[rows, COLUMNS]` contiguous: all columns
    but START to STOP.

    inverse_norms float32 `[rows]`: 1 / |z| of the columns from STOP on, written if NORMS.
    """
    first = tl.program_id(0).to(tl.int64) * M
    left = tl.minimum(n_rows - first, M).to(tl.int32)
    rows = tl.arange(0, M)
    x += first * COLUMNS
    out += first * COLUMNS
    _activate(x, out, rows, left, 0, START, COLUMNS, M, N, ACTIVATION)
    squares = _activate(x, out, rows, left, STOP, COLUMNS, COLUMNS, M, N, ACTIVATION)
    if NORMS:
        tl.store(inverse_norms + first + rows, inverse_norm(squares), mask=rows < left)


@triton.jit(do_not_specialize=["n_rows"])
def relu2_backward_kernel(
    grad, x, grad_x, n_rows, COLUMNS: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """Grid (blocks of M rows).

    grad_x `[rows, COLUMNS]`, as the others contiguous: `2 grad relu(x)`.
    """
    first = tl.program_id(0).to(tl.int64) * M
    left = tl.minimum(n_rows - first, M).to(tl.int32)
    rows = tl.arange(0, M)
    whole: tl.constexpr = COLUMNS % N == 0
    for start in range(0, COLUMNS, N):
        columns = start + tl.arange(0, N)
        own = load_tile(x + first * COLUMNS, rows, columns, COLUMNS, left, COLUMNS, whole).to(
            tl.float32
        )
        above = load_tile(grad + first * COLUMNS, rows, columns, COLUMNS, left, COLUMNS, whole).to(
            tl.float32
        )
        value = 2.0 * above * larger(own, 0.0)
        store_tile(grad_x + first * COLUMNS, rows, columns, COLUMNS, value, left, COLUMNS, whole)


def _launch(
    x: torch.Tensor,
    out: torch.Tensor,
    activation: str,
    start: int,
    stop: int,
    inverse_norms: torch.Tensor | None = None,
) -> None:
    columns = x.shape[-1]
    n_rows = x.numel() // columns
    tile = config_for("activate", architecture(x.device), x.element_size())
    if n_rows:
        with torch.cuda.device_of(x):
            activate_kernel[blocks(n_rows, tile.m),](
                x,
                out,
                inverse_norms,
                n_rows,
                START=start,
                STOP=stop,
                COLUMNS=columns,
                M=tile.m,
                N=tile.n,
                ACTIVATION=activation,
                NORMS=inverse_norms is not None,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )


def _around(x: torch.Tensor, activation: str, start: int, stop: int) -> torch.Tensor:
    inverse_norms = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    _launch(x, x, activation, start, stop, inverse_norms)
    return inverse_norms


# In place on `[..., M]` contiguous, all columns but start to stop; gives 1 / |z| of those behind,
# `[...]`.
activate_around_op = inference_operator(
    "activate_around(Tensor(a!) x, str activation, int start, int stop) -> Tensor",
    _around,
    lambda x, *_: x.new_empty(x.shape[:-1], dtype=torch.float32),
)


@torch.library.custom_op("aveyb::relu2", mutates_args=())
def relu2_op(x: torch.Tensor) -> torch.Tensor:
    """`relu(x)^2` of a contiguous `[..., M]`."""
    out = torch.empty_like(x)
    _launch(x, out, "relu2", 0, 0)
    return out


@relu2_op.register_fake
def _(x) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("aveyb::relu2_backward", mutates_args=())
def relu2_backward_op(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`2 grad relu(x)`; both contiguous."""
    grad_x = torch.empty_like(x)
    columns = x.shape[-1]
    n_rows = x.numel() // columns
    tile = config_for("activate", architecture(x.device), x.element_size())
    if n_rows:
        with torch.cuda.device_of(x):
            relu2_backward_kernel[blocks(n_rows, tile.m),](
                grad, x, grad_x, n_rows, COLUMNS=columns, M=tile.m, N=tile.n,
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return grad_x


@relu2_backward_op.register_fake
def _(grad, x) -> torch.Tensor:
    return torch.empty_like(x)


def _backward(ctx, grad) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    return relu2_backward_op(grad.contiguous(), x)


relu2_op.register_autograd(
    _backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


@triton.jit(do_not_specialize=["n_rows"])
def add_norm_kernel(
    branch, residual, alpha, weight, out, normed, branch_row, residual_row, n_rows, eps,
    A: tl.constexpr, BLOCK_A: tl.constexpr, M: tl.constexpr, ALPHA: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of M rows). out and normed `[rows, A]` contiguous: `x = branch + alpha
    residual`, RMSNorm of x.

    The norm is that of x as it is written, rounded.
    """
    first = tl.program_id(0).to(tl.int64) * M
    left = tl.minimum(n_rows - first, M).to(tl.int32)
    rows, columns = tl.arange(0, M), tl.arange(0, BLOCK_A)
    whole: tl.constexpr = A == BLOCK_A
    x = load_tile(residual + first * residual_row, rows, columns, residual_row, left, A, whole).to(
        tl.float32
    )
    if ALPHA:
        x *= tl.load(alpha).to(tl.float32)
    x += load_tile(branch + first * branch_row, rows, columns, branch_row, left, A, whole).to(
        tl.float32
    )
    rounded = x.to(out.dtype.element_ty)
    store_tile(out + first * A, rows, columns, A, rounded, left, A, whole)
    wide = rounded.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 1) / A + eps)[:, None]
    wide *= tl.load(weight + columns, mask=columns < A, other=0.0).to(tl.float32)[None, :]
    store_tile(normed + first * A, rows, columns, A, wide, left, A, whole)


def _add_norm(branch, residual, alpha, weight, eps) -> tuple[torch.Tensor, torch.Tensor]:
    n_rows, width = branch.shape
    out, normed = (
        torch.empty((n_rows, width), dtype=branch.dtype, device=branch.device) for _ in range(2)
    )
    tile = config_for("add_norm", architecture(branch.device), branch.element_size())
    if n_rows:
        with torch.cuda.device_of(branch):
            add_norm_kernel[blocks(n_rows, tile.m),](
                branch,
                residual,
                alpha,
                weight,
                out,
                normed,
                branch.stride(0),
                residual.stride(0),
                n_rows,
                eps,
                A=width,
                BLOCK_A=power_of_two(width),
                M=tile.m,
                ALPHA=alpha is not None,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
    return out, normed


# `x = branch + alpha residual` and RMSNorm(x), both `[rows, D]`.
add_norm_op = inference_operator(
    "add_norm(Tensor branch, Tensor residual, Tensor? alpha, Tensor weight, float eps) -> (Tensor,"
    " Tensor)",
    _add_norm,
    lambda branch, *_: (branch.new_empty(branch.shape), branch.new_empty(branch.shape)),
)
