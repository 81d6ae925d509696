"""What every part of the evaluation shares: few types, how an id is read, and run files as
trec_eval reads them.

An id is compared as it is written, blanks and capitals included, in corpora, queries, judgements
and runs alike. Lines of tables end at a newline and nowhere else. Their columns are separated by
tabs, or by ASCII blanks, as the first line is; between tabs a field may be quoted as `csv` quotes
it, and only there an id may hold blanks.

TREC run files: `qid Q0 docid rank score tag`, one line per returned document. As in trec_eval, the
rank column is ignored: documents are ordered by score, equal scores by id descending. Scores are
written with all their digits, so that a run read back ranks exactly as it did. Runs are separated
by spaces, and by tabs where an id holds blanks, which trec_eval cannot read.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Judgements = dict[str, dict[str, int]]
"""Relevance judgements: query id -> document id -> grade (0 = judged and not relevant)."""

LARGEST_GRADE = 100_000
"""Gains of nDCG are below it; trec_eval's time and memory grow with the largest grade."""

Run = dict[str, dict[str, float]]
"""What a system returned: query id -> document id -> score, higher is better."""

DEFAULT_MODE = "hybrid"
"""How an index is searched where nothing is said: as `Retriever.search` does it."""

DEFAULT_METRICS = ("ndcg@10", "recall@100", "mrr@10", "map", "success@1", "success@5")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_BLANK = re.compile(r"[ \v\f]")


@dataclass(frozen=True)
class SystemInfo:
    """Everything that decides a system's scores, so that a number can never be read without it.

    Attributes:
        name: What reports call it.
        kind: "dense", "lexical", "hybrid" or "index".
        model: Name of the model or library; prompts: what it reads before queries and documents.
        fingerprint: sha256 (hex) of the exact weights, index or parameters.
        max_tokens: Length limit; None where texts of any length are read whole.
        precision: What the model computes in; storage_dtype: how an index keeps its vectors; None
            without one.
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
    """Anything that ranks documents for queries.

    `info` must be known before the (expensive) first search.
    """

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
    """Read a text file inside the block; `what` it should be, for messages."""
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

    trec_eval compares ids as byte strings; Python's order of code points is the order of their
    UTF-8 bytes.
    """
    return sorted(scores, key=lambda doc: (scores[doc], doc), reverse=True)


def fingerprint_of(value: Any) -> str:
    """Return the sha256 (hex) of a JSON-serializable value; the order of keys does not matter."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    ).hexdigest()


def info_fingerprint(info: SystemInfo) -> str:
    """Return the sha256 (hex) over all fields but the labels `name` and `model`, which change no
    score.
    """
    fields = asdict(info)
    del fields["name"], fields["model"]
    return fingerprint_of(fields)


def check_id(value: object, where: str, field: str) -> str:
    """Return an id as it is written; a whole number is one, too, and anything else, or blank, an
    InputError.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {field!r} must be a non-empty id, not {value!r}")
    return check_unicode(value, where, field)


def check_unicode(text: str, where: str, field: str) -> str:
    """Return a text; one that holds half of a surrogate pair is an InputError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: {field!r} holds half of a surrogate pair at character {error.start}, which"
            f" is no text: {text!a}"
        ) from None
    return text


def parse_number(text: str) -> float | None:
    """Return the number that an ASCII text writes, `nan` and `inf` included; None where it writes
    none.
    """
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def text_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines of a UTF-8 file that are not blank; `what` it should be,
    for messages.

    A line ends at a newline, or a carriage return and a newline, and at no other character.
    """
    with reading(path, what), path.open(encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            line = line.removesuffix("\n").removesuffix("\r")
            if line.strip():
                yield number, line


def table_rows(path: Path, what: str, widths: tuple[int, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of a table, whose first line decides the separator and which of
    `widths` it has.
    """
    is_tabbed: bool | None = None
    for number, line in text_lines(path, what):
        is_tabbed = len(_tabbed(line)) in widths if is_tabbed is None else is_tabbed
        fields = _tabbed(line) if is_tabbed else re.split(r"[ \t\v\f\r]+", line.strip(" \t\v\f\r"))
        if len(fields) not in widths:
            expected = " or ".join(map(str, widths))
            raise InputError(
                f"{path}, line {number}: {len(fields)} columns, expected {expected} in a {what};"
                " ids that hold spaces need a tab-separated file"
            )
        widths = (len(fields),)
        yield number, fields


def _tabbed(line: str) -> list[str]:
    fields = line.split("\t")
    return [
        field[1:-1].replace('""', '"') if _QUOTED.fullmatch(field) else field for field in fields
    ]


def read_run(path: str | Path) -> Run:
    """Read a TREC run file: six columns, finite scores, each document once for a query."""
    path = Path(path)
    run: Run = {}
    for number, (query, _, doc, _, text, _) in table_rows(path, "run file", (6,)):
        where = f"{path}, line {number}"
        score = parse_number(text)
        if score is None:
            raise InputError(f"{where}: the score {text!r} is not a number")
        if not math.isfinite(score):
            raise InputError(f"{where}: the score of {doc!r} is {text}; scores must be finite")
        documents = run.setdefault(check_id(query, where, "qid"), {})
        if check_id(doc, where, "docid") in documents:
            raise InputError(f"{where}: document {doc!r} occurs twice for query {query!r}")
        documents[doc] = score
    if not run:
        raise InputError(f"{path}: the run is empty; was it interrupted?")
    return run


def write_run(path: str | Path, run: Run, tag: str = "aveyb") -> None:
    """Write a run so that `read_run` and trec_eval order it identically; `path` is replaced in one
    step.

    trec_eval holds scores in float32 and orders equal ones by their ids, so the scores of a query
    are written so that each is lower in float32 than the one before it (see `separate_scores`).
    Where an id holds blanks, columns are separated by tabs; an id with a tab or a line end is an
    error.
    """
    path = Path(path)
    check_run(run)
    ids = {*run, *(doc for documents in run.values() for doc in documents)}
    check_run_ids(path, ids)
    blanks = any(_BLANK.search(name) for name in ids)
    separator = "\t" if blanks else " "
    written = {
        name: '"' + name.replace('"', '""') + '"' if blanks and _QUOTED.fullmatch(name) else name
        for name in ids
    }
    lines = [
        separator.join((written[query], "Q0", written[doc], str(position), repr(score), tag)) + "\n"
        for query, documents in run.items()
        for position, (doc, score) in enumerate(separate_scores(documents), start=1)
    ]
    text = "".join(lines)
    # readers take a mark of UTF-8 at the beginning off: an id that begins with that character needs
    # one before it
    write_atomic(path, text.encode("utf-8-sig" if text.startswith("\ufeff") else "utf-8"))


def separate_scores(documents: Mapping[str, float]) -> list[tuple[str, float]]:
    """Give the documents of a query, best first, with scores that float32 tells apart.

    A score stays as it is where its float32 is lower than that of the one before it; else it
    becomes the next lower number of float32. Where float32 cannot hold the scores, each becomes the
    number of documents that rank below.
    """
    names = rank(documents)
    scores = list[float]()
    import numpy as np  # not for `aveyb-eval --help`

    last = np.float32(np.inf)
    with np.errstate(over="ignore"):
        for name in names:
            score = float(documents[name])
            single = np.float32(score)
            if not single < last:
                single = np.nextafter(last, np.float32(-np.inf))
                score = float(single)
            scores.append(score)
            last = single
    if scores and not (np.isfinite(last) and abs(scores[0]) <= np.finfo(np.float32).max):
        scores = [float(len(names) - place) for place in range(1, len(names) + 1)]
    return list(zip(names, scores, strict=True))


def check_run_ids(path: Path, ids: Iterable[str]) -> None:
    """Raise InputError where a run file cannot carry an id: it is empty, or holds a tab or a line
    end.
    """
    for name in ids:
        check_unicode(name, str(path), "id")
        if not name.strip() or re.search(r"[\t\r\n]", name):
            raise InputError(
                f"{path}: {name!r} cannot be written to a TREC run: ids must be non-empty and"
                " without tabs and line ends"
            )


def check_run(run: Run) -> None:
    """Raise InputError where a score of a run made by code is not finite."""
    for query, documents in run.items():
        for doc, score in documents.items():
            if not math.isfinite(score):
                raise InputError(f"query {query!r}: the score of document {doc!r} is {score}")
