"""What an index holds, beyond its hashes and counts.

Texts are compared with their digests, passages with texts, stored words and what a search of them
finds with the texts, and a thousand stored vectors must find themselves in each FAISS file.

    python -m tests.contents ROOT

is the other process of `is_sound_apart`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.changes.ingest import content_digest, titled_words
from aveyb_retrieval.indexes.changes.verify import verify_index
from aveyb_retrieval.indexes.nearest.faiss_file import FaissSearcher
from aveyb_retrieval.indexes.store.languages import MAIN, rules_of
from aveyb_retrieval.indexes.store.place import hold_visible, open_directory
from aveyb_retrieval.indexes.store.rows import WORDS
from aveyb_retrieval.indexes.store.tables import (
    StoredVectors,
    Tables,
    ids_of,
    texts_of_passages,
)
from aveyb_retrieval.indexes.store.words import spaced
from aveyb_retrieval.indexes.types import PASSAGE_BITS, sample_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aveyb_retrieval.indexes.store.manifest import Manifest
    from aveyb_retrieval.indexes.store.rows import RowTable

MAX_PROBLEMS = 20
DOCUMENTS_AT_ONCE = 256
SAMPLED_WORDS = 1000  # of each list
SAMPLED_VECTORS = 1000  # of each FAISS file
NEIGHBOURS = 100  # among which a vector must find itself: others may be equal
MAX_LOST_SHARE = 0.5


def problems_of(root: str | Path) -> list[str]:
    """Return what `verify_index` says of an index and, where that is nothing, what its contents and
    its FAISS files contradict.
    """
    if problems := verify_index(root).problems:
        return problems
    try:
        index_dir = open_directory(root)
        manifest, held = hold_visible(index_dir)
        with held:
            tables = Tables.open(index_dir.root, manifest)
            return list(islice(_contradictions(tables, manifest), MAX_PROBLEMS))
    except AveyBError as error:
        return [str(error)]


def is_sound_apart(root: Path) -> bool:
    """Whether `problems_of` finds nothing, in a process of its own: Lance and FAISS trust what they
    read, and a file made to harm can end it.
    """
    command = [sys.executable, "-m", "tests.contents", str(root)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _contradictions(tables: Tables, manifest: Manifest) -> Iterator[str]:
    yield from _content_problems(tables, manifest)
    for kind in manifest.encoding.kinds:
        stored = StoredVectors(tables, kind, manifest.encoding.dim)
        for tier in manifest.tiers_of(kind):
            lost = _lost_share(FaissSearcher.open(tables.root, tier), stored)
            if lost > MAX_LOST_SHARE:
                yield (
                    f"{tables.root / tier.file}: a search does not find {lost:.0%} of the vectors"
                    " that are in it"
                )


def _content_problems(tables: Tables, manifest: Manifest) -> Iterator[str]:
    docs = ids_of(tables, "document")
    for start in range(0, len(docs), DOCUMENTS_AT_ONCE):
        try:
            yield from _document_problems(
                tables, docs[start : start + DOCUMENTS_AT_ONCE].tolist(), manifest
            )
        except AveyBError as error:
            yield str(error)
    for dataset in (tables.texts, tables.passages):
        yield from _search_problems(dataset)


def _document_problems(tables: Tables, docs: list[int], manifest: Manifest) -> Iterator[str]:
    forms = tables.forms
    numbers = np.array(docs, dtype=np.int64)
    columns = [
        "id",
        "title",
        "keywords",
        "metadata",
        "edits",
        "rank",
        "digest",
        "language",
        "characters",
        "words",
        "passages",
    ]
    about = {row["doc"]: row for row in tables.documents.take(numbers, columns).to_pylist()}
    texts = {
        row["doc"]: row for row in tables.texts.take(numbers, ["text", *{WORDS, forms}]).to_pylist()
    }
    found = tables.read_documents(docs, ["title", "metadata"])
    by_id = tables.find(row["id"] for row in about.values())
    if any(doc != by_id.get(row["id"], (0,))[0] for doc, row in about.items()):
        yield f"{tables.documents.path}: an id leads to another document, or to none"
    numbers = tables.passage_numbers(numbers)
    passages: dict[int, list[dict[str, Any]]] = {}
    for row in tables.passages.take(
        numbers, ["start", "stop", "heading", "text", WORDS]
    ).to_pylist():
        passages.setdefault(row["passage"] >> PASSAGE_BITS, []).append(row)
    for doc in docs:
        if doc not in about or doc not in texts:
            continue  # the counts have told that
        row, text, mine = about[doc], texts[doc], passages.get(doc, [])
        rules = rules_of(manifest.encoding, [row["language"] or MAIN])
        where = f"{tables.root}: document {row['id']!r}"
        origin = found[doc].origin
        pages = origin.pages if origin else None
        if content_digest(row["title"], text["text"], row["keywords"] or "") != row["digest"]:
            yield f"{where}: its text is not the one that was encoded"
        if not _metadata_fit(tables, row) or sample_rank(row["id"]) != row["rank"]:
            yield f"{where}: its metadata or its rank are damaged"
        whole = f"{titled_words(row['title'], row['keywords'])}\n{text['text']}"
        if text[WORDS] != rules.stored(whole) or (
            forms != WORDS and text[forms] != spaced(rules.split(whole)[2])
        ):
            yield f"{where}: its stored words are not those of its text"
        if pages and pages.starts[-1] > len(text["text"]):
            yield f"{where}: a page begins behind the end of its text"
        for problem in _passage_problems(mine, text["text"], row, rules.stored):
            yield f"{where}: {problem}"


def _passage_problems(
    mine: list[dict[str, Any]], text: str, row: dict[str, Any], stored: Callable[[str], str]
) -> Iterator[str]:
    spans = np.array([(each["start"], each["stop"]) for each in mine], dtype=np.int64).reshape(
        -1, 2
    )
    if len(mine) != row["passages"] or int((spans[:, 1] - spans[:, 0]).sum()) != row["characters"]:
        yield "its passages are not those that are counted"
    if len(spans) and not (
        spans.min() >= 0
        and spans.max() <= len(text)
        and (spans[:, 0] <= spans[:, 1]).all()
        and (np.diff(spans, axis=0) >= 0).all()
    ):
        yield "its passages are not spans of its text in order"
    if [each["text"] for each in mine] != texts_of_passages(text, spans):
        yield "the text of a passage is not its part of the document's"
    if any(
        each[WORDS] != stored(f"{each['heading']}\n{text[each['start'] : each['stop']]}")
        for each in mine
    ):
        yield "the stored words of a passage are not those of its text"


def _metadata_fit(tables: Tables, row: dict[str, Any]) -> bool:
    """Whether the metadata of a document are an object, with what was set in them."""
    try:
        return tables.edits_in(row).merged == json.loads(row["metadata"])
    except (ValueError, RecursionError, IndexFormatError):
        return False


def _search_problems(dataset: RowTable) -> Iterator[str]:
    """Words whose lists have other rows, counts or lengths than the stored words."""
    for column in dataset.words:
        rows = dataset.scan([dataset.key, column])
        counts = {
            number: Counter((words or "").split())
            for number, words in zip(*rows.to_pydict().values(), strict=True)
        }
        sampled = sorted({word for words in counts.values() for word in words})
        for word in sampled[:: max(1, len(sampled) // SAMPLED_WORDS)]:
            holding = sorted(
                (number, words[word], words.total())
                for number, words in counts.items()
                if word in words
            )
            (listed,) = dataset.postings([word], dataset.alive, column)
            if sorted(listed.tolist()) != holding:
                yield (
                    f"{dataset.path}: the list of {word!r} in {column} has {len(listed)} rows;"
                    f" {len(holding)} hold it, or hold it more or less often"
                )
                return


def _lost_share(file: FaissSearcher, stored: StoredVectors) -> float:
    """The share of a sample of different vectors that a file does not find when they are searched
    for.
    """
    numbers = stored.tables.numbers(file.tier.kind, file.tier.first, file.tier.stop)
    numbers, vectors = stored.live(numbers[:: max(1, len(numbers) // SAMPLED_VECTORS)])
    vectors, places = np.unique(vectors, axis=0, return_index=True)
    some = vectors.any(axis=1)  # a vector of zeros is near to nothing
    if not some.any():
        return 0.0
    _, found = file.candidates(vectors[some], file.candidates_for(NEIGHBOURS))
    return float((found != numbers[places[some], None]).all(axis=1).mean())


if __name__ == "__main__":
    sys.exit(bool(problems_of(sys.argv[1])))
