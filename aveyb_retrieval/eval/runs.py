"""TREC run files: `qid Q0 docid rank score tag`, one line per returned document, separated by spaces.

As in trec_eval, the rank column is ignored: documents are ordered by score, equal scores by id descending. Scores are
written with all their digits, so that a run read back ranks exactly as it did.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.eval.base import rank, reading
from aveyb_retrieval.indexes.store.files import write_atomic

if TYPE_CHECKING:
    from aveyb_retrieval.eval.base import Run


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
