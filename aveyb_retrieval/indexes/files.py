"""Every way this package changes the disk, in one place, so that durability is decided (and its faults tested) once.

A file is written under a temporary name, flushed to the device, renamed into place, and its folder flushed: after a
power cut a name either does not exist or holds all its bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 20


@dataclass(frozen=True)
class FileInfo:
    """Size in bytes and sha256 (hex) of a file's contents."""

    bytes: int
    sha256: str


def write(handle: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of `data`."""
    handle.write(data)


def fsync(handle: BinaryIO) -> None:
    """Flush a file's contents to the device."""
    handle.flush()
    os.fsync(handle.fileno())


def fsync_folder(folder: Path) -> None:
    """Flush a folder's list of names to the device."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def rename(source: Path, target: Path) -> None:
    """Give a file or folder its final name and make that name durable."""
    source.replace(target)
    fsync_folder(target.parent)


class HashingWriter:
    """A file being written whose sha256 is known when the last byte is."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self._hash = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        write(self._handle, data)
        self._hash.update(data)
        self._bytes += len(data)
        return len(data)

    def info(self) -> FileInfo:
        return FileInfo(self._bytes, self._hash.hexdigest())


@contextmanager
def atomic_writer(path: Path) -> Iterator[HashingWriter]:
    """Open `path` for writing; it appears, complete and durable, only when the block ends without an exception."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as handle:
        yield HashingWriter(handle)
        fsync(handle)
    rename(temporary, path)


def write_atomic(path: Path, data: bytes) -> FileInfo:
    """Write a small file so that it is seen whole or not at all."""
    with atomic_writer(path) as out:
        out.write(data)
    return out.info()


def hash_file(path: Path) -> FileInfo:
    """Read a file in blocks and return its size and sha256."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as handle:
        while block := handle.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return FileInfo(size, digest.hexdigest())


def copy(source: Path, target: Path) -> None:
    """Copy a file; durable when this returns."""
    temporary = target.with_name(target.name + ".tmp")
    with source.open("rb") as reader, temporary.open("wb") as writer:
        while block := reader.read(_BLOCK):
            write(writer, block)
        fsync(writer)
    rename(temporary, target)


def link(source: Path, target: Path) -> None:
    """Make `target` the same immutable file as `source`: a hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:  # no hard links here (FAT, some network mounts): a copy is the same promise, only slower
        copy(source, target)


def remove_tree(folder: Path) -> None:
    """Delete a folder and all in it; a folder that is not there is fine."""
    if folder.exists():
        shutil.rmtree(folder)
