"""Late interaction: one query's tokens against the tokens of many documents (ColBERT, Khattab and Zaharia 2020).

`score(n) = sum over query tokens i of max over tokens t of document n of <q_i, d_t>`.
"""

from __future__ import annotations

import torch

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, use_triton


def late_interaction(
    query: torch.Tensor, documents: torch.Tensor, starts: torch.Tensor, *, backend: Backend = "auto"
) -> torch.Tensor:
    """Score every document against one query; unit rows make the products cosines.

    Products are summed in float32 whatever the dtype. A gradient flows where one is recorded, by plain torch; a token
    that several document tokens match equally well shares its gradient among them. A search on a CPU runs
    `late_interaction_numpy`, which needs no torch.

    Args:
        query: `[q, D]`, its tokens.
        documents: `[R, D]`, the tokens of all documents one after another, on the device of `query`; rows whose last
            axis is contiguous are read in place.
        starts: int `[n + 1]`: document i owns the rows `starts[i]` to `starts[i + 1]`; from 0 to R. They are checked on
            the CPU: keep them there, or a device is waited for.
        backend: see `dispatch.py`.

    Returns:
        float32 `[n]`; 0 for a document or a query without tokens.

    Raises:
        InputError: the shapes do not fit together, or `starts` does not fit the rows.
        BackendError: `backend="triton"` cannot run: no Triton, no such device or dtype, a gradient is recorded.
    """
    starts = _checked(query, documents, starts)
    wants_grad = torch.is_grad_enabled() and (query.requires_grad or documents.requires_grad)
    limit = "the kernel has no gradient" if wants_grad else None
    if use_triton(backend, documents, operation="late_interaction", limit=limit):
        from aveyb_retrieval.kernels.triton import late_interaction as kernels

        query = inner_contiguous(query.to(documents.dtype))
        return kernels.late_interaction(query, inner_contiguous(documents), starts[:-1], starts.diff())
    return late_interaction_reference(query, documents, starts)


def late_interaction_reference(query: torch.Tensor, documents: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """The definition in plain torch, differentiable; arguments as above, `starts` int64."""
    lengths = starts.diff().to(documents.device)
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=documents.device), lengths)
    wide = torch.promote_types(documents.dtype, torch.float32)
    similarity = documents.to(wide) @ query.to(wide).T  # [R, q]
    best = similarity.new_full((len(lengths), len(query)), float("-inf"))
    best = best.scatter_reduce(0, owner[:, None].expand_as(similarity), similarity, "amax")
    return best.sum(1).masked_fill(lengths == 0, 0.0).float()


def _checked(query: torch.Tensor, documents: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Return `starts`, int64 on the CPU, if all three fit together."""
    if query.ndim != 2 or documents.ndim != 2 or query.shape[1] != documents.shape[1]:
        raise InputError(
            f"late interaction needs query [q, D] and documents [R, D] of one width D; "
            f"their shapes are {list(query.shape)} and {list(documents.shape)}"
        )
    if starts.ndim != 1 or starts.is_floating_point() or starts.dtype == torch.bool:
        raise InputError(f"starts must be integers [n + 1]; they are {starts.dtype} {list(starts.shape)}")
    starts = starts.to("cpu", torch.int64)
    if len(starts) == 0 or int(starts[0]) != 0 or int(starts[-1]) != len(documents):
        ends = f"from {int(starts[0])} to {int(starts[-1])}" if len(starts) else "empty"
        raise InputError(f"starts must go from 0 to the number of document rows ({len(documents)}); they are {ends}")
    lengths = starts.diff()
    if bool((lengths < 0).any()):
        i = int(lengths.argmin())
        raise InputError(f"starts must not fall: starts[{i}] is {int(starts[i])}, starts[{i + 1}] {int(starts[i + 1])}")
    return starts
