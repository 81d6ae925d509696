"""The stored vectors of one kind of one version, as `nearest` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from aveyb_retrieval.indexes.store.numbering import number_range
from aveyb_retrieval.indexes.store.tables import VECTOR, Tables, matrix

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        low, high = number_range(self.kind, first, stop)
        dataset = self.tables.of(self.kind)
        if not dataset.ascends:
            numbers = ids_of(self.tables, self.kind)
            numbers = numbers[(numbers >= low) & (numbers < high)]
            for start in range(0, len(numbers), rows):
                yield self.live(numbers[start : start + rows])
            return
        for batch in dataset.batches([dataset.key, VECTOR], after=low - 1, rows=rows):
            numbers = batch[dataset.key].to_numpy()
            wanted = numbers < high
            if wanted.any():
                vectors = matrix(pa.chunked_array([batch[VECTOR]]))
                yield (numbers, vectors) if wanted.all() else (numbers[wanted], vectors[wanted])
            if not wanted.all():
                return  # they ascend


def ids_of(tables: Tables, kind: Kind) -> IntArray:
    """Numbers of all documents or passages that are stored, ascending."""
    dataset = tables.of(kind)
    return np.sort(dataset.scan([dataset.key])[dataset.key].to_numpy())
