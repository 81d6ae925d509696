"""Read relevance judgements (qrels) in every common layout without losing a line.

Two layouts exist: BEIR's `query-id<TAB>corpus-id<TAB>score` below a header row, and TREC's `qid 0 docid grade` without
one. BEIR's own loader skips the first line whatever it says, so a file without a header silently loses a judgement;
here the header is recognised by its last field not being a number, and its names decide the order of the columns.

Decisions (each one that touches the data is added to `Qrels.notices`, which reports print):

- a grade below zero is trec_eval's "judged, not relevant": read as 0;
- `1.0` is read as 1; a grade such as 0.5 is an error, because nDCG's gains are the grades themselves;
- the same judgement twice with the same grade is kept once; with two grades it is an error;
- ids may hold spaces only in a tab-separated file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.eval.base import reading
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aveyb_retrieval.eval.base import Judgements

_QUERY_NAMES = {"query-id", "query_id", "queryid", "qid", "query", "topic", "topic_id"}
_DOCUMENT_NAMES = {"corpus-id", "corpus_id", "doc-id", "doc_id", "docid", "docno", "document-id", "pid"}
_GRADE_NAMES = {"score", "relevance", "rel", "grade", "label", "judgement", "judgment"}
_ITERATION_NAMES = {"iteration", "iter", "q0", "0", "unused"}


@dataclass(frozen=True)
class Qrels:
    """Judgements and what was decided while reading them."""

    judgements: Judgements
    notices: tuple[str, ...] = ()


def read_qrels(path: str | Path) -> Qrels:
    """Read a qrels file: BEIR (with or without header) or TREC column order, separated by tabs or spaces.

    Raises:
        InputError: the file cannot be read, is empty or not text, or a line has the wrong number of columns, a grade
            that is not an integer, or contradicts an earlier line. The message names the file and the line.
    """
    path = Path(path)
    with reading(path, "qrels file"):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    return Qrels(*_collect(_rows(lines, str(path)), str(path)))


def collect_qrels(rows: Iterable[tuple[str, str, object]], source: str) -> Qrels:
    """Check rows of (query id, document id, grade) from anywhere, for example a hub data set.

    `source` names the place in messages; rows are numbered from 1.
    """
    numbered = ((n, query, doc, str(grade)) for n, (query, doc, grade) in enumerate(rows, start=1))
    return Qrels(*_collect(numbered, source))


def _rows(lines: list[str], source: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield (line number, query id, document id, grade) of each judgement."""
    columns: tuple[int, int, int] | None = None
    width = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = [f.strip() for f in line.split("\t")] if "\t" in line else line.split()
        if columns is None:
            width = len(fields)
            if width not in (3, 4):
                raise InputError(
                    f"{source}, line {number}: {width} columns, expected 3 (query-id, corpus-id, score) or 4 (TREC: "
                    "qid 0 docid grade); ids that hold spaces need a tab-separated file"
                )
            if _is_number(fields[-1]):
                columns = (0, 1, 2) if width == 3 else (0, 2, 3)
            else:
                columns = _columns_of_header(fields, source, number)
                continue
        if len(fields) != width:
            raise InputError(
                f"{source}, line {number}: {len(fields)} columns where the file began with {width}; ids that hold "
                "spaces need a tab-separated file"
            )
        query, doc, grade = (fields[c] for c in columns)
        yield number, query, doc, grade


def _columns_of_header(names: list[str], source: str, number: int) -> tuple[int, int, int]:
    lowered = [name.lower() for name in names]
    found = []
    for wanted in (_QUERY_NAMES, _DOCUMENT_NAMES, _GRADE_NAMES):
        places = [i for i, name in enumerate(lowered) if name in wanted]
        if len(places) != 1:
            raise InputError(
                f"{source}, line {number}: {names} is neither a judgement (the last field is not a number) nor a "
                "header with query-id, corpus-id and score"
            )
        found.append(places[0])
    rest = [name for i, name in enumerate(lowered) if i not in found]
    if any(name not in _ITERATION_NAMES for name in rest):
        raise InputError(f"{source}, line {number}: unknown column {rest[0]!r} in the header {names}")
    return found[0], found[1], found[2]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _grade(text: str, where: str) -> int:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{where}: the grade {text!r} is not a number") from None
    if not value.is_integer():  # neither are inf and nan
        raise InputError(
            f"{where}: the grade {text!r} is not an integer; nDCG uses grades as gains, so scale them first"
        )
    return int(value)


def _collect(rows: Iterable[tuple[int, str, str, str]], source: str) -> tuple[Judgements, tuple[str, ...]]:
    judgements: Judgements = {}
    first_line: dict[tuple[str, str], int] = {}
    duplicates = negatives = 0
    for number, query, doc, text in rows:
        where = f"{source}, line {number}"
        if not query or not doc:
            raise InputError(f"{where}: empty {'query' if not query else 'document'} id")
        grade = _grade(text, where)
        if grade < 0:
            negatives += 1
            grade = 0
        documents = judgements.setdefault(query, {})
        if doc in documents:
            if documents[doc] != grade:
                raise InputError(
                    f"{where}: query {query!r}, document {doc!r} is judged {grade} here and {documents[doc]} on line "
                    f"{first_line[query, doc]}; keep one of them"
                )
            duplicates += 1
            continue
        documents[doc] = grade
        first_line[query, doc] = number
    if not judgements:
        raise InputError(f"{source}: no judgements in this qrels file")
    notices = []
    if duplicates:
        notices.append(f"{source}: {plural(duplicates, 'repeated judgement')} (same grade) kept once")
    if negatives:
        notices.append(f"{source}: {plural(negatives, 'negative grade')} read as 0 (judged, not relevant)")
    return judgements, tuple(notices)
