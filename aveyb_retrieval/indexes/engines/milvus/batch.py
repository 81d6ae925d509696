"""Documents as rows: what a writer sends to Milvus, and the words that it collects meanwhile."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.engines.milvus.postings import SegmentBuilder
from aveyb_retrieval.indexes.engines.milvus.rows import (
    DOCUMENT,
    DOCUMENT_WORDS,
    MOST_BYTES,
    PASSAGE,
    PASSAGE_WORDS,
    PIECE,
    PIECE_BYTES,
    Row,
    Table,
    counted,
    id_key,
    pieces,
)
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, expand_passages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.indexes.engines.words import TermCounter
    from aveyb_retrieval.indexes.input.documents import Record
    from aveyb_retrieval.indexes.shards.parts import EncodedRow


@dataclass(frozen=True)
class Counts:
    """The share of some documents in the statistics of a collection."""

    documents: int = 0
    passages: int = 0
    document_terms: int = 0
    passage_terms: int = 0
    passage_characters: int = 0

    def __add__(self, other: Counts) -> Counts:
        mine, theirs = vars(self), vars(other)
        return Counts(**{name: mine[name] + theirs[name] for name in mine})

    def negative(self) -> Counts:
        """The change of the statistics where these documents are removed."""
        return Counts(**{name: -value for name, value in vars(self).items()})

    @classmethod
    def of(cls, row: Row) -> Counts:
        """The share of a stored document, from the columns `n` and `counts` of its row."""
        return cls(1, row["n"], *json.loads(row["counts"]))


class Words:
    """Collects the words of documents until they are written."""

    def __init__(self, terms: TermCounter) -> None:
        self._terms = terms
        self.forget()

    def forget(self) -> None:
        """Drop what was collected."""
        self._documents, self._passages = SegmentBuilder(), SegmentBuilder()

    @property
    def postings(self) -> int:
        """How much is held in memory."""
        return self._documents.postings + self._passages.postings

    def add(self, numbers: Sequence[int], documents: Sequence[tuple[str, list[str]]]) -> list[tuple[int, int]]:
        """Add the texts of documents and of their passages; returns how many terms both have, for each."""
        texts = [text for document, passages in documents for text in (document, *passages)]
        counted_texts = iter(self._terms.count(texts))
        lengths = []
        for number, (_, passages) in zip(numbers, documents, strict=True):
            terms = next(counted_texts)
            self._documents.add(number, terms)
            of_passages = 0
            for i in range(len(passages)):
                held = next(counted_texts)
                self._passages.add(number << PASSAGE_BITS | i, held)
                of_passages += sum(held.values())
            lengths.append((sum(terms.values()), of_passages))
        return lengths

    def blocks(self) -> Iterator[tuple[int, int, str]]:
        """Give what was collected, as kind, key and block, and forget it."""
        builders = ((DOCUMENT_WORDS, self._documents), (PASSAGE_WORDS, self._passages))
        self.forget()
        for kind, builder in builders:
            for key, block in builder.blocks():
                yield kind, key, block


def document_rows(
    table: Table, words: Words, first: int, born: int, documents: Sequence[tuple[Record, EncodedRow]]
) -> tuple[dict[int, list[Row]], Counts]:
    """The rows of documents, numbered from `first`, by kind, and what they count. Their words are collected."""
    numbers = range(first, first + len(documents))
    lengths = words.add(numbers, [_texts(record.title, record.text, row) for record, row in documents])
    made: dict[int, list[Row]] = {PIECE: [], PASSAGE: [], DOCUMENT: []}
    total = Counts()
    for number, (record, row), (terms, passage_terms) in zip(numbers, documents, lengths, strict=True):
        characters = int((row.spans[:, 1] - row.spans[:, 0]).sum())
        total += Counts(1, len(row.passages), terms, passage_terms, characters)
        fields = record.metadata_json
        is_long = len(fields.encode()) > PIECE_BYTES
        pages = record.origin.pages.to_json() if record.origin and record.origin.pages else None
        body = {"title": record.title, "text": record.text, "pages": pages, "metadata": fields if is_long else ""}
        spans = json.dumps(row.spans.tolist(), separators=(",", ":"))
        used = _place(made, table, DOCUMENT, number, number, born, 0, row.vector, body,
                      key=id_key(record.id), n=len(row.passages), name=record.id, fields="" if is_long else fields,
                      spans="" if len(spans) > MOST_BYTES else spans,
                      counts=json.dumps([terms, passage_terms, characters]))  # fmt: skip
        for i, ((start, stop), heading) in enumerate(zip(row.spans.tolist(), row.headings, strict=True)):
            used = _place(made, table, PASSAGE, number << PASSAGE_BITS | i, number, born, used, row.passages[i],
                          [start, stop, heading])  # fmt: skip
    return made, total


def _place(
    made: dict[int, list[Row]],
    table: Table,
    kind: int,
    number: int,
    doc: int,
    born: int,
    used: int,
    vector: np.ndarray,
    body: Any,
    **columns: Any,
) -> int:
    """Add a row and the pieces that continue it, of which the document has `used` before; returns how many then."""
    head, *rest = pieces(json.dumps(body, ensure_ascii=False))
    row = table.row(number, kind, born, doc=doc, first=used, pieces=len(rest), body=head, vector=vector, **columns)
    made[kind].append(row)
    for count, piece in enumerate(rest, start=used):
        made[PIECE].append(table.row(counted(doc, count), PIECE, born, doc=doc, body=piece))
    return used + len(rest)


def read_words(table: Table, words: Words, numbers: Sequence[int]) -> Counts:
    """Collect the words of stored documents again; returns what they count."""
    documents = dict(table.read(DOCUMENT, numbers, ["doc", "n", "first", "pieces", "body", "counts"]))
    ordered = [documents[number] for number in numbers]
    bodies = table.bodies(ordered)
    shape = np.array([(number, row["n"]) for number, row in documents.items()], dtype=np.int64).reshape(-1, 2)
    passages = dict(table.read(PASSAGE, expand_passages(shape).tolist(), ["doc", "first", "pieces", "body"]))
    places = sorted(passages)
    spans = dict(zip(places, table.bodies([passages[place] for place in places]), strict=True))
    texts = []
    for number, row, body in zip(numbers, ordered, bodies, strict=True):
        mine = [spans[number << PASSAGE_BITS | i] for i in range(row["n"])]
        text = body["text"]
        texts.append((f"{body['title']}\n{text}", [f"{heading}\n{text[start:stop]}" for start, stop, heading in mine]))
    words.add(numbers, texts)
    total = Counts()
    for row in ordered:
        total += Counts.of(row)
    return total


def check_id(record: Record, where: str) -> None:
    """Check that Milvus can hold the id of a document.

    Raises:
        InputError: it is too long.
    """
    size = len(record.id.encode())
    if size > MOST_BYTES:
        raise InputError(
            f"{record.location}: the id {record.id[:40]!r}... has {size:,} bytes; Milvus keeps up to {MOST_BYTES:,}. "
            f"Shorten it before publishing to {where}"
        )


def _texts(title: str, text: str, row: EncodedRow) -> tuple[str, list[str]]:
    """The texts that words are looked for in: the whole document, and each passage."""
    spans = zip(row.headings, row.spans.tolist(), strict=True)
    return f"{title}\n{text}", [f"{heading}\n{text[start:stop]}" for heading, (start, stop) in spans]
