"""Search a FAISS index on the CPU or, with faiss-gpu, on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import BackendError
from aveyb_retrieval.indexes.nearest.faiss_index import import_faiss, innermost
from aveyb_retrieval.indexes.nearest.searcher import DEFAULT_PARAMS

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.types import FloatArray, IntArray


@dataclass(frozen=True)
class FaissTraits:
    """What a FAISS index can do, read off its type; the names are those of `Searcher`.

    `transformed` says that vectors are rotated or shortened before they reach the index itself.
    """

    knob: str
    largest: int
    takes_selector: bool
    keeps_floats: bool
    transformed: bool

    @classmethod
    def of(cls, index: Any, factory: str) -> FaissTraits:
        """Read the traits of an index made from a factory string."""
        faiss = import_faiss()
        inner = innermost(index)
        transformed = isinstance(index, faiss.IndexPreTransform) or (
            isinstance(index, faiss.IndexIDMap)
            and isinstance(faiss.downcast_index(index.index), faiss.IndexPreTransform)
        )
        knob, largest = "", 0
        if isinstance(inner, faiss.IndexIVF):
            knob, largest = "nprobe", int(inner.nlist)
        elif isinstance(inner, faiss.IndexHNSW) and not transformed:
            knob, largest = "efSearch", max(int(index.ntotal), 1)
        floats = isinstance(inner, (faiss.IndexFlat, faiss.IndexHNSWFlat, faiss.IndexIVFFlat))
        flat = isinstance(inner, faiss.IndexFlat)
        return cls(
            knob=knob,
            largest=largest,
            takes_selector=((flat and not transformed) or knob != "") and "fs" not in factory,  # fast scan takes none
            keeps_floats=floats and not transformed,
            transformed=transformed,
        )


class FaissSearcher:
    """A FAISS index on the CPU; a `Searcher`."""

    def __init__(self, index: Any, params: dict[str, int], *, factory: str) -> None:
        self._index = index
        self._traits = FaissTraits.of(index, factory)
        self.count = int(index.ntotal)
        self.params = {**DEFAULT_PARAMS, **params}
        self.knob = self._traits.knob
        self.largest = self._traits.largest
        self.takes_selector = self._traits.takes_selector
        self.keeps_floats = self._traits.keeps_floats

    def search(
        self, queries: FloatArray, k: int, *, selector: Any = None, effort: int | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Search as `Searcher.search` says."""
        return search_faiss(self._index, queries, min(k, max(self.count, 1)), self._parameters(selector, effort))

    def _parameters(self, selector: Any, effort: int | None) -> Any:
        if not self.knob:
            return import_faiss().SearchParameters(sel=selector) if selector is not None else None
        return search_parameters(self._traits, effort or self.params[self.knob], selector)

    def select(self, ids: IntArray, *, dense: bool) -> Any:
        """Make a selector of these ids; dense ones get a bitmap, which is the fastest to ask."""
        faiss = import_faiss()
        if not dense:
            return faiss.IDSelectorBatch(ids)
        bits = np.zeros(int(ids.max()) + 1 if len(ids) else 1, dtype=bool)
        bits[ids] = True
        return faiss.IDSelectorBitmap(np.packbits(bits, bitorder="little"))

    def select_all_but(self, ids: IntArray) -> Any:
        """Make a selector of everything except these ids."""
        faiss = import_faiss()
        inner = faiss.IDSelectorBatch(ids)
        selector = faiss.IDSelectorNot(inner)
        selector.referenced_objects = [inner]  # FAISS keeps a bare pointer to it
        return selector


class FaissGpuSearcher:
    """A FAISS index moved to a GPU; a `Searcher` that takes no selectors, as FAISS has none there."""

    takes_selector = False

    def __init__(self, index: Any, params: dict[str, int], *, factory: str, device: str) -> None:
        """Move an index to a device, "cuda" or "cuda:1".

        Raises:
            BackendError: FAISS has no GPU form of this index.
        """
        faiss = import_faiss()
        _, _, number = device.partition(":")
        self._resources = faiss.StandardGpuResources()
        try:
            self._index = faiss.index_cpu_to_gpu(self._resources, int(number or 0), index)
        except RuntimeError as error:
            raise BackendError(
                f"FAISS cannot move the index {factory!r} to a GPU ({error}); build it as Flat, IVF or IVF-PQ, "
                "or search with device='cpu'"
            ) from error
        self._traits = FaissTraits.of(index, factory)
        self.count = int(index.ntotal)
        self.params = {**DEFAULT_PARAMS, **params}
        self.knob = self._traits.knob
        self.largest = self._traits.largest
        self.keeps_floats = self._traits.keeps_floats

    def search(
        self, queries: FloatArray, k: int, *, selector: Any = None, effort: int | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Search as `Searcher.search` says, without a selector."""
        parameters = search_parameters(self._traits, effort or self.params[self.knob], None) if self.knob else None
        return search_faiss(self._index, queries, min(k, max(self.count, 1)), parameters)

    def select(self, ids: IntArray, *, dense: bool) -> Any:
        """Raise BackendError: there are no selectors here."""
        raise BackendError("FAISS takes no selectors on a GPU; score the selected vectors exactly")

    def select_all_but(self, ids: IntArray) -> Any:
        """Raise BackendError: there are no selectors here."""
        return self.select(ids, dense=False)


def search_faiss(index: Any, queries: FloatArray, k: int, parameters: Any) -> tuple[FloatArray, IntArray]:
    """Search a FAISS index: scores and ids `[n, k]`, padded with -inf and -1."""
    scores, ids = index.search(np.ascontiguousarray(queries, dtype=np.float32), k, params=parameters)
    scores[ids < 0] = -np.inf
    return scores, ids


def search_parameters(traits: FaissTraits, effort: int, selector: Any) -> Any:
    """FAISS's parameters of one search of an index with a knob set to `effort`."""
    faiss = import_faiss()
    value = min(effort, traits.largest)
    if traits.knob == "efSearch":
        return faiss.SearchParametersHNSW(efSearch=value, sel=selector)
    inner = faiss.SearchParametersIVF(nprobe=value, sel=selector)
    return faiss.SearchParametersPreTransform(index_params=inner) if traits.transformed else inner
