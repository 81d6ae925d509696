"""Search on a GPU without faiss-gpu: exactly, by matrix products in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.indexes.nearest.searcher import DEFAULT_PARAMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from aveyb_retrieval.indexes.store.vectors import VectorTable
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

BLOCK = 1 << 18  # vectors scored at once: 256 queries then take 256 MiB


class TorchSearcher:
    """Exact search: every stored vector on the device, scored by matrix products, the best kept block by block.

    A `Searcher`; its selectors are tensors of rows.
    """

    knob = ""
    largest = 0
    takes_selector = True
    keeps_floats = True

    def __init__(self, held: IntArray, table: VectorTable, device: str) -> None:
        """Copy the vectors of these ids `[n]` to a device of torch."""
        import torch

        self.count = len(held)
        self.params = dict(DEFAULT_PARAMS)
        held = np.sort(held)
        self._ids = torch.from_numpy(held).to(device)
        blocks = [torch.from_numpy(table.gather(held[i : i + BLOCK])).to(device) for i in range(0, len(held), BLOCK)]
        self._vectors = torch.cat(blocks) if blocks else torch.empty(0, table.dim, device=device)

    def search(
        self, queries: FloatArray, k: int, *, selector: Any = None, effort: int | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Search as `Searcher.search` says; a selector is a tensor of the rows to choose from."""
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
        """Find the rows of these ids."""
        import torch

        return torch.searchsorted(self._ids, torch.from_numpy(ids).to(self._ids.device))

    def select_all_but(self, ids: IntArray) -> Any:
        """Find the rows of all ids except these."""
        import torch

        return torch.isin(self._ids, torch.from_numpy(ids).to(self._ids.device), invert=True).nonzero().squeeze(1)
