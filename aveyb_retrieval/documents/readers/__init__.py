"""Readers of files that hold one document each.

`formats.py` has the kinds with their suffixes, `base.py` what a reader returns, the others one kind or a few each;
`process.py` runs them in another process.
"""
