"""`aveyb-index info --compare`: what differs between two indexes, and what they find,
side by side.
"""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.cli.common import plain
from aveyb_retrieval.errors import InputError, shortened
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.indexes.store.place import describe

if TYPE_CHECKING:
    from pathlib import Path

QUESTIONS, HITS = 10, 5
_NAMED = 20  # missing documents that are named
# what always differs
_OF_ONE = ("path", "version", "build", "created", "indexes", "files", "unfinished")


def compare(
    one: str | Path, other: str | Path, questions: list[str] | None = None
) -> dict[str, Any]:
    """Say what differs between two indexes.

    Both are asked the `questions`; None: names of ten documents of the first that are in both,
    evenly chosen.

    Returns `differences`: the settings and counts that differ, as pairs. `missing`: ids that only
    the other one has, first those that `one` lacks. `questions`: each with the ids that either
    finds and how many are in both.
    """
    first, second = describe(one), describe(other)
    named = {
        key: (first.get(key), second.get(key))
        for key in [*first, *(key for key in second if key not in first)]
    }
    with Retriever.load(one) as left, Retriever.load(other) as right:
        names = {document.id: document.name for document in left.documents()}
        theirs = {document.id for document in right.documents()}
        both = [name for document_id, name in names.items() if document_id in theirs]
        asked = questions or list(islice(both[:: max(1, len(both) // QUESTIONS)], QUESTIONS))
        if not asked:
            raise InputError(
                f"{one} and {other}: no document is in both, so that nothing can be asked; give"
                " --questions"
            )
        found = zip(asked, left.search(asked, HITS), right.search(asked, HITS), strict=True)
        rows = [
            (question, [hit.id for hit in a], [hit.id for hit in b]) for question, a, b in found
        ]
    return {
        "differences": {
            key: pair for key, pair in named.items() if key not in _OF_ONE and pair[0] != pair[1]
        },
        "missing": [sorted(theirs - names.keys()), sorted(names.keys() - theirs)],
        "questions": [
            {"question": q, "hits": [a, b], "common": len({*a} & {*b})} for q, a, b in rows
        ],
    }


def told(found: dict[str, Any], one: str | Path, other: str | Path) -> list[str]:
    """Write a comparison as lines for people."""
    pairs = {
        key: [shortened(plain(each), 100) for each in pair]
        for key, pair in found["differences"].items()
    }
    lines = [f"{key:<12} {ours}  ->  {theirs}" for key, (ours, theirs) in pairs.items()]
    for place, missing in zip((one, other), found["missing"], strict=True):
        more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
        lines.append(f"missing in {place}: {', '.join(missing[:_NAMED]) or 'none'}{more}")
    for row in found["questions"]:
        lines += ["", f"{row['question']}  ({row['common']} in both)"]
        lines += [f"  {a:<40}  {b}".rstrip() for a, b in zip_longest(*row["hits"], fillvalue="")]
    return lines
