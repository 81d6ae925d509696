"""Search one FAISS file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.nearest import faiss_file
from aveyb_retrieval.indexes.nearest.faiss_index import import_faiss, innermost, threads_for
from aveyb_retrieval.indexes.store.numbering import number_range

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.store.manifest import Tier
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

DEFAULT_PARAMS = {"nprobe": 32, "efSearch": 96, "rescore": 500}  # 400 find .97 of the ten nearest among 10^6
SELECTED = 5  # ids that a selector is made of and asked for, while FAISS finds one more candidate (both measured)

MOST_EFFORT = 16  # how many times harder a limited search looks at most


@dataclass(frozen=True)
class FaissTraits:
    """What a FAISS index can do, read off its type.

    Attributes:
        knob: The setting that trades speed for recall: "nprobe", "efSearch", or "" where there is none.
        largest: The highest useful value of the knob; 0 without one.
        takes_selector: Whether a search can be limited to some ids.
        keeps_floats: Whether its scores are those of the vectors themselves, not of shortened codes.
        transformed: Whether vectors are rotated or shortened before they reach the index itself.
    """

    knob: str
    largest: int
    takes_selector: bool
    keeps_floats: bool
    transformed: bool

    @classmethod
    def of(cls, index: Any) -> FaissTraits:
        """Read the traits of an index."""
        faiss = import_faiss()
        inner = innermost(index)
        within = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index
        transformed = isinstance(within, faiss.IndexPreTransform)
        knob, largest = "", 0
        if isinstance(inner, faiss.IndexIVF):
            knob, largest = "nprobe", int(inner.nlist)
        elif isinstance(inner, faiss.IndexHNSW) and not transformed:
            knob, largest = "efSearch", max(int(index.ntotal), 1)
        floats = isinstance(inner, (faiss.IndexFlat, faiss.IndexHNSWFlat, faiss.IndexIVFFlat))
        flat = isinstance(inner, faiss.IndexFlat) and not transformed
        listed = isinstance(inner, faiss.IndexIVF) and _lists_take_selectors(inner)
        return cls(
            knob=knob,
            largest=largest,
            takes_selector=flat or knob == "efSearch" or listed,
            keeps_floats=floats and not transformed,
            transformed=transformed,
        )


def _lists_take_selectors(ivf: Any) -> bool:
    """Whether a search of inverted lists can be limited: of the fast-scan types only RaBitQ's can."""
    faiss = import_faiss()
    fast = getattr(faiss, "IndexIVFFastScan", ())
    return not isinstance(ivf, fast) or isinstance(ivf, getattr(faiss, "IndexIVFRaBitQFastScan", ()))


class FaissSearcher:
    """One FAISS file, open. Safe to use from many threads.

    Attributes:
        tier: What the manifest says of it.
        index: FAISS's own object.
        first, stop: Its numbers are in `[first, stop)`.
        live: How many of its vectors are still stored.
        params: Settings of a search.
    """

    def __init__(self, tier: Tier, index: Any) -> None:
        self.tier = tier
        self.index = index
        self.traits = FaissTraits.of(index)
        self.params = {**DEFAULT_PARAMS, **tier.params}
        self.first, self.stop = number_range(tier.kind, tier.first, tier.stop)
        self.live = tier.count - tier.dead

    @classmethod
    def open(cls, root: Path, tier: Tier, *, mapped: bool = True) -> FaissSearcher:
        """Open a file of the index at `root`; what FAISS can map is mapped, not read.

        Raises:
            IndexFormatError: it is damaged, or of another index.
        """
        path = root / tier.file
        index = faiss_file.read(path, mapped=mapped)
        if index.ntotal != tier.count:
            raise IndexFormatError(
                f"{path}: {index.ntotal:,} vectors in it, the manifest says {tier.count:,}; "
                "`aveyb-index verify --repair` rebuilds it"
            )
        return cls(tier, index)

    def followed_by(self, tier: Tier) -> FaissSearcher:
        """The same file as another version's manifest describes it."""
        return self if tier == self.tier else FaissSearcher(tier, self.index)

    @cached_property
    def scores_are_true(self) -> bool:
        """Whether what it finds needs no look-up: all still stored, and scored as they are."""
        return self.traits.keeps_floats and not self.tier.dead

    def wanted(self, k: int) -> int:
        """How many candidates to ask for when `k` are needed."""
        return k if self.traits.keeps_floats else max(4 * k, self.params["rescore"])

    def candidates(
        self, queries: FloatArray, m: int, among: IntArray | None = None, *, grown: int = 1
    ) -> tuple[FloatArray, IntArray]:
        """The `m` best candidates by its own scores: `[n, up to m or more]`, padded with -inf and -1, in no order.

        Args:
            queries: `[n, d]`.
            m: How many are wanted that are live and selected.
            among: Ascending numbers that the search is limited to, all in this file.
            grown: How many times harder to look than usual.
        """
        count = int(self.index.ntotal)
        ask = m * grown * count // max(self.live, 1) + (16 if self.tier.dead else 0)
        selector, sift, effort = None, False, grown
        if among is not None:
            share = len(among) / max(count, 1)
            sifted = int(1.25 * ask / share) + 16
            cheaper = grown > 1 or self.traits.knob == "efSearch" or len(among) < SELECTED * sifted
            if self.traits.takes_selector and cheaper:
                selector = import_faiss().IDSelectorBatch(among)
                effort = grown * min(round(1 / share), MOST_EFFORT)  # the nearest of few are further away
            else:
                sift, ask = True, sifted
        k = min(ask, count)
        with threads_for(len(queries)):
            scores, numbers = self.index.search(queries, k, params=self._parameters(k, selector, effort))
        gone = (numbers < 0) | np.isnan(scores)
        if sift and among is not None:
            places = np.minimum(np.searchsorted(among, numbers), len(among) - 1)
            gone |= among[places] != numbers
        scores[gone], numbers[gone] = -np.inf, -1
        return scores, numbers

    def exhausted(self, m: int, grown: int) -> bool:
        """Whether looking harder than this finds no more."""
        knob = self.traits.knob
        return m * grown >= self.index.ntotal and (not knob or self.params[knob] * grown >= self.traits.largest)

    def _parameters(self, k: int, selector: Any, effort: int) -> Any:
        faiss = import_faiss()
        knob = self.traits.knob
        if not knob:
            return None if selector is None else faiss.SearchParameters(sel=selector)
        value = min(self.params[knob] * effort, self.traits.largest)
        if knob == "efSearch":
            return faiss.SearchParametersHNSW(efSearch=max(value, k), sel=selector)
        inner = faiss.SearchParametersIVF(nprobe=value, sel=selector)
        return faiss.SearchParametersPreTransform(index_params=inner) if self.traits.transformed else inner
