"""Plain text, RTF, and Markdown, which is indexed as it is written; front matter is taken off."""

from __future__ import annotations

import re
import string

from aveyb_retrieval.indexes.input.readers.base import FileText, Unreadable, clean, decode, one_line

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
