"""Passes fused around products and mixing, as kernels, against their references; and layers made of
them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.layers import AveyBLayer, fusable, run_fused
from aveyb_retrieval.kernels.dispatch import Backend, force_backend
from aveyb_retrieval.kernels.mixing import dynamic_mix_over_gate, static_mix_over_gate
from aveyb_retrieval.kernels.positionwise import (
    activate,
    activate_around,
    add_norm,
    enricher_activation,
)
from aveyb_retrieval.kernels.triton import dynamic_mix
from tests.kernels.interpreter.test_triton_mixing import TOLERANCE, relative_error

PRESETS = {"paper": AveyBConfig.paper_base, "released": AveyBConfig.released_base}
# one tile and less; more than one, the last not full
WIDTHS = pytest.mark.parametrize("width", [16, 24, 300])
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


@WIDTHS
@pytest.mark.parametrize("name", ["gelu", "relu2"])
@torch.no_grad()
def test_activation_around_the_gate(width: int, name: str) -> None:
    start = 2 * width
    x = torch.randn(2, 5, 4 * width)
    x[1, 2] = -1e9  # no direction after the activation
    got, wanted = x.clone(), x.clone()
    found = activate_around(got, name, start, start + width, backend="triton")
    expected = activate_around(wanted, name, start, start + width, backend="torch")
    assert torch.equal(got[..., start : start + width], x[..., start : start + width])
    assert relative_error(got, wanted) < TOLERANCE[torch.float32]
    assert relative_error(found, expected) < TOLERANCE[torch.float32]
    assert float(found[1, 2]) == 0


@torch.no_grad()
def test_activation_around_the_gate_in_half_precision() -> None:
    x = torch.randn(3, 7, 64).half()
    got, wanted = x.clone(), x.float()
    found = activate_around(got, "gelu", 16, 32, backend="triton")
    expected = activate_around(wanted, "gelu", 16, 32, backend="torch")
    assert relative_error(got, wanted) < TOLERANCE[torch.float16]
    assert relative_error(found, expected) < TOLERANCE[torch.float16]


@WIDTHS
@DTYPES
def test_relu_squared_and_its_gradient(width: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, width).to(dtype).requires_grad_()
    wide = x.detach().float().requires_grad_()
    upstream = torch.randn(3, 5, width).to(dtype)
    out, wanted = activate(x, "relu2", backend="triton"), enricher_activation(wide, "relu2")
    assert out.dtype == dtype
    assert relative_error(out, wanted) < TOLERANCE[dtype]
    (got,) = torch.autograd.grad(out, x, upstream)
    (expected,) = torch.autograd.grad(wanted, wide, upstream.float())
    assert relative_error(got, expected) < TOLERANCE[dtype]


@WIDTHS
@DTYPES
@pytest.mark.parametrize("alpha", [None, 0.7])
@torch.no_grad()
def test_residual_and_norm(width: int, dtype: torch.dtype, alpha: float | None) -> None:
    # rows are strided
    branch, residual = (3 * torch.randn(2, 5, 2 * width).to(dtype)[..., :width] for _ in range(2))
    weight, scale = (
        torch.randn(width).to(dtype),
        None if alpha is None else torch.tensor(alpha).to(dtype),
    )
    got = add_norm(branch, residual, scale, weight, eps=1e-3, backend="triton")
    wide = (t if t is None else t.float() for t in (branch, residual, scale, weight))
    wanted = add_norm(*wide, eps=1e-3, backend="torch")
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == dtype
        assert relative_error(a, b) < TOLERANCE[dtype]


@torch.no_grad()
def test_a_row_does_not_depend_on_its_neighbors() -> None:
    x, other = torch.randn(9, 64), torch.randn(9, 64)
    weight = torch.randn(64)
    together = add_norm(x, other, None, weight, eps=1e-6, backend="triton")
    alone = add_norm(x[5:7], other[5:7], None, weight, eps=1e-6, backend="triton")
    assert all(torch.equal(a[5:7], b) for a, b in zip(together, alone, strict=True))
    one, many = x[5:7].clone(), x.clone()
    norms = [activate_around(part, "gelu", 16, 32, backend="triton") for part in (many, one)]
    assert torch.equal(many[5:7], one)
    assert torch.equal(norms[0][5:7], norms[1])


@torch.no_grad()
def test_not_a_number_stays_visible() -> None:
    x = torch.ones(6, 64)
    x[2, 3], x[4, 40] = float("nan"), float("nan")
    for name in ("gelu", "relu2"):
        got, wanted = x.clone(), x.clone()
        activate_around(got, name, 16, 32, backend="triton")
        activate_around(wanted, name, 16, 32, backend="torch")
        assert bool(wanted[2, 3].isnan())
        assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(activate(x, "relu2", backend="triton").isnan(), x.isnan())
    for pair in zip(
        *(add_norm(x, x, None, x[0], eps=1e-6, backend=b) for b in ("triton", "torch")), strict=True
    ):
        assert torch.equal(pair[0].isnan(), pair[1].isnan())


@pytest.mark.parametrize("operation", ["static", "dynamic"])
@pytest.mark.parametrize("preset", PRESETS)
@torch.no_grad()
def test_a_split_does_not_depend_on_its_neighbors(operation: str, preset: str) -> None:
    """Mixing over the gate, ragged, with garbage in padding rows."""
    lengths, released = torch.tensor([40, 17, 33]), preset == "released"
    enriched = torch.randn(3, 40, 64)
    for i, length in enumerate(lengths.tolist()):
        enriched[i, length:] = float("nan")
    matrix, bias = torch.randn(40, 40), None if released else torch.randn(40)
    name = "gelu" if released else "relu2"

    def run(rows: slice, backend: Backend) -> torch.Tensor:
        own = enriched[rows].clone()
        norms = activate_around(own, name, 32, 48, backend=backend)
        gate, mixed = own[..., 32:48], own[..., 48:]
        settings = {
            "lengths": lengths[rows],
            "bias": bias,
            "activation": "none" if released else "relu",
        }
        settings |= {"gate_activation": name, "backend": backend}
        if operation == "static":
            return static_mix_over_gate(mixed, gate, matrix, **settings)
        normalization = "l1" if released else "sum"
        return dynamic_mix_over_gate(
            mixed, gate, norms, normalization=normalization, eps=1e-3, **settings
        )

    together, wanted = run(slice(None), "triton"), run(slice(None), "torch")
    assert relative_error(together, wanted) < TOLERANCE[torch.float32]
    assert torch.equal(run(slice(1, 2), "triton")[0], together[1])


@pytest.mark.parametrize("lengths", [None, [7, 0, 20, 1, 13]])
@torch.no_grad()
def test_a_graph_takes_splits_in_parts_and_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int] | None
) -> None:
    z, gate, n = (
        torch.randn(5, 20, 16),
        torch.randn(5, 20, 16),
        None if lengths is None else torch.tensor(lengths),
    )
    norms, sizes, launch = 1 / z.norm(dim=-1), [], dynamic_mix._launch_shares

    def counted(mixed: torch.Tensor, *others: Any) -> None:
        sizes.append(len(mixed))
        launch(mixed, *others)

    def run() -> tuple[torch.Tensor, ...]:
        over = gate.clone()
        dynamic_mix.dynamic_mix_over_gate_op(z, over, norms, n, None, 1e-6, True, False, "gelu")
        out, inverse, sums, shares = dynamic_mix.dynamic_mix_op(z, gate, n, None, 1e-6, True, False)
        # the rest is not written
        below = torch.arange(20) < (torch.full((5,), 20) if n is None else n)[:, None]
        return over, out, inverse, sums[below], shares[:, :20][below]

    monkeypatch.setattr(dynamic_mix, "_launch_shares", counted)
    at_once = run()
    monkeypatch.setattr(dynamic_mix, "_is_captured", lambda mixed: True)
    monkeypatch.setattr(dynamic_mix, "_IN_CACHE_TOKENS", 2 * 20 + 19)
    assert all(map(torch.equal, at_once, run()))
    assert sizes == 2 * [5] + 2 * [2, 2, 1]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("backend", ["triton", "torch"])
@torch.no_grad()
def test_fused_layers_give_what_the_layers_give(preset: str, backend: Backend) -> None:
    config = PRESETS[preset](vocab_size=50, hidden_size=16, num_hidden_layers=3, split_size=32)
    layers = [AveyBLayer(config.settings, kind) for kind in ("static", "dynamic", "static")]
    for layer in layers:
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        assert fusable(layer, torch.float32)
    for lengths in (None, torch.tensor([20, 3, 17])):
        x = torch.randn(3, 20, 16)
        wanted = x
        for layer in layers:
            wanted = layer(wanted, lengths)
        with force_backend(backend):
            got = run_fused(layers, x, lengths)
        for i, length in enumerate([20] * 3 if lengths is None else lengths.tolist()):
            assert relative_error(got[i, :length], wanted[i, :length]) < 2e-5
