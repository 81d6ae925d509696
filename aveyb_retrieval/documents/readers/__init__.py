"""Readers of files that hold one document each.

`formats.py` has the kinds with their suffixes and reads them in another process, `base.py` what all
readers share, the others one kind or a few each.
"""
