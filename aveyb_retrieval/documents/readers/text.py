"""Plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    whole_words,
)

if TYPE_CHECKING:
    from aveyb_retrieval.documents.readers.file_limits import Limits


def read_text(data: bytes, limits: Limits) -> FileText:
    """Read a plain text."""
    return FileText("", whole_words(decode(data, limits.encoding)))
