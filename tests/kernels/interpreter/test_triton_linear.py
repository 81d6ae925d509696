"""Enricher and fuser as kernels: forward and all gradients against the references; float8 rows and products."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from aveyb_retrieval.kernels.enrich import enrich
from aveyb_retrieval.kernels.float8 import (
    enrich_float8,
    fuse_float8,
    quantize_reference,
    quantize_weight,
)
from aveyb_retrieval.kernels.fuse import fuse
from aveyb_retrieval.kernels.triton.configs import config_for
from aveyb_retrieval.kernels.triton.quantize import quantize
from tests.kernels.interpreter.test_triton_mixing import TOLERANCE, relative_error

# splits, tokens a split, width
SHAPES = pytest.mark.parametrize(("n", "tokens", "width"), [(1, 1, 16), (3, 15, 24), (2, 17, 80), (1, 256, 16)])
ACTIVATIONS = pytest.mark.parametrize("activation", ["gelu", "relu2"])


def enricher(n: int, tokens: int, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """x, norm weight, weight, bias."""
    shapes = ((n, tokens, width), (width,), (4 * width, width), (4 * width,))
    x, scale, weight, bias = (torch.randn(shape) for shape in shapes)
    return [v.to(dtype).requires_grad_() for v in (3 * x, 1 + 0.3 * scale, weight / width**0.5, bias)]


def fuser(n: int, tokens: int, width: int, dtype: torch.dtype, alpha: bool) -> list[torch.Tensor | None]:
    """context, enriched (its tail half is the bypass), fuser's matrix, bias, residual, alpha."""
    shapes = ((n, tokens, width), (n, tokens, 4 * width), (width, 3 * width), (width,), (n, tokens, width), ())
    values = [torch.randn(shape) for shape in shapes]
    values[2] /= width**0.5
    leaves = [v.to(dtype).requires_grad_() for v in values]
    return leaves if alpha else [*leaves[:5], None]


def run_enrich(leaves: list[torch.Tensor], activation: str, backend: str) -> list[torch.Tensor]:
    out = enrich(*leaves, eps=1e-3, activation=activation, backend=backend)
    upstream = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad(out, leaves, upstream)]


def run_fuse(leaves: list[torch.Tensor | None], backend: str, order: str) -> list[torch.Tensor]:
    context, enriched, matrix, bias, residual, alpha = leaves
    width = context.shape[-1]
    sizes = (width, 2 * width) if order == "context_bypass" else (2 * width, width)
    first, second = matrix.split(sizes, dim=1)
    weights = (first, second) if order == "context_bypass" else (second, first)
    out = fuse(context, enriched[..., 2 * width :], *weights, bias, residual, alpha, backend=backend)
    upstream = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad(out, [v for v in leaves if v is not None], upstream)]


@SHAPES
@ACTIVATIONS
def test_enrich(n: int, tokens: int, width: int, activation: str) -> None:
    leaves = enricher(n, tokens, width, torch.float32)
    got, wanted = (run_enrich(leaves, activation, backend) for backend in ("triton", "torch"))
    assert max(relative_error(a, b) for a, b in zip(got, wanted, strict=True)) < TOLERANCE[torch.float32]


@SHAPES
@pytest.mark.parametrize(("order", "alpha"), [("context_bypass", True), ("bypass_context", False)])
def test_fuse(n: int, tokens: int, width: int, order: str, alpha: bool) -> None:
    leaves = fuser(n, tokens, width, torch.float32, alpha)
    got, wanted = (run_fuse(leaves, backend, order) for backend in ("triton", "torch"))
    assert max(relative_error(a, b) for a, b in zip(got, wanted, strict=True)) < TOLERANCE[torch.float32]


@ACTIVATIONS
def test_half_precision(activation: str) -> None:
    leaves = enricher(2, 33, 32, torch.float16)
    wide = [v.detach().float().requires_grad_() for v in leaves]
    got, wanted = run_enrich(leaves, activation, "triton"), run_enrich(wide, activation, "torch")
    assert max(relative_error(a, b) for a, b in zip(got, wanted, strict=True)) < TOLERANCE[torch.float16]
    parts = fuser(2, 33, 32, torch.float16, True)
    wide_parts = [v.detach().float().requires_grad_() for v in parts if v is not None]
    got, wanted = run_fuse(parts, "triton", "context_bypass"), run_fuse(wide_parts, "torch", "context_bypass")
    assert max(relative_error(a, b) for a, b in zip(got, wanted, strict=True)) < TOLERANCE[torch.float16]


def test_autocast_multiplies_in_its_own_dtype() -> None:
    leaves = enricher(1, 16, 16, torch.float32)
    with torch.autocast("cpu", dtype=torch.float16):
        out = enrich(*leaves, eps=1e-3, activation="gelu", backend="triton")
    assert out.dtype == torch.float16
    assert relative_error(out, run_enrich(leaves, "gelu", "torch")[0]) < TOLERANCE[torch.float16]


def test_training_under_autocast() -> None:
    leaves = enricher(1, 16, 16, torch.float32)
    with torch.autocast("cpu", dtype=torch.float16):
        out = enrich(*leaves, eps=1e-3, activation="gelu", backend="triton")
    upstream = torch.linspace(-1, 1, out.numel()).view(out.shape)
    got = torch.autograd.grad(out, leaves, upstream.to(out.dtype))
    wanted = run_enrich(leaves, "gelu", "torch")[1:]
    assert max(relative_error(a, b) for a, b in zip(got, wanted, strict=True)) < TOLERANCE[torch.float16]


def test_a_row_does_not_depend_on_its_neighbors() -> None:
    """Neither on their values nor on their number.

    The row keeps its position within a tile: the interpreter multiplies tiles by NumPy's BLAS, and some BLAS kernels
    sum the first rows of a matrix in another order than later ones.
    """
    leaves = enricher(3, 70, 32, torch.float32)
    together = run_enrich(leaves, "gelu", "triton")[0].flatten(0, 1)
    tile = config_for("enrich", "sm_90", 4).m
    rows = leaves[0].detach().flatten(0, 1)[tile : tile + 9].clone()
    rows[:5] = torch.randn(5, 32)
    alone = run_enrich([rows[None].requires_grad_(), *leaves[1:]], "gelu", "triton")[0][0]
    assert torch.equal(together[tile + 5 : tile + 9], alone[5:])


@pytest.mark.parametrize("norm_eps", [None, 1e-3])
def test_quantized_rows(norm_eps: float | None) -> None:
    a, enriched = torch.randn(37, 24), torch.randn(37, 96)
    a[3], enriched[3] = 0, 0
    b = None if norm_eps else enriched[:, 48:]
    values, scales = quantize(a, b, eps=norm_eps)
    wanted = quantize_reference(*((a,) if b is None else (a, b)), norm_eps=norm_eps)
    torch.testing.assert_close(scales, wanted.scales, rtol=1e-6, atol=0)
    assert bool((values[3].float() == 0).all()) and float(scales[3]) == 0
    assert float((values.float() != wanted.values.float()).float().mean()) < 1e-3  # ties, after another division


@SHAPES
def test_float8_products(n: int, tokens: int, width: int) -> None:
    """The whole operation against the reference on the same weights."""
    x, scale, weight, bias = (v.detach() for v in enricher(n, tokens, width, torch.float32))
    packed = quantize_weight(weight, scale)
    for activation in ("gelu", "relu2"):
        got, wanted = (
            enrich_float8(x, packed, bias, eps=1e-3, activation=activation, backend=backend)
            for backend in ("triton", "torch")
        )
        assert relative_error(got, wanted) < 2e-3, activation
    leaves = fuser(n, tokens, width, torch.float32, True)
    context, enriched, matrix, bias, residual, alpha = (v.detach() for v in leaves if v is not None)
    parts, packed = (context, enriched[..., 2 * width :]), quantize_weight(matrix)
    for factor in (alpha, None):
        got, wanted = (
            fuse_float8(parts, packed, bias, residual, factor, backend=backend) for backend in ("triton", "torch")
        )
        assert relative_error(got, wanted) < 2e-3
