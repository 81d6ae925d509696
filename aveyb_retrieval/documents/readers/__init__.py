"""Readers of files that hold one document each.

`formats.py` has the kinds with their suffixes, `base.py` what a reader returns, the others one kind or a few each;
`process.py` and `worker.py` run them in another process.
"""
