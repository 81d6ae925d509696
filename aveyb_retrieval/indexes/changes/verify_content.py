"""`verify --deep`: does what is stored agree with itself? A change that was made with its hash shows here."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.changes.rows import content_digest
from aveyb_retrieval.indexes.store.dataset import WORDS
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, rank_of
from aveyb_retrieval.indexes.store.vectors import ids_of
from aveyb_retrieval.indexes.store.words import language

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aveyb_retrieval.indexes.store.dataset import Dataset
    from aveyb_retrieval.indexes.store.manifest import Manifest
    from aveyb_retrieval.indexes.store.tables import Tables

_MOST = 20  # problems that are named; one is enough to distrust an index
_DOCUMENTS = 256  # read at a time
_SAMPLED = 200  # words of each dataset that are searched for


def content_problems(tables: Tables, manifest: Manifest) -> list[str]:
    """Return what is wrong with texts, passages and words as sentences, at most twenty of them."""
    return list(islice(_all(tables, manifest), _MOST))


def _all(tables: Tables, manifest: Manifest) -> Iterator[str]:
    docs = ids_of(tables, "document")
    for start in range(0, len(docs), _DOCUMENTS):
        try:
            yield from _document_problems(tables, docs[start : start + _DOCUMENTS].tolist(), manifest)
        except AveyBError as error:
            yield str(error)
    for dataset in (tables.texts, tables.passages):
        yield from _search_problems(dataset)


def _document_problems(tables: Tables, docs: list[int], manifest: Manifest) -> Iterator[str]:
    stored = language(manifest.encoding.language).stored
    numbers = np.array(docs, dtype=np.int64)
    columns = ["id", "title", "metadata", "rank", "digest", "characters", "words", "passages"]
    about = {row["doc"]: row for row in tables.documents.take(numbers, columns).to_pylist()}
    texts = {row["doc"]: row for row in tables.texts.take(numbers, ["text", WORDS]).to_pylist()}
    found = tables.read_documents(docs)
    by_id = tables.find(row["id"] for row in about.values())
    if any(doc != by_id.get(row["id"], (0,))[0] for doc, row in about.items()):
        yield f"{tables.documents.path}: an id leads to another document, or to none"
    numbers = tables.passage_numbers(numbers)
    passages: dict[int, list[dict[str, Any]]] = {}
    for row in tables.passages.take(numbers, ["start", "stop", "heading", WORDS]).to_pylist():
        passages.setdefault(row["passage"] >> PASSAGE_BITS, []).append(row)
    for doc in docs:
        if doc not in about or doc not in found:
            continue  # the counts have told that
        row, text, mine = about[doc], texts[doc], passages.get(doc, [])
        where = f"{tables.root}: document {row['id']!r}"
        origin = found[doc].origin
        pages = origin.pages if origin else None
        if content_digest(row["title"], text["text"]) != row["digest"]:
            yield f"{where}: its text is not the one that was encoded"
        if not _is_object(row["metadata"]) or rank_of(row["id"]) != row["rank"]:
            yield f"{where}: its metadata or its rank are damaged"
        if text[WORDS] != stored(f"{row['title']}\n{text['text']}"):
            yield f"{where}: its stored words are not those of its text"
        if pages and pages.starts[-1] > len(text["text"]):
            yield f"{where}: a page begins behind the end of its text"
        for problem in _passage_problems(mine, text["text"], row, stored):
            yield f"{where}: {problem}"


def _passage_problems(
    mine: list[dict[str, Any]], text: str, row: dict[str, Any], stored: Callable[[str], str]
) -> Iterator[str]:
    """What is wrong with the passages of one document."""
    spans = np.array([(each["start"], each["stop"]) for each in mine], dtype=np.int64).reshape(-1, 2)
    if len(mine) != row["passages"] or int((spans[:, 1] - spans[:, 0]).sum()) != row["characters"]:
        yield "its passages are not those that are counted"
    if len(spans) and not (
        spans.min() >= 0
        and spans.max() <= len(text)
        and (spans[:, 0] <= spans[:, 1]).all()
        and (np.diff(spans, axis=0) >= 0).all()
    ):
        yield "its passages are not spans of its text in order"
    if any(each[WORDS] != stored(f"{each['heading']}\n{text[each['start'] : each['stop']]}") for each in mine):
        yield "the stored words of a passage are not those of its text"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _search_problems(dataset: Dataset) -> Iterator[str]:
    """Words that a search finds in other rows than a look at all of them does."""
    rows = dataset.scan([dataset.key, WORDS])
    numbers, words = rows[dataset.key].to_numpy(), rows[WORDS]
    sampled = sorted({word for text in words.to_pylist()[:: max(1, len(words) // _SAMPLED)] for word in text.split()})
    for word in sampled[:: max(1, len(sampled) // _SAMPLED)]:
        there = np.sort(numbers[pc.match_substring(words, f" {word} ").to_numpy()])
        found, scores = dataset.by_words([word], max(len(numbers), 1))
        if not np.array_equal(np.sort(found), there) or not np.isfinite(scores).all():
            yield f"{dataset.path}: a search for {word!r} finds {len(found)} rows, and {len(there)} hold it"
            return
