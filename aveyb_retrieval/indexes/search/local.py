"""Index directories as engines: one version is open, and a newer one can be moved to."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.store.lance_session import check_fork
from aveyb_retrieval.indexes.store.place import open_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from aveyb_retrieval.indexes.engine import EngineInfo

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0  # between two looks at whether a stored index has a newer version
_LOOK_WAIT_SECONDS = 30.0  # a search waits for the answer where nobody looked for so long


class LocalEngine:
    """An index directory, open at one version.

    `follow` checks a new version, to which every view then moves first; None: views stay with the
    version.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        mapped: bool = True,
        full_check: bool = False,
        device: str = "cpu",
    ) -> None:
        self.directory = open_directory(path, whole=False)
        self._open = partial(Snapshot.open, self.directory, mapped=mapped, device=device)
        self._moving = threading.RLock()
        self.follow: Callable[[EngineInfo], None] | None = None
        self.snapshot = self._open(full_check=full_check)

    def view(self) -> AbstractContextManager[Snapshot]:
        check_fork()
        if self.follow is not None and self.is_stale:
            with self._moving:
                if self.is_stale:  # nobody else has moved meanwhile
                    self.reopen(self.follow)
        return nullcontext(self.snapshot)

    @property
    def is_stale(self) -> bool:
        return self.directory.current() != self.snapshot.manifest.name

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        """Move to the newest version, unless `check` of it raises; the old one is let go when its
        last search ends.
        """
        with self._moving:
            self.snapshot.check_open()
            snapshot = self._open(before=self.snapshot)
            check(snapshot.info)
            self.snapshot = snapshot

    def close(self) -> None:
        with self._moving:
            self.snapshot.close()


class StoredEngine(LocalEngine):
    """An index in an object store: views follow its newest version without waiting for the store.

    A view looks at most once a second, in a thread of its own; only one that finds that nobody has
    looked for half a minute waits for the answer. What fails there is logged, and the version that
    is open stays.
    """

    def __init__(self, path: str | Path, **options: Any) -> None:
        super().__init__(path, **options)
        self.check: Callable[[EngineInfo], None] = lambda info: None
        self._looked = time.monotonic()
        self._looking = threading.Lock()

    def view(self) -> AbstractContextManager[Snapshot]:
        if self.follow is None:
            since = time.monotonic() - self._looked
            if since > _LOOK_WAIT_SECONDS:
                self._look()
            elif since > _LOOK_SECONDS and not self._looking.locked():
                threading.Thread(target=self._look, name="follow-index", daemon=True).start()
        return super().view()

    def _look(self) -> None:
        if not self._looking.acquire(blocking=False):
            return
        try:
            if self.is_stale:
                self.reopen(self.check)
        except AveyBError as error:
            logger.warning(
                "%s stays at version %s: %s",
                self.directory,
                self.snapshot.manifest.version,
                error,
            )
        finally:
            self._looked = time.monotonic()
            self._looking.release()
