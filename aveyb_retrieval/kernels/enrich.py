"""Enricher: RMSNorm, one position-wise linear map to a wider space, activation (Avey-B eq. 1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aveyb_retrieval.kernels.activations import activate
from aveyb_retrieval.kernels.dispatch import Backend, autocast_dtype, inner_contiguous, use_triton


def enrich(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    activation: str,
    backend: Backend = "auto",
) -> torch.Tensor:
    """`act(RMSNorm(x) @ weight^T + bias)`, by the implementation that `backend` means.

    "auto" multiplies by torch; of the passes around the product only ReLU squared has a kernel (see `activate`). The
    kernel of the whole multiplies by `weight * norm_weight`, rounded to the dtype of the rows, and never rounds a
    normalized row: the norm is a factor of the product. Whether it beats cuBLAS with its pointwise passes has not been
    measured, so it must be asked for.

    Args:
        x: `[n, T, D]`.
        norm_weight: `[D]`.
        weight: `[M, D]`.
        bias: `[M]`.
        eps: added to the mean square before the root.
        activation: "gelu" or "relu2".
        backend: see `dispatch.py`.

    Returns:
        `[n, T, M]` in the dtype of `x`.

    Raises:
        BackendError: `backend="triton"` cannot run: no Triton, no such device or dtype.
    """
    if use_triton(backend, x, operation="enrich", opt_in=True):
        from aveyb_retrieval.kernels.triton.linear import enrich_op

        dtype = autocast_dtype(x)
        rows = inner_contiguous(x).to(dtype).flatten(0, -2)
        out = enrich_op(rows, (weight * norm_weight).to(dtype), bias, eps, activation)
        return out.view(*x.shape[:-1], out.shape[1])
    wide = F.linear(F.rms_norm(x, (x.shape[-1],), norm_weight, eps), weight, bias)
    return activate(wide, activation, backend=backend)
