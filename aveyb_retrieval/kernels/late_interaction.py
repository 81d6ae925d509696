"""Late interaction: one query's tokens against the tokens of many documents of any length (ColBERT's MaxSim).

`score(n) = sum over query tokens i of max over tokens t of document n of <q_i, d_t>`.
"""

from __future__ import annotations

import torch

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, use_triton


def late_interaction_reference(query: torch.Tensor, documents: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Score every document against one query without padding documents to one length.

    Args:
        query: `[q, D]` token vectors (unit rows make the products cosines).
        documents: `[sum_t, D]`, the token vectors of all documents one after another.
        starts: int64 `[n + 1]`: document `i` owns the rows `starts[i]` to `starts[i + 1]`; ends with `sum_t`.

    Returns:
        float32 `[n]`; 0 for a document without tokens.

    Raises:
        InputError: the shapes do not fit together, or `starts` does not cover the rows in order.
    """
    check_ragged(query, documents, starts)
    n, n_query = len(starts) - 1, len(query)
    similarity = torch.matmul(documents, query.T).float()  # [sum_t, q]
    owner = torch.repeat_interleave(torch.arange(n, device=documents.device), starts.diff())
    best = similarity.new_full((n, n_query), float("-inf"))
    best = best.scatter_reduce(0, owner[:, None].expand(-1, n_query), similarity, "amax")
    return best.sum(1).masked_fill(starts.diff() == 0, 0.0)


def check_ragged(query: torch.Tensor, documents: torch.Tensor, starts: torch.Tensor) -> None:
    """Raise `InputError` unless the three fit together as `late_interaction_reference` describes."""
    if query.ndim != 2 or documents.ndim != 2 or query.shape[1] != documents.shape[1]:
        raise InputError(
            f"late interaction needs query [q, D] and documents [sum_t, D] of one width D, "
            f"got {list(query.shape)} and {list(documents.shape)}"
        )
    if starts.ndim != 1 or len(starts) == 0 or starts.is_floating_point():
        raise InputError(f"starts must be integers [n + 1], got {starts.dtype} {list(starts.shape)}")
    ends = int(starts[0]), int(starts[-1])
    if ends != (0, len(documents)) or bool((starts.diff() < 0).any()):
        raise InputError(
            f"starts must rise from 0 to the number of document rows ({len(documents)}), got {ends[0]} to {ends[1]}"
            + ("" if not bool((starts.diff() < 0).any()) else " with a fall in between")
        )


def late_interaction(
    query: torch.Tensor, documents: torch.Tensor, starts: torch.Tensor, *, backend: Backend = "auto"
) -> torch.Tensor:
    """`late_interaction_reference` by the implementation that `backend` means (see `dispatch.py`).

    The kernel multiplies in the dtype of `documents` and has no gradient: where one is asked for, "auto" takes torch.

    Raises:
        InputError: the shapes do not fit together, or `starts` does not cover the rows in order.
        BackendError: `backend="triton"` cannot run.
    """
    wants_grad = torch.is_grad_enabled() and (query.requires_grad or documents.requires_grad)
    limit = "the kernel has no gradient" if wants_grad else None
    if use_triton(backend, documents, operation="late_interaction", limit=limit):
        from aveyb_retrieval.kernels.triton import late_interaction as kernels

        check_ragged(query, documents, starts)
        query = inner_contiguous(query.to(documents.dtype))
        return kernels.late_interaction(query, inner_contiguous(documents), starts)
    return late_interaction_reference(query, documents, starts)
