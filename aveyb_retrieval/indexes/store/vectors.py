"""The stored vectors of one kind of one version, as `nearest` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS
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
        shift = PASSAGE_BITS if self.kind == "passage" else 0
        dataset = self.tables.of(self.kind)
        if not dataset.ascends:
            numbers = ids_of(self.tables, self.kind)
            numbers = numbers[(numbers >= first << shift) & (numbers < stop << shift)]
            for start in range(0, len(numbers), rows):
                yield self.live(numbers[start : start + rows])
            return
        for batch in dataset.batches([dataset.key, VECTOR], after=(first << shift) - 1, rows=rows):
            numbers = batch[dataset.key].to_numpy()
            wanted = numbers < stop << shift
            if wanted.any():
                vectors = matrix_of(batch)
                yield (numbers, vectors) if wanted.all() else (numbers[wanted], vectors[wanted])


def matrix_of(batch: object) -> FloatArray:
    """The vectors `[n, d]` of a batch of rows."""
    import pyarrow as pa

    return matrix(pa.chunked_array([batch[VECTOR]]))  # type: ignore[index]


def ids_of(tables: Tables, kind: Kind) -> IntArray:
    """Numbers of all documents or passages that are stored, ascending."""
    dataset = tables.of(kind)
    return np.sort(dataset.scan([dataset.key])[dataset.key].to_numpy())
