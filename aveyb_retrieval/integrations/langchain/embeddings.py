"""Our model as LangChain embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings

from aveyb_retrieval import Embedder

if TYPE_CHECKING:
    from pathlib import Path


class AveyBEmbeddings(Embeddings):
    """Our model as LangChain embeddings. Texts of any length are read whole; vectors have unit length.

    Args:
        model: A folder or name, or a loaded `Embedder`; None is the embedded default.
        **options: Of `Embedder.load`, such as `device` and `precision`.
    """

    def __init__(self, model: str | Path | Embedder | None = None, **options: Any) -> None:
        self.embedder = model if isinstance(model, Embedder) else Embedder.load(model, **options)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Encode documents, `[n, d]`."""
        return [encoded.vector.tolist() for encoded in self.embedder.encode_documents(("", text) for text in texts)]

    def embed_query(self, text: str) -> list[float]:
        """Encode a query, `[d]`."""
        vector: list[float] = self.embedder.encode_queries([text])[0].tolist()
        return vector
