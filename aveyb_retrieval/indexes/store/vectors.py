"""The stored vectors of one kind of one version, as `nearest` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.store.tables import Tables
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind


@dataclass(frozen=True)
class StoredVectors:
    """The vectors of documents or passages, unit length, d = `dim`."""

    tables: Tables
    kind: Kind
    dim: int

    def live(self, numbers: IntArray) -> tuple[IntArray, FloatArray]:
        """Those of numbers `[n]` that are still stored, in their order: numbers `[m]` and vectors `[m, d]` float32."""
        return self.tables.live_vectors(self.kind, numbers)

    def blocks(self, first: int, stop: int, rows: int = 16384) -> Iterator[tuple[IntArray, FloatArray]]:
        """All vectors of documents numbered in `[first, stop)`, ascending: numbers `[n]`, vectors `[n, d]` float32."""
        numbers = self.tables.numbers(self.kind, first, stop)
        for start in range(0, len(numbers), rows):
            yield self.live(numbers[start : start + rows])


def ids_of(tables: Tables, kind: Kind) -> IntArray:
    """Numbers of all documents or passages that are stored, ascending."""
    dataset = tables.of(kind)
    return np.sort(dataset.scan([dataset.key])[dataset.key].to_numpy())
