"""The few types that every part of the evaluation shares."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from aveyb_retrieval.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

Judgements = dict[str, dict[str, int]]
"""Relevance judgements: query id -> document id -> grade (0 = judged and not relevant)."""

Run = dict[str, dict[str, float]]
"""What a system returned: query id -> document id -> score, higher is better."""

DEFAULT_MODE = "hybrid"
"""How an index is searched where nothing is said: as `Retriever.search` does it."""

DEFAULT_METRICS = ("ndcg@10", "recall@100", "mrr@10", "map", "success@1", "success@5")


@dataclass(frozen=True)
class SystemInfo:
    """Everything that decides a system's scores, so that a number can never be read without it.

    Attributes:
        name: What reports call it.
        kind: "dense", "lexical", "hybrid" or "index".
        model: Name of the model or library.
        fingerprint: sha256 (hex) of the exact weights, index or parameters.
        max_tokens: Length limit; None where texts of any length are read whole.
        prompts: What is put in front of queries and documents.
        precision: What the model computes in; None without a model.
        storage_dtype: How an index keeps its vectors on disk; None without an index.
        settings: What is special to the kind of system, for example `k1` and `b` of BM25.
    """

    name: str
    kind: str
    model: str
    fingerprint: str
    max_tokens: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    precision: str | None = None
    storage_dtype: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


class System(Protocol):
    """Anything that ranks documents for queries. `info` must be known before the (expensive) first search."""

    @property
    def info(self) -> SystemInfo:
        """Everything that decides the scores."""

    @property
    def notices(self) -> Sequence[str]:
        """Facts about the scores that the settings do not show; complete after the first search."""

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        """Return at most `k` documents per query; `queries` maps query ids to texts."""


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Read a text file inside the block; `what` it should be, for messages.

    Raises:
        InputError: it is not there, cannot be read, or is not UTF-8.
    """
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: no such {what}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); is this a {what}?") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason}); is this a {what}?") from None


def rank(scores: Mapping[str, float]) -> list[str]:
    """Return document ids in trec_eval's order: by score descending, equal scores by id descending.

    trec_eval compares ids as byte strings; Python's order of code points is the order of their UTF-8 bytes.
    """
    return sorted(scores, key=lambda doc: (scores[doc], doc), reverse=True)


def fingerprint_of(value: Any) -> str:
    """Return the sha256 (hex) of a JSON-serializable value; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def info_fingerprint(info: SystemInfo) -> str:
    """Return the sha256 (hex) over all fields but the labels `name` and `model`, which change no score."""
    fields = asdict(info)
    del fields["name"], fields["model"]
    return fingerprint_of(fields)
