"""`Searcher`: what a search asks of an index of vectors, whichever library and device answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aveyb_retrieval.indexes.nearest import exact

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.store.vectors import VectorTable
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

DEFAULT_PARAMS = {"nprobe": 32, "efSearch": 96, "rescore": 4}


class Searcher(Protocol):
    """An index of unit vectors opened for searching. Safe to use from many threads.

    Attributes:
        count: How many vectors it holds.
        knob: The setting that trades speed for recall: "nprobe", "efSearch", or "" where there is none.
        largest: The highest useful value of the knob; 0 without one.
        params: Settings of a search that asks for nothing else; `rescore` is how many candidates per result an index
            of shortened codes gives to be scored again in float.
        takes_selector: Whether a search can be limited to some ids.
        keeps_floats: Whether its scores are those of the vectors themselves, not of shortened codes.
    """

    count: int
    knob: str
    largest: int
    params: dict[str, int]
    takes_selector: bool
    keeps_floats: bool

    def search(
        self, queries: FloatArray, k: int, *, selector: Any = None, effort: int | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Find the stored vectors nearest to queries `[n, d]`: scores and ids `[n, k]`, padded with -inf and -1.

        `effort` replaces the tuned value of the knob; `selector` (of `select`) limits the search to some ids.
        """
        ...

    def select(self, ids: IntArray, *, dense: bool) -> Any:
        """Make a selector of these ids; `dense` says that they are document numbers, with few gaps."""
        ...

    def select_all_but(self, ids: IntArray) -> Any:
        """Make a selector of everything except these ids."""
        ...


def search_rescored(
    searcher: Searcher,
    table: VectorTable,
    queries: FloatArray,
    k: int,
    *,
    selector: Any = None,
    effort: int | None = None,
    rescore: int | None = None,
) -> tuple[FloatArray, IntArray]:
    """Find the `k` nearest vectors with their true cosines, `[n, k]` each.

    An index of shortened codes is asked for `rescore` times as many, which are scored again from the stored vectors.
    """
    wanted = k if searcher.keeps_floats else k * (rescore or searcher.params["rescore"])
    scores, ids = searcher.search(queries, wanted, selector=selector, effort=effort)
    if not searcher.keeps_floats:
        rows, columns = np.nonzero(ids >= 0)
        vectors = table.gather(ids[rows, columns])
        scores = np.full(ids.shape, -np.inf, dtype=np.float32)
        scores[rows, columns] = np.einsum("nd,nd->n", vectors, queries[rows])
    return exact.top(scores, ids, k)
