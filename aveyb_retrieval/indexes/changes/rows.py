"""Encoded documents as rows of the three datasets."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from aveyb_retrieval.indexes.store.dataset import WORDS
from aveyb_retrieval.indexes.store.manifest import Counts
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, rank_of
from aveyb_retrieval.indexes.store.tables import CODES, COUNTS, VECTOR, fixed_lists, schemas
from aveyb_retrieval.indexes.store.words import joined, language

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.encoder.network.token_codec import TokenCodes
    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.input.documents import FileOrigin, Record
    from aveyb_retrieval.indexes.types import Encoded

Made = tuple["Record", "Encoded", "TokenCodes | None"]
"""A document, its vectors, and the codes of its tokens where these are kept."""


def content_digest(title: str, text: str) -> bytes:
    """Identify what was encoded, so that an unchanged document is never encoded again."""
    return hashlib.sha256(f"{len(title)}:{title}{text}".encode()).digest()


def origin_columns(origin: FileOrigin | None) -> dict[str, str | None]:
    """What is stored of the file that a document was read from."""
    if origin is None:
        return {"file_sha256": None, "folder": None, "pages": None}
    return {"file_sha256": origin.sha256, "folder": origin.folder, "pages": origin.pages_json}


def make_rows(made: Sequence[Made], first_doc: int, encoding: Encoding) -> tuple[dict[str, pa.Table], Counts]:
    """Return the rows of documents numbered from `first_doc`, by dataset, and what they add to the counts."""
    documents: list[dict[str, Any]] = []
    texts: dict[str, list[Any]] = {"doc": [], "text": [], WORDS: []}
    passages: dict[str, list[Any]] = {name: [] for name in ("passage", "start", "stop", "heading", "norm", WORDS)}
    codes: list[bytes] = []
    rules = language(encoding.language)
    with_passages = "passage" in encoding.kinds
    for doc, (record, encoded, tokens) in enumerate(made, start=first_doc):
        spans = encoded.spans if with_passages else encoded.spans[:0]
        headings = (getattr(encoded, "headings", None) or [""] * len(spans))[: len(spans)]  # not every model finds them
        norms = getattr(encoded, "norms", None)  # not every model tells
        of_text, of_spans = rules.stored_in_parts(record.text, spans.tolist())
        words = [joined([rules.stored(head), each]) for head, each in zip(headings, of_spans, strict=True)]
        documents.append(
            {
                "doc": doc,
                "id": record.id,
                "title": record.title,
                "metadata": record.metadata_json,
                "rank": rank_of(record.id),
                "digest": content_digest(record.title, record.text),
                "passages": len(spans),
                "tokens": encoded.n_tokens,
                "cut_tokens": encoded.n_cut,
                "characters": int((spans[:, 1] - spans[:, 0]).sum()),
                "words": sum(max(0, text.count(" ") - 1) for text in words),
                **origin_columns(record.origin),
            }
        )
        texts["doc"].append(doc)
        texts["text"].append(record.text)
        texts[WORDS].append(joined([rules.stored(record.title), of_text]))
        passages["passage"] += range(doc << PASSAGE_BITS, (doc << PASSAGE_BITS) + len(spans))
        passages["start"] += spans[:, 0].tolist()
        passages["stop"] += spans[:, 1].tolist()
        passages["heading"] += headings
        passages["norm"] += [None] * len(spans) if norms is None else norms[: len(spans)].tolist()
        passages[WORDS] += words
        if tokens is not None:
            if encoding.tokens_of == "document":
                codes.append(tokens.codes.tobytes())
            else:
                codes += [tokens.codes[start:stop].tobytes() for start, stop in tokens.ranges.tolist()]
    columns: dict[str, dict[str, Any]] = {"texts": texts, "passages": passages}
    if encoding.token_codec is not None:
        columns["texts" if encoding.tokens_of == "document" else "passages"][CODES] = codes
    shaped = schemas(encoding)
    if made and "document" in encoding.kinds:
        texts[VECTOR] = fixed_lists(np.stack([e.vector for _, e, _ in made]), shaped["texts"].field(VECTOR).type)
    if made and with_passages:
        vectors = np.concatenate([e.passages for _, e, _ in made])
        passages[VECTOR] = fixed_lists(vectors, shaped["passages"].field(VECTOR).type)
    rows = {name: table_of(values, shaped[name]) for name, values in columns.items() if made}
    rows |= {name: shaped[name].empty_table() for name in columns if not made}
    rows["documents"] = table_of_rows(documents, shaped["documents"])
    totals = {name: sum(row[name] for row in documents) for name in COUNTS}
    cut = sum(row["cut_tokens"] > 0 for row in documents)
    return rows, Counts(documents=len(documents), cut_documents=cut, **totals)


def table_of(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """A table of columns in any order."""
    arrays = [
        columns[field.name] if isinstance(columns[field.name], pa.Array) else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def table_of_rows(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """A table of rows."""
    return table_of({name: [row[name] for row in rows] for name in schema.names}, schema)
