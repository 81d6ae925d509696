"""XLSX, XLS and ODS by calamine: sheet by sheet, a row a line."""

from __future__ import annotations

import io
from typing import Any

from aveyb_retrieval.indexes.input.readers.archive import is_archive, open_archive
from aveyb_retrieval.indexes.input.readers.base import FileText, Parts, Unreadable, one_line


def read_spreadsheet(data: bytes, longest: int) -> FileText:
    """Read a workbook: its sheets are pages, their names headings. Formulas are read as their values.

    Raises:
        Unreadable: it is damaged, encrypted, or too long.
    """
    import python_calamine

    if is_archive(data):
        open_archive(data).close()
    parts = Parts("sheet", longest)
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
        for name in book.sheet_names:
            lines, length = [], 0
            for row in book.get_sheet_by_name(name).iter_rows():
                if line := " | ".join(map(_cell, row)).rstrip(" |"):
                    lines.append(line)
                    length += len(line)
                    parts.check(length)
            parts.add(f"# {one_line(name)}\n\n" + "\n".join(lines) if lines else "", one_line(name))
    except python_calamine.CalamineError as error:
        raise Unreadable(f"damaged or encrypted: not a spreadsheet ({one_line(str(error))})") from None
    return parts.text("")


def _cell(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return one_line(str(value))
