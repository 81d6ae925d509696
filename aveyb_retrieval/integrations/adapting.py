"""What the adapters share: documents and hits in the same words, and another library's embeddings as a model."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aveyb_retrieval import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval import Hit


def row(document_id: str, text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Make a document for the index; the metadata field `title` is its title, too.

    Raises:
        InputError: `title` or `_id` of the metadata is not what a filter would find, which looks at the document's own.
    """
    title = metadata.get("title")
    if not (title is None or isinstance(title, str)):
        raise InputError(
            f"document {document_id!r}: the metadata field 'title' is of type {type(title).__name__}, and a document's "
            "title is a text; write it as one, or under another name"
        )
    if metadata.get("_id", document_id) != document_id:
        raise InputError(
            f"document {document_id!r}: the metadata field '_id' is {metadata['_id']!r}, and the id of the document is "
            "another; write it under another name"
        )
    return {"_id": document_id, "title": title or "", "text": text, "metadata": dict(metadata)}


def passage(hit: Hit) -> tuple[str, int, int]:
    """Return the text of a hit's passage, or of its document, and its characters `[start, end)`."""
    text = hit.text if hit.passage is None else hit.passage
    return text, *(hit.span or (0, len(text)))


def place(hit: Hit) -> dict[str, Any]:
    """Return the title of a hit's document, the heading over its best sentence and all of its passage, and its copies.

    Of a file with pages also the page:     `page` is counted from 1, `page_label` is what the document calls
    that page, such as "iv", `page_unit` what it is ("page", "slide"), and `pages` are the first and the last of the
    passage.
    """
    found: dict[str, Any] = {"title": hit.title, "heading": hit.heading, "headings": list(hit.headings)}
    found["duplicates"] = list(hit.duplicates)
    if hit.page is not None:
        found |= {"page": hit.page, "page_label": hit.page_label, "page_unit": hit.page_unit}
        found["pages"] = list(hit.pages or ())
    return found


def in_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make the asynchronous twin of a method: it runs in a thread."""

    @functools.wraps(method)
    async def run(*arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(method, *arguments, **options)

    return run


FloatArray = npt.NDArray[np.float32]
BATCH = 64  # texts that the other library is given at once


@dataclass(frozen=True)
class Vector:
    """A document's unit vector `[d]`. It has no passages, and how many tokens were read is not known."""

    vector: FloatArray
    n_tokens: int = 0
    n_cut: int = 0

    @property
    def passages(self) -> FloatArray:
        """None: `[0, d]`."""
        return np.empty((0, len(self.vector)), dtype=np.float32)

    @property
    def spans(self) -> npt.NDArray[np.int64]:
        """None: `[0, 2]`."""
        return np.empty((0, 2), dtype=np.int64)


class VectorsOnly:
    """What `build_index(model=...)` needs, from two functions; for an index with `granularity="document"`.

    The library does not say which weights made its vectors, so the index is bound to the name and the dimension.

    Args:
        source: The object of the other library; its class and its `model` or `model_name` name the model.
        embed_documents: Maps texts to one vector each.
        embed_query: Maps a query to its vector.
    """

    def __init__(
        self,
        source: object,
        embed_documents: Callable[[list[str]], Sequence[Sequence[float]]],
        embed_query: Callable[[str], Sequence[float]],
    ) -> None:
        self._embed_documents = embed_documents
        self._embed_query = embed_query
        self.dim = len(embed_query("how many dimensions?"))
        kind = type(source)
        own: Any = getattr(source, "model", None) or getattr(source, "model_name", None)
        self.model_name = f"{kind.__module__}.{kind.__qualname__}" + (f" {own}" if isinstance(own, str) else "")
        self.fingerprint = hashlib.sha256(f"{self.model_name} {self.dim}".encode()).hexdigest()

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[Vector]:
        """Encode (prefix, text) pairs, one result for each, in order."""
        texts = (prefix + text for prefix, text in documents)
        while batch := list(itertools.islice(texts, BATCH)):
            for vector in self._embed_documents(batch):
                yield Vector(_unit(vector))

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Encode queries into unit rows `[n, d]`."""
        rows = [_unit(self._embed_query(query)) for query in queries]
        return np.stack(rows) if rows else np.empty((0, self.dim), dtype=np.float32)

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[FloatArray]:
        """Raise ConfigError: there are no vectors of tokens."""
        raise ConfigError(f"{self.model_name} has no vectors of tokens; search without rerank='maxsim'")


def _unit(vector: Sequence[float]) -> FloatArray:
    row = np.asarray(vector, dtype=np.float32)
    length = float(np.linalg.norm(row))
    return row / length if length else row
