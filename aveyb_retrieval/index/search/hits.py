"""What a search gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Passage:
    """A passage of a document: its text, where it stands in the document's text, and its cosine with the query (None
    where it was found by words alone)."""

    text: str
    span: tuple[int, int]
    score: float | None


@dataclass(frozen=True)
class Hit:
    """One document found.

    `score` is the cosine in "dense" mode, the BM25 score in "lexical", the fused score in "hybrid", the mean MaxSim
    (again a cosine) with `rerank="maxsim"`; higher is better in all of them, and `scores` keeps each that was computed.
    `passage` is the best passage and `span` its characters `[start, end)` in `text`; both None where the index has no
    passages or the document no text. `passages` are the best ones, best first; `context` is the passage with its
    neighbours and `context_span` where that stands, None unless asked for.
    """

    id: str
    score: float
    text: str
    title: str
    metadata: dict[str, Any]
    passage: str | None = None
    span: tuple[int, int] | None = None
    passages: tuple[Passage, ...] = ()
    context: str | None = None
    context_span: tuple[int, int] | None = None
    scores: dict[str, float] = field(default_factory=dict)
