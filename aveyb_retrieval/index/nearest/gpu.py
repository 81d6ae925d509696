"""Searching on a GPU: FAISS's own where faiss-gpu is installed, else exact search by matrix products in torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import BackendError
from aveyb_retrieval.index.nearest import faiss_index
from aveyb_retrieval.index.storage.shards import VectorTable
from aveyb_retrieval.index.types import FloatArray, IntArray

if TYPE_CHECKING:
    import torch

BLOCK = 1 << 18  # vectors scored at once: 256 queries then take 256 MiB


def open_searcher(
    index: Any, table: VectorTable, params: dict[str, int], factory: str, device: str
) -> faiss_index.Searcher:
    """A searcher on the device: "cpu", or "cuda" (optionally "cuda:1").

    Raises:
        BackendError: a GPU is asked for and there is none.
    """
    if device == "cpu":
        return faiss_index.Searcher(index, params, factory=factory)
    if not device.startswith("cuda"):
        raise BackendError(f"device {device!r}: vectors are searched on 'cpu' or 'cuda'")
    faiss = faiss_index.import_faiss()
    if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0:
        return _FaissGpuSearcher(index, params, factory, device)
    import torch

    if not torch.cuda.is_available():
        raise BackendError(
            f"device {device!r}: no GPU is visible to FAISS or torch; install faiss-gpu or a CUDA build of torch, "
            "or search with device='cpu'"
        )
    return TorchSearcher(index, table, device)


class _FaissGpuSearcher(faiss_index.Searcher):
    """A FAISS index moved to a GPU; filters are answered by exact scoring, as FAISS takes no selectors there."""

    def __init__(self, index: Any, params: dict[str, int], factory: str, device: str) -> None:
        super().__init__(index, params, factory=factory)
        faiss = faiss_index.import_faiss()
        _, _, number = device.partition(":")
        self._resources = faiss.StandardGpuResources()
        try:
            self.index = faiss.index_cpu_to_gpu(self._resources, int(number or 0), index)
        except RuntimeError as error:
            raise BackendError(
                f"FAISS cannot move the index {factory!r} to a GPU ({error}); build it as Flat, IVF or IVF-PQ, "
                "or search with device='cpu'"
            ) from error
        self.takes_selector = False


class TorchSearcher(faiss_index.Searcher):
    """Exact search: every live vector on the device, scored by matrix products, the best kept block by block."""

    def __init__(self, index: Any, table: VectorTable, device: str) -> None:
        import torch

        self.index = None
        self.dim = table.dim
        self.count = int(index.ntotal)
        self.knob, self.params = "", dict(faiss_index.DEFAULT_PARAMS)
        self.takes_selector = self.keeps_floats = self.is_exact = True
        held = np.sort(faiss_index.stored_ids(index))
        self._ids = torch.from_numpy(held).to(device)
        blocks = [torch.from_numpy(table.gather(held[i : i + BLOCK])).to(device) for i in range(0, len(held), BLOCK)]
        self._vectors = torch.cat(blocks) if blocks else torch.empty(0, table.dim, device=device)

    def search(
        self, queries: FloatArray, k: int, *, selector: Any = None, effort: int | None = None
    ) -> tuple[FloatArray, IntArray]:
        """The `k` nearest vectors of queries `[n, d]`; a selector is a tensor of the rows to choose from."""
        import torch

        wanted = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float32)).to(self._vectors.device)
        best_scores = torch.full((len(queries), 0), -np.inf, device=wanted.device)
        best_rows = torch.full((len(queries), 0), -1, dtype=torch.int64, device=wanted.device)
        for rows, vectors in self._blocks(selector):
            scores = wanted @ vectors.T
            joined = torch.cat([best_scores, scores], dim=1)
            joined_rows = torch.cat([best_rows, rows.expand(len(queries), -1)], dim=1)
            best_scores, order = joined.topk(min(k, joined.shape[1]), dim=1)
            best_rows = joined_rows.gather(1, order)
        ids = self._ids[best_rows] if len(self._ids) else best_rows
        return best_scores.float().cpu().numpy(), ids.cpu().numpy()

    def _blocks(self, chosen: torch.Tensor | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(rows, vectors) of all vectors or of the chosen ones, block by block."""
        import torch

        for start in range(0, len(self._ids) if chosen is None else len(chosen), BLOCK):
            if chosen is None:
                vectors = self._vectors[start : start + BLOCK]
                yield torch.arange(start, start + len(vectors), device=vectors.device), vectors
            else:
                rows = chosen[start : start + BLOCK]
                yield rows, self._vectors[rows]

    def select(self, ids: IntArray, *, dense: bool) -> Any:
        """Rows of these ids."""
        import torch

        return torch.searchsorted(self._ids, torch.from_numpy(ids).to(self._ids.device))

    def select_all_but(self, ids: IntArray) -> Any:
        """Rows of all ids except these."""
        import torch

        return torch.isin(self._ids, torch.from_numpy(ids).to(self._ids.device), invert=True).nonzero().squeeze(1)
