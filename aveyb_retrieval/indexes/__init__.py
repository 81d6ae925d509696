"""Keep documents and their vectors on disk, and find them again.

`input/` reads corpora, `store/` is everything on disk, `nearest/` finds nearest vectors, `changes/` changes an index,
`search/` answers queries, `shards/` encodes on many machines, and `engines/` searches in PostgreSQL and Milvus.
"""
