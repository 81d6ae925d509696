"""Parts of all kernels: tiles loaded through strides, maxima that keep NaN, activations, precision,
the table of tiles.

Tile shapes are fitted to each architecture's shared memory and registers by compiling for it.
`tests/kernels/test_compile_gate.py` compiles every row of `TABLE` and fails on spills, too much
shared memory or a data race. The rows were chosen by what the compiler reports, those of the static
and dynamic mixing on sm_90 also by their times on an H100. Rows of one stage on sm_90 are products
with an operand computed in registers, which must not be pipelined there (see `__init__.py`).
"""

# Arguments of kernels are typed by Triton at launch, those of autograd hooks by torch.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Callable


_SQRT_HALF = tl.constexpr(0.7071067811865476)
_MIN_NORM = tl.constexpr(1e-12)
_LIBRARY = torch.library.Library("aveyb", "FRAGMENT")


@triton.jit
def load_tile(base, rows, columns, row_stride, n_rows, n_columns, WHOLE: tl.constexpr):
    """Elements `base[row * row_stride + column]` as [len(rows), len(columns)], zero beyond `n_rows`
    and `n_columns`.

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
    tl.store(
        base + rows[:, None] * row_stride + columns[None, :],
        value.to(base.dtype.element_ty),
        mask=mask,
    )


@triton.jit
def products_of(
    a,
    a_rows,
    a_row,
    n_a,
    b,
    b_rows,
    b_row,
    n_b,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`a_i . b_j` float32 [M, N] of rows of D elements; of those beyond `n_a` and `n_b`, 0."""
    products = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, D, K):
        d = k + tl.arange(0, K)
        own = load_tile(a, a_rows, d, a_row, n_a, D, D % K == 0)
        theirs = load_tile(b, b_rows, d, b_row, n_b, D, D % K == 0)
        products = tl.dot(own, tl.trans(theirs), products, input_precision=PRECISION)
    return products


@triton.jit
def larger(a, b):
    """The larger of two, NaN where one is NaN: `tl.maximum` and `tl.max` leave NaN out, which hides
    a diverged run.
    """
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
    """(split, first row, valid rows of the split) of a program in a grid of (splits, blocks of M
    rows, ...).

    The split is int64, so that offsets of any batch fit.
    """
    split = tl.program_id(0).to(tl.int64)
    return split, tl.program_id(1) * M, valid_rows(lengths, split, T, RAGGED)


@triton.jit
def at_split(split, grad, grad_split, gate, gate_split, out, out_split):
    """Pointers to what the gradient of a gated mixture is made from, moved to a split."""
    return grad + split * grad_split, gate + split * gate_split, out + split * out_split


def precision(dtype: torch.dtype) -> str:
    """How `tl.dot` multiplies: float32 as three TF32 products (close to float32, and on tensor
    cores).
    """
    return "tf32x3" if dtype == torch.float32 else "ieee"


def power_of_two(length: int) -> int:
    """The smallest power of two that holds `length`, 16 at least (a matrix instruction's side)."""
    return max(16, triton.next_power_of_2(length))


def blocks(length: int, block: int) -> int:
    """How many blocks cover `length`."""
    return -(-length // block)


@dataclass(frozen=True)
class Config:
    """Tile of one program: `m` rows, `n` columns, `k` of the summed axis; warps; software pipeline
    stages.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int


# kernel -> bytes of an element -> tile; 4 bytes: float32, multiplied as three TF32 products.
_HALF, _WIDE = 2, 4
_Table = dict[str, dict[int, Config]]
_AMPERE: _Table = {
    "add_norm": {_HALF: Config(4, 0, 0, 8, 1), _WIDE: Config(4, 0, 0, 8, 1)},
    "activate": {_HALF: Config(4, 256, 0, 4, 1), _WIDE: Config(4, 256, 0, 4, 1)},
    "dynamic_mix_norms": {_HALF: Config(4, 256, 0, 4, 1), _WIDE: Config(4, 256, 0, 4, 1)},
    "dynamic_mix_shares": {_HALF: Config(64, 0, 64, 8, 2), _WIDE: Config(32, 0, 16, 8, 2)},
    "dynamic_mix_cosines": {_HALF: Config(64, 0, 32, 8, 3), _WIDE: Config(32, 0, 16, 8, 2)},
    "dynamic_mix_weights": {_HALF: Config(16, 0, 0, 4, 1), _WIDE: Config(16, 0, 0, 4, 1)},
    "dynamic_mix_input": {_HALF: Config(64, 128, 32, 8, 3), _WIDE: Config(32, 64, 16, 8, 2)},
    "static_mix": {_HALF: Config(128, 128, 32, 8, 3), _WIDE: Config(64, 64, 32, 8, 2)},
    "static_mix_activating": {_HALF: Config(128, 64, 32, 8, 3), _WIDE: Config(64, 64, 32, 8, 2)},
    "static_mix_input": {_HALF: Config(128, 128, 32, 8, 2), _WIDE: Config(64, 64, 32, 8, 2)},
    "static_mix_weight": {_HALF: Config(64, 64, 64, 8, 2), _WIDE: Config(64, 32, 16, 8, 2)},
    "maxsim": {_HALF: Config(128, 128, 64, 8, 3), _WIDE: Config(64, 128, 16, 8, 3)},
    "best_by_id": {_HALF: Config(128, 128, 32, 8, 3), _WIDE: Config(64, 128, 16, 8, 3)},
    "count_by_id": {_WIDE: Config(0, 128, 0, 4, 3)},
    "late_interaction": {_HALF: Config(64, 64, 64, 4, 2), _WIDE: Config(64, 64, 16, 8, 2)},
}
_HOPPER: _Table = _AMPERE | {
    "dynamic_mix_shares": {_HALF: Config(128, 0, 64, 8, 4), _WIDE: Config(64, 0, 16, 8, 3)},
    "dynamic_mix_cosines": {_HALF: Config(64, 0, 64, 8, 3), _WIDE: Config(32, 0, 16, 8, 2)},
    "dynamic_mix_input": {_HALF: Config(128, 128, 64, 8, 3), _WIDE: Config(64, 64, 32, 8, 3)},
    "static_mix": {_HALF: Config(128, 128, 64, 8, 3), _WIDE: Config(64, 64, 32, 8, 3)},
    "static_mix_activating": {_HALF: Config(128, 64, 64, 8, 4), _WIDE: Config(64, 64, 32, 8, 3)},
    "static_mix_input": {_HALF: Config(128, 128, 64, 8, 2), _WIDE: Config(64, 64, 32, 8, 2)},
    "static_mix_weight": {_HALF: Config(128, 128, 64, 8, 1), _WIDE: Config(64, 64, 32, 8, 2)},
    "maxsim": {_HALF: Config(128, 256, 64, 8, 3), _WIDE: Config(128, 128, 32, 8, 2)},
    "best_by_id": {_HALF: Config(128, 256, 64, 8, 3), _WIDE: Config(64, 128, 32, 8, 3)},
    "late_interaction": {_HALF: Config(64, 64, 64, 4, 3), _WIDE: Config(64, 64, 32, 8, 3)},
}
# the rows of sm_80 fit sm_89's shared memory, too
TABLE = {"sm_90": _HOPPER, "sm_80": _AMPERE, "sm_89": _AMPERE}


def architecture(device: torch.device) -> str:
    """The table's name for a device: by shared memory a program may use, which is what tiles are
    fitted to.
    """
    # the interpreter has no limits; it walks through the tiles of the largest device
    if device.type != "cuda":
        return "sm_90"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) in ((8, 6), (8, 9)) or major == 12:
        return "sm_89"
    return "sm_80" if major == 8 else "sm_90"


def config_for(kernel: str, arch: str, element_size: int) -> Config:
    """The tile of `kernel` on `arch` ("sm_90", "sm_80", "sm_89") for elements of 2 or 4 bytes."""
    return TABLE[arch][kernel][element_size]


def inference_operator(
    signature: str, run: Callable[..., Any], shapes: Callable[..., Any]
) -> Callable[..., Any]:
    """Register `run` as an operator of the namespace `aveyb`, with a signature as torch writes it;
    return the operator.

    `shapes` gives empty results of the right shapes, for tensors without values.
    """
    name = signature.split("(", 1)[0]
    _LIBRARY.define(signature)
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, shapes, "Meta")
    return getattr(torch.ops.aveyb, name).default
