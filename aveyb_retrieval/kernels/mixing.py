"""The contextualizers, which mix a split's tokens: static and dynamic (equations 4 to 7).

Each has a plain torch reference, which is its definition, and a form by kernels.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

import torch

from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, use_triton
from aveyb_retrieval.kernels.positionwise import across, enricher_activation, zero_padding

_MIN_NORM = 1e-12
_MAX_TOKENS = 256  # columns that one program of the kernel holds in registers


class Mixing(TypedDict, total=False):
    """Options of every contextualizer.

    lengths: int `[n]`, valid tokens of each split; None (the default) when all T are.
    bias: `[T]`, one value a token position, or None.
    activation: sigma, "none" (the default) or "relu".
    """

    lengths: torch.Tensor | None
    bias: torch.Tensor | None
    activation: str


class Similarity(TypedDict):
    """Options of the dynamic contextualizer; see `dynamic_mix_reference`."""

    normalization: str
    eps: float


class DynamicMixing(Mixing, Similarity):
    """Both."""


def gated(
    out: torch.Tensor,
    gate: torch.Tensor,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    """`gate * sigma(out + b)` of `[n, T, D]`; rows at or beyond `lengths` are zero."""
    if bias is not None:
        out = out + bias[:, None]
    return zero_padding(gate * (torch.relu(out) if activation == "relu" else out), lengths)


def for_kernel(
    how: Mixing | DynamicMixing,
) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
    """Return lengths, bias, and whether sigma is ReLU, as kernels take them."""
    return how.get("lengths"), how.get("bias"), how.get("activation") == "relu"


def static_mix_reference(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    *,
    lengths: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    """Static contextualizer (Avey-B, equation 4): `gate * sigma(V @ mixed + b)` for every split of
    a group.

    `mixed` and `gate` are `[n, T, D]`, the two halves of the tail; `weight` is `[T, T]`, the upper
    left corner of V for splits of up to T tokens; the options are those of `Mixing`.

    Returns:
        `[n, T, D]` in the dtype of `mixed`; rows at or beyond `lengths` are zero.
    """
    return gated(across(weight, zero_padding(mixed, lengths)), gate, lengths, bias, activation)


def static_mix(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    *,
    backend: Backend = "auto",
    **how: Unpack[Mixing],
) -> torch.Tensor:
    """`static_mix_reference` by the implementation that `backend` means (see `dispatch.py`).

    The kernel reads `mixed`, `gate` and `weight` through their strides; only the last axis must be
    contiguous. It multiplies in the dtype of `mixed`, whatever the weight is kept in.
    """
    if use_triton(backend, mixed, operation="static_mix"):
        from aveyb_retrieval.kernels.triton.static_mix import static_mix_op

        weight = inner_contiguous(weight.to(mixed.dtype))
        return static_mix_op(
            inner_contiguous(mixed), inner_contiguous(gate), weight, *for_kernel(how)
        )
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
    """`static_mix` with a gate that lacks `gate_activation`, "gelu" or "relu2", written over that
    gate; for inference.

    The last axis of mixed and gate is contiguous.
    """
    if use_triton(backend, mixed, operation="static_mix"):
        from aveyb_retrieval.kernels.triton.static_mix import static_mix_over_gate_op

        weight = inner_contiguous(weight.to(mixed.dtype))
        static_mix_over_gate_op(mixed, gate, weight, *for_kernel(how), gate_activation)
        return gate
    own = enricher_activation(gate, gate_activation, overwrite=True)
    return gate.copy_(static_mix_reference(mixed, own, weight, **how))


def dynamic_mix_reference(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    *,
    normalization: str,
    eps: float,
    lengths: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    """Dynamic contextualizer (Avey-B, equations 5 to 7): `gate * sigma(rownorm(N(mixed) N(mixed)^T)
    @ mixed + b)` for every split of a group; see `static_mix_reference`.

    The division by the row's sum is applied after the product, which is the same and touches `D`
    values a row, not `T`. Norms and row sums are taken in float32 at least, whatever the dtype.
    Normalization is "sum", row / (sum + eps), or "l1", row / max(sum of absolutes, 1e-12)
    (released code).
    """
    mixed = zero_padding(mixed, lengths)
    wide = torch.promote_types(mixed.dtype, torch.float32)
    norm = torch.linalg.vector_norm(mixed, dim=-1, keepdim=True, dtype=wide).clamp_min(_MIN_NORM)
    unit = (mixed / norm).to(mixed.dtype)
    similarity = torch.matmul(unit, unit.transpose(1, 2))  # equation 5
    if normalization == "l1":
        row_sum = similarity.abs().sum(-1, keepdim=True, dtype=wide).clamp_min(_MIN_NORM)
    else:
        row_sum = similarity.sum(-1, keepdim=True, dtype=wide) + eps  # equation 6
    # equation 7
    out = (torch.matmul(similarity, mixed) / row_sum).to(mixed.dtype)
    return gated(out, gate, lengths, bias, activation)


def dynamic_mix(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    *,
    backend: Backend = "auto",
    **how: Unpack[DynamicMixing],
) -> torch.Tensor:
    """`dynamic_mix_reference` by the implementation that `backend` means (see `dispatch.py`).

    The kernel reads `mixed` and `gate` through their strides (only the last axis must be
    contiguous), so both may be views of the enricher's output. Unlike the reference, it passes no
    gradient through the direction of a zero vector, and it takes splits of at most 256 tokens.
    """
    if use_triton(backend, mixed, operation="dynamic_mix", limit=_limit(mixed)):
        from aveyb_retrieval.kernels.triton.dynamic_mix import dynamic_mix_op

        lengths, bias, relu = for_kernel(how)
        l1 = how["normalization"] == "l1"
        return dynamic_mix_op(
            inner_contiguous(mixed), inner_contiguous(gate), lengths, bias, how["eps"], l1, relu
        )[0]
    return dynamic_mix_reference(mixed, gate, **how)


def dynamic_mix_over_gate(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    inverse_norms: torch.Tensor,
    *,
    gate_activation: str,
    backend: Backend = "auto",
    **how: Unpack[DynamicMixing],
) -> torch.Tensor:
    """`dynamic_mix` with a gate that lacks `gate_activation`, "gelu" or "relu2", written over that
    gate; for inference.

    The last axis of mixed and gate is contiguous. inverse_norms: float32 `[n, T]`, `1 / |z|` of the
    rows of `mixed`, 0 where there is no direction; the kernel does not make them again, plain torch
    does.
    """
    if use_triton(backend, mixed, operation="dynamic_mix", limit=_limit(mixed)):
        from aveyb_retrieval.kernels.triton.dynamic_mix import dynamic_mix_over_gate_op

        lengths, bias, relu = for_kernel(how)
        l1 = how["normalization"] == "l1"
        dynamic_mix_over_gate_op(
            mixed, gate, inverse_norms, lengths, bias, how["eps"], l1, relu, gate_activation
        )
        return gate
    own = enricher_activation(gate, gate_activation, overwrite=True)
    return gate.copy_(dynamic_mix_reference(mixed, own, **how))


def _limit(mixed: torch.Tensor) -> str | None:
    width = mixed.shape[1]
    return (
        f"a program holds a row of at most {_MAX_TOKENS} tokens, not {width}"
        if width > _MAX_TOKENS
        else None
    )
