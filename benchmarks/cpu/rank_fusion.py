"""Reciprocal rank fusion of any systems, for comparison with the index's weighted one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aveyb_retrieval.eval.base import (
    Run,
    System,
    SystemInfo,
    fingerprint_of,
    info_fingerprint,
    rank,
)
from aveyb_retrieval.indexes.search.fusion import RRF_K, reciprocal_rank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RRFSystem:
    """Reciprocal rank fusion of the first `depth` documents of each system, by the index's own
    `fusion` module.
    """

    def __init__(self, systems: Sequence[System], *, depth: int = 100, name: str = "") -> None:
        """Fuse two or more systems."""
        self._systems = systems
        self.notices: list[str] = []
        infos = [system.info for system in systems]
        self.info = SystemInfo(
            name=name or "RRF(" + ", ".join(info.name for info in infos) + ")",
            kind="hybrid",
            model=" + ".join(info.model for info in infos),
            fingerprint=fingerprint_of([info_fingerprint(info) for info in infos]),
            max_tokens=next(
                (info.max_tokens for info in infos if info.max_tokens is not None), None
            ),
            prompts=next((info.prompts for info in infos if info.prompts), {}),
            precision=next((info.precision for info in infos if info.precision), None),
            settings={
                "fusion": "rrf",
                "constant": RRF_K,
                "depth": depth,
                "of": [info.name for info in infos],
            },
        )

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        """Return the `k` best documents per query by reciprocal ranks."""
        runs = [system.search(queries, self.info.settings["depth"]) for system in self._systems]
        self.notices = [notice for system in self._systems for notice in system.notices]
        return {query: _fuse([run.get(query, {}) for run in runs], k) for query in queries}


def _fuse(scored: Sequence[Mapping[str, float]], k: int) -> dict[str, float]:
    """Return the k best documents of one query by reciprocal rank; each list is ranked in
    trec_eval's order.
    """
    numbers: dict[str, int] = {}
    rankings = [
        [(numbers.setdefault(doc, len(numbers)), scores[doc]) for doc in rank(scores)]
        for scores in scored
    ]
    fused = reciprocal_rank(rankings)
    by_id = {doc: fused[number] for doc, number in numbers.items()}
    return {doc: by_id[doc] for doc in rank(by_id)[:k]}
