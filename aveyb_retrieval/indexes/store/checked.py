"""Which FAISS files of an index were compared with their hashes, so that opening it does not read
them whole each time.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import files
from aveyb_retrieval.errors import IndexFormatError

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.files import FileInfo

CHECKED = "checked.json"
_MAX_BYTES = 1 << 20


class CheckedFiles:
    """Files of the index at `root` whose contents fitted their hashes, and how they lay on the disk
    then: `DIR/checked.json`.

    A file that was written, replaced or copied since has another size, time or inode there, so it
    counts as not compared. Nothing depends on the list: without it files are compared again.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._is_new = False

    @cached_property
    def _marks(self) -> dict[str, list[Any]]:
        """The marks of files, by name; most readers open an index without large files."""
        return _read(self._root / CHECKED)

    def has(self, name: str, info: FileInfo) -> bool:
        """Whether a file was compared with this hash, and has not changed since."""
        return self._marks.get(name) == self.mark(name, info)

    def mark(self, name: str, info: FileInfo) -> list[Any]:
        """What tells a file with this hash, as it is now, from what it may become."""
        status = (self._root / name).stat()
        return [info.sha256, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]

    def add(self, name: str, mark: list[Any]) -> None:
        """Note a file that had this mark when its comparison began."""
        self._is_new = self._is_new or self._marks.get(name) != mark
        self._marks[name] = mark

    def save(self) -> None:
        """Write the list, if files were added; a disk that cannot be written to keeps the old
        one.
        """
        if not self._is_new:
            return
        marks = {name: mark for name, mark in self._marks.items() if (self._root / name).exists()}
        tag = f".{os.getpid()}.{threading.get_ident()}"
        with contextlib.suppress(OSError):
            files.write_atomic(self._root / CHECKED, json.dumps(marks).encode(), tag=tag)


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        marks = json.loads(files.read_bounded(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError, IndexFormatError):
        return {}
    return marks if isinstance(marks, dict) else {}
