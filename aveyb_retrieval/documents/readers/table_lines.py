"""Tables as text: a row a line, cells joined by " | ", and in a long table the names of its columns
again and again.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Unreadable,
    check_characters,
    first_few,
    one_line,
    too_long,
)
from aveyb_retrieval.documents.records import (
    FieldNames,
    Record,
    Rejected,
    SourceLocation,
    path_text,
    read_row,
)
from aveyb_retrieval.errors import InputError, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.documents.readers.file_limits import Limits

# characters of rows between two lines with the names of the columns: less than a passage has
_REPEATED_AFTER_CHARACTERS = 600
_MAX_FIELD_CHARACTERS = (1 << 31) - 1  # the most that `csv` takes where a C long has 32 bits
_MAX_NAMES_CHARACTERS = 300  # characters of such a line; longer ones would be most of the text
# empty cells in front of a cell that are written; a far corner is not the end of a thousand bars
_MAX_GAP_CELLS = 20


def row_text(cells: Iterable[tuple[int, str]]) -> str:
    """Return a row as a line, of its cells by their columns; those behind the last one that has
    text are left out.
    """
    parts: list[str] = []
    last = -1
    for column, text in cells:
        if text:
            parts.append(
                " | " * min(column - max(last, 0), _MAX_GAP_CELLS) if column > last else " | "
            )
            parts.append(text)
            last = column
    return "".join(parts)


class SheetText:
    """The rows of one table as they are written. `limits` bound their characters."""

    def __init__(self, limits: Limits) -> None:
        self._lines: list[str] = []
        self._length = 0
        self._since = 0
        self._limits = limits
        self._names = ""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, line: str) -> None:
        """Add a row; the first of several cells has the names of the columns."""
        if not line:
            return
        if not self._names and " | " in line:
            self._names = line
        elif (
            self._since > _REPEATED_AFTER_CHARACTERS
            and self._names
            and len(self._names) <= _MAX_NAMES_CHARACTERS
        ):
            self._write("")
            self._write(self._names)
            self._since = 0
        self._write(line)

    def text(self) -> str:
        """Return the table."""
        return "\n".join(self._lines)

    def _write(self, line: str) -> None:
        self._lines.append(line)
        self._length += len(line) + 1
        self._since += len(line) + 1
        check_characters(self._length, self._limits)


class Merged:
    """Values of cells that are merged over some rows: they stand in each of these."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, str]] = {}

    def fill(
        self, number: int, cells: dict[int, str], ends: dict[int, int]
    ) -> list[tuple[int, str]]:
        """Return the cells of a row with those that reach into it; `ends`: the last rows of its
        own, by columns.
        """
        if self._held or ends:
            self._held |= {
                column: (last, cells[column]) for column, last in ends.items() if cells.get(column)
            }
            self._held = {column: held for column, held in self._held.items() if held[0] >= number}
            if any(cells.values()):
                for column, (_, text) in self._held.items():
                    cells[column] = cells.get(column) or text
        return sorted(cells.items())


def read_sheet(data: bytes, limits: Limits) -> FileText:
    """Read a file of one table, CSV or TSV, as a sheet."""
    return FileText("", _read_csv(decode(data, limits.encoding), limits))


def csv_rows(
    lines: Iterable[str], where: str, separator: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table by the numbers of their last lines; `where` begins the message of
    an InputError.
    """
    # rows are bounded by those who read them, whatever their fields; others' limit is not lowered
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD_CHARACTERS))
    rows = csv.reader(lines, delimiter=separator, strict=True)
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise InputError(
            f"{where}line {rows.line_num}: {error}; quote fields as in RFC 4180"
        ) from error


_SEPARATOR_SAMPLE, _SEPARATOR_LINES = 1 << 16, 20  # characters and lines that are looked at


def split_header(line: str) -> dict[str, list[str]]:
    """Return the fields of a table's first line by each separator that the table may have."""
    fields = {}
    for separator in (",", ";", "\t", "|"):
        try:
            fields[separator] = next(csv.reader([line], delimiter=separator), [])
        except csv.Error:  # reading the rows says what is wrong, and in which line
            fields[separator] = line.split(separator)
    return fields


def separator_of(text: str) -> str:
    """Return the separator of a table: the one by which most of its first rows have as many fields
    as its header, of several the one that makes most fields, then the one that prose has least.
    """
    sample = text[:_SEPARATOR_SAMPLE]
    lines = [line for line in sample.splitlines() if line.strip()][:_SEPARATOR_LINES]
    if len(sample) < len(text) and len(lines) < _SEPARATOR_LINES:
        lines = lines[:-1] or lines  # the last one may be cut
    headers = split_header(lines[0] if lines else "")

    def agreement(separator: str) -> tuple[float, int, int]:
        width, in_prose = len(headers[separator]), ",|;\t".index(separator)
        if width < 2:
            return 0.0, width, -in_prose
        rows = [len(split_header(line)[separator]) == width for line in lines[1:]]
        return sum(rows) / len(rows) if rows else 1.0, width, in_prose

    return max(headers, key=agreement)


def _read_csv(text: str, limits: Limits) -> str:
    separator, rows = separator_of(text), SheetText(limits)
    try:
        for _, row in csv_rows(io.StringIO(text, newline=""), "", separator):
            rows.add(row_text(enumerate(map(one_line, row))))
    except InputError as error:
        if separator != "\t":
            raise Unreadable(str(error)) from None
        rows = SheetText(limits)  # many programs write quotes into TSV as any other letter
        for line in text.split("\n"):
            rows.add(row_text(enumerate(map(one_line, line.split(separator)))))
    return rows.text()


def left_out(hidden: Sequence[str], counts: Mapping[str, int]) -> Iterator[str]:
    """Say which sheets of a workbook are hidden, and how many things of the others are not read."""
    if hidden:
        yield f"{plural(len(hidden), 'hidden sheet')} left out: {first_few(hidden)}"
    for what, count in counts.items():
        if count and what == "formula":
            yield (
                f"{plural(count, what)} without a value: open and save the file in a spreadsheet"
                " program"
            )
        elif count:
            many = re.sub(r"\b(row|cell|column)\b", r"\1s", what)
            yield f"{plural(count, what, many)} left out"


def sheet_text(name: str, rows: SheetText, asides: Iterable[str] = ()) -> str:
    """Return a sheet with its name as a heading, and what stands beside its rows."""
    lines = [rows.text(), *filter(None, asides)]
    return f"# {one_line(name)}\n\n" + "\n\n".join(filter(None, lines)) if any(lines) else ""


_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 256

Row = dict[str, Any]  # a document or the reason why a row is none, as JSON can hold it


def read_rows(path: Path, names: FieldNames, longest: int) -> Iterator[list[Row]]:
    """Read the rows of a Parquet file.

    Memory holds one batch of them, and of a repeated text one copy.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        texts, source = _text_columns(path), path_text(path)
        with pyarrow.parquet.ParquetFile(path, read_dictionary=texts, memory_map=False) as table:
            number = 0
            for group in range(table.num_row_groups):
                group_metadata = table.metadata.row_group(group)
                size = max(
                    1,
                    min(
                        _BATCH_ROWS,
                        _BATCH_BYTES
                        * max(1, group_metadata.num_rows)
                        // max(1, group_metadata.total_byte_size),
                    ),
                )
                for batch in table.iter_batches(batch_size=size, row_groups=[group]):
                    rows: list[Row] = []
                    held = 0
                    for row in _python_rows(batch):
                        number += 1
                        rows.append(
                            _row(row, SourceLocation(source, number, "row"), names, longest)
                        )
                        held += len(rows[-1].get("text", ""))
                        # a file may say less of its row groups than they hold
                        if held > _BATCH_BYTES:
                            yield rows
                            rows, held = [], 0
                    yield rows
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        # the last: of a column's name
        if isinstance(error, pyarrow.ArrowMemoryError):
            raise MemoryError from None
        raise Unreadable(f"not readable as Parquet ({error})") from None


def _text_columns(path: Path) -> list[str]:
    """The columns of texts, which are read as dictionaries: a text that every row repeats is held
    once.
    """
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(path, memory_map=False)
    ((name, count),) = Counter(schema.names).most_common(1) or [("", 0)]
    if count > 1:
        raise Unreadable(f"has the column {name!r} {count} times; rename one of them")
    return [
        column.name
        for column in schema
        if column.type in (pyarrow.string(), pyarrow.large_string())
    ]


def _row(row: Row | str, location: SourceLocation, names: FieldNames, longest: int) -> Row:
    if isinstance(row, str):
        item: Record | Rejected = Rejected(location, row, "")
    elif (
        length := sum(len(value) for value in row.values() if isinstance(value, (str, bytes)))
    ) > longest:
        item = Rejected(location, too_long(length, longest), "")
    else:
        item = read_row(row, location, names)
    names_of_fields = (
        ("id", "title", "text", "metadata", "id_is_made")
        if isinstance(item, Record)
        else ("reason", "raw")
    )
    return {"row": location.line, **{name: getattr(item, name) for name in names_of_fields}}


def _python_rows(batch: Any) -> Iterator[Row | str]:
    """The rows of a record batch, one by one; in place of one that Python has no values for, the
    reason.
    """
    for number in range(batch.num_rows):
        try:
            yield batch.slice(number, 1).to_pylist()[0]
        except (ValueError, OverflowError) as error:  # the year 300000
            yield f"the row holds a value that cannot be read: {error}"
