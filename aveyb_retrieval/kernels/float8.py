"""The two linear maps of a layer with float8 (e4m3) operands, for inference: half the bytes, twice the rate on Hopper.

Every row of the input and every output column of a weight has a factor of its own, so that its largest magnitude
becomes 448, the largest float8; sums, factors, bias, activation and residual are float32. A factor of a row commutes
with the product, so RMSNorm is part of it, and the norm's weight is multiplied into the matrix before that is rounded.
What it costs in accuracy is in docs/kernels.md. Nothing here has a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aveyb_retrieval.kernels.activations import enricher_activation
from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, missing_triton, use_triton

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max
_MIN_CAPABILITY = (8, 9)


@dataclass(frozen=True)
class Float8Rows:
    """Rows divided by their own factors: float8 `values` `[..., D]`, float32 `scales` `[...]`."""

    values: torch.Tensor
    scales: torch.Tensor

    def wide(self) -> torch.Tensor:
        """float32 `[..., D]`, the rows that they stand for."""
        return self.values.float() * self.scales[..., None]


def quantize_reference(*parts: torch.Tensor, norm_eps: float | None = None) -> Float8Rows:
    """Round rows to float8, each divided by its own largest magnitude.

    Args:
        parts: `[..., Di]`, joined along the last axis.
        norm_eps: first divide the rows by the root mean square of their first part, with this epsilon. None: do not.

    Returns:
        values `[..., sum Di]` and the factors that undo the scaling. A row of zeros stays one, with factor 0.
    """
    joined = torch.cat([part.float() for part in parts], dim=-1)
    largest = joined.abs().amax(-1, keepdim=True)
    factor = torch.where(largest > 0, LARGEST / largest, 0.0)
    scales = largest / LARGEST
    if norm_eps is not None:
        scales = scales * (parts[0].float().square().mean(-1, keepdim=True) + norm_eps).rsqrt()
    return Float8Rows((joined * factor).to(FLOAT8), scales[..., 0])


def quantize_weight(weight: torch.Tensor, norm_weight: torch.Tensor | None = None) -> Float8Rows:
    """Round a weight `[M, D]` to M float8 rows, each column times `norm_weight` `[D]` where that is given."""
    weight = weight.detach().float()
    return quantize_reference(weight if norm_weight is None else weight * norm_weight.detach().float())


def enrich_float8(
    x: torch.Tensor, weight: Float8Rows, bias: torch.Tensor, *, eps: float, activation: str, backend: Backend = "auto"
) -> torch.Tensor:
    """`enrich` on float8 operands: `act(RMSNorm(x) @ weight^T + bias)`.

    Args:
        x: `[n, T, D]`.
        weight: `[M, D]` from `quantize_weight`, the norm's weight included.
        bias: `[M]`.
        eps: of the norm.
        activation: "gelu" or "relu2".
        backend: see `dispatch.py`.

    Returns:
        `[n, T, M]` in the dtype of `x`.

    Raises:
        BackendError: `backend="triton"` cannot run: no Triton, no device with float8 products.
    """
    if use_triton(backend, x, operation="enrich_float8", limit=lacking(x.device)):
        from aveyb_retrieval.kernels.triton.linear import product
        from aveyb_retrieval.kernels.triton.quantize import quantize

        values, scales = quantize(inner_contiguous(x).flatten(0, -2), eps=eps)
        factors = scales, weight.scales
        out = product("enrich", values, weight.values, bias, x.dtype, *factors, activation=activation)
        return out.view(*x.shape[:-1], out.shape[1])
    out = quantize_reference(x, norm_eps=eps).wide() @ weight.wide().mT + bias.float()
    return enricher_activation(out, activation).to(x.dtype)


def fuse_float8(
    parts: tuple[torch.Tensor, torch.Tensor],
    weight: Float8Rows,
    bias: torch.Tensor,
    residual: torch.Tensor,
    alpha: torch.Tensor | None,
    *,
    backend: Backend = "auto",
) -> torch.Tensor:
    """`fuse` on float8 operands: `[parts] @ weight^T + bias + alpha * residual`.

    Args:
        parts: context `[n, T, Dc]` and bypass `[n, T, Db]` in the order of the matrix's columns.
        weight: `[D, Dc + Db]` from `quantize_weight`.
        bias: `[D]`.
        residual: `[n, T, D]`.
        alpha: scalar tensor, or None for a plain residual.
        backend: see `dispatch.py`.

    Returns:
        `[n, T, D]` in the dtype of `residual`.

    Raises:
        BackendError: `backend="triton"` cannot run: no Triton, no device with float8 products.
    """
    if use_triton(backend, residual, operation="fuse_float8", limit=lacking(residual.device)):
        from aveyb_retrieval.kernels.triton.linear import product
        from aveyb_retrieval.kernels.triton.quantize import quantize

        first, second = (inner_contiguous(part).flatten(0, -2) for part in parts)
        values, scales = quantize(first, second)
        rows = inner_contiguous(residual).flatten(0, -2)
        factors = scales, weight.scales
        out = product("fuse", values, weight.values, bias, rows.dtype, *factors, residual=rows, alpha=alpha)
        return out.view(residual.shape)
    out = quantize_reference(*parts).wide() @ weight.wide().mT + bias.float()
    return (out + (residual.float() if alpha is None else alpha.float() * residual.float())).to(residual.dtype)


def lacking(device: torch.device) -> str | None:
    """Return why float8 products cannot run on a CUDA device, where plain torch would only imitate them, or None."""
    if device.type != "cuda":
        return None
    if reason := missing_triton():
        return f"float8 products on {device}: {reason}"
    capability = torch.cuda.get_device_capability(device)
    if capability >= _MIN_CAPABILITY:
        return None
    return f"float8 products need compute capability 8.9 or newer; {device} has {capability[0]}.{capability[1]}"
