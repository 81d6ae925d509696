"""What every part of the evaluation shares: few types, and run files as trec_eval reads them.

TREC run files: `qid Q0 docid rank score tag`, one line per returned document, separated by spaces.

As in trec_eval, the rank column is ignored: documents are ordered by score, equal scores by id descending. Scores are
written with all their digits, so that a run read back ranks exactly as it did.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


def read_run(path: str | Path) -> Run:
    """Read a TREC run file.

    Raises:
        InputError: the file cannot be read or is empty, a line has not six columns (ids with spaces), a score is not a
            finite number, or a document occurs twice for a query. The message names the file and the line.
    """
    path = Path(path)
    run: Run = {}
    with reading(path, "run file"), path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                _add_line(run, line, f"{path}, line {number}")
    if not run:
        raise InputError(f"{path}: the run is empty; was it interrupted?")
    return run


def _add_line(run: Run, line: str, where: str) -> None:
    fields = line.split()
    if len(fields) != 6:
        raise InputError(
            f"{where}: {len(fields)} columns, expected 6 (qid Q0 docid rank score tag; ids without spaces)"
        )
    query, _, doc, _, text, _ = fields
    try:
        score = float(text)
    except ValueError:
        raise InputError(f"{where}: the score {text!r} is not a number") from None
    if not math.isfinite(score):
        raise InputError(f"{where}: the score of {doc!r} is {text}; scores must be finite")
    documents = run.setdefault(query, {})
    if doc in documents:
        raise InputError(f"{where}: document {doc!r} occurs twice for query {query!r}")
    documents[doc] = score


def write_run(path: str | Path, run: Run, tag: str = "aveyb") -> None:
    """Write a run so that `read_run` and trec_eval order it identically; `path` is replaced in one step.

    Raises:
        InputError: an id is empty or holds spaces (the format cannot carry it), or a score is not finite.
    """
    path = Path(path)
    check_run(run)
    for name in [tag, *run, *(doc for documents in run.values() for doc in documents)]:
        if not name or len(name.split()) != 1 or name != name.strip():
            raise InputError(
                f"{path}: {name!r} cannot be written to a TREC run: ids must be non-empty and without spaces"
            )
    lines = [
        f"{query} Q0 {doc} {position} {documents[doc]!r} {tag}\n"
        for query, documents in run.items()
        for position, doc in enumerate(rank(documents), start=1)
    ]
    write_atomic(path, "".join(lines).encode())


def check_run(run: Run) -> None:
    """Check that every score of a run made by code is finite.

    Raises:
        InputError: one is not.
    """
    for query, documents in run.items():
        for doc, score in documents.items():
            if not math.isfinite(score):
                raise InputError(f"query {query!r}: the score of document {doc!r} is {score}")
