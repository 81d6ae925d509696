"""The options of a search and what they may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.index.storage.filters import Filter
from aveyb_retrieval.index.storage.manifest import GRANULARITIES
from aveyb_retrieval.index.types import Kind

Mode = Literal["dense", "lexical", "hybrid"]
Fusion = Literal["rrf", "weighted"]

CANDIDATES = 100  # per ranking, before fusion or reranking
WEIGHT = 0.4  # of the vectors in weighted fusion: the best on queries that the embedded model never saw


@dataclass(frozen=True)
class Options:
    """The options of one search, checked; `Retriever.search` says what they mean."""

    k: int
    mode: Mode
    kinds: tuple[Kind, ...]
    where: Filter | None
    fusion: Fusion
    weight: float
    rerank: bool
    passages: int
    context: int | None
    candidates: int
    exact: bool

    @property
    def depth(self) -> int:
        """How many documents each ranking has to give."""
        return max(self.k, self.candidates) if self.rerank or self.mode == "hybrid" else self.k

    @classmethod
    def check(
        cls,
        has: str,
        k: int,
        *,
        filter: Filter | None = None,  # the word users know
        mode: Mode = "hybrid",
        granularity: str | None = None,
        fusion: Fusion = "weighted",
        weight: float = WEIGHT,
        rerank: Literal["maxsim"] | None = None,
        passages: int = 1,
        context: int | None = None,
        candidates: int = CANDIDATES,
        exact: bool = False,
    ) -> Options:
        """Check options against an index of granularity `has`.

        Raises:
            ConfigError: one is out of range, or asks for vectors that the index has not.
        """
        for name, value, known in (
            ("mode", mode, ("dense", "lexical", "hybrid")),
            ("fusion", fusion, ("rrf", "weighted")),
            ("rerank", rerank, (None, "maxsim")),
            ("granularity", granularity, (None, *GRANULARITIES)),
        ):
            if value not in known:
                raise ConfigError(f"{name}={value!r}: must be one of {', '.join(map(repr, known))}")
        for name, number, least in (
            ("k", k, 1),
            ("passages", passages, 1),
            ("candidates", candidates, 1),
            ("context", context, 0),
        ):
            if number is not None and (
                isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < least
            ):
                raise ConfigError(f"{name}={number!r}: must be a whole number of at least {least}")
        if isinstance(weight, bool) or not isinstance(weight, (int, float, np.number)) or not 0 <= weight <= 1:
            raise ConfigError(f"weight={weight!r}: must be a number between 0 and 1")
        kinds = GRANULARITIES[granularity or has]
        if not set(kinds) <= set(GRANULARITIES[has]):
            raise ConfigError(f"granularity={granularity!r}: this index was built with granularity {has!r}")
        return cls(
            k=int(k),
            mode=mode,
            kinds=kinds,
            where=filter,
            fusion=fusion,
            weight=weight,
            rerank=rerank is not None,
            passages=int(passages),
            context=context,
            candidates=int(candidates),
            exact=exact,
        )
