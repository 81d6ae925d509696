"""Late interaction as a kernel: every document token is read once, similarities stay in registers."""

# Arguments of kernels are typed by Triton at launch, those of autograd hooks by torch.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.configs import architecture, config_for
from aveyb_retrieval.kernels.triton.tiles import load_tile, power_of_two, precision


@triton.jit(do_not_specialize=["n_query"])
def late_interaction_kernel(
    query, documents, starts, scores, query_row, document_row, n_query,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (documents,). scores float32 `[n]`. M document tokens and N query tokens at a time."""
    document = tl.program_id(0).to(tl.int64)
    start = tl.load(starts + document).to(tl.int64)
    n = (tl.load(starts + document + 1).to(tl.int64) - start).to(tl.int32)
    documents += start * document_row
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
                best = tl.maximum(best, tl.max(tl.where(rows[:, None] < n, products, float("-inf")), 0))
            score += tl.sum(tl.where(columns < n_query, best, 0.0))
    tl.store(scores + document, score)


def late_interaction(query: torch.Tensor, documents: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """`late_interaction_reference` as a kernel; no gradient. Both inputs of one dtype, last axis contiguous."""
    scores = torch.empty(len(starts) - 1, dtype=torch.float32, device=documents.device)
    dim = query.shape[1]
    tile = config_for("late_interaction", architecture(documents.device), documents.element_size())
    if len(scores):
        with torch.cuda.device_of(documents):
            late_interaction_kernel[len(scores),](
                query, documents, starts, scores, query.stride(0), documents.stride(0), len(query),
                D=dim, M=tile.m, N=min(tile.n, power_of_two(len(query))), K=min(tile.k, power_of_two(dim)),
                PRECISION=precision(documents.dtype), num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    return scores
