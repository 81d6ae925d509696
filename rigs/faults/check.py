"""Whether an index holds and finds exactly what it must."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval import Retriever
from aveyb_retrieval.errors import IndexFormatError
from tests.contents import problems_of
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

    from rigs.faults.workload import Documents

SEARCHED = ("word1", "word17", "word42")

Held = dict[str, tuple[str, str, int]]


def wanted(documents: Documents) -> Held:
    """What an index must hold: text, title and year of each id (of files the text alone)."""
    return {
        name: (each.text, "" if each.file else each.title, 0 if each.file else each.year)
        for name, each in documents.items()
    }


def held(root: Path) -> Held | None:
    """What an index holds; None where there is none."""
    try:
        with Retriever.load(root, model=FakeEmbedder(), verify=True) as retriever:
            return _held(retriever)
    except IndexFormatError as error:
        if "no index here" in str(error):
            return None
        raise


def _held(retriever: Retriever) -> Held:
    found = {}
    for each in retriever.documents():
        of_file = "path" in each.metadata
        found[each.id] = (
            each.text,
            "" if of_file else each.title,
            0 if of_file else each.metadata["year"],
        )
    return found


def check(root: Path, documents: Documents, *, deep: bool = False) -> None:
    """Raise AssertionError where an index does not hold these documents, or does not find them."""
    with Retriever.load(root, model=FakeEmbedder(), verify=True) as retriever:
        assert _held(retriever) == wanted(documents), differences(
            _held(retriever), wanted(documents)
        )
        assert len(retriever) == len(documents)
        for word in SEARCHED:
            found = {
                hit.id
                for hit in retriever.search(word, k=1000, mode="lexical", granularity="document")
            }
            holding = {
                name
                for name, each in documents.items()
                if word in f"{each.title} {each.text}".split()
            }
            assert found == holding, f"{word}: {differences(found, holding)}"
        query = FakeEmbedder().encode_queries(["word3 word4"])
        (hits,) = retriever.search_vectors(query, k=1000, granularity="document")
        assert len(hits) == len({hit.id for hit in hits})
        truth = _scores(documents, query[0])
        assert {hit.id for hit in hits} == set(truth), differences(
            {hit.id for hit in hits}, set(truth)
        )
        wrong = {
            hit.id: (hit.score, truth[hit.id])
            for hit in hits
            if abs(hit.score - truth[hit.id]) > 1e-3
        }
        assert not wrong, f"scores that are not of the documents' texts: {wrong}"
    if deep:
        problems = problems_of(root)
        assert problems == [], problems


def _scores(documents: Documents, query: Any) -> dict[str, float]:
    rows = {name: each for name, each in documents.items() if not each.file}
    pairs = [(f"{each.title}\n" if each.title else "", each.text) for each in rows.values()]
    vectors = (
        np.stack([each.vector for each in FakeEmbedder().encode_documents(pairs)])
        if rows
        else np.empty((0, 16))
    )
    found = dict(zip(rows, (vectors @ query).tolist(), strict=True))
    files = {name: each for name, each in documents.items() if each.file}
    pairs = [(f"{name.removesuffix('.txt')}\n", each.text) for name, each in files.items()]
    vectors = (
        np.stack([each.vector for each in FakeEmbedder().encode_documents(pairs)])
        if files
        else np.empty((0, 16))
    )
    return found | dict(zip(files, (vectors @ query).tolist(), strict=True))


def differences(found: Any, expected: Any) -> str:
    """Where two sets, or mappings, differ."""
    missing, more = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    other = (
        sorted(n for n in found if n in expected and found[n] != expected[n])
        if isinstance(found, dict)
        else []
    )
    return f"missing {missing[:5]}, too many {more[:5]}, other {other[:5]}"
