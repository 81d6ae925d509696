"""`sync_index`: bring an index into step with a folder of files, by the hashes of what
they hold.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Iterable  # shown in the signatures  # noqa: TC003
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

import numpy as np

from aveyb_retrieval.documents.corpus import readable
from aveyb_retrieval.documents.folders import (
    SourceFile,
    beir_corpus,
    list_folder,
    read_files,
    summary,
)
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.readers.ocr import OcrConditions, ocr_conditions
from aveyb_retrieval.documents.records import Notice, Record, Rejected, path_text
from aveyb_retrieval.errors import ConfigError, IndexFormatError, IndexLockedError, InputError
from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, run_change
from aveyb_retrieval.indexes.changes.ingest import (
    Ingestion,
    left_out_of,
    ocr_try_of,
    place_of,
    watch_pictures,
)
from aveyb_retrieval.indexes.changes.update import build_index, open_model
from aveyb_retrieval.indexes.model import (
    BuildOptions,
    SyncOptions,
    check_options,
    reading_of,
    writing_of,
)
from aveyb_retrieval.indexes.progress import shown
from aveyb_retrieval.indexes.store.manifest import Changes
from aveyb_retrieval.indexes.store.place import hold_visible, open_directory, read_manifest
from aveyb_retrieval.indexes.store.tables import Tables
from aveyb_retrieval.indexes.types import Progress, sample_rank, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from aveyb_retrieval.documents.reading import Reading
    from aveyb_retrieval.documents.records import Item, OcrTry, OnError
    from aveyb_retrieval.indexes.changes.transaction import Job, Transaction
    from aveyb_retrieval.indexes.store.manifest import IndexDirectory

logger = logging.getLogger(__name__)

_FEW_DOCUMENTS = 5  # so many documents may go from an index of any size
_SHARE = 10  # and of a larger one, one of so many


@dataclass(frozen=True)
class SyncPlan:
    """How the files of a folder differ from those of an index, by ids of documents.

    `renamed` has pairs of the old and the new id: the new file holds what one that is gone held.
    """

    new: tuple[str, ...]
    changed: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    deleted: tuple[str, ...]
    unchanged: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.renamed or self.deleted)

    @property
    def to_read(self) -> set[str]:
        """The files that have to be read."""
        return {*self.new, *self.changed, *(new for _, new in self.renamed)}

    def without(self, unread: set[str]) -> SyncPlan:
        """Return the plan where some of the files cannot be read: what is stored of these goes."""
        lost = [name for name in self.changed if name in unread]
        lost += [old for old, new in self.renamed if new in unread]
        return SyncPlan(
            tuple(name for name in self.new if name not in unread),
            tuple(name for name in self.changed if name not in unread),
            tuple(pair for pair in self.renamed if pair[1] not in unread),
            tuple(sorted([*self.deleted, *lost])),
            self.unchanged,
        )

    def counts(self) -> dict[str, int]:
        """Return how many of each there are, as a report counts them."""
        kinds = {
            "added": self.new,
            "replaced": self.changed,
            "renamed": self.renamed,
            "deleted": self.deleted,
        }
        return {name: len(kind) for name, kind in {**kinds, "unchanged": self.unchanged}.items()}


def sync_index(folder: str | Path, root: str | Path, **options: Unpack[SyncOptions]) -> Report:
    """Bring the index at `root` into step with a folder: new, changed, renamed and deleted files,
    in one change.

    Files are compared by the hashes of what they hold, not by their times. One of which OCR did not
    read all is read again once there is Tesseract, another language or more time. Documents that
    were not read from files of the folder stay as they are, and so does what
    `Index.update_metadata` set. Where there is no index, one is built. Where nothing has changed,
    no version is made. Killed, the same call continues; the folder may have changed meanwhile.

    A file that was read before and cannot be read any more is removed from the index, not kept as
    if its text were today's. What is left out is told once: `Report.known` has what an earlier
    report told. The folder is the one that the index was built from or, where that is gone, one
    that holds nearly the same files.

    Options are those of `SyncOptions`, `ReadOptions` and `WriteOptions`; `model` (the index's, if
    it has moved; for a first build, any), `device` and `precision`.

    Raises:
        InputError: a file cannot be read (with `on_error="stop"`), or the folder holds none that is
            read.
        ConfigError: the index was made from another folder, or more documents would go than may
            (`allow_delete`).
        IndexLockedError: another process is writing.

    >>> sync_index("letters", "archive").added
    1
    """
    options = check_options(options, SyncOptions, "sync_index")
    with shown(options.get("progress")) as progress:
        return _sync(folder, open_directory(root), {**options, "progress": progress})


def _sync(folder: str | Path, directory: IndexDirectory, options: SyncOptions) -> Report:
    """Sync an index, or build it, with all options given."""
    if _is_first(directory, options):
        _list(_Scope.of(folder, ()), reading_of(options))
        build_options = {
            name: value for name, value in options.items() if name in BuildOptions.__annotations__
        }
        return build_index(folder, directory, **cast("BuildOptions", build_options))
    options = _as_before(directory, options)
    files, made = _FolderFiles.of(folder, options), read_manifest(directory).encoding
    job: Job = {
        "command": "sync",
        "folder": files.scope.here,
        "only": list(files.scope.parts),
        "model": made.fingerprint,
        **files.reading.describe(),
        "on_error": files.on_error,
    }
    syncing = _Syncing(files, directory, options)
    report = run_change(directory, job, syncing.work, **writing_of(options))
    if syncing.unchanged is not None:  # the visible version tells of the change that made it
        report = replace(report, unchanged=syncing.unchanged, rejected=0, rejected_file=None)
    return replace(report, notices=tuple(syncing.notices), known=tuple(syncing.known))


def plan_sync(folder: str | Path, root: str | Path, **options: Unpack[SyncOptions]) -> SyncPlan:
    """Say what `sync_index` would change, and change nothing; files that differ are read, and
    nothing is encoded.

    Raises InputError and ConfigError as that does.

    >>> plan_sync("letters", "archive").new
    ('lease.txt',)
    """
    options = check_options(options, SyncOptions, "plan_sync")
    index_dir = open_directory(root)
    first = _is_first(index_dir, options)
    files = _FolderFiles.of(folder, options if first else _as_before(index_dir, options))
    plan = compare({}, files.hashes)
    if not first:
        manifest, held = hold_visible(index_dir)
        with held:
            tables = Tables.open(index_dir.root, manifest)
            stored = stored_files(tables)
            files, stale = files.as_tried(manifest.ocr_tries, stored)
            plan = compare(_unread_again(files.scope.part_of(stored), stale), files.hashes)
            _check_folder(files.scope, index_dir, stored, plan, options)
            _check_new(files.scope, tables, plan)
    taken = set()
    for item in files.read(plan.to_read):
        if isinstance(item, Rejected) and item.stops(files.on_error):
            raise item.error()
        if isinstance(item, Record):
            taken.add(item.id)
    return plan.without(plan.to_read - taken)


def _is_first(directory: IndexDirectory, options: SyncOptions) -> bool:
    """Whether there is no index yet; raises ConfigError where a part of it is named."""
    first = directory.current() is None
    if first and options.get("only"):
        raise ConfigError(
            f"{directory}: no index here to sync a part of; sync or build the whole folder first"
        )
    return first


def _as_before(directory: IndexDirectory, options: SyncOptions) -> SyncOptions:
    """The options, and how the folder was read before where they do not say it: fields would go,
    linked files, and those that are not UTF-8.

    An option that is given counts, also one with its default, such as `exclude=[]`.
    """
    before = {
        name: value
        for name, value in read_manifest(directory).reading.items()
        if name not in options
    }
    return cast("SyncOptions", {**options, **before})


def _compared(plan: SyncPlan) -> int:
    """Return how many stored documents were compared with files."""
    return len(plan.deleted) + len(plan.changed) + len(plan.renamed) + len(plan.unchanged)


def _most_deleted(plan: SyncPlan, allowed: int | None) -> int:
    """Return how many documents may be deleted: as many as are allowed, by default few."""
    return max(_FEW_DOCUMENTS, _compared(plan) // _SHARE) if allowed is None else allowed


def check_plan(plan: SyncPlan, directory: str | Path | IndexDirectory, allowed: int | None) -> None:
    """Raise ConfigError where a sync would stop, as more documents would be deleted than may go."""
    deleted, of = len(plan.deleted), _compared(plan)
    if deleted > _most_deleted(plan, allowed):
        raise ConfigError(
            f"{directory}: {deleted:,} of {of:,} documents would be deleted, because their files"
            " are missing or cannot be read; nothing was changed. To delete them, give"
            f" --allow-delete {deleted} (allow_delete={deleted})"
        )


class StoredFile(NamedTuple):
    """A file as an index knows it: its document's number, what it is compared by (the hashes of its
    bytes and of what its folder says), and the folder it was read from.
    """

    doc: int
    sha256: str
    folder: str


def stored_files(tables: Tables) -> dict[str, StoredFile]:
    """Return the files of all documents that were read from one each, by the documents' ids."""
    rows = tables.documents.scan(
        ["doc", "id", "file_sha256", "labels_sha256", "folder"], "file_sha256 IS NOT NULL"
    ).to_pylist()
    rows.sort(key=lambda row: row["doc"])
    return {
        row["id"]: StoredFile(
            row["doc"], _identity(row["file_sha256"], row["labels_sha256"]), row["folder"]
        )
        for row in rows
    }


def _identity(sha256: str, labels_sha256: str | None) -> str:
    """What two looks at a file compare: the hash of its bytes, and of what its folder says."""
    return f"{sha256} {labels_sha256 or ''}" if sha256 else ""


def compare(stored: Mapping[str, StoredFile], hashes: Mapping[str, str]) -> SyncPlan:
    """Compare files by hashes, by their ids; of several that hold the same, one that keeps its name
    counts as moved.
    """
    missing = {name: file.sha256 for name, file in stored.items() if name not in hashes}
    in_both = [name for name in hashes if name in stored]
    new = {name: hashes[name] for name in hashes if name not in stored}
    renamed: dict[str, str] = {}
    for known_by in (
        lambda name, sha256: (sha256, name.rpartition("/")[2]),
        lambda name, sha256: sha256,
    ):
        olds: dict[Any, deque[str]] = {}
        for name, sha256 in missing.items():
            olds.setdefault(known_by(name, sha256), deque()).append(name)
        for name, sha256 in new.items():
            if sha256 and name not in renamed and (old := olds.get(known_by(name, sha256))):
                renamed[name] = old.popleft()
                del missing[renamed[name]]
    return SyncPlan(
        tuple(name for name in new if name not in renamed),
        tuple(name for name in in_both if stored[name].sha256 != hashes[name]),
        tuple((renamed[name], name) for name in new if name in renamed),
        tuple(sorted(missing)),
        tuple(name for name in in_both if stored[name].sha256 == hashes[name]),
    )


@dataclass(frozen=True)
class _Scope:
    """What of a folder is looked at: all, or the files and folders `parts` below it."""

    base: Path
    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: str | Path, only: Sequence[str]) -> _Scope:
        if not isinstance(folder, (str, Path)):
            raise ConfigError(
                f"the folder is of type {type(folder).__name__}; give the path of one folder, and"
                " parts of it as only=[...]"
            )
        if isinstance(only, str):
            raise ConfigError(
                f"only={only!r} is one string; give a list of parts of the folder, as [{only!r}]"
            )
        # links stay; `absolute` keeps ".."
        base, parts = (
            Path(os.path.abspath(folder)),  # noqa: PTH100
            [],
        )
        for part in only:
            path = PurePosixPath(
                os.path.normpath(os.path.relpath(part, base) if os.path.isabs(part) else part)  # noqa: PTH117
            )
            if path.parts[:1] in (("..",), ()):
                raise ConfigError(
                    f"--only {part!r}: not below {base}; name a folder or file in it, such as wiki/"
                )
            parts.append(path.as_posix())
        if len(parts) == 1 and not (base / parts[0]).exists():
            ends = PurePosixPath(parts[0]).parts
            if base.parts[-len(ends) :] == ends:  # the part itself was given as the folder
                base = Path(*base.parts[: -len(ends)])
        return cls(base, tuple(sorted(parts)))

    @cached_property
    def here(self) -> str:
        """The folder as an index notes it: links are followed."""
        return path_text(self.base.resolve())

    def holds(self, name: str) -> bool:
        """Whether a document's id, which is a path below the folder, is looked at."""
        return not self.parts or any(
            name == part or name.startswith(f"{part}/") for part in self.parts
        )

    def shows(self, path: str) -> bool:
        """The same of a path as it is shown."""
        return self.holds(path.removeprefix(path_text(self.base).rstrip("/") + "/"))

    def looks_at(self, place: str) -> bool:
        """The same of any file, by its path without links."""
        inside = f"{self.here.rstrip('/')}/"
        return place.startswith(inside) and self.holds(place.removeprefix(inside))

    def part_of(self, stored: Mapping[str, StoredFile]) -> dict[str, StoredFile]:
        return {name: file for name, file in stored.items() if self.holds(name)}


@dataclass(frozen=True)
class _FolderFiles:
    """The files of a folder as they are now, with their hashes by id; "" where a file cannot be
    read.
    """

    scope: _Scope
    reading: Reading
    on_error: OnError
    files: list[SourceFile]
    notices: list[Notice]
    hashes: dict[str, str]

    @classmethod
    def of(cls, folder: str | Path, options: SyncOptions) -> _FolderFiles:
        scope, reading = _Scope.of(folder, options.get("only", ())), reading_of(options)
        listed, notices = _list(scope, reading)
        hashes = _hashes(listed, reading.follow_links, options.get("progress", silent))
        return cls(scope, reading, options.get("on_error", "auto"), listed, notices, hashes)

    def read(self, names: set[str], progress: Progress = silent) -> Iterator[Item]:
        chosen = [file for file in self.files if file.id in names]
        return read_files(chosen, self.reading, watch_pictures(progress)) if chosen else iter(())

    def as_tried(
        self, tries: Mapping[str, OcrTry], stored: Collection[str]
    ) -> tuple[_FolderFiles, set[str]]:
        """Return it without the files that OCR has tried and need not try again, but those that are
        `stored`, and the ids of files that it has tried and may read more of now.
        """
        if not tries:
            return self, set()
        now, stale, done = self._ocr_conditions, set[str](), set[str]()
        for file in self.files:
            ocr_try = tries.get(place_of(file.shown))
            if ocr_try is None or not self.hashes[file.id].startswith(ocr_try.sha256):
                continue
            if now.may_read_more_than(OcrConditions(ocr_try.languages, ocr_try.seconds)):
                stale.add(file.id)
            elif file.id not in stored:
                done.add(file.id)
        left = {name: sha256 for name, sha256 in self.hashes.items() if name not in done}
        return replace(self, hashes=left), stale

    @cached_property
    def _ocr_conditions(self) -> OcrConditions:
        return ocr_conditions(self.reading.limits(follow_links=self.reading.follow_links))


def _list(scope: _Scope, reading: Reading) -> tuple[list[SourceFile], list[Notice]]:
    folder = scope.base
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    if beir_corpus(folder, follow_links=reading.follow_links) is not None:
        raise ConfigError(
            f"{folder}: holds a corpus.jsonl, which is read instead of its files; give that to"
            " upsert"
        )
    listed, notices, unreadable = list_folder(folder, reading)
    listed = [file for file in listed if scope.holds(file.id)]
    notices = [notice for notice in notices if scope.shows(notice.path)]
    for item in unreadable:
        if scope.shows(item.location.source) or any(
            path_text(folder / part).startswith(f"{item.location.source}/") for part in scope.parts
        ):
            raise InputError(f"{item.location}: {item.reason}; its files would count as deleted")
    if not listed and not scope.parts:
        left_out = f" ({summary(notices)})" if notices else ""
        raise InputError(
            f"{folder}: holds no file that is read{left_out}; to remove all documents, run"
            " `delete` with the filter {}"
        )
    return listed, notices


def _hashes(listed: list[SourceFile], follow_links: bool, progress: Progress) -> dict[str, str]:
    """The hash of each file, by its id; "" where the file cannot be read, which the reader then
    reports.
    """
    hashes = {}
    for number, file in enumerate(listed, start=1):
        try:
            sha256 = file.sha256(follow_links=follow_links)
            hashes[file.id] = _identity(sha256, file.labels_sha256)
        except (OSError, IndexFormatError, Unreadable):
            hashes[file.id] = ""
        progress("comparing", number, len(listed), 0)
    return hashes


def _unread_again(stored: Mapping[str, StoredFile], stale: set[str]) -> dict[str, StoredFile]:
    """Stored files as they are compared: those that are stale count as changed."""
    return {
        name: file._replace(sha256="") if name in stale else file for name, file in stored.items()
    }


def _check_folder(
    scope: _Scope,
    directory: IndexDirectory,
    stored: Mapping[str, StoredFile],
    plan: SyncPlan,
    options: SyncOptions,
) -> None:
    """Raise ConfigError where the index holds the files of another folder: they would
    be deleted.
    """
    looked_at = scope.part_of(stored)
    if scope.parts and not looked_at and not plan:
        raise ConfigError(
            f"--only {' '.join(scope.parts)}: neither in {scope.base} nor in the index {directory}"
        )
    folders = sorted({file.folder for file in stored.values()})
    if len(folders) > 1:
        raise ConfigError(
            f"{directory}: holds files of {len(folders)} folders ({', '.join(folders[:3])}); an"
            " index follows one folder: build one index per folder"
        )
    if not folders or folders[0] == scope.here or options.get("moved", False):
        return
    built = folders[0]
    if scope.here.startswith(f"{built}/"):
        part = scope.here.removeprefix(f"{built}/")
        raise ConfigError(
            f"{directory}: made from {built}, and {scope.here} is a part of it; sync the whole"
            f" folder, or name the part: aveyb-index sync {built} --only {part}/ -o {directory}"
        )
    if not (plan.unchanged or plan.changed or plan.renamed):
        raise ConfigError(
            f"{directory}: made from the files of {built}, and {scope.base} has none of them;"
            " build another index for it"
        )
    most = _most_deleted(plan, options.get("allow_delete"))
    if any(os.path.lexists(f"{built}/{name}") for name in stored) or len(plan.deleted) > most:
        raise ConfigError(
            f"{directory}: made from {built}, and {scope.base} is another folder; sync {built},"
            " build another index, or give --moved (moved=True) if the folder was moved"
        )


def _check_new(scope: _Scope, tables: Tables, plan: SyncPlan) -> None:
    """Raise InputError where a new file would replace a document that was not read from a file."""
    for name in tables.find([*plan.new, *(new for _, new in plan.renamed)]):
        raise InputError(
            f"{scope.base / name}: its id {name!r} belongs to a document that was not read from"
            " a file"
        )


@dataclass(frozen=True)
class _Start:
    """How an index and a folder differ when a sync begins.

    `before` are the stored files that are looked at, by the ids of their documents. `is_recorded`
    says that the index names this folder, and these options of reading it.
    """

    before: Mapping[str, StoredFile]
    plan: SyncPlan
    is_recorded: bool


@dataclass
class _Syncing:
    """One run of a sync; `known` is what was told before, `unchanged` counts files where nothing
    was to be changed.
    """

    files: _FolderFiles
    directory: IndexDirectory
    options: SyncOptions
    notices: list[Notice] = field(default_factory=list)
    known: list[Notice] = field(default_factory=list)
    unchanged: int | None = None
    _taken: set[str] = field(default_factory=set)
    _left_out: dict[str, str] = field(default_factory=dict)
    _reported: Mapping[str, str] = field(default_factory=dict)
    _stale: set[str] = field(default_factory=set)
    _ocr_tries: dict[str, OcrTry] = field(default_factory=dict)
    _former_tries: Mapping[str, OcrTry] = field(default_factory=dict)

    def work(self, transaction: Transaction) -> FinishOptions | None:
        """Remove, rename, read and encode; None where there is nothing to change."""
        start = self._compare(transaction)
        self._take_over_reports(start.plan)
        if not self._has_changes(start.plan, start):
            return None
        remaining = self._remove_and_rename(transaction)
        self._read(transaction, remaining)
        self._remove_unread(transaction, remaining.to_read - self._taken, start.plan)
        after = self.files.scope.part_of(stored_files(transaction.tables))
        made = compare(start.before, {name: file.sha256 for name, file in after.items()})
        if not self._has_changes(made, start):
            return None
        self._record(transaction, made)
        return FinishOptions(device=self.options.get("device", "cpu"))

    def _compare(self, transaction: Transaction) -> _Start:
        """Compare the index before the change with the folder; ConfigError if they do not belong
        together, or too many documents would be deleted.
        """
        base, scope = transaction.base, self.files.scope
        assert base is not None  # a sync changes the index that is there
        # the tables of a change that is resumed hold a part of it already
        stored = stored_files(
            Tables.open(transaction.root, base) if transaction.resumed else transaction.tables
        )
        self._reported, self._former_tries = base.left_out, base.ocr_tries
        self.files, self._stale = self.files.as_tried(base.ocr_tries, stored)
        before = _unread_again(scope.part_of(stored), self._stale)
        plan = compare(before, self.files.hashes)
        _check_folder(scope, self.directory, stored, plan, self.options)
        check_plan(plan, self.directory, self.options.get("allow_delete"))
        has_moved = any(file.folder != scope.here for file in stored.values())
        is_read_as_before = self.files.reading.of_folder() == reading_of(base.reading).of_folder()
        return _Start(before, plan, is_read_as_before and not has_moved)

    def _take_over_reports(self, plan: SyncPlan) -> None:
        """Keep what earlier reports told of files that are not read again."""
        self.notices = [notice for notice in self.files.notices if not self._was_reported(notice)]
        self._keep_reported(plan)

    def _has_changes(self, plan: SyncPlan, start: _Start) -> bool:
        """Whether there is something to change; if not, count the files that stay as they are."""
        if plan or self._has_news or not start.is_recorded:
            return True
        self.unchanged = len(plan.unchanged)
        return False

    def _read(self, transaction: Transaction, plan: SyncPlan) -> None:
        """Read and encode new and changed files; the model is loaded for the first with text."""
        files = self.files.read(plan.to_read, transaction.progress)
        items = self._new(readable(files, str(self.files.scope.base)))
        first = next(items, None)
        if first is None:
            return
        encoding = transaction.state.encoding
        source = open_model(encoding, self.directory, self.options)
        source.check_fits(encoding, self.directory)
        taking = Ingestion(
            transaction,
            source,
            mode="upsert",
            on_error=self.files.on_error,
            total=len(plan.to_read),
        )
        taking.run(itertools.chain([first], items))

    def _remove_unread(self, transaction: Transaction, unread: set[str], plan: SyncPlan) -> None:
        """Remove documents whose files could not be read; ConfigError if these are too many with
        those that the whole plan deletes, InputError if no document would be left.
        """
        check_plan(plan.without(unread), self.directory, self.options.get("allow_delete"))
        self._remove(transaction, unread)
        if transaction.state.counts.documents == 0:
            raise InputError(
                f"{self.files.scope.base}: none of its files can be read; the index would be empty"
            )

    def _record(self, transaction: Transaction, made: SyncPlan) -> None:
        """Record how the folder was read, what was left out of it, and what was changed."""
        looks_at, state = self.files.scope.looks_at, transaction.state
        reported_elsewhere = {
            path: why for path, why in self._reported.items() if not looks_at(path)
        }
        tried_elsewhere = {
            path: ocr_try for path, ocr_try in self._former_tries.items() if not looks_at(path)
        }
        state.reading = self.files.reading.of_folder()
        state.left_out = {**reported_elsewhere, **self._left_out}
        state.ocr_tries = {**tried_elsewhere, **self._ocr_tries}
        state.changes = Changes(rejected=state.changes.rejected, **made.counts())

    @property
    def _has_news(self) -> bool:
        """Whether other files are left out than an earlier report told of, or tried otherwise."""
        looks_at = self.files.scope.looks_at
        reported = {entry for entry in self._reported.items() if looks_at(entry[0])}
        tried = {entry for entry in self._former_tries.items() if looks_at(entry[0])}
        return self._left_out.items() != reported or self._ocr_tries.items() != tried

    def _keep_reported(self, plan: SyncPlan) -> None:
        """Keep what is known to be missing of files that are not read again."""
        if not (self._reported or self._former_tries):
            return
        for file in self.files.files:
            path = place_of(file.shown)
            if file.id in plan.to_read or path in self._left_out:
                continue
            if path in self._reported:
                self._left_out[path] = self._reported[path]
                self.known.append(Notice(path, self._reported[path]))
            if path in self._former_tries:
                self._ocr_tries[path] = self._former_tries[path]

    def _was_reported(self, item: Notice | Rejected) -> bool:
        """Note what is left out; whether an earlier report has told that already."""
        path_and_reason, ocr_try = left_out_of(item), ocr_try_of(item)
        if ocr_try is not None:
            self._ocr_tries[ocr_try[0]] = ocr_try[1]
        if path_and_reason is None:
            return False
        path, reason = path_and_reason
        self._left_out[path] = reason
        if self._reported.get(path) != reason:
            return False
        self.known.append(Notice(path, reason))
        return True

    def _new(self, items: Iterable[Item]) -> Iterator[Item]:
        """Pass on what was not told before, and note the ids of documents."""
        for item in items:
            if isinstance(item, Record):
                self._taken.add(item.id)
            elif self._was_reported(item) and self.files.on_error != "stop":
                continue
            if isinstance(item, Notice):
                self.notices.append(item)
            else:
                yield item

    def _remove_and_rename(self, transaction: Transaction) -> SyncPlan:
        """Remove and rename documents; return what is left to do, which after a kill is less than
        the whole plan.
        """
        tables, here = transaction.tables, self.files.scope.here
        all_stored = stored_files(tables)
        stored = _unread_again(self.files.scope.part_of(all_stored), self._stale)
        plan = compare(stored, self.files.hashes)
        _check_new(self.files.scope, tables, plan)
        self._remove(transaction, set(plan.deleted))
        # the path and title of a renamed file are still the old ones: without a hash it counts as
        # changed until read
        renamed = {
            stored[old].doc: {"id": new, "rank": sample_rank(new), "file_sha256": ""}
            for old, new in plan.renamed
        }
        moved = [
            file.doc
            for name, file in all_stored.items()
            if file.folder != here and name not in plan.deleted
        ]
        transaction.rewrite(
            {*moved, *renamed}, lambda row: {"folder": here, **renamed.get(row["doc"], {})}
        )
        # what is left is an input of its own
        transaction.state.consumed, transaction.state.digest = (0, "")
        return plan

    def _remove(self, transaction: Transaction, names: set[str]) -> None:
        """Remove documents, and tell where something goes that people set in their metadata."""
        docs = [doc for doc, _ in transaction.tables.find(sorted(names)).values()]
        for name, edits in transaction.tables.edits(docs).items():
            fields = ", ".join([*edits.fields, *edits.removed])
            self.notices.append(
                Notice(
                    name,
                    f"deleted, with what was set in its metadata ({fields})",
                    left_out=False,
                    harmless=True,
                )
            )
        transaction.remove(np.array(docs, dtype=np.int64))


def watch_folder(
    folder: Path,
    seconds: float,
    act: Callable[[], object],
    *,
    reading: Reading | None = None,
    report: Callable[[str], object] = logger.warning,
) -> None:
    """Call `act` now, and again whenever the files of a folder have changed and then stayed the
    same for a while.

    Two looks are `seconds` apart; files must stay as they are for as long. What `act` raises ends
    the watch, but not an IndexLockedError: then it is called again until the index is free, and
    `report` gets a line that says so.
    """
    act = partial(_once_free, act, seconds, report)
    state = seen = _look(folder, reading)
    act()
    while True:
        time.sleep(seconds)
        before, state = state, _look(folder, reading)
        if state == before != seen:
            seen = state
            act()


def _once_free(act: Callable[[], object], seconds: float, report: Callable[[str], object]) -> None:
    waiting = False
    while True:
        try:
            act()
            return
        except IndexLockedError as error:
            if not waiting:
                report(f"{error}; waiting for it")
            waiting = True
            time.sleep(seconds)


def _look(folder: Path, reading: Reading | None) -> dict[str, tuple[int, int, int, str]]:
    """Size, time, number and metadata of every file that is read: a hint that something changed,
    not a proof.
    """
    states = {}
    for file in list_folder(folder, reading).files:
        try:
            stat = file.path.stat()
        except OSError:  # it is gone since it was listed
            continue
        states[file.id] = (stat.st_size, stat.st_mtime_ns, stat.st_ino, file.labels_sha256)
    return states
