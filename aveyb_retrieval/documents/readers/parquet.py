"""Parquet by Arrow, some rows at a time: as many as a few mebibytes hold, by what the file says of its row groups."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.base import Unreadable, too_long
from aveyb_retrieval.documents.records import FieldNames, Record, SourceLocation, path_text, read_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 256

Row = dict[str, Any]
"""A document or the reason why a row is none, as JSON can hold it."""


def read_rows(path: Path, names: FieldNames, longest: int) -> Iterator[list[Row]]:
    """Read the rows of a Parquet file. Memory holds one batch of them, and of a repeated text one copy.

    Raises:
        Unreadable: it is not one.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        texts, source = _text_columns(path), path_text(path)
        with pyarrow.parquet.ParquetFile(path, read_dictionary=texts, memory_map=False) as table:
            number = 0
            for group in range(table.num_row_groups):
                size = _batch_size(table.metadata.row_group(group))
                for batch in table.iter_batches(batch_size=size, row_groups=[group]):
                    rows: list[Row] = []
                    held = 0
                    for row in _python_rows(batch):
                        number += 1
                        rows.append(_row(row, SourceLocation(source, number, "row"), names, longest))
                        held += len(rows[-1].get("text", ""))
                        if held > _BATCH_BYTES:  # a file may say less of its row groups than they hold
                            yield rows
                            rows, held = [], 0
                    yield rows
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: of a column's name
        if isinstance(error, pyarrow.ArrowMemoryError):
            raise MemoryError from None
        raise Unreadable(f"not readable as Parquet ({error})") from None


def _text_columns(path: Path) -> list[str]:
    """The columns of texts, which are read as dictionaries: a text that every row repeats is held once."""
    import pyarrow
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, memory_map=False) as table:
        kinds = (pyarrow.types.is_string, pyarrow.types.is_large_string)
        names = table.schema_arrow.names
        if len(set(names)) < len(names):
            ((name, count),) = Counter(names).most_common(1)
            raise Unreadable(f"has the column {name!r} {count} times; rename one of them")
        return [field.name for field in table.schema_arrow if any(is_text(field.type) for is_text in kinds)]


def _batch_size(group: Any) -> int:
    rows = max(1, group.num_rows)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(1, group.total_byte_size)))


def _row(row: Row | str, location: SourceLocation, names: FieldNames, longest: int) -> Row:
    if isinstance(row, str):
        return {"reason": row, "raw": "", "row": location.line}
    length = sum(len(value) for value in row.values() if isinstance(value, (str, bytes)))
    if length > longest:
        return {"reason": too_long(length, longest), "raw": "", "row": location.line}
    item = read_row(row, location, names)
    if isinstance(item, Record):
        return {
            "id": item.id,
            "title": item.title,
            "text": item.text,
            "metadata": item.metadata,
            "id_is_made": item.id_is_made,
            "row": location.line,
        }
    return {"reason": item.reason, "raw": item.raw, "row": location.line}


def _python_rows(batch: Any) -> Iterator[Row | str]:
    """The rows of a record batch, one by one; in place of one that Python has no values for, the reason."""
    for number in range(batch.num_rows):
        try:
            yield batch.slice(number, 1).to_pylist()[0]
        except (ValueError, OverflowError) as error:  # the year 300000
            yield f"the row holds a value that cannot be read: {error}"
