"""The caches of Lance that all datasets of a process share."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import lance

CACHE_BYTES = int(os.environ.get("AVEYB_CACHE_BYTES", 256 << 20))
"""Memory in which Lance keeps opened indexes and metadata, for all indexes of a process together."""

MOST_VERSIONS = 128


@dataclass
class _Session:
    """Lance's caches, and the versions of datasets that were opened with them."""

    caches: lance.Session
    versions: dict[Path, set[int]] = field(default_factory=dict)

    @classmethod
    def begin(cls) -> _Session:
        import lance

        caches = lance.Session(index_cache_size_bytes=CACHE_BYTES * 3 // 4, metadata_cache_size_bytes=CACHE_BYTES // 4)
        return cls(caches)


_session: _Session | None = None


def session(path: Path, version: int = 0) -> lance.Session:
    """Return the caches to open a version of a dataset with.

    They are begun anew after 128 versions of one dataset: Lance keeps every index that it has opened, with its file,
    until its bytes push it out, so a process that follows a writer would run out of descriptors, and the disk would not
    get back what was deleted. Old caches go with the last dataset that was opened with them.
    """
    global _session  # one for a process
    if _session is None or len(_session.versions.get(path, ())) >= MOST_VERSIONS:
        _session = _Session.begin()
    _session.versions.setdefault(path, set()).add(version)
    return _session.caches
