"""One object of an input, from whichever format, as a document or as the reason why it is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.input.documents import (
    BadRecord,
    FieldNames,
    Notice,
    Record,
    Rejected,
    SourceLocation,
    make_record,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Item = Record | Rejected | Notice


def read_row(row: Mapping[str, Any], location: SourceLocation, names: FieldNames) -> Record | Rejected:
    """Make a document of an object, or say why it is none."""
    try:
        return make_record(row, location, names)
    except BadRecord as error:
        return Rejected(location, str(error), shown(dict(row)))


def too_long(length: int, longest: int) -> str:
    """Say that a line is longer than what is read."""
    return f"{length:,} bytes, at most {longest:,} are read as one document (--max-line, max_line)"
