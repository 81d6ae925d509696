"""What every step of a search takes and gives: documents or passages with their scores."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.types import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aveyb_retrieval.indexes.types import FloatArray, IntArray

    Scores = np.ndarray  # float64 `[n]`

NO_PASSAGE = -1
STRENGTH = "strength"  # the part of a passage's score that late interaction is added to: its s


@dataclass(frozen=True, eq=False)
class Matches:
    """Documents or passages that a search found, best first unless a step says otherwise.

    Attributes:
        keys: Numbers `[n]` of documents or, in a search for passages, of passages.
        docs: Numbers `[n]` of their documents.
        passages: Number `[n]` of the passage that decided the score, or `NO_PASSAGE`, as in a
            hybrid search for documents, where several parts decide.
        scores: What orders them, float64 `[n]`.
        parts: What the scores were made of, by name, float64 `[n]`; NaN where a match has no such
            part.
    """

    keys: IntArray
    docs: IntArray
    passages: IntArray
    scores: Scores
    parts: Mapping[str, Scores] = field(default_factory=dict)

    @classmethod
    def of_documents(
        cls, docs: IntArray, scores: FloatArray | Scores, passages: IntArray | None = None
    ) -> Matches:
        """Documents by number `[n]`, with the passage that decided each score, where one did."""
        decided = np.full(len(docs), NO_PASSAGE) if passages is None else passages
        return cls(docs, docs, decided, scores.astype(np.float64))

    @classmethod
    def of_passages(cls, numbers: IntArray, scores: FloatArray | Scores) -> Matches:
        """Passages by number `[n]`."""
        return cls(numbers, numbers >> PASSAGE_BITS, numbers, scores.astype(np.float64))

    @classmethod
    def joined(cls, parts: Sequence[Matches]) -> Matches:
        """Several lists of matches, one behind the other."""
        if not parts:
            return cls.of_documents(np.empty(0, np.int64), np.empty(0))
        names = dict.fromkeys(name for part in parts for name in part.parts)
        return cls(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.docs for part in parts]),
            np.concatenate([part.passages for part in parts]),
            np.concatenate([part.scores for part in parts]),
            {name: np.concatenate([part.part(name) for part in parts]) for name in names},
        )

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, name: str) -> Scores:
        """One part of the scores, `[n]`."""
        values = self.parts.get(name)
        return np.full(len(self), np.nan) if values is None else values

    def parts_of(self, row: int) -> dict[str, float]:
        """The parts that one match has."""
        values = {name: float(column[row]) for name, column in self.parts.items()}
        return {name: value for name, value in values.items() if not np.isnan(value)}

    def take(self, rows: IntArray | slice) -> Matches:
        """Some of the matches, in the order of `rows`."""
        return Matches(
            self.keys[rows],
            self.docs[rows],
            self.passages[rows],
            self.scores[rows],
            {name: values[rows] for name, values in self.parts.items()},
        )

    def with_parts(self, **parts: Scores) -> Matches:
        """The same matches with more parts `[n]`."""
        return replace(self, parts={**self.parts, **parts})

    def with_scores(self, scores: Scores) -> Matches:
        """The same matches with other scores `[n]`, in their present order."""
        return replace(self, scores=scores)

    def ordered(self) -> Matches:
        """Best first; ties by the lower number, so that the order depends on nothing else."""
        return self.take(np.lexsort((self.keys, -self.scores)))


def aligned(docs: IntArray, numbers: IntArray, values: FloatArray) -> Scores:
    """The values of documents `[n]`, float64 `[n]`, out of those of `numbers` `[m]`, which are
    among them; NaN for the others.
    """
    column, order = np.full(len(docs), np.nan), np.argsort(docs)
    column[order[np.searchsorted(docs, numbers, sorter=order)]] = values
    return column
