"""Read lines and JSON objects from plain, gzip and zstd files, in constant memory."""

from __future__ import annotations

import codecs
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.index.input.documents import BadRecord, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_BLOCK = 1 << 20


def read_objects(path: str | Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the line number and the object of each line of a JSON Lines file that is not blank.

    A name that ends in `.gz` or `.zst` is decompressed.

    Raises:
        InputError: the file is missing or damaged, not UTF-8, or a line is not a JSON object.
    """
    path = Path(path)
    try:
        with path.open("rb") as handle:
            compression = path.suffix.lower() if path.suffix.lower() in (".gz", ".zst") else ""
            for number, line in enumerate(split_lines(decompress(handle, path, compression)), start=1):
                if line.strip():
                    yield number, _object(line, f"{path}, line {number}")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_blocks(handle: BinaryIO, size: int = _BLOCK) -> Iterator[bytes]:
    """Yield the rest of a file in blocks."""
    while block := handle.read(size):
        yield block


def decompress(handle: BinaryIO, path: Path, compression: str) -> Iterator[bytes]:
    """Yield the contents of a file block by block, its compressed members one after the other.

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
    make = _zstd_decompressor() if compression == ".zst" else lambda: zlib.decompressobj(wbits=31)
    stream, fresh = make(), True
    try:
        for block in read_blocks(handle, _BLOCK // 16):  # small: a block may grow a thousandfold
            while block:
                yield stream.decompress(block)
                block, fresh = b"", False
                if stream.eof:
                    block = stream.unused_data
                    stream, fresh = make(), True
    except _compression_errors() as error:
        raise InputError(
            f"{path}: not valid {compression[1:]} data ({error}); the file is damaged, fetch it again"
        ) from error
    if not fresh:
        raise InputError(
            f"{path}: ends in the middle of its {compression[1:]} data; the file is cut short, fetch it again"
        )


def split_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Split blocks at newlines, which stay with their lines; a byte order mark at the start is removed."""
    rest: list[bytes] = []  # pieces of a line longer than a block: joined once, not once per block
    first = True
    for block in blocks:
        *whole, tail = block.split(b"\n")
        for line in whole:
            yield _without_mark(b"".join([*rest, line, b"\n"]), first)
            rest, first = [], False
        if tail:
            rest.append(tail)
    if rest:
        yield _without_mark(b"".join(rest), first)


def _without_mark(line: bytes, first: bool) -> bytes:
    return line.removeprefix(codecs.BOM_UTF8) if first else line


def _object(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        return parse_json(line.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: invalid UTF-8 at byte {error.start}; save the file as UTF-8") from error
    except BadRecord as error:
        raise InputError(f"{where}: {error}") from error


def _zstd_decompressor() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj


def _compression_errors() -> tuple[type[Exception], ...]:
    import zstandard

    return (zlib.error, zstandard.ZstdError)
