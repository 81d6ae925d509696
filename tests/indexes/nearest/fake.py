"""Vectors of a version, in arrays of numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.types import number_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind


def unit(rows: np.ndarray) -> FloatArray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


class FakeVectors:
    """`Vectors` over arrays; counts what is read."""

    def __init__(self, kind: Kind, numbers: IntArray, rows: FloatArray) -> None:
        self.kind, self.numbers, self.rows, self.dim = kind, numbers, rows, rows.shape[1]
        self.looked_up, self.scanned = 0, 0

    @classmethod
    def random(
        cls, kind: Kind, documents: int, dim: int, *, seed: int = 0, first: int = 0
    ) -> FakeVectors:
        """Clustered vectors of some documents; those of passages have one to four of them."""
        rng = np.random.default_rng(seed)
        docs = np.arange(first, first + documents, dtype=np.int64)
        numbers = docs
        if kind == "passage":
            each = rng.integers(1, 5, documents)
            numbers = np.concatenate(
                [(doc << 20) | np.arange(n) for doc, n in zip(docs, each, strict=True)]
            )
        centers = rng.normal(size=(30, dim))
        rows = centers[rng.integers(0, 30, len(numbers))] + 0.7 * rng.normal(
            size=(len(numbers), dim)
        )
        return cls(kind, numbers, unit(rows))

    def without(self, gone: np.ndarray) -> FakeVectors:
        return FakeVectors(self.kind, self.numbers[~gone], self.rows[~gone])

    def before(self, doc: int) -> FakeVectors:
        return self.without(self.numbers >= number_range(self.kind, doc, doc)[0])

    def live(self, numbers: IntArray) -> tuple[IntArray, FloatArray]:
        self.looked_up += len(numbers)
        there = np.isin(numbers, self.numbers)
        return numbers[there], self.rows[np.searchsorted(self.numbers, numbers[there])]

    def stored(self, numbers: IntArray) -> IntArray:
        return numbers[np.isin(numbers, self.numbers)]

    def selected(self, numbers: IntArray, rows: int) -> Iterator[tuple[IntArray, np.ndarray]]:
        self.looked_up += len(numbers)
        for start in range(0, len(numbers), rows):
            some = numbers[start : start + rows]
            yield some, self.rows[np.searchsorted(self.numbers, some)]

    def blocks(
        self, first: int, stop: int, rows: int = 1000
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        start, end = np.searchsorted(self.numbers, number_range(self.kind, first, stop))
        self.scanned += int(end - start)
        for at in range(start, end, rows):
            yield self.numbers[at : min(at + rows, end)], self.rows[at : min(at + rows, end)]

    def nearest(
        self, queries: FloatArray, k: int, among: IntArray | None = None
    ) -> tuple[FloatArray, IntArray]:
        """What a search must find."""
        chosen = slice(None) if among is None else np.isin(self.numbers, among)
        scores, numbers = queries @ self.rows[chosen].T, self.numbers[chosen]
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, order, 1), numbers[order]
