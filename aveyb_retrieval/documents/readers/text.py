"""Plain text, Markdown, RTF, notebooks and subtitles."""

from __future__ import annotations

import json
import re
import string
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.base import FileText, Parts, Unreadable, clean, decode, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_YAML = re.compile(
    r"---[ \t]*\r?\n(?P<inside>(?:\s*[\w\"'-]+\s*:|#).*?\r?\n|)(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL
)
_TOML = re.compile(r"\+\+\+[ \t]*\r?\n(?P<inside>.*?)\+\+\+[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_TITLE = re.compile(r"^title[ \t]*[:=](?P<title>[^\r\n]+)", re.MULTILINE)
_HEADING = re.compile(r"\s*#{1,6}[ \t]+(?P<title>[^\s#][^\n]*)")


def read_text(data: bytes, encoding: str | None) -> FileText:
    """Read a plain text."""
    return FileText("", decode(data, encoding))


def read_rtf(data: bytes, encoding: str | None) -> FileText:
    """Read the text of an RTF file, which names its characters in `encoding`, or in cp1252.

    Raises:
        Unreadable: it is not one.
    """
    from striprtf.striprtf import rtf_to_text

    if not data.startswith(b"{\\rtf"):
        raise Unreadable("not an RTF file")
    return FileText("", clean(rtf_to_text(data.decode("latin-1"), encoding=encoding or "cp1252", errors="replace")))


def read_markdown(data: bytes, encoding: str | None) -> FileText:
    """Read a Markdown text: its title is that of the front matter, else the heading that it begins with."""
    text = decode(data, encoding)
    title = ""
    if front := _YAML.match(text) or _TOML.match(text):
        text = text[front.end() :].lstrip()
        named = _TITLE.search(front["inside"])
        title = _unquoted(named["title"].strip()) if named else ""
    heading = _HEADING.match(text)
    if not title and heading:
        title = heading["title"].rstrip(f"{string.whitespace}#")
    return FileText(one_line(title), text)


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


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


_TIMES = re.compile(r"\s*(?:(\d{1,4}):)?(\d{1,2}):(\d{2})[.,]\d{1,3}[ \t]+-->")
_MARKS = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")
_ASIDE = re.compile(r"\s*(?:NOTE|STYLE|REGION)\b")
_SENTENCE_END = (".", "!", "?", "…", "。", "！", "？")  # noqa: RUF001  # stops of other scripts


def read_subtitles(data: bytes, encoding: str | None, longest: int) -> FileText:
    """Read the cues of a transcript; those of one sentence become one paragraph.

    Raises:
        Unreadable: it has none.
    """
    parts, label = Parts("time", longest), ""
    for block in re.split(r"\n\n+", clean(decode(data, encoding))):
        lines = block.split("\n")
        at = next((number for number, line in enumerate(lines[:2]) if _TIMES.match(line)), None)
        if at is not None and (found := _TIMES.match(lines[at])):
            label = f"{int(found[1] or 0)}:{found[2]:>02}:{found[3]}"
        elif not label or _ASIDE.match(block):
            continue  # the head of the file, a note, a style
        # else more of the cue before, behind a blank line
        said = " ".join(_MARKS.sub("", " ".join(lines if at is None else lines[at + 1 :])).split())
        if said:
            parts.add(said, label, end="\n" if said.endswith(_SENTENCE_END) else " ")
    if not parts:
        raise Unreadable("no cues with times, as SRT and WebVTT files have them")
    return parts.text("")
