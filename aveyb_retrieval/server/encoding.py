"""Texts into vectors for clients of OpenAI's and TEI's servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.server.batching import MAX_BATCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.types import FloatArray
    from aveyb_retrieval.server.batching import BatchedModel
    from aveyb_retrieval.server.work import Deadline

QUERY, DOCUMENT = "query", "document"


@dataclass(frozen=True)
class Embeddings:
    """Vectors `[n, d]`, float32 unit rows, and how many tokens were read for them."""

    vectors: FloatArray
    n_tokens: int


def encode(model: BatchedModel, texts: Sequence[str], prompt: str, deadline: Deadline) -> Embeddings:
    """Encode texts of any length as queries or as documents.

    Raises:
        Refusal: it takes too long; found out between documents and between batches of queries.
    """
    if prompt == QUERY:
        rows = []
        for start in range(0, len(texts), MAX_BATCH):
            deadline.check()
            rows.append(model.encode_queries(texts[start : start + MAX_BATCH]))
        return Embeddings(np.concatenate(rows), sum(model.count_tokens(texts, prompt=QUERY)))
    vectors, n_tokens = [], 0
    for encoded in model.encode_documents(("", text) for text in texts):
        deadline.check()
        vectors.append(encoded.vector)
        n_tokens += encoded.n_tokens
    return Embeddings(np.stack(vectors), n_tokens)


def check_dimensions(dimensions: Any, dim: int) -> None:
    """Raise ConfigError where vectors of another length are asked for than the model makes."""
    if dimensions is not None and (isinstance(dimensions, bool) or dimensions != dim):
        raise ConfigError(f"dimensions={dimensions!r}: this model's vectors have {dim} and cannot be shortened")
