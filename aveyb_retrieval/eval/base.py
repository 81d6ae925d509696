"""The few types that every part of the evaluation shares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

Judgements = dict[str, dict[str, int]]
"""Relevance judgements: query id -> document id -> grade (0 = judged and not relevant)."""

Run = dict[str, dict[str, float]]
"""What a system returned: query id -> document id -> score, higher is better."""

DEFAULT_METRICS = ("ndcg@10", "recall@100", "mrr@10", "map", "success@1", "success@5")


@dataclass(frozen=True)
class SystemInfo:
    """Everything that decides a system's scores, so that a number can never be read without it.

    `fingerprint` names the exact weights (or index, or parameters); `max_tokens` is None when texts of any length are
    read whole; `settings` holds what is special to the kind of system, for example `k1` and `b` of BM25.
    """

    name: str
    kind: str
    model: str
    fingerprint: str
    max_tokens: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    dtype: str = "-"
    settings: dict[str, Any] = field(default_factory=dict)


class System(Protocol):
    """Anything that ranks documents for queries. `info` must be known before the (expensive) first search."""

    @property
    def info(self) -> SystemInfo: ...

    @property
    def notices(self) -> Sequence[str]:
        """What a reader of the scores must know and the settings do not say; complete after the first search."""
        ...

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        """Return at most `k` documents per query; `queries` maps query ids to texts."""
        ...


def rank(scores: Mapping[str, float]) -> list[str]:
    """Order document ids as trec_eval does: by score descending, equal scores by id descending.

    trec_eval compares ids as byte strings; Python's order of code points is the order of their UTF-8 bytes.
    """
    return sorted(scores, key=lambda doc: (scores[doc], doc), reverse=True)


def fingerprint_of(value: Any) -> str:
    """sha256 (hex) of a JSON-serialisable value, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def info_fingerprint(info: SystemInfo) -> str:
    """sha256 (hex) over all fields of a `SystemInfo` but its labels: what a model is called changes nothing."""
    fields = asdict(info)
    del fields["name"], fields["model"]
    return fingerprint_of(fields)
