"""Where things are inside an index directory, and how a new version becomes the visible one.

    DIR/current        one line, the name of the visible version; replaced atomically
    DIR/lock           held (flock) by the one writer; says who that is
    DIR/building/      the journal of an unfinished change: same layout as a version; its manifest comes last
    DIR/v000001/       a version: never changed once it is visible
        manifest.json      what the version says about itself, with the sha256 of every other file
        store.sqlite       documents, passages, metadata, full text
        vectors/*.safetensors
        document.faiss  passage.faiss

Readers hold a shared flock on the manifest of the version they opened; a writer deletes an old version only when
nobody holds one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from pathlib import Path

from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.store import files

MANIFEST = "manifest.json"
STORE = "store.sqlite"
VECTORS = "vectors"
REJECTED = "rejected.jsonl"
_VERSION = re.compile(r"v(\d{6,})")


def faiss_file(kind: str) -> str:
    """Name of the FAISS file that holds the vectors of `kind` ("document" or "passage")."""
    return f"{kind}.faiss"


def shard_file(version: str, first: int) -> str:
    """Name of the shard that a version wrote and that begins with document number `first`."""
    return f"{VECTORS}/{version}-{first:012d}.safetensors"


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
        self.building = self.root / "building"

    def current(self) -> str | None:
        """Name of the visible version, or None where there is no index.

        Raises:
            IndexFormatError: the pointer does not hold the name of a version.
        """
        try:
            data = files.read_bounded(self.pointer, 64)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise IndexFormatError(f"{self.pointer}: cannot be read ({error.strerror})") from error
        name = data.decode("ascii", "replace").strip()
        if not _VERSION.fullmatch(name):
            raise IndexFormatError(
                f"{self.pointer}: holds {name!r}, not the name of a version such as v000001; "
                f"write the name of a complete version folder of {self.root} into it, or build the index again"
            )
        if (self.root / name).is_symlink():
            raise IndexFormatError(f"{self.root / name}: a link, not a version folder; put the folder itself there")
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

    def versions(self) -> list[str]:
        """Names of all version folders, oldest first."""
        if not self.root.is_dir():
            return []
        folders = (p for p in self.root.iterdir() if p.is_dir() and not p.is_symlink())
        names = [p.name for p in folders if _VERSION.fullmatch(p.name)]
        return sorted(names, key=version_number)

    def next_version(self) -> str:
        """The name that the next change will get."""
        current = self.current()
        return f"v{(version_number(current) if current else 0) + 1:06d}"

    def publish(self, name: str) -> None:
        """Make a complete version the visible one."""
        files.write_atomic(self.pointer, f"{name}\n".encode())

    def delete_unused(self) -> None:
        """Delete versions that are neither visible nor open in any reader."""
        current = self.current()
        for name in self.versions():
            if name != current and not _is_read(self.root / name / MANIFEST):
                shutil.rmtree(self.root / name)


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


def version_number(name: str) -> int:
    """The number in a version's name: 3 for v000003."""
    return int(name[1:])


def lock_shared(manifest: Path) -> int:
    """Mark a version as being read: returns a file descriptor to keep open as long as it is."""
    with files.open_regular(manifest) as handle:
        fd = os.dup(handle.fileno())
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def _is_read(manifest: Path) -> bool:
    try:
        with files.open_regular(manifest) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (FileNotFoundError, IndexFormatError):  # no reader can have opened what is not a manifest
        return False
    return False
