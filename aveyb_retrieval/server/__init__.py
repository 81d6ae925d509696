"""Indexes and their model over HTTP: search, OpenAI's shape of embeddings, Cohere's of reranking,
and a page.
"""
