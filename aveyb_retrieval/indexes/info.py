"""What there is to know of an index without searching it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes import layout
from aveyb_retrieval.indexes.layout import Layout
from aveyb_retrieval.indexes.manifest import Manifest


def describe(root: str | Path) -> dict[str, Any]:
    """Describe the visible version of an index: model, settings, counts, FAISS indexes, size, unfinished changes.

    Raises:
        IndexFormatError: there is no index, or its manifest is damaged.
    """
    place = Layout(root)
    name = place.current()
    if name is None:
        raise IndexFormatError(f"{root}: no index here; make one with `aveyb-index build ... -o {root}`")
    manifest = Manifest.read(place.root / name)
    return {
        "path": str(place.root),
        "version": manifest.version,
        "format": manifest.format,
        "created": manifest.created,
        "package": manifest.package,
        "model": manifest.model,
        "granularity": manifest.granularity,
        "dim": manifest.dim,
        "dtype": manifest.dtype,
        **manifest.counts,
        "fields": sorted(manifest.index_fields),
        "indexes": {kind: dataclasses.asdict(info) for kind, info in manifest.indexes.items()},
        "settings": manifest.settings,
        "bytes": sum(info.bytes for info in manifest.files.values()),
        "files": len(manifest.files),
        "unfinished": (place.building / layout.STORE).exists(),
    }
