"""Limits of what is read from a file that may be hostile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aveyb_retrieval.documents.records import MAX_LINE_BYTES

MAX_FILE_BYTES = 512 << 20  # bytes of a file
MAX_UNPACKED_BYTES = 256 << 20  # bytes of what is packed in it
FILE_SECONDS = 120  # of processor time, for each
OCR_SECONDS = 60  # of the clock, for each page
MAX_TITLE_CHARACTERS = 1000  # characters

Watch = Callable[[int, int], None]
"""Called with how many pictures of a file are read, and of how many."""


def unwatched(_done: int, _total: int) -> None:
    """Watch nothing."""


@dataclass(frozen=True)
class Limits:
    """What may be read of a file, and how.

    Attributes:
        longest: Bytes that the text of a file may have in UTF-8.
        encoding: Of texts that are not UTF-8 and do not name their own; None: there are none.
        follow_links: Whether a file is read to which a link leads.
        ocr_seconds: Seconds that reading the words of one picture may take.
        ocr_languages: Languages of pictures as Tesseract names them, "deu+eng"; None: all that
            are installed.
        watch: Called as pictures are read.
    """

    longest: int = MAX_LINE_BYTES
    encoding: str | None = None
    follow_links: bool = True
    ocr_seconds: int = OCR_SECONDS
    ocr_languages: str | None = None
    watch: Watch = field(default=unwatched, repr=False, compare=False)

    def values(self) -> list[Any]:
        """Return what makes the same limits in another process, as JSON can hold it."""
        return [
            self.longest,
            self.encoding,
            self.follow_links,
            self.ocr_seconds,
            self.ocr_languages,
        ]
