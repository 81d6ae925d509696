"""Limits of what is read from a file that may be hostile."""

from __future__ import annotations

MAX_FILE = 512 << 20  # bytes of a file
MAX_UNPACKED = 256 << 20  # bytes of what is packed in it
FILE_SECONDS = 120  # of processor time, for each
LONGEST_TITLE = 1000  # characters
