"""A layer's residual and the next layer's RMSNorm, in one pass over memory; for inference."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, use_triton


def add_norm_reference(
    branch: torch.Tensor, residual: torch.Tensor, alpha: torch.Tensor | None, weight: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x = branch + alpha * residual`, and `x / sqrt(mean(x^2) + eps) * weight`.

    Args:
        branch: `[n, T, D]`, the fuser's product.
        residual: `[n, T, D]`, the layer's input.
        alpha: scalar tensor, or None for a plain residual.
        weight: `[D]`, of the next layer's norm.
        eps: added to the mean square before the root.

    Returns:
        x, the layer's output, and the normalized x, both `[n, T, D]`.
    """
    x = branch + (residual if alpha is None else alpha * residual)
    return x, F.rms_norm(x, (x.shape[-1],), weight, eps)


def add_norm(
    branch: torch.Tensor,
    residual: torch.Tensor,
    alpha: torch.Tensor | None,
    weight: torch.Tensor,
    *,
    eps: float,
    backend: Backend = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_norm_reference` by the implementation that `backend` means (see `dispatch.py`).

    The kernel adds in float32 and rounds the sum once; it has no gradient.

    Raises:
        BackendError: `backend="triton"` cannot run: no Triton, no such device or dtype.
    """
    if use_triton(backend, branch, operation="add_norm"):
        from aveyb_retrieval.kernels.triton.norm import add_norm_op

        rows = (inner_contiguous(part).flatten(0, -2) for part in (branch, residual))
        x, normed = add_norm_op(*rows, alpha, weight, eps)
        return x.view(branch.shape), normed.view(branch.shape)
    return add_norm_reference(branch, residual, alpha, weight, eps=eps)
