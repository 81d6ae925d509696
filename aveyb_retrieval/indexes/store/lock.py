"""Locks that the operating system releases when their holder exits: one writer, and who reads which version."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, BinaryIO

import portalocker

from aveyb_retrieval.errors import AveyBError, IndexFormatError, IndexLockedError
from aveyb_retrieval.indexes.store import files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

_NOTE_BYTES = 4096
_EXCLUSIVE = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
_SHARED = portalocker.LockFlags.SHARED | portalocker.LockFlags.NON_BLOCKING


@contextlib.contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the writer lock of an index while the block runs.

    Raises:
        IndexLockedError: another process holds it; the message names it.
        IndexFormatError: what has the lock's name is not a plain file of this index alone.
        AveyBError: the file system has no locks.
    """
    with _locked(path) as handle:
        if path.stat().st_size:  # a writer that ends in order leaves an empty file
            logger.warning("%s: the previous writer did not end in order (%s); its lock is stale", path, _holder(path))
        note = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv)[:200],
        }
        handle.truncate(0)
        handle.write(json.dumps(note).encode())
        handle.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a full disk must not hide what went wrong before
                handle.truncate(0)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Open and lock the file that has this name once the lock is held: a build that failed may just have removed it."""
    while True:
        files.make_folder(path.parent)
        with files.open_regular(path, os.O_RDWR | os.O_CREAT) as handle:
            if os.fstat(handle.fileno()).st_nlink > 1:  # writing to it would change a file that is elsewhere too
                raise IndexFormatError(f"{path}: this file has other names (hard links); remove it and try again")
            try:
                portalocker.lock(handle, _EXCLUSIVE)
            except portalocker.AlreadyLocked:
                raise IndexLockedError(
                    f"{path}: another writer is at work ({_holder(path)}); wait until it ends, or stop it and try again"
                ) from None
            except portalocker.LockException as error:
                raise _no_locks(path, error) from error
            if _is_at(handle, path):
                yield handle
                return


def _no_locks(path: Path, error: Exception) -> AveyBError:
    return AveyBError(f"{path}: cannot be locked ({error}); keep the index on a file system that has locks")


def _is_at(handle: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    try:
        note = json.loads(files.read_bounded(path, _NOTE_BYTES))
        return f"pid {note['pid']} on {note['host']} since {note['since']}: {note['command']}"
    except (OSError, IndexFormatError, ValueError, KeyError, TypeError, RecursionError):
        return "it left no note of itself"


def hold_version(manifest: Path) -> BinaryIO:
    """Mark a version as being read: returns a file to keep open as long as it is.

    Raises:
        FileNotFoundError: the version is gone, or a writer looks at it this very moment, before it deletes it.
        AveyBError: the file system has no locks.
    """
    handle = files.open_regular(manifest)
    try:
        portalocker.lock(handle, _SHARED)
    except portalocker.LockException as error:
        handle.close()
        if isinstance(error, portalocker.AlreadyLocked):
            raise FileNotFoundError(manifest) from None
        raise _no_locks(manifest, error) from error
    return handle


def is_read(manifest: Path) -> bool:
    """Whether anybody holds a version."""
    try:
        with files.open_regular(manifest) as handle:
            portalocker.lock(handle, _EXCLUSIVE)
    except portalocker.LockException:
        return True
    except (FileNotFoundError, IndexFormatError):  # no reader can have opened what is not a manifest
        return False
    return False
