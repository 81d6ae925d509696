"""What there is to know of an index without searching it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.store.directory import IndexDirectory
from aveyb_retrieval.indexes.store.manifest import read_manifest

if TYPE_CHECKING:
    from pathlib import Path


def describe(root: str | Path) -> dict[str, Any]:
    """Describe the visible version of an index: how it was made, counts, FAISS files, size, unfinished changes.

    Raises:
        IndexFormatError: there is no index, or its manifest is damaged.
    """
    index_dir = IndexDirectory(root)
    manifest = read_manifest(root)
    return {
        "path": str(index_dir.root),
        "version": manifest.version,
        "build": manifest.build,
        "format": manifest.format,
        "created": manifest.created,
        "package": manifest.package,
        **dataclasses.asdict(manifest.encoding),
        "index": manifest.index,
        "recall": manifest.recall,
        **dataclasses.asdict(manifest.counts),
        "rejected": manifest.changes.rejected,
        "indexes": {
            kind: [dataclasses.asdict(tier) for tier in manifest.tiers_of(kind)] for kind in manifest.encoding.kinds
        },
        "bytes": sum(info.bytes for info in manifest.files.values()),
        "files": len(manifest.files),
        "unfinished": index_dir.journal.exists(),
    }
