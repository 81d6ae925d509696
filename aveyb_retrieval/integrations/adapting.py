"""Shared by the adapters: documents and hits as other libraries have them, and embeddings of
another library as a model.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval import ConfigError, InputError
from aveyb_retrieval.indexes.types import EncodedRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval import Hit
    from aveyb_retrieval.indexes.types import FloatArray


def row(document_id: str, text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Make a document for the index; its title is the metadata field `title`.

    Raises InputError if `title` of the metadata is no text, or if `_id` of the metadata is not the
    id: a filter finds the document's own.
    """
    title = metadata.get("title")
    if not (title is None or isinstance(title, str)):
        raise InputError(
            f"document {document_id!r}: the metadata field 'title' is of type"
            f" {type(title).__name__}, and a document's title is a text; write it as one, or under"
            " another name"
        )
    if metadata.get("_id", document_id) != document_id:
        raise InputError(
            f"document {document_id!r}: the metadata field '_id' is {metadata['_id']!r}, and the id"
            " of the document is another; write it under another name"
        )
    return {"_id": document_id, "title": title or "", "text": text, "metadata": dict(metadata)}


def passage(hit: Hit) -> tuple[str, int, int]:
    """Return the text of a hit's passage, or of its document, and its characters `[start, end)`."""
    text = hit.text if hit.passage is None else hit.passage
    return text, *(hit.span or (0, len(text)))


OURS = "aveyb"  # the one metadata field in which hits say where they are from


def with_place(
    hit: Hit, metadata: Mapping[str, Any], span: tuple[int, int], **more: Any
) -> dict[str, Any]:
    """Return a document's metadata with everything of ours in the one field `aveyb`.

    The field holds the title, headings, copies and score of the hit as `Hit` has them, the
    characters `span` `[start, end)` of what is given, the pages of a file that has some, and
    `more`. `title` is a field of its own if the metadata have none.

    Raises InputError if the document has a metadata field `aveyb`.
    """
    if OURS in metadata:
        raise InputError(
            f"document {hit.id!r}: its metadata field {OURS!r} is where hits say where they are"
            " from; write it under another name"
        )
    ours: dict[str, Any] = {
        "title": hit.title,
        "heading": hit.heading,
        "headings": list(hit.headings),
        "duplicates": list(hit.duplicates),
        "earlier": list(hit.earlier),
        "span": list(span),
        "score": hit.score,
        "confidence": hit.confidence,
        **more,
    }
    if hit.page is not None:
        ours |= {"page": hit.page, "page_label": hit.page_label, "page_unit": hit.page_unit}
        ours["pages"] = list(hit.pages or ())
    return {"title": hit.title, **metadata, OURS: ours}


def in_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make the asynchronous twin of a method: it runs in a thread."""

    @functools.wraps(method)
    async def run(*arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(method, *arguments, **options)

    return run


MAX_BATCH_TEXTS = 64  # that the other library is given at once


class VectorsOnly:
    """A model for `build_index` made of two functions of another library; it is for an index with
    `granularity="document"`.

    Nothing says which weights made the vectors, so the index is bound to the dimension and to a
    name: the class of the library's object `source`, with its `model` or `model_name`.
    """

    def __init__(
        self,
        source: object,
        embed_documents: Callable[[list[str]], Sequence[Sequence[float]]],
        embed_query: Callable[[str], Sequence[float]],
    ) -> None:
        self._embed_documents, self._embed_query = embed_documents, embed_query
        self.dim = len(embed_query("how many dimensions?"))
        kind = type(source)
        self.model_name = f"{kind.__module__}.{kind.__qualname__}"
        own_name: Any = getattr(source, "model", None) or getattr(source, "model_name", None)
        if isinstance(own_name, str):
            self.model_name += f" {own_name}"
        self.fingerprint = hashlib.sha256(f"{self.model_name} {self.dim}".encode()).hexdigest()

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedRow]:
        """Encode (prefix, text) pairs in order, each into a unit vector `[d]` without passages."""
        texts = (prefix + text for prefix, text in documents)
        while batch := list(itertools.islice(texts, MAX_BATCH_TEXTS)):
            for vector in self._embed_documents(batch):
                yield EncodedRow(
                    _unit(vector), np.empty((0, self.dim), np.float32), np.empty((0, 2), np.int64)
                )

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Encode queries into unit rows `[n, d]`."""
        rows = [_unit(self._embed_query(query)) for query in queries]
        return np.stack(rows) if rows else np.empty((0, self.dim), dtype=np.float32)

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[FloatArray]:
        """Raise ConfigError: there are no vectors of tokens."""
        raise ConfigError(
            f"{self.model_name} has no vectors of tokens; search without rerank='maxsim'"
        )


def _unit(vector: Sequence[float]) -> FloatArray:
    row = np.asarray(vector, dtype=np.float32)
    length = float(np.linalg.norm(row))
    return row / length if length else row
