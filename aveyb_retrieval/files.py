"""How files are written so that they last: in one place, so that durability is decided (and its
faults tested) once.

A file is written under a temporary name, flushed to the device, renamed into place, and its folder
flushed: after a power cut a name either does not exist or holds all its bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from aveyb_retrieval.errors import IndexFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none of the three
_ALWAYS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True)
class FileInfo:
    """Size in bytes and sha256 (hex) of a file's contents."""

    bytes: int
    sha256: str


def open_file(path: Path, flags: int, *, follow_links: bool = False) -> int:
    """Return a descriptor from `os.open` that never waits, as a pipe would be waited for; a new
    file has mode 0o666.

    Without `follow_links` a link is not opened, not even where it has taken a file's place since
    that was listed; on Windows the place is looked at just before.
    """
    if not follow_links and not _NOFOLLOW and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.open(path, flags | _ALWAYS | (0 if follow_links else _NOFOLLOW), 0o666)


def open_regular(path: Path, flags: int = os.O_RDONLY, *, follow_links: bool = False) -> FileIO:
    """Open a file, unbuffered: a regular file and nothing else, of an index never what a symbolic
    link points to.

    A FIFO or a device would be waited for, or read without end, and a link leads out of the index.
    """
    try:
        fd = open_file(path, flags, follow_links=follow_links)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_regular(path)
    return FileIO(fd, "rb" if flags == os.O_RDONLY else "r+b")


def _not_regular(path: Path) -> IndexFormatError:
    return IndexFormatError(
        f"{path}: not a plain file; an index has no links, devices or pipes in it: remove it"
    )


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a small regular file; at most `limit` bytes of it."""
    with open_regular(path) as handle:
        return handle.read(limit)


def check_plain(folder: Path) -> None:
    """Check that a folder holds plain files and folders only, so that nothing written below it
    lands elsewhere.
    """
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise _not_regular(folder)
    with os.scandir(folder) as entries:  # it knows what they are without a look at each
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                check_plain(Path(entry.path))
            elif not entry.is_file(follow_symlinks=False):
                raise _not_regular(Path(entry.path))


def _create(path: Path) -> BinaryIO:
    """Open a new file for writing.

    What has its name is removed first, never written through: it may be a link.
    """
    path.unlink(missing_ok=True)
    return os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def _set_mode(handle: BinaryIO, path: Path, mode: int) -> None:
    """Set the mode of the file at `path`, open as `handle`.

    The descriptor names the file itself, whatever has taken its place. Windows takes only the
    path before Python 3.13.
    """
    if sys.platform == "win32":
        path.chmod(mode)
    else:
        os.fchmod(handle.fileno(), mode)


def open_for_appending(path: Path) -> BinaryIO:
    """Open a file of an index, or a new one, to write behind its end."""
    return os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")


def write(handle: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of `data`."""
    handle.write(data)


def fsync(handle: BinaryIO) -> None:
    """Flush a file's contents to the device."""
    handle.flush()
    os.fsync(handle.fileno())


def fsync_file(path: Path, *, follow_links: bool = False) -> None:
    """Flush the contents of a file that others have written to the device."""
    fd = open_file(path, os.O_RDONLY, follow_links=follow_links)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_folder(folder: Path) -> None:
    """Flush a folder's list of names to the device, where the system has that."""
    if os.name != "nt":
        fsync_file(folder, follow_links=True)


def fsync_all(root: Path, names: Iterable[str]) -> None:
    """Flush files that others have written, by their names below a folder, and the folders that
    name them.
    """
    paths = [root / name for name in names]
    for path in paths:
        fsync_file(path)
    for folder in {
        parent for path in paths for parent in path.parents if parent.is_relative_to(root)
    }:
        fsync_folder(folder)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, their names durable; one that is there is fine."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for parent in missing:
        fsync_folder(parent.parent)


def rename(source: Path, target: Path) -> None:
    """Give a file or folder its final name and make that name durable."""
    source.replace(target)
    fsync_folder(target.parent)


class HashingWriter:
    """A file being written, whose sha256 is known when its last byte is: a large file is not read
    again for it.
    """

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self._hash = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write `data`; return its length."""
        self._hash.update(data)
        write(self._handle, data)
        self._bytes += len(data)
        return len(data)

    def info(self) -> FileInfo:
        """Size and hash of all that was written."""
        return FileInfo(self._bytes, self._hash.hexdigest())


@contextmanager
def atomic_writer(path: Path, *, tag: str = "", mode: int | None = None) -> Iterator[HashingWriter]:
    """Open `path` for writing; it appears, complete and durable, only when the block ends without
    an exception. `mode` is that of the file; None leaves it to the process's mask.
    """
    temporary = path.with_name(f"{path.name}{tag}.tmp")
    with _create(temporary) as handle:
        if mode is not None:
            _set_mode(handle, temporary, mode)
        out = HashingWriter(handle)
        yield out
        fsync(handle)
    rename(temporary, path)


def write_atomic(path: Path, data: bytes, *, tag: str = "") -> FileInfo:
    """Write a small file, seen whole or not at all; of several processes each gives its
    own `tag`.
    """
    with atomic_writer(path, tag=tag) as out:
        out.write(data)
    return out.info()


def replace_in_place(path: Path, data: bytes) -> None:
    """Write a file of somebody else's: a link stays a link, and the file keeps its mode."""
    target = path.resolve()
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    with atomic_writer(target, mode=mode) as out:
        out.write(data)


def hash_file(path: Path, *, follow_links: bool = False) -> FileInfo:
    """Read a regular file in blocks and return its size and sha256."""
    with open_regular(path, follow_links=follow_links) as handle:
        digest = hashlib.file_digest(handle, "sha256")
        return FileInfo(handle.tell(), digest.hexdigest())


def hash_texts(texts: Iterable[str]) -> str:
    """Return the SHA-256 (hex) over texts and their borders."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def remove_tree(folder: Path) -> None:
    """Delete a folder and all in it (of a link: the link); a folder that is not there is fine."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
