"""Everything on disk: the index directory with its lock and manifests, a Lance table of documents,
Arrow files of texts, vectors, passages and word lists; and copies of all that in object stores.
"""
