"""Sorting: hits that match, by a field of the documents instead of by their scores.

A hit matches that is among the best `candidates` and scores at least half as much as the best one,
counted from a document at random; where `min_score` is given, or the scores have no such scale (of
`fusion="rrf"`, of a reranker), all of the `candidates` match. Numbers come before dates, dates
before other texts; of a list, and of lists in it, the largest value counts if sorting descends,
else the smallest. Documents without the field stand last, in the order of the ranking, as do equal
values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.dates import instant
from aveyb_retrieval.indexes.search.matches import STRENGTH
from aveyb_retrieval.indexes.store.filters import OWN, elements_at, field_keys, is_number

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.search.evidence import Evidence
    from aveyb_retrieval.indexes.search.matches import Matches
    from aveyb_retrieval.indexes.store.tables import StoredDocument
    from aveyb_retrieval.indexes.types import IntArray

MATCHING_SHARE = 0.5  # of the best hit's score
SortValue = tuple[int, Any]  # its kind, and what is compared within the kind
_NUMBER, _DATE, _TEXT = range(3)


@dataclass(frozen=True)
class Sort:
    """A field, and whether its largest values come first."""

    field: str
    descends: bool

    @classmethod
    def parse(cls, sort: object) -> Sort:
        """Read "date" or "-date"; raises ConfigError where it means nothing."""
        name = sort.removeprefix("-") if isinstance(sort, str) else ""
        if not isinstance(sort, str) or not name.strip():
            raise ConfigError(
                f"sort={sort!r}: must be a field, as 'date', or '-date' for the newest first"
            )
        field_keys(name)  # only for its errors
        return cls(name, sort.startswith("-"))


def matching_score(evidence: Evidence, best: Matches) -> float:
    """The least score of hits that match, given a ranking that begins with the best ones."""
    options = evidence.options
    has_scale = options.rerank is None and (options.fusion != "rrf" or options.unit == "passage")
    if options.min_score is not None or not has_scale or not len(best):
        return -math.inf
    at_random = evidence.background if options.mode == "dense" else 0.0
    highest = float(strengths(best)[0])
    return at_random + MATCHING_SHARE * (highest - at_random) if highest > at_random else -math.inf


def strengths(matches: Matches) -> np.ndarray:
    """What orders matches `[n]` on a scale that begins at a document at random."""
    return matches.parts.get(STRENGTH, matches.scores)


def sorted_rows(evidence: Evidence, sort: Sort, matches: Matches) -> IntArray:
    """The rows `[n]` of matches in the order of a field; raises ConfigError where no document has
    it.
    """
    documents = evidence.documents.read(matches.docs.tolist())
    values = [_value(documents[doc], sort) for doc in matches.docs.tolist()]
    with_value = [(value, row) for row, value in enumerate(values) if value is not None]
    if not with_value and len(matches) and not evidence.view.has_field(sort.field):
        raise ConfigError(f"sort: no document has the field {sort.field!r}")
    without = [row for row, value in enumerate(values) if value is None]
    # equal values stay in the order of the ranking, also where they descend
    with_value.sort(key=itemgetter(0), reverse=sort.descends)
    return np.array([*(row for _, row in with_value), *without], np.int64)


def _value(document: StoredDocument, sort: Sort) -> SortValue | None:
    if sort.field in OWN:
        values = iter([document.id if sort.field == "_id" else document.title])
    else:
        values = elements_at(document.metadata, field_keys(sort.field))
    comparable = [value for value in map(_comparable, values) if value is not None]
    if not comparable:
        return None
    return max(comparable) if sort.descends else min(comparable)


def _comparable(value: object) -> SortValue | None:
    if isinstance(value, bool) or is_number(value):
        return _NUMBER, value
    if not isinstance(value, str):
        return None
    date = instant(value) if value[4:5] == "-" else None
    return (_TEXT, value.casefold()) if date is None else (_DATE, date.timestamp())
