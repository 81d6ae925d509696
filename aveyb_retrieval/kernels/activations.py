"""The two pointwise activations of Avey-B, by name."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aveyb_retrieval.kernels.dispatch import Backend, use_triton

_MIN_NORM = 1e-12


def enricher_activation(x: torch.Tensor, name: str) -> torch.Tensor:
    """Apply "gelu" (exact, by erf) or "relu2" (ReLU squared; similarities of its outputs are never negative).

    May overwrite `x` where no gradient is recorded: a fresh buffer of this size costs more than the arithmetic.
    """
    if name == "gelu":
        return F.gelu(x)
    return F.relu(x).square() if torch.is_grad_enabled() else x.relu_().square_()


def activate(x: torch.Tensor, name: str, *, backend: Backend = "auto") -> torch.Tensor:
    """`enricher_activation` by the implementation that `backend` means (see `dispatch.py`).

    "relu2" has a kernel, one pass over memory instead of two (backward one instead of three). "gelu" is one pass in
    torch, and torch.compile fuses both: they stay torch's.

    Args:
        x: `[..., M]`.
        name: "gelu" or "relu2".

    Raises:
        BackendError: `backend="triton"` cannot run: no Triton, no such device or dtype.
    """
    if name == "relu2" and not torch.compiler.is_compiling() and use_triton(backend, x, operation="relu2"):
        from aveyb_retrieval.kernels.triton.activate import relu2_op

        return relu2_op(x.contiguous())
    return enricher_activation(x, name)


def activate_around_reference(x: torch.Tensor, name: str, start: int, stop: int) -> torch.Tensor:
    """Apply the enricher's activation in place to all columns of x `[..., M]` but start to stop; for inference."""
    for part in (x[..., :start], x[..., stop:]):
        part.copy_(enricher_activation(part, name))
    return x


def activate_around(
    x: torch.Tensor, name: str, start: int, stop: int, *, norms: str, backend: Backend = "auto"
) -> torch.Tensor:
    """`activate_around_reference` by the implementation that `backend` means, with norms of what it wrote.

    The columns left out are those whose next reader applies the activation itself: a pass over them is saved.

    Args:
        x: `[..., M]`, contiguous; written to.
        name: "gelu" or "relu2".
        start: the first column that is left out, and stop: the one after the last.
        norms: whose norms to return, those of the columns before ("head") or after ("tail") the ones left out.

    Returns:
        float32 (of float64: float64) `[...]`, `1 / |z|`; 0 where |z| is not above 1e-12.

    Raises:
        BackendError: `backend="triton"` cannot run: no Triton, no such device or dtype.
    """
    if use_triton(backend, x, operation="activate_around"):
        from aveyb_retrieval.kernels.triton.activate import activate_around_op

        found: torch.Tensor = activate_around_op(x, name, start, stop, norms)
        return found
    activate_around_reference(x, name, start, stop)
    part, wide = x[..., :start] if norms == "head" else x[..., stop:], torch.promote_types(x.dtype, torch.float32)
    norm = torch.linalg.vector_norm(part, dim=-1, dtype=wide)
    return torch.where(norm > _MIN_NORM, 1 / norm, 0.0)


def mix_activation(x: torch.Tensor, name: str) -> torch.Tensor:
    """Apply sigma of eq. 4 and 7: "relu" or "none"."""
    return F.relu(x) if name == "relu" else x
