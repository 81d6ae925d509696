"""Lance as a process uses it: its caches, forks, and what its errors become."""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

import pyarrow as pa

from aveyb_retrieval.errors import AveyBError, IndexFormatError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import lance

CACHE_BYTES = int(os.environ.get("AVEYB_CACHE_BYTES", 256 << 20))
"""Memory in which Lance keeps opened indexes and metadata, for all indexes of a process together.
"""

MAX_CACHED_VERSIONS = 128  # of one dataset

# else every new dataset is a warning; read when Lance is imported
os.environ.setdefault("LANCE_LOG", "error")


@dataclass
class _Session:
    """Lance's caches, and the versions of datasets that were opened with them."""

    caches: lance.Session
    versions: dict[Path, set[int]]


_session: _Session | None = None
_forked = False


def _note_fork() -> None:
    global _forked  # one for a process
    _forked = _forked or _session is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def check_fork() -> None:
    """Raise AveyBError in a process forked from one that had an index open: its locks may be held
    for ever.
    """
    if _forked:
        raise AveyBError(
            f"process {os.getpid()} was forked from a process with an open index, which cannot"
            " be used here: start workers by 'spawn' or 'forkserver', or open indexes only"
            " after the fork, in each worker"
        )


def session(path: Path, version: int = 0) -> lance.Session:
    """Return the caches to open a version of a dataset with: new ones after 128 versions of one
    dataset.

    Lance keeps every index open that it has opened: a process that follows a writer would run out
    of descriptors and of disk.
    """
    global _session  # one for a process
    if _session is None or len(_session.versions.get(path, ())) >= MAX_CACHED_VERSIONS:
        import lance

        caches = lance.Session(
            index_cache_size_bytes=CACHE_BYTES * 3 // 4, metadata_cache_size_bytes=CACHE_BYTES // 4
        )
        _session = _Session(caches, {})
    _session.versions.setdefault(path, set()).add(version)
    return _session.caches


_SOURCE_PLACE = re.compile(r",? \S+\.rs:\d+:\d+")  # where in Lance's source an error arose


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Turn the errors that reading damaged files at `path` ends in into an error of ours."""
    check_fork()
    try:
        yield
    except AveyBError:
        raise
    except (
        OSError,
        ValueError,
        RuntimeError,
        IndexError,
        OverflowError,
        pa.ArrowException,
    ) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise AveyBError(
                f"{path}: {error.strerror}; let this process open more (ulimit -n)"
            ) from error
        raise _unreadable(path, error) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Rust's `panic!`, of unexpected bytes
            raise
        raise _unreadable(path, error) from error


class Stored(Protocol):
    """What reads files of one path."""

    path: Path


_P = ParamSpec("_P")
_T = TypeVar("_T")
_Stored = TypeVar("_Stored", bound=Stored)


def guarded(
    method: Callable[Concatenate[_Stored, _P], _T],
) -> Callable[Concatenate[_Stored, _P], _T]:
    """Have a method that reads files say what `damage` says."""

    @wraps(method)
    def run(stored: _Stored, *args: _P.args, **options: _P.kwargs) -> _T:
        with damage(stored.path):
            return method(stored, *args, **options)

    return run


def _unreadable(path: Path, error: BaseException) -> IndexFormatError:
    reason = first_line(error, _SOURCE_PLACE.sub("", str(error)))[:300]
    return IndexFormatError(
        f"{path}: files of the version that is open are missing or damaged ({reason}); if the"
        " index was built again at this place, open it again; otherwise run `aveyb-index"
        f" verify {path.parent}`"
    )
