"""Markdown: the text as it is written, without its front matter, which becomes metadata."""

from __future__ import annotations

import json
import math
import re
import string
import sys
from datetime import date, datetime, time
from functools import cache
from typing import Any

from aveyb_retrieval.documents.readers.base import FileText, one_line, whole_words
from aveyb_retrieval.documents.readers.charsets import decode

_YAML = re.compile(r"---[ \t]*\r?\n(?P<inside>.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_TOML = re.compile(r"\+\+\+[ \t]*\r?\n(?P<inside>.*?)^\+\+\+[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"\s*#{1,6}[ \t]+(?P<title>[^\s#][^\n]*)")
_LONGEST = 1 << 19  # characters of front matter
_DEEPEST = 20  # levels of what it holds


def read_markdown(data: bytes, encoding: str | None) -> FileText:
    """Read a Markdown text: its title is that of the front matter, else the heading that it begins with.

    What stands between two rules and is no YAML with names and values is text.
    """
    text = whole_words(decode(data, encoding))
    metadata: dict[str, Any] = {}
    for pattern, parse in ((_YAML, _yaml), (_TOML, _toml)):
        front = pattern.match(text[: _LONGEST + 8])
        values = parse(front["inside"]) if front else None
        if front and values is not None:
            text, metadata = text[front.end() :].lstrip(), values
            break
    title = str(metadata.pop("title", None) or "")
    heading = _HEADING.match(text)
    if not title and heading:
        title = heading["title"].rstrip(f"{string.whitespace}#")
    return FileText(one_line(title), text, metadata=metadata)


def _yaml(source: str) -> dict[str, Any] | None:
    """The names and values of a text in YAML; None where it is none."""
    import yaml

    try:
        values = yaml.load(source, _safe_loader())  # noqa: S506  # a safe loader, without references
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError):  # the others: dates, depth, numbers
        return None
    return _plain_fields(values if source.strip() else {})


@cache
def _safe_loader() -> Any:
    """PyYAML's safe loader without references to what stands before: a few of them write a text of gigabytes."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("a reference to what stands before")
            return super().compose_node(parent, index)

    return Loader


def _toml(source: str) -> dict[str, Any] | None:
    if sys.version_info < (3, 11):
        import tomli as tomllib
    else:
        import tomllib
    try:
        return _plain_fields(tomllib.loads(source.replace("\r\n", "\n")))
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _plain_fields(values: object) -> dict[str, Any] | None:
    if not isinstance(values, dict):
        return None
    try:
        plain = {str(name): _plain(value) for name, value in values.items()}
        json.dumps(plain, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None
    return plain


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, dict):
        return {str(name): _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(inner, depth + 1) for inner in value]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)
