"""What identifies a model: a hash of the files that it is made of and of the settings it runs with."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


def fingerprint(folder: Path, names: Iterable[str], settings: Mapping[str, str]) -> str:
    """SHA-256 (hex) over those of the named files that are there, in this order, and over the settings."""
    digest = hashlib.sha256()
    for name in names:
        path = folder / name
        if path.is_file():
            digest.update(name.encode())
            for block in _blocks(path):
                digest.update(block)
    for name, value in sorted(settings.items()):
        digest.update(f"{name}={value}\n".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    digest = hashlib.sha256()
    for block in _blocks(path):
        digest.update(block)
    return digest.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(1 << 20), b"")
