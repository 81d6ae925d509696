"""Keep documents and their vectors on disk, and find them again.

`input/` reads corpora, `storage/` is everything on disk, `nearest/` finds nearest vectors, `write/` changes an
index, and `search/` answers queries.
"""
