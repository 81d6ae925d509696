"""Limits of what is read from a file that may be hostile."""

from __future__ import annotations

from dataclasses import dataclass

from aveyb_retrieval.documents.records import MAX_LINE

MAX_FILE = 512 << 20  # bytes of a file
MAX_UNPACKED = 256 << 20  # bytes of what is packed in it
FILE_SECONDS = 120  # of processor time, for each
LONGEST_TITLE = 1000  # characters


@dataclass(frozen=True)
class Limits:
    """What may be read of a file, and how.

    Attributes:
        longest: Bytes that the text of a file may have in UTF-8.
        encoding: Of texts that are not UTF-8 and do not name their own; None: there are none.
        follow_links: Whether a file is read to which a link leads.
    """

    longest: int = MAX_LINE
    encoding: str | None = None
    follow_links: bool = True
