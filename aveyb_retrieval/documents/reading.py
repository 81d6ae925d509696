"""How a corpus is read: names of fields, the longest line, the encoding of texts, the types of columns."""

from __future__ import annotations

import codecs
import itertools
import re
from collections import Counter, deque
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.base import FILE_SECONDS
from aveyb_retrieval.documents.readers.characters import marked, python_encoding, without_mark, wrong_byte
from aveyb_retrieval.documents.records import LARGEST_LINE, MAX_LINE, FieldNames
from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

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

    Raises ValueError: it is not of this type.
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


def check_columns(header: Sequence[str], where: str) -> None:
    """Raise InputError where two columns have one name."""
    if len(set(header)) < len(header):
        ((name, count),) = Counter(header).most_common(1)
        raise InputError(
            f"{where}: the header names {name!r} {count} times, and only one of its values could be kept; rename a "
            "column"
        )


def column_types(header: Sequence[str], rows: Iterable[Sequence[str]], but: Collection[str]) -> dict[str, str]:
    """Return the narrowest types that fit all values of columns and lose nothing of them: "int", "float", "bool".

    Columns of strings are left out, those named in `but`, and rows of another length. A number is one of a column only
    as Python writes it: of "1.10" a zero would be lost, "1E5" may be a code. A column without values holds strings.
    """
    fitting = {place: ["int", "float", "bool"] for place, name in enumerate(header) if name not in but}
    filled: set[int] = set()
    for row in rows:
        if len(row) == len(header):
            for place, kinds in fitting.items():
                if row[place].strip():
                    filled.add(place)
                    fitting[place] = [kind for kind in kinds if _fits(row[place], kind)]
    return {header[place]: kinds[0] for place, kinds in fitting.items() if kinds and place in filled}


def _fits(value: str, kind: str) -> bool:
    try:
        number = convert(value, kind)
    except ValueError:
        return False
    return kind != "float" or value.strip() in (repr(number), repr(number).removesuffix(".0"))


def transcode(blocks: Iterable[bytes], encoding: str | None, source: str) -> Iterator[bytes]:
    """Yield blocks of bytes as UTF-8, from an encoding or, where None, from UTF-16 or UTF-32 as their first bytes say.

    UTF-8 is passed on as it is: its lines are decoded one by one, so that a bad one can be skipped. Raises InputError:
    a byte does not fit into the encoding; the message names it.
    """
    blocks = iter(blocks)
    first = next(blocks, b"")
    wide = marked(first)[1][: len("utf-16")] or without_mark(first)  # of the codecs, those that leave out the mark
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


def is_utf8(blocks: Iterable[bytes]) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        deque(codecs.iterdecode(blocks, "utf-8"), maxlen=0)
    except UnicodeDecodeError:
        return False
    return True
