"""Static contextualizer: tokens of a split mixed by a learned matrix, then gated (Avey-B eq. 4, Avey eq. 2)."""

from __future__ import annotations

import torch

from aveyb_retrieval.kernels.activations import mix_activation
from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, use_triton
from aveyb_retrieval.kernels.masking import zero_padding


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
    out = torch.matmul(weight, zero_padding(mixed, lengths))
    if bias is not None:
        out = out + bias[:, None]
    return zero_padding(gate * mix_activation(out, activation), lengths)


def static_mix(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    *,
    lengths: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    over_gate: bool = False,
    backend: Backend = "auto",
) -> torch.Tensor:
    """`static_mix_reference` by the implementation that `backend` means (see `dispatch.py`).

    The kernel reads `mixed`, `gate` and `weight` through their strides; only the last axis must be contiguous. It
    multiplies in the dtype of `mixed`, whatever the weight is kept in.

    Args:
        over_gate: write the result over `gate` and return that; for inference.

    Raises:
        BackendError: `backend="triton"` cannot run: no Triton, no such device or dtype.
    """
    if use_triton(backend, mixed, operation="static_mix"):
        from aveyb_retrieval.kernels.triton.static_mix import static_mix_op, static_mix_over_gate_op

        weight, relu = inner_contiguous(weight.to(mixed.dtype)), activation == "relu"
        if over_gate and gate.stride(-1) == 1:
            static_mix_over_gate_op(inner_contiguous(mixed), gate, weight, lengths, bias, relu)
            return gate
        out = static_mix_op(inner_contiguous(mixed), inner_contiguous(gate), weight, lengths, bias, relu)
    else:
        out = static_mix_reference(mixed, gate, weight, lengths=lengths, bias=bias, activation=activation)
    return gate.copy_(out) if over_gate else out
