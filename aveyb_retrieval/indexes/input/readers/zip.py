"""ZIP archives of documents: one document, whose pages are the files in it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.input.readers.archive import open_archive, read_member
from aveyb_retrieval.indexes.input.readers.base import FileText, Unreadable

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.input.readers.inner import InnerFiles


def read_zip(data: bytes, inner: InnerFiles) -> FileText:
    """Read the files of an archive, by name; hidden ones are left out.

    Raises:
        Unreadable: it is no archive, or too large unpacked.
    """
    archive = open_archive(data)
    for info in sorted(archive.infolist(), key=lambda info: info.filename):
        path = PurePosixPath(info.filename)
        if info.is_dir() or any(part.startswith((".", "__MACOSX")) for part in path.parts):
            continue
        try:
            member = read_member(archive, info.filename)
        except Unreadable as reason:
            inner.leave_out(info.filename, str(reason))
            continue
        inner.read(info.filename, member)
    return inner.text("")
