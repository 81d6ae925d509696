"""One change of an index, from the writer lock to the visible version; survives being killed at any instant.

The journal is the folder `building/`: a store and shards like those of a version. A commit first makes a shard durable
under its final name, then inserts its rows and the position in the input in one SQLite transaction; a shard without
rows is overwritten by the next commit. The manifest is written when everything else is on the device, the folder is
renamed to the version's name, and the pointer flipped: a change that stops between any two of these steps goes on at
the next start, and readers see the old version until the flip.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import AveyBError, ConfigError
from aveyb_retrieval.indexes.store import directory, files, store_check
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from aveyb_retrieval.indexes.store.lock import writer_lock
from aveyb_retrieval.indexes.store.manifest import Manifest
from aveyb_retrieval.indexes.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

Job = dict[str, Any]


class Transaction:
    """An unfinished change: where it is built, its store, and the version it will become.

    `base` is the manifest of the version that it starts from (None for a build from nothing), `resumed` whether work of
    an earlier, interrupted run is being continued, and `done` whether all of it was finished by that run.
    """

    def __init__(self, index_dir: IndexDirectory, job: Job, base: Manifest | None) -> None:
        self.index_dir = index_dir
        self.job = job
        self.base = base
        self.version = index_dir.next_version()
        self.folder = index_dir.building
        self.resumed = False
        self.done: Manifest | None = None
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store of the new version, open for writing."""
        assert self._store is not None
        return self._store

    @property
    def base_folder(self) -> Path:
        """Folder of the version that this change starts from."""
        assert self.base is not None
        return self.index_dir.root / self.base.version

    # --- start -------------------------------------------------------------------------------------------------------

    def start(self, *, restart: bool) -> None:
        """Continue the journal of the same job, or begin a new one.

        Raises:
            ConfigError: the journal is of another job; the message says what differs.
        """
        files.check_plain(self.folder)
        waiting = self.index_dir.root / self.version  # complete, but its writer died before the pointer was flipped
        journal = self._journal(waiting)
        if journal is not None and not restart:
            self._check_same(journal)
            if (waiting / directory.MANIFEST).exists():
                self.index_dir.publish(self.version)
                self.done = Manifest.read(waiting)
                return
            if (self.folder / directory.MANIFEST).exists():
                self.done = Manifest.read(self.folder)
                self._show()
                return
            self.resumed = True
            self._store = Store.open_for_writing(self.folder / directory.STORE)
            with self.store.transaction():
                self.store.upgrade()
                self.store.put("job", self.job)
            return
        files.remove_tree(waiting)
        files.remove_tree(self.folder)
        self._begin()

    def _journal(self, waiting: Path) -> Job | None:
        """The job of an interrupted change, or None where there is none worth keeping."""
        if (waiting / directory.MANIFEST).exists():
            return Manifest.read(waiting).job
        path = self.folder / directory.STORE
        if not path.exists():
            return None
        store = None
        try:
            store = Store.open_for_writing(path)
            # until the first transaction of `_begin`, the store is empty or still the copy of an older version's
            return store.get("job") if store.get("version") == self.version else None
        except store_check.UNREADABLE:
            logger.warning("%s: unreadable journal of an interrupted change; starting again", path)
            return None
        finally:
            if store is not None:
                store.close()

    def _check_same(self, journal: Job) -> None:
        free = journal.get("replaceable", ())
        keys = [k for k in {**journal, **self.job} if k not in free and journal.get(k) != self.job.get(k)]
        if keys:
            differences = "; ".join(f"{k} was {journal.get(k)!r} and is {self.job.get(k)!r}" for k in keys)
            raise ConfigError(
                f"{self.index_dir.root}: an interrupted change with other arguments is waiting ({differences}); "
                "finish it with its own arguments, or throw its work away with --restart (restart=True)"
            )

    def _begin(self) -> None:
        (self.folder / directory.VECTORS).mkdir(parents=True)
        path = self.folder / directory.STORE
        if self.base is None:
            self._store = Store.create(path)
        else:
            files.copy(self.base_folder / directory.STORE, path)
            for name in self.base.files:
                if name.startswith(directory.VECTORS):
                    files.link(self.base_folder / name, self.folder / name)
            self._store = Store.open_for_writing(path)
        files.fsync_folder(self.folder / directory.VECTORS)
        files.fsync_folder(self.folder)
        files.fsync_folder(self.index_dir.root)
        with self.store.transaction():
            if self.base is None:
                self.store.put("next_doc", 1)
            elif not any(info.tombstones for info in self.base.indexes.values()):
                self.store.db.execute("DELETE FROM removed")  # no index of the base holds them any more
            self.store.upgrade()
            self.store.put("first_doc", self.store.get("next_doc"))
            self.store.put("consumed", 0)
            self.store.put("digest", "")
            self.store.put("changes", {})
            self.store.put("version", self.version)
            self.store.put("job", self.job)

    # --- end ---------------------------------------------------------------------------------------------------------

    def allow_other_index(self) -> None:
        """Let the next run name another index type: everything is encoded, and FAISS refused this one."""
        self.store.put("job", {**self.job, "replaceable": ["index", "recall", "replaceable"]})

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest and make the new version the visible one."""
        manifest.write(self.folder)
        self._show()

    def _show(self) -> None:
        files.rename(self.folder, self.index_dir.root / self.version)
        self.index_dir.publish(self.version)

    def close(self) -> None:
        """Close the store; what is not committed is lost."""
        if self._store is not None:
            self._store.close()

    def cancel(self) -> None:
        """Throw the journal away: there is nothing to change."""
        self.close()
        files.remove_tree(self.folder)

    def abandon_if_empty(self, existed: bool) -> None:
        """Leave no trace of a change that failed before its first commit."""
        if self.resumed or self.done is not None or self.store.get("consumed"):
            return
        self.cancel()
        if not existed and not self.index_dir.versions():  # another process may have built here since
            files.remove_tree(self.index_dir.root)


@contextlib.contextmanager
def open_transaction(root: str | Path, job: Job, *, from_base: bool, restart: bool = False) -> Iterator[Transaction]:
    """Take the writer lock and begin or continue a change of the index at `root`.

    Raises:
        IndexLockedError: another process is writing.
        ConfigError: another change is unfinished.
        AveyBError: the disk is full or fails; nothing visible has changed and the same call continues.
    """
    index_dir = IndexDirectory(root)
    existed = index_dir.root.exists()
    with _disk_errors(index_dir.root), writer_lock(index_dir.lock):
        current = index_dir.current()
        base = Manifest.read(index_dir.root / current) if from_base and current else None
        transaction = Transaction(index_dir, job, base)
        transaction.start(restart=restart)
        try:
            yield transaction
        except AveyBError:
            transaction.abandon_if_empty(existed)
            raise
        finally:
            transaction.close()
        index_dir.delete_unused()


@contextlib.contextmanager
def _disk_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise AveyBError(
            f"{root}: writing failed ({error}); the index that was visible before is unchanged. "
            "Make room or repair the disk and give the same command again: it continues where it stopped"
        ) from error
