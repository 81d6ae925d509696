"""Late interaction as a kernel: document tokens are read once a block of query tokens, products stay in registers."""

# Arguments of kernels are typed by Triton at launch, those of autograd hooks by torch.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.configs import architecture, config_for
from aveyb_retrieval.kernels.triton.tiles import larger, largest, load_tile, power_of_two, precision


@triton.jit(do_not_specialize=["n_query"])
def late_interaction_kernel(
    query, documents, begins, lengths, scores, query_row, document_row, n_query,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (documents,). scores float32 `[n]`; begins and lengths int64. M document and N query tokens at a time."""
    document = tl.program_id(0).to(tl.int64)
    documents += tl.load(begins + document) * document_row
    n = tl.load(lengths + document).to(tl.int32)
    score = 0.0
    if n > 0:
        for first in range(0, n_query, N):
            columns = first + tl.arange(0, N)
            best = tl.full((N,), float("-inf"), dtype=tl.float32)
            for token in range(0, n, M):
                rows = token + tl.arange(0, M)
                products = tl.zeros((M, N), dtype=tl.float32)
                for k in range(0, D, K):
                    d = k + tl.arange(0, K)
                    a = load_tile(documents, rows, d, document_row, n, D, D % K == 0)
                    b = load_tile(query, columns, d, query_row, n_query, D, D % K == 0)
                    products = tl.dot(a, tl.trans(b), products, input_precision=PRECISION)
                best = larger(best, largest(tl.where(rows[:, None] < n, products, float("-inf")), 0))
            score += tl.sum(tl.where(columns < n_query, best, 0.0))
    tl.store(scores + document, score)


def late_interaction(
    query: torch.Tensor, rows: torch.Tensor, begins: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Late interaction by a kernel; no gradient.

    Args:
        query: `[q, D]` and rows `[R, D]`, of one dtype, last axis contiguous.
        begins: int64 `[n]` and lengths: int64 `[n]`, the rows of each document; moved to the device of `rows`.

    Returns:
        float32 `[n]`.
    """
    scores = torch.empty(len(lengths), dtype=torch.float32, device=rows.device)
    dim = query.shape[1]
    tile = config_for("late_interaction", architecture(rows.device), rows.element_size())
    if len(scores):
        begins, lengths = (t.to(rows.device, non_blocking=True) for t in (begins, lengths))
        with torch.cuda.device_of(rows):
            late_interaction_kernel[len(scores),](
                query, rows, begins, lengths, scores, query.stride(0), rows.stride(0), len(query),
                D=dim, M=tile.m, N=min(tile.n, power_of_two(len(query))), K=min(tile.k, power_of_two(dim)),
                PRECISION=precision(rows.dtype), num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return scores
