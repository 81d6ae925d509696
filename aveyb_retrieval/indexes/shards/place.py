"""A folder that shards are written to and read from: local, or any URL that fsspec opens (`s3://`, `memory://`)."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from aveyb_retrieval import files
from aveyb_retrieval.errors import AveyBError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_url(name: object) -> bool:
    """Return whether a name is a URL and not a path."""
    return isinstance(name, str) and "://" in name


class Place:
    """A folder of files that are small enough to be read and written whole.

    A file appears complete or not at all: locally by a flushed rename, elsewhere as object stores promise it for one
    upload. Names may have one folder in front (`shard/part`).

    Attributes:
        url: The absolute path, or the URL.
    """

    def __init__(self, url: str | Path) -> None:
        """Name the folder; nothing is made until something is written.

        Raises:
            InputError: nobody knows this kind of URL, or its driver is not installed.
        """
        self._name = str(url).rstrip("/") or "/"
        self.url = self._name if is_url(self._name) else str(Path(self._name).resolve())
        self._remote: Any = None
        if is_url(self._name):
            try:
                import fsspec

                self._remote, self._root = fsspec.core.url_to_fs(self._name)
            except (ImportError, ValueError) as error:
                raise InputError(
                    f"{self._name}: {error}; it needs fsspec and the driver of its kind (of s3://: pip install s3fs)"
                ) from error

    def __str__(self) -> str:
        """The path or URL as it was given."""
        return self._name

    def names(self, folder: str = "") -> list[str]:
        """Return the names in the place, or in one of its folders, ascending; of a folder that is not there: none."""
        with self._reading(folder), suppress(FileNotFoundError):
            if self._remote is None:
                return sorted(entry.name for entry in Path(self.url, folder).iterdir())
            self._remote.invalidate_cache()
            found = self._remote.ls(f"{self._root}/{folder}".rstrip("/"), detail=False)
            return sorted(name.rstrip("/").rsplit("/", 1)[1] for name in found)
        return []

    def read(self, name: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            FileNotFoundError: it is not there.
            InputError: it cannot be read.
        """
        with self._reading(name):
            if self._remote is None:
                with files.open_regular(Path(self.url, name)) as handle:
                    return handle.read(os.fstat(handle.fileno()).st_size)
            data: bytes = self._remote.cat_file(f"{self._root}/{name}")
            return data

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all, over one of the same name; several processes may do so at once.

        Raises:
            AveyBError: the disk is full or fails, or the store refuses.
        """
        with self._writing(name):
            if self._remote is None:
                path = Path(self.url, name)
                files.make_folder(path.parent)
                files.write_atomic(path, data, tag=f".{uuid4().hex}")
                return
            remote = f"{self._root}/{name}"
            self._remote.makedirs(remote.rsplit("/", 1)[0], exist_ok=True)
            self._remote.pipe_file(remote, data)

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is fine.

        Raises:
            AveyBError: as for `write`.
        """
        with self._writing(name), suppress(FileNotFoundError):
            if self._remote is None:
                Path(self.url, name).unlink()
            else:
                self._remote.rm_file(f"{self._root}/{name}")

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AveyBError(
                f"{self}/{name}: writing failed ({error.strerror or error}); what was there before is unchanged. "
                "Make room or repair the disk and give the same command again: it continues where it stopped"
            ) from error

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Turn what a file system raises into an error of ours; a file that is not there is left to the caller."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise InputError(f"{self}/{name}: cannot be read ({error.strerror or error})") from error
