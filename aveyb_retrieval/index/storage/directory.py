"""Where things are inside an index directory, and how a new version becomes the visible one.

    DIR/current        one line, the name of the visible version; replaced atomically
    DIR/lock           held (flock) by the one writer; says who that is
    DIR/building/      the journal of an unfinished change: same layout as a version, without a manifest
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

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.index.storage import files

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
        self.root = Path(root)
        self.pointer = self.root / "current"
        self.lock = self.root / "lock"
        self.building = self.root / "building"

    def current(self) -> str | None:
        """Name of the visible version, or None where there is no index.

        Raises:
            IndexFormatError: the pointer does not hold the name of a version.
        """
        try:
            data = self.pointer.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        name = data[:64].decode("ascii", "replace").strip()
        if not _VERSION.fullmatch(name):
            raise IndexFormatError(
                f"{self.pointer}: holds {name!r}, not the name of a version such as v000001; "
                f"write the name of a complete version folder of {self.root} into it, or build the index again"
            )
        return name

    def versions(self) -> list[str]:
        """Names of all version folders, oldest first."""
        if not self.root.is_dir():
            return []
        names = [p.name for p in self.root.iterdir() if _VERSION.fullmatch(p.name) and p.is_dir()]
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


def version_number(name: str) -> int:
    """The number in a version's name: 3 for v000003."""
    return int(name[1:])


def lock_shared(manifest: Path) -> int:
    """Mark a version as being read: returns a file descriptor to keep open as long as it is."""
    fd = os.open(manifest, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def _is_read(manifest: Path) -> bool:
    try:
        fd = os.open(manifest, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
