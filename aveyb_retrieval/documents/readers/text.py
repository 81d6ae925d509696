"""Plain text."""

from __future__ import annotations

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    whole_words,
)


def read_text(data: bytes, encoding: str | None) -> FileText:
    """Read a plain text."""
    return FileText("", whole_words(decode(data, encoding)))
