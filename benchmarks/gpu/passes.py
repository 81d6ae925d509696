"""Check the kernels that take over passes around products and mixing: against float64, ragged, repeated under load."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from common import Row, attempt
from verdicts import BOUNDS, PRESETS, Load, Outputs, relative_error, verdict

from aveyb_retrieval.kernels.activations import activate, activate_around
from aveyb_retrieval.kernels.add_norm import add_norm
from aveyb_retrieval.kernels.dynamic_mix import dynamic_mix_over_gate
from aveyb_retrieval.kernels.static_mix import static_mix_over_gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.kernels.dispatch import Backend


def pass_rows(device: torch.device, backend: Backend, size: int, width: int, toy: bool) -> Iterator[Row]:
    """Both presets, three dtypes: a fused layer's passes one after another, and ReLU squared with its gradient."""
    load = Load(device)
    for splits in (4, 8) if toy else (4, 64, 512):
        lengths = torch.tensor([(size, 1, size // 2 + 1, size - 1)[i % 4] for i in range(splits)], device=device)
        for preset, (dtype, bound) in product(PRESETS, BOUNDS.items()):
            check = partial(_check, preset, lengths, size, width, dtype, bound, backend, load)
            yield attempt({"check": f"fused passes {preset} {dtype} {splits} splits"}, check)


def _check(
    preset: str,
    lengths: torch.Tensor,
    size: int,
    width: int,
    dtype: torch.dtype,
    bound: float,
    backend: Backend,
    load: Load,
) -> Row:
    shapes = {"enriched": (len(lengths), size, 4 * width), "branch": (len(lengths), size, width), "scale": (width,)}
    shapes |= {"residual": shapes["branch"], "matrix": (size, size), "bias": (size,), "alpha": ()}
    shapes["upstream"] = shapes["enriched"]
    leaves = {
        name: (torch.randn(shape, device=lengths.device) / (size**0.5 if name == "matrix" else 1)).to(dtype)
        for name, shape in shapes.items()
    }
    wide = {name: leaf.double() for name, leaf in leaves.items()}
    wanted, got, plain = (
        _run(preset, given, lengths, kind) for given, kind in ((wide, "torch"), (leaves, backend), (leaves, "torch"))
    )
    worst, torch_error = (max(relative_error(x[k], wanted[k]) for k in wanted) for x in (got, plain))
    same = load.repeat(lambda: _run(preset, leaves, lengths, backend), got)
    return verdict(worst, bound, same) | {"torch_error": torch_error}


def _run(preset: str, leaves: Outputs, lengths: torch.Tensor, backend: Any) -> Outputs:
    settings, width = PRESETS[preset], leaves["scale"].numel()
    released = preset == "released"
    name, alpha = ("gelu", leaves["alpha"]) if released else ("relu2", None)
    with torch.no_grad():
        enriched = leaves["enriched"].clone()
        norms = activate_around(enriched, name, width, 2 * width, norms="head", backend=backend)
        found = {"activated": enriched.clone(), "norms": norms}
        common: dict[str, Any] = {"lengths": lengths, "bias": leaves["bias"] if settings["bias"] else None}
        common |= {"activation": settings["activation"], "gate_activation": name, "backend": backend}
        mixed, gate, _ = enriched.split((width, width, 2 * width), dim=-1)
        found["static"] = static_mix_over_gate(mixed, gate, leaves["matrix"], **common).clone()
        gate.copy_(leaves["enriched"][..., width : 2 * width])
        normalization = settings["normalization"]
        found["dynamic"] = dynamic_mix_over_gate(mixed, gate, norms, normalization=normalization, eps=1e-6, **common)
        found["x"], found["normed"] = add_norm(
            leaves["branch"], leaves["residual"], alpha, leaves["scale"], eps=1e-6, backend=backend
        )
    leaf = leaves["enriched"].detach().requires_grad_()
    out = activate(leaf, "relu2", backend=backend)
    (grad,) = torch.autograd.grad(out, leaf, leaves["upstream"])
    return found | {"relu2": out.detach(), "relu2_grad": grad}
