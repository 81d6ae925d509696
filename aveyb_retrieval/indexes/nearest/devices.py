"""Choose the `Searcher` for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import BackendError
from aveyb_retrieval.indexes.nearest.faiss_index import import_faiss, stored_ids
from aveyb_retrieval.indexes.nearest.faiss_searcher import FaissGpuSearcher, FaissSearcher
from aveyb_retrieval.indexes.nearest.torch_searcher import TorchSearcher

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.nearest.searcher import Searcher
    from aveyb_retrieval.indexes.store.vectors import VectorTable


def open_searcher(index: Any, table: VectorTable, params: dict[str, int], factory: str, device: str) -> Searcher:
    """Open a FAISS index on a device: "cpu", or "cuda" (optionally "cuda:1").

    Raises:
        BackendError: a GPU is asked for and there is none.
    """
    if device == "cpu":
        return FaissSearcher(index, params, factory=factory)
    if not device.startswith("cuda"):
        raise BackendError(f"device {device!r}: vectors are searched on 'cpu' or 'cuda'")
    faiss = import_faiss()
    if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0:
        return FaissGpuSearcher(index, params, factory=factory, device=device)
    import torch

    if not torch.cuda.is_available():
        raise BackendError(
            f"device {device!r}: no GPU is visible to FAISS or torch; install faiss-gpu or a CUDA build of torch, "
            "or search with device='cpu'"
        )
    return TorchSearcher(stored_ids(index), table, device)
