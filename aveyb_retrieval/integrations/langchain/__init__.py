"""LangChain: a retriever over an index, a vector store that is an index, and our embeddings (extra `langchain`)."""

from aveyb_retrieval.integrations.langchain.embeddings import AveyBEmbeddings
from aveyb_retrieval.integrations.langchain.retriever import AveyBRetriever
from aveyb_retrieval.integrations.langchain.vector_store import AveyBVectorStore

__all__ = ["AveyBEmbeddings", "AveyBRetriever", "AveyBVectorStore"]
