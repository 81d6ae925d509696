"""`sync_index`: bring an index into step with a folder of files, by the hashes of what they hold."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import numpy as np

from aveyb_retrieval import files
from aveyb_retrieval.documents.folders import SourceFile, beir_corpus, list_folder, read_files, summary
from aveyb_retrieval.documents.readers.base import FILE_SECONDS
from aveyb_retrieval.documents.reading import Reading
from aveyb_retrieval.documents.records import MAX_LINE, OnError, Record, path_text
from aveyb_retrieval.errors import ConfigError, IndexFormatError, InputError
from aveyb_retrieval.indexes.changes.build import build_index
from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, run_change
from aveyb_retrieval.indexes.changes.ingest import Ingestion
from aveyb_retrieval.indexes.changes.update import open_model
from aveyb_retrieval.indexes.store.manifest import Changes, IndexDirectory, hold_visible, read_manifest
from aveyb_retrieval.indexes.store.numbering import rank_of
from aveyb_retrieval.indexes.store.tables import Tables
from aveyb_retrieval.indexes.types import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Unpack

    from aveyb_retrieval.documents.records import Item, Notice
    from aveyb_retrieval.indexes.changes.transaction import Job, Transaction
    from aveyb_retrieval.indexes.model import Model


class ModelOptions(TypedDict, total=False):
    """The model of a change, as in `EncodeOptions`."""

    model: Model
    device: str
    precision: str


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

    def counts(self) -> dict[str, int]:
        """Return how many of each there are, as a report counts them."""
        return {
            "added": len(self.new),
            "replaced": len(self.changed),
            "renamed": len(self.renamed),
            "deleted": len(self.deleted),
            "unchanged": len(self.unchanged),
        }


def sync_index(
    folder: str | Path,
    root: str | Path,
    *,
    on_error: OnError = "auto",
    max_line: int = MAX_LINE,
    encoding: str | None = None,
    follow_links: bool = False,
    file_seconds: int = FILE_SECONDS,
    path_fields: str | None = None,
    restart: bool = False,
    progress: Progress = silent,
    **options: Unpack[ModelOptions],
) -> Report:
    """Bring the index at `root` into step with a folder: new, changed, renamed and deleted files, in one change.

    Files are compared by the hashes of what they hold, not by their times. Documents that were not read from files of
    the folder stay as they are. Where there is no index, one is built. Killed, the same call continues; the folder may
    have changed meanwhile.

    Args:
        folder: The folder that the index was built from.
        root: The index directory.
        on_error: What to do with a file that cannot be read: "auto" and "skip" list it in
            `Report.rejected_file`, "stop" stops. A file that was read before and cannot be read any more is
            removed from the index, not kept as if its text were today's.
        max_line: The text of a file has at most this many bytes.
        encoding: Of texts that are not UTF-8 and do not name their own.
        follow_links: Also read links that are found in the folder.
        file_seconds: Seconds of processor time that reading one file may take.
        path_fields: How paths below the folder become metadata, such as "{team}/{year}/*".
        restart: Throw away the work of an interrupted change.
        progress: Called as the work goes on.
        **options: `model` (the index's, if it has moved; for a first build, any), `device` and `precision`.

    Raises:
        InputError: a file cannot be read (with `on_error="stop"`), or the folder holds none that is read.
        ConfigError: the index was made from other folders.
        IndexLockedError: another process is writing.
    """
    folder = Path(folder)
    listed, notices = _list(folder, follow_links, path_fields)
    reading = Reading(
        max_line=max_line, encoding=encoding, follow_links=follow_links, file_seconds=file_seconds,
        path_fields=path_fields,
    )  # fmt: skip
    if IndexDirectory(root).current() is None:
        return build_index(
            folder, root, on_error=on_error, max_line=max_line, encoding=encoding, follow_links=follow_links,
            file_seconds=file_seconds, path_fields=path_fields, restart=restart, progress=progress, **options,
        )  # fmt: skip
    found = _hashes(listed, follow_links, progress)
    made = read_manifest(root).encoding
    job: Job = {
        "command": "sync",
        "folder": path_text(folder.resolve()),
        "model": made.fingerprint,
        **reading.describe(),
        "on_error": on_error,
    }

    unchanged: list[str] = []  # where nothing differs, the visible version tells of the change that made it

    def work(transaction: Transaction) -> FinishOptions | None:
        assert transaction.base is not None  # a sync changes the index that is there
        resumed = transaction.resumed  # then the tables hold a part of the change already
        tables = Tables.open(transaction.root, transaction.base.tables) if resumed else transaction.tables
        before = stored_files(tables)
        plan = compare(before, found)
        _check_folder(folder, root, before, plan)
        if not plan:
            unchanged.extend(plan.unchanged)
            return None
        remaining = _remove_and_rename(transaction, folder, found)
        wanted = {*remaining.new, *remaining.changed, *(new for _, new in remaining.renamed)}
        files_left = [file for file in listed if file.id in wanted]
        more: list[Notice] = []
        if files_left:
            source = open_model(transaction.state.encoding, root, options)
            source.check_fits(transaction.state.encoding, root)
            taken: set[str] = set()
            taking = Ingestion(
                transaction, source, mode="upsert", on_error=on_error, progress=progress, total=len(files_left)
            )
            taking.run(_noted(read_files(files_left, reading), taken))
            more = taking.notices
            _remove_unread(transaction, wanted - taken)
        if transaction.state.counts.documents == 0:
            raise InputError(f"{folder}: none of its files can be read; the index would be empty")
        after = {name: file.sha256 for name, file in stored_files(transaction.tables).items()}
        rejected = transaction.state.changes.rejected
        transaction.state.changes = Changes(rejected=rejected, **compare(before, after).counts())
        return FinishOptions(notices=(*notices, *more))

    report = run_change(root, job, work, restart=restart, progress=progress)
    return replace(report, unchanged=len(unchanged), notices=tuple(notices)) if unchanged else report


class StoredFile(NamedTuple):
    """A file as an index knows it: its document's number, the hash of its bytes, and the folder it was read from."""

    doc: int
    sha256: str
    folder: str


def stored_files(tables: Tables) -> dict[str, StoredFile]:
    """Return the files of all documents that were read from one each, by the documents' ids."""
    rows = tables.documents.scan(["doc", "id", "file_sha256", "folder"], "file_sha256 IS NOT NULL").to_pylist()
    rows.sort(key=lambda row: row["doc"])
    return {row["id"]: StoredFile(row["doc"], row["file_sha256"], row["folder"]) for row in rows}


def plan_sync(
    folder: str | Path, root: str | Path, *, follow_links: bool = False, path_fields: str | None = None,
    progress: Progress = silent,
) -> SyncPlan:  # fmt: skip
    """Compare a folder with the index at `root`, or with nothing where there is none, and change nothing.

    Raises:
        InputError: the folder holds no file that is read.
        ConfigError: the index was made from other folders.
    """
    folder, index_dir = Path(folder), IndexDirectory(root)
    listed, _ = _list(folder, follow_links, path_fields)
    found = _hashes(listed, follow_links, progress)
    if index_dir.current() is None:
        return compare({}, found)
    manifest, held = hold_visible(index_dir)
    with held:
        stored = stored_files(Tables.open(index_dir.root, manifest.tables))
    plan = compare(stored, found)
    _check_folder(folder, root, stored, plan)
    return plan


def compare(stored: Mapping[str, StoredFile], found: Mapping[str, str]) -> SyncPlan:
    """Compare the files of an index with those that are there: hashes by ids."""
    gone: dict[str, list[str]] = {}
    for name, file in stored.items():
        if name not in found:
            gone.setdefault(file.sha256, []).append(name)
    new: list[str] = []
    changed: list[str] = []
    unchanged: list[str] = []
    renamed: list[tuple[str, str]] = []
    for name, sha256 in found.items():
        if name in stored:
            (unchanged if stored[name].sha256 == sha256 else changed).append(name)
        elif gone.get(sha256):
            renamed.append((gone[sha256].pop(0), name))
        else:
            new.append(name)
    deleted = sorted(name for names in gone.values() for name in names)
    return SyncPlan(tuple(new), tuple(changed), tuple(renamed), tuple(deleted), tuple(unchanged))


def _list(folder: Path, follow_links: bool, path_fields: str | None) -> tuple[list[SourceFile], list[Notice]]:
    """List the files of a folder that are read, and what is left out.

    Raises:
        InputError: a folder below it cannot be listed: the files in it are not known to be gone.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    if beir_corpus(folder, follow_links=follow_links) is not None:
        raise ConfigError(f"{folder}: holds a corpus.jsonl, which is read instead of its files; give that to upsert")
    listed, notices, unreadable = list_folder(folder, follow_links=follow_links, path_fields=path_fields)
    if unreadable:
        raise InputError(f"{unreadable[0].location}: {unreadable[0].reason}; what it holds would count as deleted")
    if not listed:
        left_out = f" ({summary(notices)})" if notices else ""
        raise InputError(
            f"{folder}: holds no file that is read{left_out}; to remove all documents, give `delete` the filter {{}}"
        )
    return listed, notices


def _hashes(listed: list[SourceFile], follow_links: bool, progress: Progress) -> dict[str, str]:
    """The hash of each file, by its id; "" where the file cannot be read, which the reader then reports."""
    found = {}
    for number, file in enumerate(listed, start=1):
        try:
            found[file.id] = file.digest(files.hash_file(file.path, follow_links=follow_links).sha256)
        except (OSError, IndexFormatError):
            found[file.id] = ""
        progress("comparing", number, len(listed), 0)
    return found


def _check_folder(folder: Path, root: str | Path, stored: Mapping[str, StoredFile], plan: SyncPlan) -> None:
    """Raise ConfigError where the index holds the files of other folders: they would all be deleted."""
    folders = sorted({file.folder for file in stored.values()})
    if len(folders) > 1:
        raise ConfigError(
            f"{root}: holds files of {len(folders)} folders ({', '.join(folders[:3])}); an index is kept in step with "
            "one folder: build one of each"
        )
    if folders and folders[0] != path_text(folder.resolve()) and not (plan.unchanged or plan.changed or plan.renamed):
        raise ConfigError(
            f"{root}: made from the files of {folders[0]}, and {folder} has none of them; build an index of its own"
        )


def _remove_and_rename(transaction: Transaction, folder: Path, found: Mapping[str, str]) -> SyncPlan:
    """Remove and rename documents; return what is left to do, which after a kill is less than the whole plan."""
    tables = transaction.tables
    stored = stored_files(tables)
    plan = compare(stored, found)
    new_names = [*plan.new, *(new for _, new in plan.renamed)]
    for name in tables.find(new_names):
        raise InputError(f"{folder / name}: its id {name!r} is that of a document that was not read from a file")
    transaction.remove(np.array([stored[name].doc for name in plan.deleted], dtype=np.int64))
    here, renamed = path_text(folder.resolve()), {stored[old].doc: new for old, new in plan.renamed}
    # of a renamed file the path and title are still the old ones: without a hash it counts as changed until it is read
    moved = [file.doc for name, file in stored.items() if file.folder != here and name not in plan.deleted]
    transaction.rewrite(
        {*moved, *renamed},
        lambda row: {
            "folder": here,
            **(
                {"id": renamed[row["doc"]], "rank": rank_of(renamed[row["doc"]]), "file_sha256": ""}
                if row["doc"] in renamed
                else {}
            ),
        },
    )
    transaction.state.consumed, transaction.state.digest = 0, ""  # what is left is an input of its own
    return plan


def _remove_unread(transaction: Transaction, names: set[str]) -> None:
    """Remove what is stored of files that were read once and cannot be read any more."""
    known = transaction.tables.find(sorted(names))
    transaction.remove(np.array([doc for doc, _ in known.values()], dtype=np.int64))


def _noted(items: Iterator[Item], taken: set[str]) -> Iterator[Item]:
    """Pass items on, and note the ids of documents."""
    for item in items:
        if isinstance(item, Record):
            taken.add(item.id)
        yield item


def watch_folder(folder: Path, seconds: float, act: Callable[[], object], *, follow_links: bool = False) -> None:
    """Call `act` now, and again whenever the files of a folder have changed and then stayed the same for a while.

    Args:
        folder: The folder.
        seconds: Between two looks, and how long files must stay as they are before `act` is called.
        act: What it raises ends the watch.
        follow_links: Whether files behind links are watched, too.

    Raises:
        InputError: the folder cannot be read any more.
    """
    seen = _look(folder, follow_links)
    act()
    while True:
        time.sleep(seconds)
        found = _look(folder, follow_links)
        if found == seen:
            continue
        while True:
            time.sleep(seconds)
            if (later := _look(folder, follow_links)) == found:
                break
            found = later
        seen = found
        act()


def _look(folder: Path, follow_links: bool) -> dict[str, tuple[int, int, int, str]]:
    """Size, time, number and metadata of every file that is read: a hint that something changed, not a proof."""
    found = {}
    for file in list_folder(folder, follow_links=follow_links).files:
        try:
            about = file.path.stat()
        except OSError:  # it is gone since it was listed
            continue
        found[file.id] = (about.st_size, about.st_mtime_ns, about.st_ino, file.digest(""))
    return found
