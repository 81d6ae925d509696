"""`Index`: an index directory that a program both searches and changes, always at its newest
version.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from aveyb_retrieval.errors import ConfigError, IndexLockedError
from aveyb_retrieval.indexes.changes.change import compact
from aveyb_retrieval.indexes.changes.update import Batch, build_index
from aveyb_retrieval.indexes.changes.verify import Verdict, verify_index
from aveyb_retrieval.indexes.model import BuildOptions, check_options, check_wait
from aveyb_retrieval.indexes.search.local import LocalEngine, StoredEngine
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.indexes.store.place import open_directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from aveyb_retrieval.documents.corpus import Source
    from aveyb_retrieval.indexes.changes.change import Report
    from aveyb_retrieval.indexes.model import ReadOptions
    from aveyb_retrieval.indexes.search.step_times import OnSearch
    from aveyb_retrieval.indexes.store.filters import Filter


_OPENING = ("model", "device", "precision")


class Index(Retriever):
    """An index directory, open for searches and changes. Safe to use from many threads; one process
    writes at a time.

    Every search sees what was written before it, by whichever process, as does a `Retriever` after
    `reopen`. A change is on the disk when its call returns. The model is loaded when it is first
    needed, once for all indexes of a process. Copies made by pickle open the same place again.

    >>> with Index.open("notes", create=True) as index:
    ...     report = index.upsert([{"_id": "1", "text": "The lease ends in May.", "year": 2026}])
    ...     index.search("when does the lease end?")[0].text
    'The lease ends in May.'
    """

    def __init__(self, *opened: Any) -> None:
        super().__init__(*opened)
        if not isinstance(self._engine, LocalEngine):
            raise ConfigError(
                f"{self.path}: an Index needs one index directory; open this with Retriever.load"
            )
        self._wait: float = 0
        self._restart = False
        self._directory = open_directory(self._engine.directory)
        self._engine.follow = self._check_model
        self._writing = threading.RLock()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        create: bool = False,
        mapped: bool = True,
        on_search: OnSearch | None = None,
        **options: Unpack[BuildOptions],
    ) -> Self:
        """Open an index directory, or with `create` make an empty one where there is none.

        Args:
            path, mapped, on_search: As in `Retriever.load`; `path` is a directory.
            create: Make an index that has no documents yet where there is none.
            **options: `model`, `device` and `precision`, as in `Retriever.load`; `wait`, the
                seconds that each change waits for another writer to end; `restart`, with which
                the first change throws away the work of an interrupted one. The other options of
                `build_index` serve only to make the index.

        Raises:
            IndexFormatError: there is no index, it is damaged, or it was made by another model.
            ConfigError: `path` is the address of an engine, or an option is wrong.
        """
        options = check_options(options, BuildOptions, "Index.open")
        if open_directory(path).current() is None and create:
            options["allow_empty"] = True
            build_index([], path, **options)
        opening: dict[str, Any] = {name: options[name] for name in _OPENING if name in options}  # type: ignore[literal-required]
        index = cls.load(path, mapped=mapped, on_search=on_search, **opening)
        index._wait, index._restart = options.get("wait", 0), options.get("restart", False)
        return index

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Self:  # type: ignore[override]  # of one directory alone
        """Open an index directory; options are those of `Retriever.load`, errors those
        of `open`.
        """
        open_directory(path)  # refuses what is none
        return super().load(path, **options)

    @classmethod
    def create(cls, path: str | Path, **options: Unpack[BuildOptions]) -> Self:
        """Make an empty index, and open it; options and errors are those of `build_index`."""
        options["allow_empty"] = True
        build_index([], path, **options)
        return cls.open(path, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the place and the options, not what is open."""
        return partial(type(self).open, **vars(self._opening), wait=self._wait), ()

    # --- changes ---------------------------------------------------------------------------------

    def add(
        self, documents: Source, *, wait: float | None = None, **options: Unpack[ReadOptions]
    ) -> Report:
        """Add documents with new ids: a corpus, or mappings with `text`, perhaps `_id` and `title`,
        the rest metadata.

        Args:
            documents: The corpus.
            wait: Seconds to wait for another writer to end; None is what the index was opened with.
            **options: See `ReadOptions`.

        Raises:
            InputError: an id is in the index already, or something is no document; nothing was
                changed.
            IndexLockedError: another process is writing.
        """
        return self._change(wait, lambda batch: batch.add(documents, **options))

    def upsert(
        self, documents: Source, *, wait: float | None = None, **options: Unpack[ReadOptions]
    ) -> Report:
        """Add documents and replace those whose ids are there already; of the same id twice, the
        last counts.

        A document with the same text is not encoded again; if nothing at all of it changed, it is
        not written, and a change of nothing makes no version. What `update_metadata` set stays,
        except fields that a document which is no file names itself. Arguments and errors are those
        of `add`, but that ids may be there.
        """
        return self._change(wait, lambda batch: batch.upsert(documents, **options))

    async def aupsert(
        self, documents: Source, *, wait: float | None = None, **options: Unpack[ReadOptions]
    ) -> Report:
        """Run `upsert` in a thread, for asynchronous programs."""
        return await asyncio.to_thread(lambda: self.upsert(documents, wait=wait, **options))

    def delete(
        self,
        ids: Sequence[str] = (),
        *,
        where: Filter | None = None,
        missing_ok: bool = False,
        wait: float | None = None,
    ) -> Report:
        """Remove the documents with these ids, and those that satisfy a filter.

        Raises:
            InputError: an id is not in the index (unless `missing_ok`); nothing was changed.
            ConfigError: neither ids nor a filter are given.
            IndexLockedError: another process is writing.
        """
        return self._change(
            wait, lambda batch: batch.delete(ids, where=where, missing_ok=missing_ok)
        )

    def update_metadata(
        self,
        changes: Mapping[str, Any],
        ids: Sequence[str] = (),
        *,
        where: Filter | None = None,
        remove: Sequence[str] = (),
        clear: bool = False,
        missing_ok: bool = False,
        wait: float | None = None,
    ) -> Report:
        """Set metadata fields of the documents with these ids, and of those that satisfy a filter
        ({}: of all). Nothing is encoded.

        Fields that are not named stay as they are; a new value replaces the old one as a whole.
        What is set here is kept apart from the metadata that came with a document, and stays when
        its text changes, its file is renamed, or the index is built again. `remove` takes fields
        away; `clear` first undoes all that was ever set or removed. `_id`, `title` and `text` are
        refused: `upsert` changes them.

        Raises:
            ConfigError: there is nothing to change, a field is both set and removed or is a
                document's own, or neither ids nor a filter are given.
            InputError: a value is not what JSON can hold, or an id is not in the index (unless
                `missing_ok`).
            IndexLockedError: another process is writing.
        """
        arguments: dict[str, Any] = {
            "where": where,
            "remove": remove,
            "clear": clear,
            "missing_ok": missing_ok,
        }
        return self._change(wait, lambda batch: batch.update_metadata(changes, ids, **arguments))

    async def aadd(
        self, documents: Source, *, wait: float | None = None, **options: Unpack[ReadOptions]
    ) -> Report:
        """Run `add` in a thread, for asynchronous programs."""
        return await asyncio.to_thread(lambda: self.add(documents, wait=wait, **options))

    async def adelete(
        self,
        ids: Sequence[str] = (),
        *,
        where: Filter | None = None,
        missing_ok: bool = False,
        wait: float | None = None,
    ) -> Report:
        """Run `delete` in a thread, for asynchronous programs."""
        return await asyncio.to_thread(
            self.delete, ids, where=where, missing_ok=missing_ok, wait=wait
        )

    async def aupdate_metadata(
        self,
        changes: Mapping[str, Any],
        ids: Sequence[str] = (),
        *,
        where: Filter | None = None,
        remove: Sequence[str] = (),
        clear: bool = False,
        missing_ok: bool = False,
        wait: float | None = None,
    ) -> Report:
        """Run `update_metadata` in a thread, for asynchronous programs."""
        options: dict[str, Any] = {
            "where": where,
            "remove": remove,
            "clear": clear,
            "missing_ok": missing_ok,
            "wait": wait,
        }
        return await asyncio.to_thread(lambda: self.update_metadata(changes, ids, **options))

    async def acompact(self, *, wait: float | None = None) -> Report:
        """Run `compact` in a thread, for asynchronous programs."""
        return await asyncio.to_thread(self.compact, wait=wait)

    @contextmanager
    def batch(self, *, wait: float | None = None) -> Iterator[Batch]:
        """Group changes into one commit: `with index.batch() as batch: batch.upsert(...);
        batch.delete(...)`.

        They are made when the block ends, and all of them or none: an exception in the block drops
        them.
        """
        with self._writing:
            waiting = self._batch(wait)
            yield waiting
            self._commit(waiting)

    @asynccontextmanager
    async def abatch(self, *, wait: float | None = None) -> AsyncIterator[Batch]:
        """Group changes as `batch` does: `async with index.abatch() as batch: batch.upsert(...)`.

        Other changes go on until the block ends; then all of its own are made in a thread.
        """
        waiting = await asyncio.to_thread(self._batch, wait)
        yield waiting
        await asyncio.to_thread(self._commit, waiting)

    def _commit(self, batch: Batch) -> None:
        with self._writing, self._restarting() as restart:
            batch.commit(restart=restart)

    def compact(self, *, wait: float | None = None) -> Report:
        """Merge what changes have left in pieces, and give back the room of what was removed."""
        with self._writing, self._restarting() as restart:
            return compact(self._directory, wait=self._waiting(wait), restart=restart)

    def verify(self) -> Verdict:
        """Check the files and counts of the index; see `verify_index`."""
        return verify_index(self._directory)

    def _change(self, wait: float | None, give: Callable[[Batch], None]) -> Report:
        """Make a single change, which the same call continues after an interruption."""
        with self._writing:
            batch = self._batch(wait)
            give(batch)
            with self._restarting() as restart:
                return batch.commit(resumable=True, restart=restart)

    @contextmanager
    def _restarting(self) -> Iterator[bool]:
        """Whether a change throws away the work of an interrupted one: only the first does that
        gets the lock.
        """
        restart, self._restart = self._restart, False
        try:
            yield restart
        except IndexLockedError:
            self._restart = restart
            raise

    def _batch(self, wait: float | None) -> Batch:
        device = self._opening.device
        return Batch(
            self._directory,
            lambda: self.model,
            before=self._tables,
            device=device,
            wait=self._waiting(wait),
        )

    def _waiting(self, wait: float | None) -> float:
        check_wait(chosen := self._wait if wait is None else wait)
        return chosen

    @property
    def _tables(self) -> Any:
        """The datasets as they are open; None of a stored index, of which changes have a copy of
        their own.
        """
        assert isinstance(self._engine, LocalEngine)  # `__init__` sees to that
        return None if isinstance(self._engine, StoredEngine) else self._engine.snapshot.tables
