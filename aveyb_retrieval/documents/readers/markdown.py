"""Markdown with its front matter (YAML or TOML)."""

from __future__ import annotations

import math
import re
import tomllib
from datetime import date, datetime, time
from functools import cache
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    one_line,
    whole_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aveyb_retrieval.documents.readers.file_limits import Limits

_YAML = re.compile(
    r"---[ \t]*\r?\n(?P<inside>.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_TOML = re.compile(
    r"\+\+\+[ \t]*\r?\n(?P<inside>.*?)^\+\+\+[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_HEADING = re.compile(r"\s*#{1,6}[ \t]+(?P<title>[^\s#][^\n]*)")
_MAX_FRONT_MATTER_CHARACTERS = 1 << 19  # characters of front matter
_MAX_FRONT_MATTER_DEPTH = 20  # levels of what it holds


def read_markdown(data: bytes, limits: Limits) -> FileText:
    """Read Markdown, titled by front matter (other text between rules stays) or the heading that it
    begins with.
    """
    text = whole_words(decode(data, limits.encoding))
    metadata: dict[str, Any] = {}
    for pattern, parse in ((_YAML, _yaml), (_TOML, tomllib.loads)):
        front = pattern.match(text[: _MAX_FRONT_MATTER_CHARACTERS + 8])
        values = _values(parse, front["inside"].replace("\r\n", "\n")) if front else None
        if front and values is not None:
            text, metadata = text[front.end() :].lstrip(), values
            break
    title = str(metadata.pop("title", None) or "")
    heading = _HEADING.match(text)
    if not title and heading:
        title = _without_closing_signs(heading["title"])
    keywords = "\n".join(_words(metadata))
    return FileText(one_line(title), text, metadata=metadata, keywords=keywords)


def _without_closing_signs(title: str) -> str:
    """A heading without the signs that close it, behind a blank: "C#" ends with its own."""
    title = title.rstrip(" \t")
    words = title.rstrip("#")
    return words.rstrip(" \t") if words.endswith((" ", "\t")) else title


def _words(value: Any) -> Iterator[str]:
    """The texts and numbers among the values of front matter."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _words(inner)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)


def _values(parse: Callable[[str], object], source: str) -> dict[str, Any] | None:
    """Names and values as JSON can hold them; None of another value, or one that is nested too
    deeply.
    """
    import yaml

    try:
        values = parse(source)
        return _plain(values) if isinstance(values, dict) else None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError):
        # the others: TOML, dates, depth, numbers
        return None


def _yaml(source: str) -> object:
    import yaml

    return yaml.load(source, _safe_loader()) if source.strip() else {}  # a safe one  # noqa: S506


@cache
def _safe_loader() -> Any:
    """PyYAML's safe loader without references to what stands before: a few of them write a text of
    gigabytes.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("a reference to what stands before")
            return super().compose_node(parent, index)

    return Loader


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > _MAX_FRONT_MATTER_DEPTH:
        raise RecursionError
    if isinstance(value, dict):
        return {str(name): _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(inner, depth + 1) for inner in value]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    fits = (
        math.isfinite(value)
        if isinstance(value, float)
        else value is None or isinstance(value, bool)
    )
    return (
        value if fits or (isinstance(value, int) and -(1 << 63) <= value < 1 << 64) else str(value)
    )
