"""Our own engine: a directory of Lance datasets and FAISS files. A version never changes, so each is its own view."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.store.directory import IndexDirectory

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from aveyb_retrieval.indexes.engines.base import EngineInfo


class LocalEngine:
    """An index directory, open at one version.

    Attributes:
        snapshot: The version that is open.
        follow: Checks a new version, to which every view then moves first; None: views stay with the version.
    """

    def __init__(self, path: str | Path, *, mapped: bool = True, full_check: bool = False, device: str = "cpu") -> None:
        """Open the visible version.

        Raises:
            IndexFormatError: there is no index, or it is damaged.
        """
        self._path = path
        self._open = partial(Snapshot.open, path, mapped=mapped, device=device)
        self._moving = threading.RLock()
        self.follow: Callable[[EngineInfo], None] | None = None
        self.snapshot = self._open(full_check=full_check)

    def view(self) -> AbstractContextManager[Snapshot]:
        """Return the version that is open now (with `follow`: the newest one), also for later."""
        if self.follow is not None and self.is_stale:
            with self._moving:
                if self.is_stale:  # nobody else has moved meanwhile
                    self.reopen(self.follow)
        return nullcontext(self.snapshot)

    @property
    def is_stale(self) -> bool:
        """Whether a newer version is there."""
        return IndexDirectory(self._path).current() != self.snapshot.manifest.name

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        """Move to the newest version, unless `check` of it raises an error.

        The old one lets go of its files when the last search on it ends.

        Raises:
            AveyBError: the engine is closed, or there is no version that can be read.
        """
        with self._moving:
            self.snapshot.check_open()
            snapshot = self._open(before=self.snapshot)
            check(snapshot.info)
            self.snapshot = snapshot

    def close(self) -> None:
        """Let go of the version's files."""
        with self._moving:
            self.snapshot.close()
