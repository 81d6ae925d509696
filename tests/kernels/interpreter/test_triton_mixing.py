"""Static and dynamic mixing as kernels: forward and all gradients against the references, ragged
splits too.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from aveyb_retrieval.kernels.mixing import dynamic_mix, static_mix

RELEASED = {"normalization": "l1", "activation": "none", "bias": False, "positive": False}
PAPER = {"normalization": "sum", "activation": "relu", "bias": True, "positive": True}
PRESETS = pytest.mark.parametrize("preset", [RELEASED, PAPER], ids=["released", "paper"])

# padded length, lengths (None: all full), width
SHAPES = pytest.mark.parametrize(
    ("padded", "lengths", "width"),
    [
        (1, None, 16),
        (15, [15, 1], 16),
        (16, None, 40),
        (17, [17, 16, 1], 16),
        (256, [255, 256, 17], 24),
        (255, None, 16),
        (200, [130, 200], 80),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3}


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    got, wanted = got.detach().double(), wanted.detach().double()
    return float((got - wanted).norm() / wanted.norm().clamp_min(1e-30))


def inputs(
    padded: int, lengths: list[int] | None, width: int, preset: dict, dtype: torch.dtype
) -> dict:
    """Leaves, and what the operations take: views of the enricher's output, with garbage in padding
    rows.
    """
    n = 2 if lengths is None else len(lengths)
    enriched = torch.randn(n, padded, 4 * width)
    if preset["positive"]:  # what ReLU squared gives: half of all values are zero
        enriched = enriched.relu().square()
    for i, length in enumerate(lengths or []):
        enriched[i, length:, :width] = float("nan")
        enriched[i, length:, width:] = 1e3
    enriched = enriched.to(dtype).requires_grad_()
    matrix = (torch.randn(padded + 3, padded + 3) / padded**0.5).to(dtype).requires_grad_()
    bias = (0.1 * torch.randn(padded)).to(dtype).requires_grad_() if preset["bias"] else None
    return arguments({"enriched": enriched, "matrix": matrix, "bias": bias}, lengths)


def arguments(leaves: dict, lengths: list[int] | None) -> dict:
    """The views that the operations take."""
    enriched, matrix = leaves["enriched"], leaves["matrix"]
    padded, width = enriched.shape[1], enriched.shape[2] // 4
    return {
        "leaves": leaves,
        "mixed": enriched[..., :width],
        "gate": enriched[..., width : 2 * width],
        "weight": matrix[:padded, :padded],
        "bias": leaves["bias"],
        "lengths": None if lengths is None else torch.tensor(lengths),
    }


def run(
    operation: str, case: dict, preset: dict, backend: str, upstream: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The output, and the gradient of every leaf that takes part."""
    common = {k: case[k] for k in ("lengths", "bias")} | {
        "activation": preset["activation"],
        "backend": backend,
    }
    if operation == "static_mix":
        out = static_mix(case["mixed"], case["gate"], case["weight"], **common)
    else:
        out = dynamic_mix(
            case["mixed"], case["gate"], normalization=preset["normalization"], eps=1e-3, **common
        )
    used = {
        k: leaf
        for k, leaf in case["leaves"].items()
        if leaf is not None and (k != "matrix" or operation[0] == "s")
    }
    grads = torch.autograd.grad(out, list(used.values()), upstream)
    return {"out": out} | dict(zip(used, grads, strict=True))


@pytest.mark.parametrize("operation", ["static_mix", "dynamic_mix"])
@PRESETS
@SHAPES
def test_forward_and_gradients(
    operation: str, preset: dict, padded: int, lengths: list[int] | None, width: int
) -> None:
    case = inputs(padded, lengths, width, preset, torch.float32)
    upstream = torch.randn(case["mixed"].shape)
    wanted = run(operation, case, preset, "torch", upstream)
    got = run(operation, case, preset, "triton", upstream)
    for name, value in wanted.items():
        assert relative_error(got[name], value) < TOLERANCE[torch.float32], name


@pytest.mark.parametrize("operation", ["static_mix", "dynamic_mix"])
def test_padding_rows_come_out_as_zeros(operation: str) -> None:
    case = inputs(33, [33, 4], 16, PAPER, torch.float32)
    upstream = torch.full(case["mixed"].shape, float("nan"))
    upstream[0], upstream[1, :4] = 1.0, 1.0
    got = run(operation, case, PAPER, "triton", upstream)
    assert bool((got["out"][1, 4:] == 0).all())
    assert bool((got["enriched"][1, 4:] == 0).all())
    assert all(bool(value.isfinite().all()) for value in got.values())


@pytest.mark.parametrize("operation", ["static_mix", "dynamic_mix"])
@PRESETS
def test_half_precision(operation: str, preset: dict) -> None:
    case = inputs(48, [48, 20], 32, preset, torch.float16)
    wide = {
        k: None if v is None else v.detach().float().requires_grad_()
        for k, v in case["leaves"].items()
    }
    upstream = torch.randn(case["mixed"].shape).half()
    got = run(operation, case, preset, "triton", upstream)
    wanted = run(operation, arguments(wide, [48, 20]), preset, "torch", upstream.float())
    for name, value in wanted.items():
        assert relative_error(got[name], value) < TOLERANCE[torch.float16], name


@pytest.mark.parametrize("operation", ["static_mix", "dynamic_mix"])
def test_a_split_does_not_depend_on_its_neighbors(operation: str) -> None:
    case = inputs(64, [64, 40, 5], 16, RELEASED, torch.float32)
    upstream = torch.randn(case["mixed"].shape)
    together = run(operation, case, RELEASED, "triton", upstream)
    leaves = dict(
        case["leaves"], enriched=case["leaves"]["enriched"][1:2].detach().requires_grad_()
    )
    alone = run(operation, arguments(leaves, [40]), RELEASED, "triton", upstream[1:2])
    assert torch.equal(together["out"][1:2], alone["out"])
    assert torch.equal(together["enriched"][1:2], alone["enriched"])


def test_a_zero_row_has_no_direction() -> None:
    """Its gradient comes through the mixture alone, and nothing overflows."""
    mixed = torch.randn(1, 20, 16)
    mixed[0, 7] = 0
    mixed.requires_grad_()
    out = dynamic_mix(mixed, torch.ones(1, 20, 16), normalization="l1", eps=1e-12, backend="triton")
    (grad,) = torch.autograd.grad(out.sum(), mixed)
    assert bool((out[0, 7] == 0).all())
    assert bool(grad.isfinite().all()) and float(grad.abs().max()) < 1e3
