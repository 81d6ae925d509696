"""How a corpus is read: options, bytes of any encoding and compression, types of columns, JSON in
constant memory.
"""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections import Counter, deque
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from aveyb_retrieval.documents.readers.encodings import (
    marked,
    python_encoding,
    without_mark,
    wrong_byte,
)
from aveyb_retrieval.documents.readers.file_limits import FILE_SECONDS, OCR_SECONDS, Limits
from aveyb_retrieval.documents.readers.filetext import too_long
from aveyb_retrieval.documents.records import (
    LARGEST_LINE_BYTES,
    MAX_LINE_BYTES,
    SHOWN_CHARACTERS,
    BadRecord,
    FieldNames,
    Item,
    Rejected,
    SourceLocation,
    as_text,
    make_record,
    parse_json,
    read_row,
    refuse_constant,
    unique_fields,
)
from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

TYPES = ("int", "float", "bool", "string")
_INT = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_FLOAT = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?")
_LANGUAGES = re.compile(r"[A-Za-z_/]+(?:\+[A-Za-z_/]+)*")
_BOOL = {"true": True, "false": False}


@dataclass(frozen=True)
class Reading:
    """How to read a corpus.

    Attributes:
        names: Of the id, title and text fields.
        max_line: Bytes that a line, a row of a table or the text of a file may have.
        encoding: Of texts that are not UTF-8 and do not name their own; None: there are none.
        types: Of columns of CSV and TSV files, by their names: "int", "float", "bool" or "string".
            The others are inferred from all rows of a file.
        follow_links: Whether links that are found in a folder are followed.
        file_seconds: Seconds of processor time that reading one file may take.
        path_fields: How the paths of files below a folder become fields, such as "{team}/{year}/*";
            None: not at all.
        exclude: Patterns of files and folders that are left out, as in a `.gitignore` file.
        ocr_seconds: Seconds that OCR of one page may take.
        ocr_languages: Languages of pictures as Tesseract names them, "deu+eng"; None: all that are
            installed.

    Raises:
        ConfigError: a field is out of range, or not known.
    """

    names: FieldNames = field(default_factory=FieldNames)
    max_line: int = MAX_LINE_BYTES
    encoding: str | None = None
    types: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    follow_links: bool = False
    file_seconds: int = FILE_SECONDS
    path_fields: str | None = None
    exclude: tuple[str, ...] = ()
    ocr_seconds: int = OCR_SECONDS
    ocr_languages: str | None = None

    def __post_init__(self) -> None:
        length = self.max_line
        if (
            isinstance(length, bool)
            or not isinstance(length, int)
            or not 1 <= length <= LARGEST_LINE_BYTES
        ):
            raise ConfigError(
                f"max_line={length!r}: must be a whole number of bytes from 1 to"
                f" {LARGEST_LINE_BYTES:,}"
            )
        if self.encoding is not None and (
            not isinstance(self.encoding, str) or not python_encoding(self.encoding)
        ):
            raise ConfigError(
                f"encoding={self.encoding!r}: not an encoding of text that is known, such as cp1252"
            )
        for name in ("file_seconds", "ocr_seconds"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int) or seconds < 1:
                raise ConfigError(f"{name}={seconds!r}: must be a whole number of at least 1")
        languages = self.ocr_languages
        if languages is not None and not (
            isinstance(languages, str) and _LANGUAGES.fullmatch(languages)
        ):
            raise ConfigError(
                f"ocr_languages={languages!r}: write them as Tesseract names them, such as deu+eng"
            )
        for column, kind in self.types.items():
            if kind not in TYPES:
                raise ConfigError(f"types: {column}={kind!r}: must be one of {', '.join(TYPES)}")

    def limits(self, *, follow_links: bool) -> Limits:
        """Return the limits of what is read of a file."""
        return Limits(
            self.max_line, self.encoding, follow_links, self.ocr_seconds, self.ocr_languages
        )

    def of_folder(self) -> dict[str, Any]:
        """Return how a folder is read where that is not as by default: a later sync repeats it."""
        own = {name: getattr(self, name) for name in OF_FOLDERS}
        return {name: value for name, value in own.items() if value != OF_FOLDERS[name]}

    def describe(self) -> dict[str, Any]:
        """Return what an interrupted change is compared with; what is not set is left out."""
        described = {
            "fields": [self.names.id, self.names.title, self.names.text],
            "encoding": self.encoding,
            "types": dict(self.types) or None,
            "follow_links": self.follow_links or None,
            "path_fields": self.path_fields,
            "exclude": list(self.exclude) or None,
            "ocr_seconds": None if self.ocr_seconds == OCR_SECONDS else self.ocr_seconds,
            "ocr_languages": self.ocr_languages,
        }
        return {name: value for name, value in described.items() if value is not None}


# Options of how the files of a folder are read, with their defaults: an index keeps them.
OF_FOLDERS = {
    option.name: option.default
    for option in fields(Reading)
    if option.name
    in (
        "max_line",
        "encoding",
        "follow_links",
        "file_seconds",
        "path_fields",
        "exclude",
        "ocr_seconds",
        "ocr_languages",
    )
}


def convert(value: str, kind: str) -> Any:
    """Convert a value of a column, a blank one to None unless it is of strings.

    Raises ValueError: not of this type.
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
            f"{where}: the header names {name!r} {count} times, and only one of its values could be"
            " kept; rename a column"
        )


def column_types(
    header: Sequence[str], rows: Iterable[Sequence[str]], but: Collection[str]
) -> dict[str, str]:
    """Return the narrowest types that fit all values of columns and lose nothing of them: "int",
    "float", "bool".

    Columns of strings are left out, those named in `but`, and rows of another length. A number is
    one of a column only as Python writes it: of "1.10" a zero would be lost, "1E5" may be a code. A
    column without values holds strings.
    """
    fitting = {
        place: ["int", "float", "bool"] for place, name in enumerate(header) if name not in but
    }
    filled: set[int] = set()
    for row in rows:
        if len(row) == len(header):
            for place, kinds in fitting.items():
                if row[place].strip():
                    filled.add(place)
                    fitting[place] = [kind for kind in kinds if _fits(row[place], kind)]
    return {
        header[place]: kinds[0] for place, kinds in fitting.items() if kinds and place in filled
    }


def _fits(value: str, kind: str) -> bool:
    try:
        number = convert(value, kind)
    except ValueError:
        return False
    return kind != "float" or value.strip() in (repr(number), repr(number).removesuffix(".0"))


def transcode(blocks: Iterable[bytes], encoding: str | None, source: str) -> Iterator[bytes]:
    """Yield blocks of bytes as UTF-8, from an encoding or, where None, from UTF-16 or UTF-32 as
    their first bytes say.

    UTF-8 is passed on as it is: its lines are decoded one by one, so that a bad one can be skipped.
    Raises InputError: a byte does not fit into the encoding; the message names it.
    """
    blocks = iter(blocks)
    first = next(blocks, b"")
    # of the codecs, those that leave out the mark
    wide = marked(first)[1][: len("utf-16")] or without_mark(first)
    name = wide or (python_encoding(encoding) if encoding else None) or "utf-8"
    if codecs.lookup(name).name == "utf-8":
        yield first
        yield from blocks
        return
    for text in decoded(itertools.chain((first,), blocks), name, encoding or name, source):
        yield text.encode("utf-8", "surrogatepass")


def decoded(
    blocks: Iterable[bytes], codec: str, label: str, source: str, done: int = 0
) -> Iterator[str]:
    """Yield the text of blocks behind `done` bytes; raises InputError as `transcode`, with the
    encoding's `label`.
    """
    decoder = codecs.getincrementaldecoder(codec)()
    for block in itertools.chain(blocks, (b"",)):
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            # `object` begins with what was left over
            position = done + len(block) - len(error.object) + error.start
            raise InputError(f"{source}: {wrong_byte(error, label, position)}") from None
        done += len(block)


def is_utf8(blocks: Iterable[bytes]) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        deque(codecs.iterdecode(blocks, "utf-8"), maxlen=0)
    except UnicodeDecodeError:
        return False
    return True


_BLOCK_BYTES = 1 << 20
_CODECS = {".gz": "gzip", ".zst": "zstd"}
COMPRESSED = tuple(_CODECS)
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_DECODER = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=unique_fields)
_MIN_READ_CHARACTERS = 1 << 16  # characters that are read at once


def read_objects(path: str | Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the line number and the object of each line of a JSON Lines file that is not blank.

    A name that ends in `.gz` or `.zst` is decompressed. Raises InputError: the file is missing or
    damaged, not UTF-8, or a line is too long or not a JSON object.
    """
    path = Path(path)
    try:
        with path.open("rb") as handle:
            lines = split_lines(decompress(handle, path, split_suffix(path)[1]), LARGEST_LINE_BYTES)
            for number, line in enumerate(lines, start=1):
                where = f"{path}, line {number}"
                if isinstance(line, LongLine):
                    raise InputError(
                        f"{where}: {line.length:,} bytes; a line has at most {LARGEST_LINE_BYTES:,}"
                    )
                if line.strip():
                    yield number, _object(line)
    except BadRecord as error:
        raise InputError(f"{where}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def split_suffix(path: PurePath) -> tuple[str, str]:
    """The last suffix before that of a compression, and this, in lower case; "" where there is
    none.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSED else ""
    return (suffixes[-1] if suffixes else ""), compression


def read_blocks(handle: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file in blocks."""
    while block := handle.read(_BLOCK_BYTES):
        yield block


def decompress(handle: BinaryIO, path: PurePath, compression: str) -> Iterator[bytes]:
    """Yield the contents of a file, in blocks; `compression` is "", ".gz" or ".zst".

    Raises InputError: damaged.
    """
    if not compression:
        yield from read_blocks(handle)
        return
    import pyarrow

    stream = pyarrow.CompressedInputStream(handle, _CODECS[compression])
    try:
        yield from read_blocks(stream)
    except OSError as error:
        kind = compression[1:]
        reason = f"not valid {kind} data ({error}); the file is damaged"
        if "Truncated" in str(error):
            reason = f"ends in the middle of its {kind} data; the file is cut short"
        raise InputError(f"{path}: {reason}, fetch it again") from error


@dataclass(frozen=True)
class LongLine:
    """A line that is longer than allowed: its first bytes, and its length in bytes."""

    start: bytes
    length: int


def split_lines(blocks: Iterable[bytes], longest: int) -> Iterator[bytes | LongLine]:
    """Split blocks at newlines, which stay with their lines; a byte order mark at the start is
    removed.

    A line of more than `longest` bytes is counted and not kept: memory holds at most `longest`
    bytes and a block.
    """
    pieces: list[bytes] = []  # of a line longer than a block: joined once, not once per block
    length = 0
    first = True
    for block in blocks:
        *lines, tail = block.split(b"\n")
        for line in lines:
            if not (pieces or first or len(line) > longest):
                yield line + b"\n"
                continue
            yield _line([*pieces, line, b"\n"], length + len(line), longest, first)
            pieces, length, first = [], 0, False
        if tail:
            if length <= longest:
                pieces.append(tail)
            length += len(tail)
    if length:
        yield _line(pieces, length, longest, first)


def _line(pieces: list[bytes], length: int, longest: int, first: bool) -> bytes | LongLine:
    line = b"".join(pieces)
    if first:
        line = line.removeprefix(codecs.BOM_UTF8)
    return line if length <= longest else LongLine(line[:SHOWN_CHARACTERS], length)


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        return parse_json(line.decode())
    except UnicodeDecodeError as error:
        raise BadRecord(f"invalid UTF-8 at byte {error.start}; save the file as UTF-8") from error


def read_json_lines(
    blocks: Iterable[bytes], source: str, reading: Reading, *, first_line: int = 1
) -> Iterator[Item]:
    """Read one object from each line; a line that is none is rejected.

    `first_line` is the number of the first one.
    """
    for number, line in enumerate(split_lines(blocks, reading.max_line), start=first_line):
        location = SourceLocation(source, number)
        if isinstance(line, LongLine):
            start = line.start.decode("utf-8", "backslashreplace")
            yield Rejected(location, too_long(line.length, reading.max_line), f"{start}...")
        elif line.strip():
            try:
                yield make_record(_object(line), location, reading.names)
            except BadRecord as error:
                yield Rejected(
                    location, str(error), as_text(line.decode("utf-8", "backslashreplace"))
                )


def read_json(blocks: Iterable[bytes], source: str, reading: Reading) -> Iterator[Item]:
    """Read a JSON file: an array, or objects over several lines, or one object a line, by how it
    begins.

    Raises InputError: an array or an object over several lines is not JSON; what follows the error
    cannot be read.
    """
    blocks = iter(blocks)
    blank = 0
    line = 1
    first = next(blocks, b"")
    # blocks of white space are counted, not kept: there may be gigabytes of them
    while first and not first.strip():
        blank += len(first)
        line += first.count(b"\n")
        first = next(blocks, b"")
    rest = itertools.chain([first], blocks)
    begin, newline, _ = first.removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")
    # an object's first line is not its last
    goes_on = newline and begin.rstrip().endswith((b"{", b",", b"["))
    if begin.startswith(b"[") or (begin.startswith(b"{") and goes_on):
        yield from _read_elements(_Buffer(rest, source, line=line, before=blank), reading)
    else:
        yield from read_json_lines(rest, source, reading, first_line=line)


def _read_elements(text: _Buffer, reading: Reading) -> Iterator[Item]:
    source = text.source
    in_array = text.next_character() == "["
    text.position += in_array
    number = 0
    while (character := text.next_character()) and not (in_array and character == "]"):
        number += 1
        location = SourceLocation(source, text.line)
        element, length = text.element(reading.max_line)
        if length > reading.max_line:
            yield Rejected(location, too_long(length, reading.max_line), as_text(element))
        elif isinstance(element, dict):
            yield read_row(element, location, reading.names)
        else:
            yield Rejected(
                location,
                f"a JSON object is needed, this is element {number:,}: not one",
                as_text(element),
            )
    if in_array and not character:
        raise text.error("the file ends inside of its array; it is cut short")
    text.position += in_array
    if text.next_character():
        raise text.error("text behind the end of the array")


class _Buffer:
    """A text that is read as needed, from `line` on, behind `before` bytes; what is before
    `position` is done with.
    """

    def __init__(self, blocks: Iterator[bytes], source: str, *, line: int, before: int) -> None:
        self.source = source
        self.characters = ""
        self.position = 0
        self.line = line
        self.ended = False
        self._texts = decoded(blocks, "utf-8-sig", "utf-8", source, before)

    def error(self, reason: str) -> InputError:
        """Return an error at the position."""
        return InputError(f"{self.source}, line {self.line}: {reason}")

    def element(self, longest: int) -> tuple[Any, int]:
        """Parse the element at the position, reading on until it is whole, and move behind it; also
        give its length.
        """
        while True:
            start = self.position
            try:
                element, end = _DECODER.raw_decode(self.characters, start)
                if end < len(self.characters) or self.ended:  # a number might go on
                    self.move(end)
                    return element, end - start
            except RecursionError:
                raise self.error("nested too deeply") from None
            except json.JSONDecodeError as error:
                if self.ended:
                    self.move(error.pos)
                    raise self.error(f"not JSON: {error.msg}") from None
            except (BadRecord, ValueError) as error:  # a number of more digits than Python reads
                raise self.error(str(error)) from None
            held = len(self.characters) - start
            if held > longest:
                raise self.error(f"not JSON, or an object of {too_long(held, longest)}")
            self.read(max(held, _MIN_READ_CHARACTERS))

    def next_character(self) -> str:
        """Move over white space and commas; return the character there, "" at the end."""
        while True:
            between = _BETWEEN.match(self.characters, self.position)
            assert between is not None  # it matches the empty text, too
            self.move(between.end())
            if self.position < len(self.characters) or self.ended:
                return self.characters[self.position : self.position + 1]
            self.read(1)

    def move(self, end: int) -> None:
        """Be done with all before `end`."""
        self.line += self.characters.count("\n", self.position, end)
        self.position = end

    def read(self, count: int) -> None:
        """Read at least `count` more characters, where there are so many."""
        parts = [self.characters[self.position :]]
        self.position = 0
        while count > 0 and not self.ended:
            part = next(self._texts, None)
            self.ended = part is None
            parts.append(part or "")
            count -= len(parts[-1])
        self.characters = "".join(parts)
