"""Errors of the disk that an index is written to, told apart from those of a caller's own code.

A change reads documents and asks a model, and both may be a caller's own. An `OSError` of theirs (a
lost connection, a file of their own) is no error of the index's disk and reaches the caller as it
is: `from_outside` marks it, `unmarked` takes the mark off.
"""

from __future__ import annotations

import contextlib
import errno
import re
from typing import TYPE_CHECKING, TypeVar

from aveyb_retrieval.errors import AveyBError, DiskError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aveyb_retrieval.indexes.store.manifest import IndexDirectory

Item = TypeVar("Item")
_SOURCE_LINE = re.compile(r"\.rs:\d")  # in a word that says where Lance noticed it


class OutsideError(Exception):
    """Carries an `OSError` of a corpus or a model past `disk_errors`."""

    def __init__(self, original: OSError) -> None:
        super().__init__(str(original))
        self.original = original


def from_outside(items: Iterable[Item]) -> Iterator[Item]:
    """Yield what a corpus or a model gives; an `OSError` of theirs becomes an `OutsideError`."""
    try:
        yield from items
    except OSError as error:
        raise OutsideError(error) from error


@contextlib.contextmanager
def unmarked() -> Iterator[None]:
    """Raise the `OSError` that an `OutsideError` of the block carries."""
    try:
        yield
    except OutsideError as error:
        original, context = error.original, error.original.__context__
        try:
            raise original
        finally:
            original.__context__ = context  # as it was: what a caller's own code has noted


@contextlib.contextmanager
def disk_errors(place: IndexDirectory) -> Iterator[None]:
    """Say of a disk's error what became of the index, and what to do."""
    try:
        yield
    except OSError as error:
        words = (error.strerror or str(error)).split()
        cause = " ".join(word for word in words if not _SOURCE_LINE.search(word)).rstrip(",")
        try:
            visible = place.current()
        except AveyBError:
            visible = None
        if visible is None:
            state = "no index is made"
            elsewhere = "name a folder that can be written to"
        else:
            state = "the version that was visible before is unchanged, and searched as before"
            elsewhere = "to change the index, change a copy of it"
        advice = _advice(error, elsewhere)
        raise DiskError(f"{place}: cannot be written ({cause}); {state}. {advice}") from error


def _advice(error: OSError, elsewhere: str) -> str:
    said = str(error).lower()
    if error.errno == errno.EROFS or "read-only" in said:
        return f"Its file system is read-only: {elsewhere}"
    if error.errno in (errno.EACCES, errno.EPERM) or "permission denied" in said:
        return f"Get the right to write there, or {elsewhere}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or "no space left" in said or "quota" in said:
        return "Make room and run the same command again: it continues where it stopped"
    return "Repair the disk and run the same command again: it continues where it stopped"
