"""How a corpus is read: names of fields, the longest line, the encoding of texts, the types of columns."""

from __future__ import annotations

import codecs
import itertools
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.base import FILE_SECONDS
from aveyb_retrieval.documents.readers.characters import python_encoding, without_mark, wrong_byte
from aveyb_retrieval.documents.records import LARGEST_LINE, MAX_LINE, FieldNames
from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

TYPES = ("int", "float", "bool", "string")
_INT = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_FLOAT = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?")
_BOOL = {"true": True, "false": False}


@dataclass(frozen=True)
class Reading:
    """How to read a corpus.

    Attributes:
        names: Of the id, title and text fields.
        max_line: Bytes that a line, a row of a table or the text of a file may have.
        encoding: Of texts that are not UTF-8 and do not name their own; None: there are none.
        types: Of columns of CSV and TSV files, by their names: "int", "float", "bool" or "string". The others are
            inferred from all rows of a file.
        follow_links: Whether links that are found in a folder are followed.
        file_seconds: Seconds of processor time that reading one file may take.
        path_fields: How the paths of files below a folder become fields, such as "{team}/{year}/*"; None: not at all.

    Raises:
        ConfigError: a field is out of range, or not known.
    """

    names: FieldNames = field(default_factory=FieldNames)
    max_line: int = MAX_LINE
    encoding: str | None = None
    types: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    follow_links: bool = False
    file_seconds: int = FILE_SECONDS
    path_fields: str | None = None

    def __post_init__(self) -> None:
        length = self.max_line
        if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= LARGEST_LINE:
            raise ConfigError(f"max_line={length!r}: must be a whole number of bytes from 1 to {LARGEST_LINE:,}")
        if self.encoding is not None and (not isinstance(self.encoding, str) or not python_encoding(self.encoding)):
            raise ConfigError(f"encoding={self.encoding!r}: not an encoding of text that is known, such as cp1252")
        if isinstance(self.file_seconds, bool) or not isinstance(self.file_seconds, int) or self.file_seconds < 1:
            raise ConfigError(f"file_seconds={self.file_seconds!r}: must be a whole number of at least 1")
        for column, kind in self.types.items():
            if kind not in TYPES:
                raise ConfigError(f"types: {column}={kind!r}: must be one of {', '.join(TYPES)}")

    def describe(self) -> dict[str, Any]:
        """Return what an interrupted change is compared with; what is not set is left out."""
        described: dict[str, Any] = {"fields": [self.names.id, self.names.title, self.names.text]}
        if self.encoding is not None:
            described["encoding"] = self.encoding
        if self.types:
            described["types"] = dict(self.types)
        if self.follow_links:
            described["follow_links"] = True
        if self.path_fields is not None:
            described["path_fields"] = self.path_fields
        return described


def convert(value: str, kind: str) -> Any:
    """Convert a value of a column; a blank one is None, except in a column of strings.

    Raises:
        ValueError: it is not of this type.
    """
    if kind == "string":
        return value
    stripped = value.strip()
    if not stripped:
        return None
    if kind == "bool":
        if stripped.lower() in _BOOL:
            return _BOOL[stripped.lower()]
    elif (_INT if kind == "int" else _FLOAT).fullmatch(stripped):
        return int(stripped) if kind == "int" else float(stripped)
    raise ValueError(f"{value!r} is not of type {kind}")


def fits(value: str, kind: str) -> bool:
    """Return whether `convert` takes a value as this type."""
    try:
        convert(value, kind)
    except ValueError:
        return False
    return True


def _loses_nothing(value: str, kind: str) -> bool:
    """Whether a number is written as Python writes it: of "1.10" a zero would be lost, "1E5" may be a code."""
    return kind != "float" or value.strip() in (repr(float(value)), repr(float(value)).removesuffix(".0"))


class ColumnType:
    """The narrowest type that fits all values of a column and loses nothing of them: int, float, bool, or string.

    A number with zeros in front or behind, a sign in front, an exponent or more than 18 digits is a string: it is
    rather a code than a number.
    """

    def __init__(self) -> None:
        self._fitting = ["int", "float", "bool"]
        self._blank = True

    def see(self, value: str) -> None:
        """Take one value into account."""
        if not value.strip():
            return
        self._blank = False
        self._fitting = [kind for kind in self._fitting if fits(value, kind) and _loses_nothing(value, kind)]

    @property
    def name(self) -> str:
        """The type; a column without values holds strings."""
        return self._fitting[0] if self._fitting and not self._blank else "string"


def transcode(blocks: Iterable[bytes], encoding: str | None, source: str) -> Iterator[bytes]:
    """Yield blocks of bytes as UTF-8, from an encoding or, where None, from UTF-16 or UTF-32 as their first bytes say.

    UTF-8 is passed on as it is: its lines are decoded one by one, so that a bad one can be skipped.

    Raises:
        InputError: a byte does not fit into the encoding; the message names it.
    """
    blocks = iter(blocks)
    first = next(blocks, b"")
    wide = _marked_wide(first) or without_mark(first)
    name = wide or (python_encoding(encoding) if encoding else None) or "utf-8"
    if codecs.lookup(name).name == "utf-8":
        yield first
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(name)()
    done = 0
    for block in itertools.chain((first,), blocks, (b"",)):
        try:
            yield decoder.decode(block, final=not block).encode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            position = done + len(block) - len(error.object) + error.start  # `object` begins with what was left over
            raise InputError(f"{source}: {wrong_byte(error, encoding or name, position)}") from None
        done += len(block)


def _marked_wide(first: bytes) -> str:
    """UTF-32 or UTF-16 where a byte order mark says so; "" of others."""
    if first.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    return "utf-16" if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else ""


def is_utf8(blocks: Iterable[bytes]) -> bool:
    """Return whether bytes are UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in itertools.chain(blocks, (b"",)):
            decoder.decode(block, final=not block)
    except UnicodeDecodeError:
        return False
    return True
