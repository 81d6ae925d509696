"""Keep documents and their vectors on disk, and find them again.

`store/` is everything on disk, `nearest/` finds nearest vectors, `changes/` changes an index,
`search/` answers queries, `vectors.py` reads vectors that were made elsewhere, and `engine.py` says
what a search needs of an engine.
"""
