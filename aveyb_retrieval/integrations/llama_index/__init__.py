"""LlamaIndex: a retriever over an index, a vector store that is an index, and our embedding (extra `llama-index`)."""

from aveyb_retrieval.integrations.llama_index.embedding import AveyBEmbedding
from aveyb_retrieval.integrations.llama_index.retriever import AveyBRetriever
from aveyb_retrieval.integrations.llama_index.vector_store import AveyBVectorStore

__all__ = ["AveyBEmbedding", "AveyBRetriever", "AveyBVectorStore"]
