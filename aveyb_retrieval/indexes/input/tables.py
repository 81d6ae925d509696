"""Tables: CSV and TSV files, whose columns get types."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.input.documents import FieldNames, Item, Rejected, SourceLocation, read_row, shown
from aveyb_retrieval.indexes.input.json_lines import LongLine, split_lines
from aveyb_retrieval.indexes.input.readers.base import too_long
from aveyb_retrieval.indexes.input.reading import ColumnType, Reading, convert, fits

SEPARATORS = (",", ";", "\t", "|")

OpenBlocks = Callable[[], Iterator[bytes]]
"""Opens a table from its start, as UTF-8."""


def read_table(open_blocks: OpenBlocks, source: str, reading: Reading, *, tabs: bool) -> Iterator[Item]:
    """Read a CSV or TSV file twice: for the types of its columns, then for its documents.

    The separator is the one by which the header has a column of that name for the text: a tab in a TSV file, else a
    comma, a semicolon, a tab or a bar.

    Raises:
        InputError: the header lacks a column, or the file is not a table.
    """
    separator = "\t" if tabs else _separator(open_blocks, reading)
    types = _types(open_blocks, source, separator, reading)
    header: list[str] | None = None
    for location, row in _rows(open_blocks(), source, separator, reading.max_line):
        if header is None:
            header = row
        elif not row:
            continue  # a blank line
        elif len(row) != len(header):
            reason = f"{len(row)} fields where the header names {len(header)}"
            yield Rejected(location, reason, shown(separator.join(row)))
        else:
            yield _document(dict(zip(header, row, strict=True)), types, location, reading.names)


def _document(row: dict[str, Any], types: Mapping[str, str], location: SourceLocation, names: FieldNames) -> Item:
    try:
        typed = row | {column: convert(row[column], kind) for column, kind in types.items()}
    except ValueError as error:
        column = next(name for name, kind in types.items() if not fits(row[name], kind))
        return Rejected(location, f"column {column!r}: {error} (--types, types)", shown(row))
    return read_row(typed, location, names)


def _separator(open_blocks: OpenBlocks, reading: Reading) -> str:
    first = next(split_lines(open_blocks(), reading.max_line), b"")
    line = "" if isinstance(first, LongLine) else first.decode("utf-8", "replace").rstrip("\r\n")
    for separator in SEPARATORS:
        try:
            header = next(csv.reader([line], delimiter=separator), [])
        except csv.Error:  # reading the rows says what is wrong, and in which line
            continue
        if reading.names.text in header:
            return separator
    return max(SEPARATORS, key=line.count)  # the message shows the columns as they would be


def _types(open_blocks: OpenBlocks, source: str, separator: str, reading: Reading) -> dict[str, str]:
    """The types of all columns that are metadata and no strings: those that are given, and those of their values."""
    rows = _rows(open_blocks(), source, separator, reading.max_line)
    location, header = next(rows, (SourceLocation(source, 1), []))
    _check_header(header, location, reading)
    id_field = reading.names.id or ("_id" if "_id" in header else "id")
    inferred = {
        number: ColumnType()
        for number, column in enumerate(header)
        if column not in (id_field, reading.names.title, reading.names.text, *reading.types)
    }
    for _, row in rows:
        if len(row) == len(header):
            for number, column_type in inferred.items():
                column_type.see(row[number])
    types = {header[number]: column_type.name for number, column_type in inferred.items()} | dict(reading.types)
    return {column: kind for column, kind in types.items() if kind != "string"}


def _check_header(header: list[str], location: SourceLocation, reading: Reading) -> None:
    names = reading.names
    given = [
        names.text,
        *([names.id] if names.id else []),
        *([names.title] if names.title != FieldNames().title else []),
    ]
    if missing := [name for name in given if name not in header]:
        raise InputError(
            f"{location}: the header names {header}; a column {missing[0]!r} is needed "
            "(--text-field, --id-field and --title-field choose others)"
        )
    if unknown := [name for name in reading.types if name not in header]:
        raise InputError(f"{location}: the header names {header}; --types names a column {unknown[0]!r}")


def _rows(
    blocks: Iterable[bytes], source: str, separator: str, longest: int
) -> Iterator[tuple[SourceLocation, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # rows are bounded below, whatever their fields
    lines = _RowLines(blocks, source, longest)
    rows = csv.reader(lines, delimiter=separator, strict=True)
    try:
        for row in rows:
            lines.held = 0
            yield SourceLocation(source, rows.line_num), row
    except csv.Error as error:
        raise InputError(f"{source}, line {rows.line_num}: {error}; quote fields as in RFC 4180") from error


class _RowLines:
    """The lines of a table as text. A quoted field may span lines, so one bad line spoils the row: the file is refused.

    `held` counts the bytes of the row so far; the reader of rows sets it to 0 after each row.
    """

    def __init__(self, blocks: Iterable[bytes], source: str, longest: int) -> None:
        self.held = 0
        self._lines = enumerate(split_lines(blocks, longest), start=1)
        self._source = source
        self._longest = longest

    def __iter__(self) -> _RowLines:
        return self

    def __next__(self) -> str:
        number, line = next(self._lines)
        self.held += line.length if isinstance(line, LongLine) else len(line)
        if isinstance(line, LongLine) or self.held > self._longest + 1:
            raise InputError(f"{self._source}, line {number}: a row of {too_long(self.held, self._longest)}")
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self._source}, line {number}: invalid UTF-8 at byte {error.start}; name its encoding by --encoding, "
                "or save it as UTF-8"
            ) from error
