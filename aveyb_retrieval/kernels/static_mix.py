"""Static contextualizer: tokens of a split mixed by a learned matrix, then gated (Avey-B eq. 4, Avey eq. 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from aveyb_retrieval.kernels.activations import enricher_activation
from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, use_triton
from aveyb_retrieval.kernels.masking import Mixing, for_kernel, gated, zero_padding

if TYPE_CHECKING:
    from typing_extensions import Unpack


def static_mix_reference(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    *,
    lengths: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    """`gate * sigma(V @ mixed + b)` for every split of a group.

    Args:
        mixed: `[n, T, D]`, the half of the tail that is mixed across tokens.
        gate: `[n, T, D]`, the half that gates.
        weight: `[T, T]`, the upper left corner of V for splits of up to T tokens.
        lengths: int `[n]`, valid tokens of each split; None when all T are.
        bias: `[T]`, one value a token position, or None.
        activation: sigma, "none" or "relu".

    Returns:
        `[n, T, D]` in the dtype of `mixed`; rows at or beyond `lengths` are zero.
    """
    return gated(torch.matmul(weight, zero_padding(mixed, lengths)), gate, lengths, bias, activation)


def static_mix(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    *,
    backend: Backend = "auto",
    **how: Unpack[Mixing],
) -> torch.Tensor:
    """`static_mix_reference` by the implementation that `backend` means (see `dispatch.py`).

    The kernel reads `mixed`, `gate` and `weight` through their strides; only the last axis must be contiguous. It
    multiplies in the dtype of `mixed`, whatever the weight is kept in.

    Raises:
        BackendError: `backend="triton"` cannot run: no Triton, no such device or dtype.
    """
    if use_triton(backend, mixed, operation="static_mix"):
        from aveyb_retrieval.kernels.triton.static_mix import static_mix_op

        weight = inner_contiguous(weight.to(mixed.dtype))
        return static_mix_op(inner_contiguous(mixed), inner_contiguous(gate), weight, *for_kernel(how))
    return static_mix_reference(mixed, gate, weight, **how)


def static_mix_over_gate(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    *,
    gate_activation: str,
    backend: Backend = "auto",
    **how: Unpack[Mixing],
) -> torch.Tensor:
    """`static_mix` with a gate that still lacks the enricher's activation, written over that gate; for inference.

    Args:
        mixed: `[n, T, D]` and gate: `[n, T, D]`; the last axis of both is contiguous.
        weight: as for `static_mix_reference`, as are the other options.
        gate_activation: "gelu" or "relu2".

    Returns:
        `gate`; rows at or beyond `lengths` are zero.

    Raises:
        BackendError: `backend="triton"` cannot run: no Triton, no such device or dtype.
    """
    if use_triton(backend, mixed, operation="static_mix"):
        from aveyb_retrieval.kernels.triton.static_mix import static_mix_over_gate_op

        weight = inner_contiguous(weight.to(mixed.dtype))
        static_mix_over_gate_op(mixed, gate, weight, *for_kernel(how), gate_activation)
        return gate
    own = enricher_activation(gate, gate_activation)
    return gate.copy_(static_mix_reference(mixed, own, weight, **how))
