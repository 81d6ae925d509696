"""Documents as rows of Milvus: what is too long for it is cut into pieces or named."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.engines.collection import pages_alone
from aveyb_retrieval.indexes.engines.milvus.filters import describe
from aveyb_retrieval.indexes.engines.milvus.schema import LONGEST, MOST_FACTS, PIECES
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, rank_of
from aveyb_retrieval.indexes.store.tables import StoredDocument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aveyb_retrieval.indexes.input.documents import Record
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import EncodedRow

Row = dict[str, Any]
LONGEST_BOUNDS = 65_536  # bytes of a JSON field
_PIECE = 16_000  # characters of up to four bytes each

logger = logging.getLogger(__name__)


def match_text(words: Iterable[str]) -> str:
    """Words as Milvus's analyzer leaves them: others than of ASCII, which it would cut, are written in hexadecimal."""
    return " ".join(word if word.isascii() else f"u{word.encode().hex()}" for word in words)


def make_rows(number: int, record: Record, row: EncodedRow, language: Language, where: str) -> tuple[Row, list[Row]]:
    """The row of a document and those of its passages.

    Raises:
        InputError: its id or metadata, or a heading, are longer than Milvus keeps.
    """
    facts, bounds = describe(record.metadata)
    _check(record, "id", record.id, LONGEST)
    _check(record, "metadata", json.dumps(bounds), LONGEST_BOUNDS)
    for heading in row.headings:
        _check(record, "heading", heading, LONGEST)
    pages = record.pages_json
    stored = json.dumps([record.title, record.text, record.metadata_json, pages], ensure_ascii=False)
    pieces = [stored[start : start + _PIECE] for start in range(0, len(stored), _PIECE)]
    if len(facts) > MOST_FACTS or len(pieces) > PIECES:
        raise InputError(
            f"{record.location}: document {record.id!r} has {len(facts):,} fields and values in {len(stored):,} "
            f"characters; Milvus keeps {MOST_FACTS:,} in {PIECES * _PIECE:,}"
        )
    about = {"facts": facts, "bounds": bounds}
    words = _fitting(match_text(language.stored(f"{record.title}\n{record.text}").split()), record, where)
    document = {
        "number": number, "id": record.id, "rank": rank_of(record.id), "stored": pieces, "words": words,
        "vector": row.vector, **about,
    }  # fmt: skip
    passages = []
    for i, ((start, stop), heading) in enumerate(zip(row.spans.tolist(), row.headings, strict=True)):
        words = match_text(language.stored(f"{heading}\n{record.text[start:stop]}").split())
        passages.append({
            "number": number << PASSAGE_BITS | i, "doc": number, "start": start, "stop": stop, "heading": heading,
            "words": _fitting(words, record, where), "vector": row.passages[i], **about,
        })  # fmt: skip
    return document, passages


def read_document(row: Mapping[str, Any]) -> StoredDocument:
    """A document from its row; without a text where that was not asked for."""
    number, name = int(row["number"]), str(row["id"])
    if "stored" not in row:
        return StoredDocument(number, name, "", "", {})
    title, text, metadata, pages = json.loads("".join(row["stored"]))
    return StoredDocument(number, name, title, text, json.loads(metadata), pages_alone(pages))


def _fitting(words: str, record: Record, where: str) -> str:
    if len(words) <= LONGEST:
        return words
    logger.warning(
        "%s: document %r has %d bytes of words, of which Milvus keeps %d: a search of documents by words finds it by "
        "its beginning only, one of passages by all of it",
        where, record.id, len(words), LONGEST,
    )  # fmt: skip
    return words[: words.rfind(" ", 0, LONGEST)]


def _check(record: Record, name: str, text: str, most: int) -> None:
    size = len(text.encode())
    if size > most:
        raise InputError(
            f"{record.location}: the {name} {text[:20]!r}... has {size:,} bytes; Milvus keeps up to {most:,}"
        )
