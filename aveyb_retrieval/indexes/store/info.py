"""What there is to know of an index without searching it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.store import directory
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from aveyb_retrieval.indexes.store.manifest import read_manifest

if TYPE_CHECKING:
    from pathlib import Path


def describe(root: str | Path) -> dict[str, Any]:
    """Describe the visible version of an index: model, settings, counts, FAISS indexes, size, unfinished changes.

    Raises:
        IndexFormatError: there is no index, or its manifest is damaged.
    """
    index_dir = IndexDirectory(root)
    manifest = read_manifest(root)
    return {
        "path": str(index_dir.root),
        "version": manifest.version,
        "format": manifest.format,
        "created": manifest.created,
        "package": manifest.package,
        "model": manifest.model,
        "granularity": manifest.granularity,
        "dim": manifest.dim,
        "storage_dtype": manifest.storage_dtype,
        **manifest.counts,
        "fields": sorted(manifest.index_fields),
        "indexes": {kind: dataclasses.asdict(info) for kind, info in manifest.indexes.items()},
        "settings": manifest.settings,
        "bytes": sum(info.bytes for info in manifest.files.values()),
        "files": len(manifest.files),
        "unfinished": (index_dir.building / directory.STORE).exists(),
    }
