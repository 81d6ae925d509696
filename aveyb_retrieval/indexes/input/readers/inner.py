"""Files inside of a file: the members of a ZIP archive, what is attached to a mail."""

from __future__ import annotations

from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.input.readers.archive import open_archive, read_member
from aveyb_retrieval.indexes.input.readers.base import FileText, Parts, Unreadable, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH = 3  # of files in files


class InnerFiles:
    """The text of a file that holds others: each has a heading with its name, and is a page.

    `read_inner` reads one by the reader of its kind; None where the kind is not known.
    """

    def __init__(self, read_inner: Callable[[str, bytes, int], FileText | None], longest: int, depth: int) -> None:
        self._read_inner = read_inner
        self._parts = Parts("file", longest)
        self._depth = depth
        self._left_out: list[str] = []
        self._warnings: list[str] = []

    def add(self, name: str, text: str) -> None:
        """Add a text that was read."""
        self._parts.add(f"# {name}\n\n{text}" if name else text, name)

    def leave_out(self, name: str, reason: str) -> None:
        """Note that a file was not read."""
        self._left_out.append(f"{name}: {reason}")

    def read(self, name: str, load: Callable[[], bytes]) -> None:
        """Read one file, whose bytes `load` gives, or note why it was not read."""
        if self._depth >= MAX_DEPTH:
            self.leave_out(name, f"{MAX_DEPTH} files deep")
            return
        try:
            found = self._read_inner(name, load(), self._depth + 1)
        except Unreadable as reason:
            self.leave_out(name, str(reason))
            return
        except MemoryError:  # ends the process that reads
            raise
        except Exception as error:  # of a parser that a damaged file has confused: the other files are read
            self.leave_out(name, f"not readable ({type(error).__name__}: {one_line(str(error))})")
            return
        if found is None:
            self.leave_out(name, f"unknown kind {PurePosixPath(name).suffix}")
            return
        if found.text.strip():
            self.add(name, found.text)
        if found.warning:
            self._warnings.append(f"{name}: {found.warning}")

    def text(self, title: str) -> FileText:
        """Return what was read, and which files were not."""
        warnings = list(self._warnings)
        if self._left_out:
            files = "files" if len(self._left_out) > 1 else "file"
            warnings.insert(0, f"{len(self._left_out):,} {files} in it left out: " + "; ".join(self._left_out))
        return self._parts.text(title, "; ".join(warnings))


def read_zip(data: bytes, inner: InnerFiles) -> FileText:
    """Read the files of an archive, by name, as one document whose pages they are; hidden ones are left out.

    Raises:
        Unreadable: it is no archive, or too large unpacked.
    """
    archive = open_archive(data)
    for info in sorted(archive.infolist(), key=lambda info: info.filename):
        path = PurePosixPath(info.filename)
        if info.is_dir() or any(part.startswith((".", "__MACOSX")) for part in path.parts):
            continue
        inner.read(info.filename, partial(read_member, archive, info.filename))
    return inner.text("")
