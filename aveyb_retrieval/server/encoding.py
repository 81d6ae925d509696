"""Texts into vectors and scores, a part at a time, each with a turn of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.rerank import maxsim
from aveyb_retrieval.server.batching import MAX_BATCH
from aveyb_retrieval.server.fields import check_length

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.indexes.types import FloatArray
    from aveyb_retrieval.server.context import Context
    from aveyb_retrieval.server.ticket import Ticket

QUERY, DOCUMENT = "query", "document"
PART = 65_536  # characters that are encoded before others have their turn
_RERANKED = 32  # texts whose token vectors are in memory at once

Write = Callable[["FloatArray"], bytes]


async def encode(server: Context, texts: Sequence[str], prompt: str, ticket: Ticket, write: Write) -> tuple[bytes, int]:
    """Encode texts as queries or as documents; return what is written of them, with commas between, and tokens read.

    Args:
        server: The server.
        texts: What to encode.
        prompt: "query" or "document".
        ticket: Whose turns these are.
        write: Writes JSON of float32 unit rows `[n, d]`; it gets those of all texts, part after part.

    Raises:
        Refusal: as `Work.run`; 413 where a query is too long or the answer too large.
    """
    model = server.indexes.needed_model()

    def work(part: list[str]) -> tuple[bytes, int]:
        if prompt == QUERY:
            return write(model.encode_queries(part)), sum(model.model.count_tokens(part, prompt=QUERY))
        encoded = list(model.encode_documents(("", text) for text in part))
        return write(np.stack([each.vector for each in encoded])), sum(each.n_tokens for each in encoded)

    if prompt == QUERY:
        for number, text in enumerate(texts, start=1):
            check_length(f"query {number} of {len(texts)}", text, server.limits.max_query)
    written: list[bytes] = []
    n_tokens = 0
    async for found, read in server.encoding.each(work, parts(texts, MAX_BATCH), ticket):
        ticket.answer(len(found) + 1)
        written.append(found)
        n_tokens += read
    return b",".join(written), n_tokens


async def score(server: Context, query: str, texts: Sequence[str], ticket: Ticket) -> list[float]:
    """Score texts by late interaction: the mean over the query's tokens of the best cosine with a text's token.

    Raises:
        Refusal: as `Work.run`.
    """
    model = server.indexes.needed_model()
    scores: list[float] = []
    found: list[float]
    async for found in server.encoding.each(
        lambda part: maxsim(model, "cpu", query, part), parts(texts, _RERANKED), ticket
    ):
        scores += found
    return scores


def parts(texts: Sequence[str], most: int, characters: int = PART) -> Iterator[list[str]]:
    """Cut a list of texts into lists of at most `most` texts and, but for a single longer one, so many characters."""
    part: list[str] = []
    size = 0
    for text in texts:
        if part and (len(part) == most or size + len(text) > characters):
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


def check_dimensions(dimensions: Any, dim: int) -> None:
    """Raise ConfigError where vectors of another length are asked for than the model makes."""
    if dimensions is not None and (isinstance(dimensions, bool) or dimensions != dim):
        raise ConfigError(f"dimensions={dimensions!r}: this model's vectors have {dim} and cannot be shortened")
