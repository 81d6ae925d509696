"""Late interaction: one query's tokens against the tokens of many documents (ColBERT, Khattab and Zaharia 2020).

`score(n) = sum over query tokens i of max over tokens t of document n of <q_i, d_t>`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, use_triton
from aveyb_retrieval.kernels.late_interaction_numpy import late_interaction_numpy


@dataclass(frozen=True)
class DocumentRows:
    """Token vectors of n documents: document i owns the rows `begins[i]` to `begins[i] + lengths[i]`.

    rows: `[R, D]`; begins: int64 `[n]`, ascending, and lengths: int64 `[n]`, both on the CPU.
    """

    rows: torch.Tensor
    begins: torch.Tensor
    lengths: torch.Tensor


def late_interaction(
    query_tokens: torch.Tensor,
    document_tokens: torch.Tensor,
    *,
    lengths: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Score every document against one query; unit rows make the products cosines.

    Documents come in one of two forms:

    * padded: `document_tokens` `[n, T, D]` with `lengths`, or without where all T tokens exist;
    * packed: `document_tokens` `[R, D]`, the tokens of all documents one after another, with `starts`.

    Products are summed in float32 whatever the dtype. A gradient flows where one is recorded, by plain torch; a token
    that several document tokens match equally well shares its gradient among them.

    Args:
        query_tokens: `[q, D]`.
        document_tokens: `[n, T, D]` or `[R, D]`, on the device of `query_tokens`. The
            last axis is best contiguous; other strides of the packed form are read in place.
        lengths: int `[n]`, the tokens of each padded document, 0 to T; rows beyond them are ignored.
        starts: int `[n + 1]`: packed document i owns the rows `starts[i]` to `starts[i + 1]`; from 0 to R.
        backend: see `dispatch.py`. `lengths` and `starts` are checked on the CPU: keep them there, or a device is
            waited for.

    Returns:
        float32 `[n]`; 0 for a document or a query without tokens.

    Raises:
        InputError: the shapes do not fit together, or `lengths` or `starts` does not fit the rows.
        BackendError: `backend="triton"` cannot run: no Triton, no such device or dtype, a gradient is recorded.
    """
    documents = _document_rows(query_tokens, document_tokens, lengths, starts)
    wants_grad = torch.is_grad_enabled() and (query_tokens.requires_grad or document_tokens.requires_grad)
    limit = "the kernel has no gradient" if wants_grad else None
    if use_triton(backend, document_tokens, operation="late_interaction", limit=limit):
        from aveyb_retrieval.kernels.triton import late_interaction as kernels

        query = inner_contiguous(query_tokens.to(document_tokens.dtype))
        return kernels.late_interaction(query, inner_contiguous(documents.rows), documents.begins, documents.lengths)
    if wants_grad or document_tokens.device.type != "cpu" or document_tokens.dtype == torch.float64:
        return late_interaction_reference(query_tokens, documents)
    return _by_numpy(query_tokens, documents)


def late_interaction_reference(query: torch.Tensor, documents: DocumentRows) -> torch.Tensor:
    """The definition in plain torch, differentiable: `[q, D]` and n documents to float32 `[n]`."""
    n, device = len(documents.lengths), documents.rows.device
    lengths = documents.lengths.to(device)
    owner = torch.repeat_interleave(torch.arange(n, device=device), lengths)
    first_of = lengths.cumsum(0) - lengths  # of each document, among the rows that exist
    rows = documents.rows[
        documents.begins.to(device)[owner] + torch.arange(len(owner), device=device) - first_of[owner]
    ]
    wide = torch.promote_types(rows.dtype, torch.float32)
    similarity = rows.to(wide) @ query.to(wide).T  # [rows, q]
    best = similarity.new_full((n, len(query)), float("-inf"))
    best = best.scatter_reduce(0, owner[:, None].expand_as(similarity), similarity, "amax")
    return best.sum(1).masked_fill(lengths == 0, 0.0).float()


def _by_numpy(query: torch.Tensor, documents: DocumentRows) -> torch.Tensor:
    """On a CPU without gradient."""
    rows, ends = documents.rows.detach(), documents.begins + documents.lengths
    rows = rows.float() if rows.dtype == torch.bfloat16 else rows  # which NumPy does not have
    arrays = (tensor.numpy() for tensor in (query.detach().float(), rows, documents.begins, ends))
    return torch.from_numpy(late_interaction_numpy(*arrays))


def _document_rows(
    query: torch.Tensor, documents: torch.Tensor, lengths: torch.Tensor | None, starts: torch.Tensor | None
) -> DocumentRows:
    """Check both forms and bring them to one."""
    if query.ndim != 2 or documents.ndim not in (2, 3) or query.shape[1] != documents.shape[-1]:
        raise InputError(
            f"late interaction needs query_tokens [q, D] and document_tokens [n, T, D] or [R, D] of one width D; "
            f"their shapes are {list(query.shape)} and {list(documents.shape)}"
        )
    if documents.ndim == 2:
        if starts is None or lengths is not None:
            raise InputError("packed document_tokens [R, D] need starts [n + 1], and no lengths")
        return _packed(documents, starts)
    if starts is not None:
        raise InputError("padded document_tokens [n, T, D] take lengths [n], not starts")
    return _padded(documents, lengths)


def _packed(documents: torch.Tensor, starts: torch.Tensor) -> DocumentRows:
    bounds = _integers("starts", "[n + 1]", starts)
    if len(bounds) == 0 or int(bounds[0]) != 0 or int(bounds[-1]) != len(documents):
        ends = f"from {int(bounds[0])} to {int(bounds[-1])}" if len(bounds) else "empty"
        raise InputError(f"starts must go from 0 to the number of document rows ({len(documents)}); they are {ends}")
    lengths = bounds.diff()
    if bool((lengths < 0).any()):
        i = int(lengths.argmin())
        raise InputError(f"starts must not fall: starts[{i}] is {int(bounds[i])}, starts[{i + 1}] {int(bounds[i + 1])}")
    return DocumentRows(documents, bounds[:-1], lengths)


def _padded(documents: torch.Tensor, lengths: torch.Tensor | None) -> DocumentRows:
    n, width, dim = documents.shape
    own = torch.full((n,), width) if lengths is None else _integers("lengths", "[n]", lengths)
    if len(own) != n:
        raise InputError(f"{n} padded documents need {n} lengths, not {len(own)}")
    if n and not 0 <= int(own.min()) <= int(own.max()) <= width:
        raise InputError(f"lengths of documents padded to {width} tokens go from {int(own.min())} to {int(own.max())}")
    return DocumentRows(documents.reshape(n * width, dim), torch.arange(n) * width, own)


def _integers(name: str, shape: str, values: torch.Tensor) -> torch.Tensor:
    """int64 on the CPU."""
    if values.ndim != 1 or values.is_floating_point() or values.dtype == torch.bool:
        raise InputError(f"{name} must be integers {shape}; they are {values.dtype} {list(values.shape)}")
    return values.to("cpu", torch.int64)
