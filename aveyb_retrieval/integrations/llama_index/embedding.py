"""Our model as a LlamaIndex embedding."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from aveyb_retrieval import Embedder

if TYPE_CHECKING:
    from pathlib import Path


class AveyBEmbedding(BaseEmbedding):
    """Encodes queries and documents with the model's own prompts, which the stock `HuggingFaceEmbedding` drops.

    Texts of any length are read whole; vectors have unit length.

    Args:
        model: A folder or name, or a loaded `Embedder`; None is the embedded default.
        embed_batch_size: How many texts LlamaIndex hands over at once.
        **options: Of `Embedder.load`, such as `device` and `precision`.
    """

    _embedder: Embedder = PrivateAttr()

    def __init__(
        self, model: str | Path | Embedder | None = None, *, embed_batch_size: int = 64, **options: Any
    ) -> None:
        embedder = model if isinstance(model, Embedder) else Embedder.load(model, **options)
        super().__init__(model_name=embedder.model_name, embed_batch_size=embed_batch_size)
        self._embedder = embedder

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex stores."""
        return "AveyBEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._embedder.encode_queries([query])[0].tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [encoded.vector.tolist() for encoded in self._embedder.encode_documents(("", text) for text in texts)]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
