"""Jupyter notebooks of format 4."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Unreadable,
    clean,
)
from aveyb_retrieval.documents.readers.html import page_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.documents.readers.limits import Limits


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
        shown = output.get("data", {})
        texts = (
            output.get("text"),
            shown.get("text/plain"),
            output.get("evalue"),
        )  # the last: of an error
        text = next((text for text in map(_joined, texts) if text.strip()), "")
        if text:
            yield f"```\n{text.rstrip()}\n```"
        elif page := _joined(shown.get("text/html")):
            yield page_text(page)[1]
        else:
            yield _joined(shown.get("text/markdown"))


def _joined(lines: Any) -> str:
    return lines if isinstance(lines, str) else "".join(map(str, lines or ()))
