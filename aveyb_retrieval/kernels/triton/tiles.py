"""Parts of all kernels: tiles loaded through strides, maxima that keep NaN, activations, precision, valid rows."""

# Arguments of kernels are typed by Triton at launch, those of autograd hooks by torch.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

_SQRT_HALF = tl.constexpr(0.7071067811865476)
_MIN_NORM = tl.constexpr(1e-12)


@triton.jit
def load_tile(base, rows, columns, row_stride, n_rows, n_columns, WHOLE: tl.constexpr):
    """Elements `base[row * row_stride + column]` as [len(rows), len(columns)], zero beyond `n_rows` and `n_columns`.

    WHOLE: the columns never reach beyond `n_columns`, so that only rows are checked.
    """
    mask = rows[:, None] < n_rows
    if not WHOLE:
        mask = mask & (columns[None, :] < n_columns)
    return tl.load(base + rows[:, None] * row_stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def store_tile(base, rows, columns, row_stride, value, n_rows, n_columns, WHOLE: tl.constexpr):
    """The inverse of `load_tile`; nothing is written beyond the limits."""
    mask = rows[:, None] < n_rows
    if not WHOLE:
        mask = mask & (columns[None, :] < n_columns)
    tl.store(base + rows[:, None] * row_stride + columns[None, :], value.to(base.dtype.element_ty), mask=mask)


@triton.jit
def larger(a, b):
    """The larger of two, NaN where one is NaN: `tl.maximum` and `tl.max` leave NaN out, which hides a diverged run."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest(x, axis: tl.constexpr):
    """The maximum along an axis; NaN where there is one."""
    return tl.reduce(x, axis, larger)


@triton.jit
def activated(value, ACTIVATION: tl.constexpr):
    """The enricher's activation of float32 values: "gelu" (exact, by erf), "relu2", or "none"."""
    if ACTIVATION == "gelu":
        value *= 0.5 * (1.0 + tl.erf(value * _SQRT_HALF))
    elif ACTIVATION == "relu2":
        value = larger(value, 0.0)
        value *= value
    return value


@triton.jit
def inverse_norm(squares):
    """`1 / |z|` of squared norms; 0 for a vector without direction."""
    norm = tl.sqrt(squares)
    return tl.where(norm > _MIN_NORM, 1.0 / norm, 0.0)


@triton.jit
def valid_rows(lengths, split, T, RAGGED: tl.constexpr):
    """The number of tokens of a split: `lengths[split]`, or all T of them."""
    n = T
    if RAGGED:
        n = tl.load(lengths + split).to(tl.int32)
    return n


@triton.jit
def own_rows(lengths, T, M: tl.constexpr, RAGGED: tl.constexpr):
    """(split, first row, valid rows of the split) of a program in a grid of (splits, blocks of M rows, ...).

    The split is int64, so that offsets of any batch fit.
    """
    split = tl.program_id(0).to(tl.int64)
    return split, tl.program_id(1) * M, valid_rows(lengths, split, T, RAGGED)


@triton.jit
def at_split(split, grad, grad_split, gate, gate_split, out, out_split):
    """Pointers to what the gradient of a gated mixture is made from, moved to a split."""
    return grad + split * grad_split, gate + split * gate_split, out + split * out_split


def precision(dtype: torch.dtype) -> str:
    """How `tl.dot` multiplies: float32 as three TF32 products (close to float32, and on tensor cores)."""
    return "tf32x3" if dtype == torch.float32 else "ieee"


def power_of_two(length: int) -> int:
    """The smallest power of two that holds `length`, 16 at least (a matrix instruction's side)."""
    return max(16, triton.next_power_of_2(length))


def blocks(length: int, block: int) -> int:
    """How many blocks cover `length`."""
    return -(-length // block)
