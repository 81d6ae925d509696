"""Jupyter notebooks: cells of text as Markdown, cells of code and what they printed between fences."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.input.readers.base import FileText, Unreadable, clean, decode

if TYPE_CHECKING:
    from collections.abc import Iterator


def read_notebook(data: bytes, encoding: str | None) -> FileText:
    """Read a notebook, without pictures and other outputs that are no text.

    Raises:
        Unreadable: it is not one.
    """
    try:
        notebook = json.loads(decode(data, encoding))
        language = str(notebook.get("metadata", {}).get("kernelspec", {}).get("language", ""))
        texts = [text for cell in notebook["cells"] for text in _cell(cell, language)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable(f"not a Jupyter notebook of format 4 ({type(error).__name__}: {error})") from None
    return FileText("", clean("\n\n".join(filter(str.strip, texts))))


def _cell(cell: dict[str, Any], language: str) -> Iterator[str]:
    source = _joined(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
    elif source.strip():
        yield f"```{language}\n{source}\n```"
    for output in cell.get("outputs", ()):
        text = _joined(output.get("text", "")) or _joined(output.get("data", {}).get("text/plain", ""))
        if text.strip():
            yield f"```\n{text.rstrip()}\n```"


def _joined(lines: Any) -> str:
    return lines if isinstance(lines, str) else "".join(map(str, lines))
