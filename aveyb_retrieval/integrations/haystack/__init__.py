"""Haystack: a document store that is an index, and a retriever component over it (extra `haystack`)."""

from aveyb_retrieval.integrations.haystack.document_store import AveyBDocumentStore
from aveyb_retrieval.integrations.haystack.retriever import AveyBRetriever

__all__ = ["AveyBDocumentStore", "AveyBRetriever"]
