"""What lies in an index directory: for tests of its layout, and of what another hand has changed in
it.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.store.manifest import IndexDirectory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def manifest_path(root: Path) -> Path:
    """The manifest of the visible version."""
    return IndexDirectory(root).manifest(IndexDirectory(root).visible())


def files_of(root: Path) -> set[str]:
    """All that is in an index directory, but its folders."""
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def files_of_one_version(root: Path) -> set[str]:
    """All that would be in an index directory that holds nothing but its visible version."""
    path = manifest_path(root)
    return {*json.loads(path.read_text())["files"], "current", "lock", f"versions/{path.name}"}


def rewrite_manifest(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the visible version's manifest, and make its checksum fit, as a hostile hand would."""
    path = manifest_path(root)
    body = json.loads(path.read_text(encoding="utf-8"))
    del body["checksum"]
    change(body)
    checksum = hashlib.sha256(
        json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
    path.write_text(json.dumps({"checksum": checksum, **body}), encoding="utf-8")


def rehash(root: Path, name: str) -> None:
    """Make the manifest say of a file what it now is."""
    data = (root / name).read_bytes()
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite_manifest(root, lambda body: body["files"].update({name: entry}))
