"""Late interaction (ColBERT, Khattab and Zaharia 2020) with token vectors of the same encoder, made on the fly."""

from __future__ import annotations

from collections.abc import Sequence

from aveyb_retrieval.index.types import EmbedderLike


def score(embedder: EmbedderLike, query: str, texts: Sequence[str]) -> list[float]:
    """Score texts against a query: for each query token the highest cosine with any token of the text, averaged.

    A text without tokens scores 0.
    """
    if not texts:
        return []
    (wanted,) = embedder.token_vectors([query], prompt="query")
    found = embedder.token_vectors(texts, prompt="document")
    return [float((wanted @ tokens.T).max(axis=1).mean()) if len(wanted) and len(tokens) else 0.0 for tokens in found]
