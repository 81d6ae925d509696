"""A layer's steps that treat every token by itself: enricher, fuser, activations, norms, and which
rows are tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, use_triton

_MIN_NORM = 1e-12


def enricher_activation(x: torch.Tensor, name: str, *, overwrite: bool = False) -> torch.Tensor:
    """Apply "gelu" (exact, by erf) or "relu2" (ReLU squared; similarities of its outputs are never
    negative).

    In float16 "relu2" overflows above 255.9; bfloat16 has float32's range.

    `overwrite`: `x` may be written over where no gradient is recorded. A fresh buffer of this size
    costs more than the arithmetic.
    """
    if name == "gelu":
        return F.gelu(x)
    if overwrite and not torch.is_grad_enabled():
        return x.relu_().square_()
    return F.relu(x).square()


def activate(
    x: torch.Tensor, name: str, *, overwrite: bool = False, backend: Backend = "auto"
) -> torch.Tensor:
    """`enricher_activation` of `[..., M]` by the implementation that `backend` means (see
    `dispatch.py`).

    "relu2" has a kernel, one pass over memory instead of two (backward one instead of three).
    "gelu" is one pass in torch, and torch.compile fuses both: they stay torch's.
    """
    if (
        name == "relu2"
        and not torch.compiler.is_compiling()
        and use_triton(backend, x, operation="relu2")
    ):
        from aveyb_retrieval.kernels.triton.positionwise import relu2_op

        return relu2_op(x.contiguous())
    return enricher_activation(x, name, overwrite=overwrite)


def activate_around(
    x: torch.Tensor, name: str, start: int, stop: int, *, backend: Backend = "auto"
) -> torch.Tensor:
    """Apply the enricher's activation in place to all columns but start to stop; for inference.

    The columns left out are those whose next reader applies the activation itself: a pass over them
    is saved.

    Args:
        x: `[..., M]`, contiguous; written to.
        name: "gelu" or "relu2".
        start: the first column that is left out, and stop: the one after the last.

    Returns:
        `1 / |z|`, z the columns from stop on, float32 (of float64: float64) `[...]`; 0 where |z| is
        not above 1e-12.
    """
    if use_triton(backend, x, operation="activate_around"):
        from aveyb_retrieval.kernels.triton.positionwise import activate_around_op

        return activate_around_op(x, name, start, stop)
    for part in (x[..., :start], x[..., stop:]):
        part.copy_(enricher_activation(part, name, overwrite=True))
    wide = torch.promote_types(x.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x[..., stop:], dim=-1, dtype=wide)
    return torch.where(norm > _MIN_NORM, 1 / norm, 0.0)


def add_norm_reference(
    branch: torch.Tensor,
    residual: torch.Tensor,
    alpha: torch.Tensor | None,
    weight: torch.Tensor,
    *,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x = branch + alpha * residual`, and `x / sqrt(mean(x^2) + eps) * weight`.

    `branch`, the fuser's product, and `residual`, the layer's input, are `[n, T, D]`; `alpha` is a
    scalar tensor, or None for a plain residual; `weight` `[D]` is of the next layer's norm. Returns
    both x, first the layer's output.
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
    """
    if use_triton(backend, branch, operation="add_norm"):
        from aveyb_retrieval.kernels.triton.positionwise import add_norm_op

        rows = (inner_contiguous(part).flatten(0, -2) for part in (branch, residual))
        x, normed = add_norm_op(*rows, alpha, weight, eps)
        return x.view(branch.shape), normed.view(branch.shape)
    return add_norm_reference(branch, residual, alpha, weight, eps=eps)


def enrich(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    activation: str,
) -> torch.Tensor:
    """Enricher (Avey-B, equation 1): `act(RMSNorm(x) @ weight^T + bias)`, act "gelu" or "relu2":
    `[n, T, D]` -> `[n, T, M]`.

    Norm_weight is `[D]`, weight `[M, D]`, bias `[M]`; eps is added to the mean square before the
    root.
    """
    enriched = F.linear(F.rms_norm(x, (x.shape[-1],), norm_weight, eps), weight, bias)
    return activate(enriched, activation, overwrite=True)


def fuse(
    context: torch.Tensor,
    bypass: torch.Tensor,
    context_weight: torch.Tensor,
    bypass_weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    alpha: torch.Tensor | None,
) -> torch.Tensor:
    """Fuser (Avey-B, equation 3): `context @ Wc^T + bypass @ Wb^T + bias + alpha * residual`,
    without concatenating.

    Args:
        context: `[n, T, Dc]`, the contextualizer's output.
        bypass: `[n, T, Db]`, the head of the enriched vector.
        context_weight: `[D, Dc]` and bypass_weight `[D, Db]`: the two column blocks of the fuser's
            matrix.
        bias: `[D]`.
        residual: `[n, T, D]`, the layer's input.
        alpha: scalar tensor, or None for a plain residual.

    Returns:
        `[n, T, D]` in the dtype of `context`.
    """
    out = F.linear(context, context_weight) + F.linear(bypass, bypass_weight, bias)
    return out + (residual if alpha is None else alpha * residual)


def project_joined(joined: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`fuse` without the residual, for bypass and context in one tensor: one product, and no copy.

    Args:
        joined: `[n, T, Db + Dc]`, bypass and context; rows may be strided.
        weight: `[D, Db + Dc]`, the fuser's matrix.
        bias: `[D]`.

    Returns:
        `[n, T, D]`.
    """
    # addmm on two axes, whose rows may be strided: linear on three would copy them.
    return torch.addmm(bias, joined.flatten(0, 1), weight.T).view(*joined.shape[:-1], len(bias))


def row_mask(lengths: torch.Tensor, width: int) -> torch.Tensor:
    """Make a mask `[n, width, 1]`, True where a row is one of the split's first `lengths[i]` tokens
    (int `[n]`).
    """
    return (torch.arange(width, device=lengths.device) < lengths[:, None])[..., None]


def zero_padding(x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """Set the rows of `x` (`[n, T, D]`) at or beyond `lengths` (`[n]`, or None: all valid) to zero.

    A select rather than a product, so that not even NaN or infinity in a padding row gets through.
    """
    return x if lengths is None else x.masked_fill(~row_mask(lengths, x.shape[1]), 0)


def across(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`weight @ x` over the tokens of each split: `[R, T]`, `[n, T, D]` -> `[n, R, D]`."""
    # For a matrix that needs a gradient torch copies x and the result transposed, even where none
    # is recorded.
    return torch.matmul(weight if torch.is_grad_enabled() else weight.detach(), x)
