"""Where things are inside an index directory, and how a new version becomes the visible one.

    DIR/current                     one line, the name of the visible version; replaced by one rename
    DIR/versions/v000007-1f0c94ab.json      a version's manifest: all that it is made of; never changed
    DIR/documents.lance/  texts.lance/  passages.lance/     Lance datasets; versions share their files
    DIR/faiss/                      FAISS files, named by the version that made them
    DIR/rejected/                   what a change left out, with reasons
    DIR/journal.json                how far an unfinished change is; the same command continues it
    DIR/lock                        held by the one writer; says who that is

The name of a version holds a number and the build's own id, so an index that was made again at the same place never has
the name of one that was there before. Readers hold a shared lock on the manifest of the version they opened; a writer
deletes what only versions need that nobody reads any more.
"""

from __future__ import annotations

import re
from pathlib import Path

from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.store import files

FAISS = "faiss"
REJECTED = "rejected"
VERSIONS = "versions"
_VERSION = re.compile(r"v(\d{6,})-([0-9a-f]{8})")
_OLD = re.compile(r"v\d{6,}")


class IndexDirectory:
    """The names inside one index directory."""

    def __init__(self, root: str | Path) -> None:
        """Name the files of the index at `root`.

        Raises:
            ConfigError: `root` is not a path.
        """
        self.root = _path(root)
        self.pointer = self.root / "current"
        self.lock = self.root / "lock"
        self.journal = self.root / "journal.json"

    def current(self) -> str | None:
        """Name of the visible version, or None where there is no index.

        Raises:
            IndexFormatError: the pointer does not hold the name of a version, or that of an older format's.
        """
        try:
            data = files.read_bounded(self.pointer, 64)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise IndexFormatError(f"{self.pointer}: cannot be read ({error.strerror})") from error
        name = data.decode("ascii", "replace").strip()
        if _OLD.fullmatch(name):
            raise IndexFormatError(
                f"{self.root}: an index of format 1 or 2, which is not read any more; build it again"
            )
        if not _VERSION.fullmatch(name):
            raise IndexFormatError(
                f"{self.pointer}: holds {name[:64]!r}, not the name of a version; write the name of a file in "
                f"{self.root / VERSIONS} into it, without .json, or build the index again"
            )
        return name

    def visible(self) -> str:
        """Name of the visible version.

        Raises:
            IndexFormatError: there is no index, or the pointer does not hold the name of a version.
        """
        name = self.current()
        if name is None:
            raise self.missing()
        return name

    def missing(self) -> IndexFormatError:
        """Return the error that says that there is no index."""
        return IndexFormatError(f"{self.root}: no index here; make one with `aveyb-index build ... -o {self.root}`")

    def manifest(self, name: str) -> Path:
        """The manifest of a version."""
        return self.root / VERSIONS / f"{name}.json"

    def versions(self) -> list[str]:
        """Names of all versions that have a manifest, oldest first."""
        folder = self.root / VERSIONS
        if not folder.is_dir() or folder.is_symlink():
            return []
        return sorted(
            path.stem for path in folder.iterdir() if path.suffix == ".json" and _VERSION.fullmatch(path.stem)
        )

    def publish(self, name: str) -> None:
        """Make a complete version the visible one: from here on readers open it."""
        files.write_atomic(self.pointer, f"{name}\n".encode())


def version_name(number: int, build: str) -> str:
    """The name of version `number` of a build (8 hexadecimal digits)."""
    return f"v{number:06d}-{build}"


def is_version(name: str) -> bool:
    """Whether this is the name of a version."""
    return _VERSION.fullmatch(name) is not None


def _path(root: str | Path) -> Path:
    if not isinstance(root, (str, Path)):
        raise ConfigError(f"the index directory is of type {type(root).__name__}; a path is needed")
    if "\0" in str(root) or not str(root):
        raise ConfigError(f"the index directory {str(root)!r} is not a path: it is empty or holds a NUL")
    if isinstance(root, str) and "://" in root:
        raise ConfigError(
            f"{root.partition('://')[0]}://...: an address, where an index directory is needed; collections of engines "
            "are searched by Retriever.load, and changed by publish_index (publish) and unpublish_documents"
        )
    return Path(root)
