"""Read lines and JSON objects from plain, gzip and zstd files, in constant memory."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.input.documents import LARGEST_LINE, SHOWN, BadRecord, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_BLOCK = 1 << 20
_CODECS = {".gz": "gzip", ".zst": "zstd"}
COMPRESSED = tuple(_CODECS)


def read_objects(path: str | Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the line number and the object of each line of a JSON Lines file that is not blank.

    A name that ends in `.gz` or `.zst` is decompressed.

    Raises:
        InputError: the file is missing or damaged, not UTF-8, or a line is too long or not a JSON object.
    """
    path = Path(path)
    try:
        with path.open("rb") as handle:
            lines = split_lines(decompress(handle, path, split_suffix(path)[1]), LARGEST_LINE)
            for number, line in enumerate(lines, start=1):
                if isinstance(line, LongLine) or line.strip():
                    yield number, _object(line, f"{path}, line {number}")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def split_suffix(path: PurePath) -> tuple[str, str]:
    """The last suffix before that of a compression, and this, in lower case; "" where there is none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSED else ""
    return (suffixes[-1] if suffixes else ""), compression


def read_blocks(handle: BinaryIO, size: int = _BLOCK) -> Iterator[bytes]:
    """Yield the rest of a file in blocks."""
    while block := handle.read(size):
        yield block


def decompress(handle: BinaryIO, path: PurePath, compression: str) -> Iterator[bytes]:
    """Yield the contents of a file, its compressed members one after the other, never more than a block at once.

    Args:
        handle: the open file.
        path: its name, for messages.
        compression: "", ".gz" or ".zst".

    Raises:
        InputError: the compressed data are damaged or end too early.
    """
    if not compression:
        yield from read_blocks(handle)
        return
    import pyarrow

    stream = pyarrow.CompressedInputStream(handle, _CODECS[compression])
    try:
        yield from read_blocks(stream)
    except OSError as error:
        if "Truncated" in str(error):
            raise InputError(
                f"{path}: ends in the middle of its {compression[1:]} data; the file is cut short, fetch it again"
            ) from error
        raise InputError(
            f"{path}: not valid {compression[1:]} data ({error}); the file is damaged, fetch it again"
        ) from error


@dataclass(frozen=True)
class LongLine:
    """A line that is longer than allowed: its first bytes, and its length in bytes."""

    start: bytes
    length: int


def split_lines(blocks: Iterable[bytes], longest: int) -> Iterator[bytes | LongLine]:
    """Split blocks at newlines, which stay with their lines; a byte order mark at the start is removed.

    A line of more than `longest` bytes is counted and not kept: memory holds at most `longest` bytes and a block.
    """
    rest: list[bytes] = []  # pieces of a line longer than a block: joined once, not once per block
    length = 0
    first = True
    for block in blocks:
        *whole, tail = block.split(b"\n")
        for line in whole:
            if not (rest or first or len(line) > longest):
                yield line + b"\n"
                continue
            yield _line([*rest, line, b"\n"], length + len(line), longest, first)
            rest, length, first = [], 0, False
        if tail:
            if length <= longest:
                rest.append(tail)
            length += len(tail)
    if length:
        yield _line(rest, length, longest, first)


def _line(pieces: list[bytes], length: int, longest: int, first: bool) -> bytes | LongLine:
    line = b"".join(pieces)
    if first:
        line = line.removeprefix(codecs.BOM_UTF8)
    return line if length <= longest else LongLine(line[:SHOWN], length)


def _object(line: bytes | LongLine, where: str) -> Mapping[str, Any]:
    if isinstance(line, LongLine):
        raise InputError(f"{where}: {line.length:,} bytes; a line has at most {LARGEST_LINE:,}")
    try:
        return parse_json(line.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: invalid UTF-8 at byte {error.start}; save the file as UTF-8") from error
    except BadRecord as error:
        raise InputError(f"{where}: {error}") from error
