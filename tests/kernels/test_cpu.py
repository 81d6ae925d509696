"""The inference forms for a CPU against the plain ones."""

from __future__ import annotations

import pytest
import torch

from aveyb_retrieval.kernels import cpu
from aveyb_retrieval.kernels.dynamic_mix import dynamic_mix_reference
from aveyb_retrieval.kernels.enrich import enrich
from aveyb_retrieval.kernels.fuse import fuse_reference
from aveyb_retrieval.kernels.static_mix import static_mix_reference
from tests.kernels.processor import needs_packed

BOTH = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DTYPES = pytest.mark.parametrize("dtype", BOTH.values(), ids=BOTH)
PACKED_DTYPES = pytest.mark.parametrize(
    "dtype", [pytest.param(dtype, id=name, marks=needs_packed(dtype)) for name, dtype in BOTH.items()]
)
WIDTHS = pytest.mark.parametrize("width", [1, 10, 32, 33, 48])
SIZE, D = 48, 16


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def close(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    scale = expected.float().abs().max().item()
    atol = {torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype] * max(1.0, scale)
    torch.testing.assert_close(got.float(), expected.float(), atol=atol, rtol=0)


def tail(width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """mixed and gate as views of an enriched vector, with garbage where a split has no token."""
    enriched = torch.randn(3, width, 4 * D).relu().square().to(dtype)
    enriched[1, max(1, width - 3) :] = float("nan")
    return enriched[..., :D], enriched[..., D : 2 * D]


def lengths(width: int) -> torch.Tensor:
    return torch.tensor([width, max(1, width - 3), width])


@pytest.mark.parametrize("activation", ["gelu", "relu2"])
@PACKED_DTYPES
@torch.no_grad()
def test_enrich(dtype: torch.dtype, activation: str) -> None:
    x = torch.randn(3, 10, D).to(dtype)
    x[0, 0] = 0  # a row without direction
    x[0, 1] *= 1e-4  # a row on which eps acts
    scale, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((D,), (4 * D, D), (4 * D,)))
    wide = (tensor.float() for tensor in (x, scale, weight, bias))
    expected = enrich(*wide, eps=1e-6, activation=activation, backend="torch")
    got = cpu.enrich(x, cpu.pack(cpu.fold_norm(weight, scale)), bias, eps=1e-6, activation=activation)
    close(got, expected, dtype)


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("biased", [True, False])
@WIDTHS
@DTYPES
@torch.no_grad()
def test_static_mix(dtype: torch.dtype, width: int, biased: bool, activation: str) -> None:
    mixed, gate = tail(width, dtype)
    weight, bias = torch.randn(SIZE, SIZE).to(dtype), torch.randn(SIZE).to(dtype) if biased else None
    expected = static_mix_reference(
        mixed.float(),
        gate.float(),
        weight[:width, :width].float(),
        lengths=lengths(width),
        bias=None if bias is None else bias[:width].float(),
        activation=activation,
    )
    got = cpu.static_mix(mixed, gate, weight, lengths=lengths(width), bias=bias, activation=activation)
    close(got, expected, dtype)


@pytest.mark.parametrize("normalization", ["sum", "l1"])
@pytest.mark.parametrize("biased", [True, False])
@WIDTHS
@DTYPES
@torch.no_grad()
def test_dynamic_mix(dtype: torch.dtype, width: int, biased: bool, normalization: str) -> None:
    mixed, gate = tail(width, dtype)
    mixed[0, 0] = 0  # a row without direction
    bias = torch.randn(SIZE).to(dtype) if biased else None
    activation = "relu" if biased else "none"
    settings = {"normalization": normalization, "eps": 1e-6, "lengths": lengths(width), "activation": activation}
    expected = dynamic_mix_reference(
        mixed.float(), gate.float(), bias=None if bias is None else bias[:width].float(), **settings
    )
    close(cpu.dynamic_mix(mixed, gate, bias=bias, **settings), expected, dtype)


@pytest.mark.parametrize("alpha", [None, torch.tensor(1.5)], ids=["plain", "scaled"])
@PACKED_DTYPES
@torch.no_grad()
def test_fuse(dtype: torch.dtype, alpha: torch.Tensor | None) -> None:
    bypass, context, x = (torch.randn(3, 10, n).to(dtype) for n in (2 * D, D, D))
    weight, bias = torch.randn(D, 3 * D).to(dtype), torch.randn(D).to(dtype)
    wide = [t.float() for t in (context, bypass, weight[:, 2 * D :], weight[:, : 2 * D], bias, x)]
    expected = fuse_reference(*wide, alpha)
    got = cpu.fuse((bypass, context), cpu.pack(weight), bias, x, None if alpha is None else alpha.to(dtype))
    close(got, expected, dtype)


@PACKED_DTYPES
@torch.no_grad()
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype) -> None:
    weight, bias, x = (torch.randn(*shape).to(dtype) for shape in ((1024, 256), (1024,), (300, 256)))
    together = cpu.packed_linear(x, cpu.pack(weight), bias)
    for rows in (slice(0, 1), slice(7, 17), slice(40, 300)):
        alone = cpu.packed_linear(x[rows], cpu.pack(weight), bias)
        close(alone, together[rows], dtype)


def test_only_inference_on_plain_cpu_tensors_meets_packed_weights() -> None:
    x = torch.randn(1, 2, 4)
    assert not cpu.usable(x), "a gradient is recorded"
    with torch.no_grad():
        assert cpu.usable(x) == cpu._AVAILABLE
        assert not cpu.usable(x.double())
        assert not cpu.usable(x.half())
        assert not cpu.usable(x.to("meta"))
        assert not cpu.usable(x.as_subclass(Labelled))
        with torch.autocast("cpu"):
            assert not cpu.usable(x)
        with torch.backends.mkldnn.flags(enabled=False):
            assert not cpu.usable(x)


class Labelled(torch.Tensor):
    """A subclass, as quantized and distributed tensors are."""
