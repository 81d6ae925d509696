"""Fuser: project contextualized and bypassed features back to the model width, plus the residual (Avey eq. 3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aveyb_retrieval.kernels.dispatch import Backend, autocast_dtype, inner_contiguous, use_triton


def fuse_reference(
    context: torch.Tensor,
    bypass: torch.Tensor,
    context_weight: torch.Tensor,
    bypass_weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    alpha: torch.Tensor | None,
) -> torch.Tensor:
    """`context @ Wc^T + bypass @ Wb^T + bias + alpha * residual`, without concatenating the two inputs.

    Args:
        context: `[n, T, Dc]`, the contextualizer's output.
        bypass: `[n, T, Db]`, the head of the enriched vector.
        context_weight: `[D, Dc]` and bypass_weight `[D, Db]`: the two column blocks of the fuser's matrix.
        bias: `[D]`.
        residual: `[n, T, D]`, the layer's input.
        alpha: scalar tensor, or None for a plain residual.

    Returns:
        `[n, T, D]` in the dtype of `context`.
    """
    out = F.linear(context, context_weight) + F.linear(bypass, bypass_weight, bias)
    return out + (residual if alpha is None else alpha * residual)


def project_joined(joined: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`fuse` without the residual, where context and bypass stand side by side: one product, and no copy.

    Args:
        joined: `[n, T, Dc + Db]`, both in the order of the matrix's columns; rows may be strided.
        weight: `[D, Dc + Db]`, the fuser's matrix.
        bias: `[D]`.

    Returns:
        `[n, T, D]` in the dtype of `joined`.
    """
    # addmm on two axes, whose rows may be strided: linear on three would copy them.
    return torch.addmm(bias, joined.flatten(0, 1), weight.T).view(*joined.shape[:-1], len(bias))


def fuse(
    context: torch.Tensor,
    bypass: torch.Tensor,
    context_weight: torch.Tensor,
    bypass_weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    alpha: torch.Tensor | None,
    *,
    backend: Backend = "auto",
) -> torch.Tensor:
    """`fuse_reference` by the implementation that `backend` means (see `dispatch.py`); "auto" is always torch.

    The kernel reads both weights through their row strides, so both may be views of the fuser's matrix, and adds all
    terms in float32. Like the enricher, it runs on request only until it has been measured beside cuBLAS.

    Raises:
        BackendError: `backend="triton"` cannot run: no Triton, no such device or dtype.
    """
    if use_triton(backend, context, operation="fuse", opt_in=True):
        from aveyb_retrieval.kernels.triton.linear import fuse_op

        dtype = autocast_dtype(context)
        rows = (inner_contiguous(part).to(dtype).flatten(0, -2) for part in (context, bypass))
        weights = (inner_contiguous(part).to(dtype) for part in (context_weight, bypass_weight))
        out = fuse_op(*rows, *weights, bias, inner_contiguous(residual).flatten(0, -2), alpha)
        return out.view(residual.shape)
    return fuse_reference(context, bypass, context_weight, bypass_weight, bias, residual, alpha)
