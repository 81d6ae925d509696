"""Readers of files that hold one document each, a file a format.

`kinds.py` has the kinds with their suffixes and readers, `process.py` reads in another process.
Readers share `filetext.py`, `limits.py`, `encodings.py`, `archives.py`, `xml.py` and `raised.py`.
"""
