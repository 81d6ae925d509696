"""Keep documents and their vectors on disk, and find them again.

`store/` is everything on disk, `nearest/` finds nearest vectors, `changes/` changes an index, `search/` answers
queries, `shards.py` reads indexes as documents with vectors, and `engines/` searches in PostgreSQL and Milvus.
"""
