"""Readers of files that hold one document each, or of mailboxes, which hold several: a module for
each format.

`kinds.py` has the kinds with their suffixes and readers, `process.py` reads in another process.
Readers share `filetext.py`, `file_limits.py`, `encodings.py`, `archives.py`, `xml.py` and
`superscripts.py`.
"""
