"""What a student learns of several teachers at once: one vector for each text.

Each teacher's vectors lose their mean (of documents and of queries, each by itself) and become unit vectors; they stand
side by side, and PCA turns them to as many numbers as the student's vectors have. Teachers that agree with each other
weigh no more than those that do not, and a direction in which all texts of a teacher point says nothing of any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.teacher import cache_vectors, read_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.types import Progress
    from aveyb_retrieval.training.settings import DistillSettings

PHRASE = (3, 16)  # words
_SAMPLE = 200_000  # texts whose vectors PCA sees
_ROWS = 1024  # of queries beside which near documents are looked for at once
_SMALLEST = 1e-6


@dataclass(frozen=True)
class Teacher:
    """A sentence-transformers model to learn from.

    model: its folder or name.
    prompts: before queries and before documents; None: the model's own.
    """

    model: str
    prompts: tuple[str, str] | None = None


@dataclass(frozen=True)
class Targets:
    """Unit vectors that the student is to have, `[n, D]` float16: those of the documents, behind them the queries'."""

    vectors: np.ndarray
    documents: int

    def near(self, count: int, seed: int) -> np.ndarray:
        """Draw one of the `count` nearest documents of each query: rows, int64 `[queries]`."""
        documents = self.vectors[: self.documents].astype(np.float32)
        queries, count = self.vectors[self.documents :], min(count, self.documents)
        choice = np.random.default_rng(seed).integers(count, size=len(queries))
        drawn = np.empty(len(queries), np.int64)
        for start in range(0, len(queries), _ROWS):
            part = slice(start, start + _ROWS)
            cosines = queries[part].astype(np.float32) @ documents.T
            nearest = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
            drawn[part] = nearest[np.arange(len(nearest)), choice[part]]
        return drawn


def phrases(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """Draw runs of words from each text that has as many: what somebody might ask who looks for it."""
    drawn, rng = [], np.random.default_rng(seed)
    for text in texts:
        words = text.split()
        for _ in range(count if len(words) > PHRASE[1] else 0):
            length = int(rng.integers(*PHRASE, endpoint=True))
            start = int(rng.integers(len(words) - length + 1))
            drawn.append(" ".join(words[start : start + length]))
    return drawn


def read_targets(
    teachers: Sequence[Teacher],
    documents: Sequence[str],
    queries: Sequence[str],
    folder: Path,
    *,
    dim: int,
    settings: DistillSettings,
    device: str | None,
    progress: Progress | None,
) -> Targets:
    """Let every teacher read every text, and join what they say.

    Args:
        teachers: their vectors are cached in `folder/teacher-1`, ... (resumable by itself).
        documents: read with each teacher's prompt of documents.
        queries: read with each teacher's prompt of queries.
        folder: the run folder.
        dim: width of the student's vectors.
        settings: how much of a text teachers read, and in which precision.
        device: where they run.
        progress: called as they read.

    Raises:
        ConfigError: two teachers are the same one, which would count twice.
        InputError: a cache of another teacher or other texts.
    """
    names = [teacher.model for teacher in teachers]
    if len({*names}) < len(names):
        raise ConfigError(f"the teachers are {', '.join(names)}: name each one once")
    parts = []
    for number, teacher in enumerate(teachers, start=1):
        both = []
        for kind, texts in (("document", documents), ("query", queries)):
            if texts:
                cache = cache_vectors(
                    texts,
                    folder / f"teacher-{number}" / kind,
                    model=teacher.model,
                    prompts=teacher.prompts,
                    kind=kind,
                    device=device,
                    max_tokens=settings.teacher_tokens,
                    precision=settings.teacher_precision,
                    progress=progress,
                )
                both.append(centred(read_vectors(cache)))
        parts.append(np.concatenate(both))
    joined = np.concatenate(parts, axis=1)
    return Targets(turned(joined, dim, settings.seed), len(documents))


def centred(vectors: np.ndarray) -> np.ndarray:
    """Take the mean off vectors `[n, d]`; return unit vectors, float16."""
    moved = vectors.astype(np.float32)
    moved -= moved.mean(axis=0)
    return unit(moved).astype(np.float16)


def turned(vectors: np.ndarray, dim: int, seed: int) -> np.ndarray:
    """Turn vectors `[n, d]` to at most `dim` numbers that keep most of their products (PCA, no mean); unit, float16."""
    rows = np.random.default_rng(seed).permutation(len(vectors))[:_SAMPLE]
    sample = vectors[np.sort(rows)].astype(np.float64)
    _, basis = np.linalg.eigh(sample.T @ sample)  # ascending
    basis = np.ascontiguousarray(basis[:, ::-1][:, :dim], dtype=np.float32)
    return unit(vectors.astype(np.float32) @ basis).astype(np.float16)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return rows over their lengths."""
    lengths: np.ndarray = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _SMALLEST)
    return vectors / lengths
