"""Jupyter notebooks of format 4."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Unreadable,
    clean,
)
from aveyb_retrieval.documents.readers.html import page_text

_NAME_OF_OBJECT = re.compile(r"<[^<>\n]*>")  # what Python prints of an object without a text
# Colours and cursors of terminals (ECMA-48, 5.4), titles of windows
_TERMINAL_CODE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.documents.readers.file_limits import Limits


def read_notebook(data: bytes, limits: Limits) -> FileText:
    """Read a notebook, without pictures and other outputs that are no text."""
    try:
        notebook = json.loads(decode(data, limits.encoding))
        language = str(notebook.get("metadata", {}).get("kernelspec", {}).get("language", ""))
        texts = [text for cell in notebook["cells"] for text in _cell(cell, language)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable(
            f"not a Jupyter notebook of format 4 ({type(error).__name__}: {error})"
        ) from None
    return FileText("", clean("\n\n".join(filter(str.strip, texts))))


def _cell(cell: dict[str, Any], language: str) -> Iterator[str]:
    source = _joined(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
    elif source.strip():
        yield f"```{language}\n{source}\n```"
    for output in cell.get("outputs", ()):
        yield _output(output)


def _output(output: dict[str, Any]) -> str:
    """The text of an output: as it was printed, else as HTML, Markdown or a formula shows it."""
    forms = output.get("data", {})
    printed = (output.get("text"), forms.get("text/plain"), output.get("evalue"))
    text = next((text for text in map(_joined, printed) if text.strip()), "")
    page, markdown, formula = (
        _joined(forms.get(f"text/{form}")) for form in ("html", "markdown", "latex")
    )
    is_shown = page or markdown or formula
    if text and not (is_shown and _NAME_OF_OBJECT.fullmatch(text.strip())):
        return f"```\n{_TERMINAL_CODE.sub('', text).rstrip()}\n```"
    return page_text(page)[1] if page else markdown or formula


def _joined(lines: Any) -> str:
    return lines if isinstance(lines, str) else "".join(map(str, lines or ()))
