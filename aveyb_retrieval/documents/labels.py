"""Metadata that a folder gives its files: by their paths (`path_fields`), and by a file `metadata.csv` or `.jsonl`."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.base import Unreadable
from aveyb_retrieval.documents.readers.charsets import decode
from aveyb_retrieval.documents.readers.formats import read_bytes
from aveyb_retrieval.documents.reading import ColumnType, convert
from aveyb_retrieval.documents.records import BadRecord, check_metadata, parse_json, path_text
from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SIDE_FILES = ("metadata.csv", "metadata.jsonl")
_PATH = "path"  # the field that says which files a line is about
_OWN = (_PATH, "type", "modified")  # what each file has by itself
_FIELD = re.compile(r"\{([^{}]*)\}")


def path_pattern(shape: str) -> re.Pattern[str]:
    """Compile a pattern of paths below a folder, such as "{team}/{year}/*", whose names become fields.

    A name takes a part of a path without "/", "*" likewise, "**" any part; a last "*" takes all that is below.

    Raises:
        ConfigError: it names no field, one twice, or one that each file has by itself.
    """
    names = _FIELD.findall(shape)
    wrong = next((name for name in names if not name.isidentifier() or name in _OWN or names.count(name) > 1), None)
    if wrong is not None or not names:
        reason = (
            f"{{{wrong}}} is no name of a field, is there twice, or is one of {', '.join(_OWN)}"
            if names
            else ("names no field")
        )
        raise ConfigError(f"path_fields={shape!r}: {reason}; write it as in '{{team}}/{{year}}/*'")
    end = "**" if shape.endswith("*") and not shape.endswith("**") else ""
    parts = re.split(r"(\{[^{}]*\}|\*\*|\*)", f"{shape[:-1]}{end}" if end else shape)
    written = {"*": "[^/]*", "**": ".*"}
    return re.compile(
        "".join(f"(?P<{part[1:-1]}>[^/]+)" if part.startswith("{") else written.get(part, re.escape(part))
                for part in parts), re.DOTALL
    )  # fmt: skip


@dataclass(frozen=True)
class _Line:
    number: int
    path: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Labels:
    """What a folder says of its files.

    Attributes:
        file: The file that says it; None where there is none.
        lines: Its lines, in order: what a later one says wins.
        pattern: Of the paths.
    """

    file: Path | None = None
    lines: tuple[_Line, ...] = ()
    pattern: re.Pattern[str] | None = None
    _used: set[int] = field(default_factory=set)

    @classmethod
    def of_folder(cls, folder: Path, path_fields: str | None, *, follow_links: bool = False) -> Labels:
        """Read what a folder says.

        Raises:
            InputError: its file of metadata cannot be read.
        """
        pattern = None if path_fields is None else path_pattern(path_fields)
        for name in SIDE_FILES:
            path = folder / name
            if path.is_file() and (follow_links or not path.is_symlink()):
                lines = _read(path, follow_links)
                if lines is not None:
                    return cls(path, lines, pattern)
        return cls(None, (), pattern)

    def of(self, name: str) -> dict[str, Any]:
        """Return the metadata for a file, by its path below the folder."""
        found: dict[str, Any] = {}
        match = self.pattern.fullmatch(name) if self.pattern else None
        found |= match.groupdict() if match else {}
        for line in self.lines:
            if line.path == name or matches(name, line.path):
                self._used.add(line.number)
                found |= line.fields
        return found

    def unused(self) -> list[str]:
        """Return which lines are about no file that `of` was asked for."""
        return [f"line {line.number}: no file is {line.path!r}" for line in self.lines if line.number not in self._used]


def matches(name: str, pattern: str) -> bool:
    """Return whether a path is what a pattern means: "a/" all below, "*.pdf" in any folder, "a/*.md", "**/x"."""
    if not any(sign in pattern for sign in "*?[") and not pattern.endswith("/"):
        return name == pattern
    wanted = pattern.removesuffix("/").split("/") + (["**"] if pattern.endswith("/") else [])
    if len(wanted) == 1:
        wanted.insert(0, "**")
    parts = name.split("/")
    part, place, star, kept = 0, 0, -1, 0  # as one matches "*" in a text, by parts of a path
    while part < len(parts):
        if place < len(wanted) and wanted[place] == "**":
            star, kept = place, part
            place += 1
        elif place < len(wanted) and fnmatchcase(parts[part], wanted[place]):
            part, place = part + 1, place + 1
        elif star >= 0:
            kept += 1
            part, place = kept, star + 1
        else:
            return False
    return all(rest == "**" for rest in wanted[place:])


def _read(path: Path, follow_links: bool) -> tuple[_Line, ...] | None:
    """The lines of a file of metadata; None where it has no field for paths, and is a file like others."""
    try:
        text = decode(read_bytes(path, follow_links=follow_links)).lstrip("\ufeff")
        rows = _rows_of_csv(text, path) if path.suffix == ".csv" else _rows_of_json(text, path)
    except Unreadable as reason:
        raise InputError(f"{path_text(path)}: {reason}") from None
    if rows is None:
        return None
    lines = []
    for number, row in rows:
        name = row.pop(_PATH, None)
        where = f"{path_text(path)}, line {number}"
        if not isinstance(name, str) or not name:
            raise InputError(f"{where}: {_PATH} is {json.dumps(name)}; the path of a file below the folder is needed")
        if taken := [own for own in _OWN if own in row]:
            raise InputError(f"{where}: {taken[0]!r} is what each file has by itself; give it another name")
        lines.append(_Line(number, name.removeprefix("./"), check_metadata(row, where)))
    return tuple(lines)


def _rows_of_json(text: str, path: Path) -> list[tuple[int, dict[str, Any]]] | None:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                rows.append((number, dict(parse_json(line))))
            except BadRecord as error:
                raise InputError(f"{path_text(path)}, line {number}: {error}") from None
            if _PATH not in rows[0][1]:
                return None
    return rows


def _rows_of_csv(text: str, path: Path) -> list[tuple[int, dict[str, Any]]] | None:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[int, list[str]]] = []
    try:
        for row in reader:
            if row:
                rows.append((reader.line_num, row))
    except csv.Error as error:
        raise InputError(f"{path_text(path)}, line {reader.line_num}: {error}; quote fields as in RFC 4180") from None
    header = rows[0][1] if rows else []
    if _PATH not in header:
        return None
    if len(set(header)) < len(header):
        raise InputError(f"{path_text(path)}, line 1: the header names a column twice; rename one of them")
    kinds = [ColumnType() for _ in header]
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise InputError(
                f"{path_text(path)}, line {number}: {len(row)} fields where the header names {len(header)}"
            )
        for kind, value in zip(kinds, row, strict=True):
            kind.see(value)
    names = ["string" if name == _PATH else kind.name for name, kind in zip(header, kinds, strict=True)]
    return [
        (
            number,
            {key: convert(value, kind) for key, value, kind in zip(header, row, names, strict=True) if value.strip()},
        )
        for number, row in rows[1:]
    ]
