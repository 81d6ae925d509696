"""`sync_index`: bring an index into step with a folder of files, by the hashes of what they hold."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.input.documents import MAX_LINE, Record
from aveyb_retrieval.indexes.input.folders import SourceFile, list_folder, read_files, summary
from aveyb_retrieval.indexes.input.reading import Reading
from aveyb_retrieval.indexes.store import directory, files, origins
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from aveyb_retrieval.indexes.store.manifest import read_manifest
from aveyb_retrieval.indexes.store.store import Store
from aveyb_retrieval.indexes.types import Progress, silent
from aveyb_retrieval.indexes.changes.build import OnError, build_index, ingest_items
from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, run_change
from aveyb_retrieval.indexes.changes.update import open_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aveyb_retrieval.indexes.input.documents import Notice
    from aveyb_retrieval.indexes.input.rows import Item
    from aveyb_retrieval.indexes.model import Model
    from aveyb_retrieval.indexes.store.origins import StoredFile
    from aveyb_retrieval.indexes.changes.settings import Settings
    from aveyb_retrieval.indexes.changes.transaction import Job, Transaction


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
        """Return whether anything differs."""
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
    model: Model = None,
    on_error: OnError = "stop",
    max_line: int = MAX_LINE,
    encoding: str | None = None,
    restart: bool = False,
    device: str = "cpu",
    precision: str = "float32",
    progress: Progress = silent,
) -> Report:
    """Bring the index at `root` into step with a folder: new, changed, renamed and deleted files, in one change.

    Files are compared by the hashes of what they hold, not by their times. Documents that were not read from files of
    the folder stay as they are. Where there is no index, one is built. Killed, the same call continues; the folder may
    have changed meanwhile.

    Args:
        folder: The folder that the index was built from.
        root: The index directory.
        model: The index's model, if it has moved; for a first build, any.
        on_error: What to do with a file that cannot be read: "stop", or "skip" to list it in `rejected.jsonl`. A file
            that was read before and cannot be read any more is then removed from the index.
        max_line: The text of a file has at most this many bytes.
        encoding: Of text files; None is UTF-8.
        restart: Throw away the work of an interrupted change.
        device: Where the model runs.
        precision: What it computes in.
        progress: Called as the work goes on.

    Raises:
        InputError: a file cannot be read (with `on_error="stop"`), or the folder holds none that is read.
        ConfigError: the index was made from other folders.
        IndexLockedError: another process is writing.
    """
    folder = Path(folder)
    listed, notices = _list(folder)
    reading = Reading(max_line=max_line, encoding=encoding)
    if IndexDirectory(root).current() is None:
        return build_index(
            folder, root, model=model, on_error=on_error, max_line=max_line, encoding=encoding, restart=restart,
            device=device, precision=precision, progress=progress,
        )  # fmt: skip
    found = _hashes(listed, progress)
    description = read_manifest(root).model
    job: Job = {
        "command": "sync",
        "folder": str(folder.resolve()),
        "model": description["fingerprint"] if description else None,
        **reading.describe(),
        "on_error": on_error,
    }

    unchanged: list[str] = []  # where nothing differs, the visible version tells of the change that made it

    def work(transaction: Transaction, settings: Settings) -> FinishOptions | None:
        with contextlib.closing(Store.open_for_reading(transaction.base_folder / directory.STORE)) as base:
            before = origins.stored_files(base)
            plan = compare(before, found)
            _check_folder(folder, root, origins.folders(base), plan)
        if not plan:
            unchanged.extend(plan.unchanged)
            return None
        remaining = _remove_and_rename(transaction, folder, found)
        wanted = {*remaining.new, *remaining.changed, *(new for _, new in remaining.renamed)}
        files_left = [file for file in listed if file.id in wanted]
        more: tuple[Notice, ...] = ()
        if files_left:
            source = open_model(settings, root, model, device=device, precision=precision)
            source.check_fits(settings, root)
            taken: set[str] = set()
            items = _noted(read_files(files_left, reading), taken)
            _, more = ingest_items(
                transaction, settings, source, items,
                mode="upsert", on_error=on_error, progress=progress, total=len(files_left),
            )  # fmt: skip
            _remove_unread(transaction, wanted - taken)
        if transaction.store.is_empty():
            raise InputError(f"{folder}: none of its files can be read; the index would be empty")
        with transaction.store.transaction():
            after = {name: file.sha256 for name, file in origins.stored_files(transaction.store).items()}
            transaction.store.put("changes", compare(before, after).counts())
        return FinishOptions(settings, notices=(*notices, *more))

    report = run_change(root, job, work, restart=restart, progress=progress)
    return replace(report, unchanged=len(unchanged), notices=tuple(notices)) if unchanged else report


def plan_sync(folder: str | Path, root: str | Path, *, progress: Progress = silent) -> SyncPlan:
    """Compare a folder with the index at `root`, or with nothing where there is none, and change nothing.

    Raises:
        InputError: the folder holds no file that is read.
        ConfigError: the index was made from other folders.
    """
    folder, index_dir = Path(folder), IndexDirectory(root)
    listed, _ = _list(folder)
    found = _hashes(listed, progress)
    version = index_dir.current()
    if version is None:
        return compare({}, found)
    hold = directory.lock_shared(index_dir.root / version / directory.MANIFEST)
    try:
        with contextlib.closing(Store.open_for_reading(index_dir.root / version / directory.STORE)) as store:
            plan = compare(origins.stored_files(store), found)
            _check_folder(folder, root, origins.folders(store), plan)
            return plan
    finally:
        os.close(hold)


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


def _list(folder: Path) -> tuple[list[SourceFile], list[Notice]]:
    """List the files of a folder that are read, and what is left out."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    if (folder / "corpus.jsonl").is_file():
        raise ConfigError(f"{folder}: holds a corpus.jsonl, which is read instead of its files; give that to upsert")
    listed, notices = list_folder(folder)
    if not listed:
        left_out = f" ({summary(notices)})" if notices else ""
        raise InputError(
            f"{folder}: holds no file that is read{left_out}; to remove all documents, give `delete` the filter {{}}"
        )
    return listed, notices


def _hashes(listed: list[SourceFile], progress: Progress) -> dict[str, str]:
    """The hash of each file, by its id; "" where the file cannot be read, which the reader then reports."""
    found = {}
    for number, file in enumerate(listed, start=1):
        try:
            found[file.id] = files.hash_file(file.path).sha256
        except OSError:
            found[file.id] = ""
        progress("comparing", number, len(listed), 0)
    return found


def _check_folder(folder: Path, root: str | Path, folders: list[str], plan: SyncPlan) -> None:
    """Raise ConfigError where the index holds the files of other folders: they would all be deleted."""
    if len(folders) > 1:
        raise ConfigError(
            f"{root}: holds files of {len(folders)} folders ({', '.join(folders[:3])}); an index is kept in step with "
            "one folder: build one of each"
        )
    if folders and folders[0] != str(folder.resolve()) and not (plan.unchanged or plan.changed or plan.renamed):
        raise ConfigError(
            f"{root}: made from the files of {folders[0]}, and {folder} has none of them; build an index of its own"
        )


def _remove_and_rename(transaction: Transaction, folder: Path, found: Mapping[str, str]) -> SyncPlan:
    """Remove and rename documents; return what is left to do, which after a kill is less than the whole plan."""
    store = transaction.store
    stored = origins.stored_files(store)
    plan = compare(stored, found)
    for name in (*plan.new, *(new for _, new in plan.renamed)):
        if store.find(name) is not None:
            raise InputError(f"{folder / name}: its id {name!r} is that of a document that was not read from a file")
    with store.transaction():
        for name in plan.deleted:
            store.remove_document(stored[name].doc, transaction.version)
        for old, new in plan.renamed:
            store.rename(stored[old].doc, new)
            origins.forget_hash(store, stored[old].doc)  # its path and title are still the old ones
        origins.set_folder(store, str(folder.resolve()))
        store.put("consumed", 0)  # what is left is an input of its own
        store.put("digest", "")
    return plan


def _remove_unread(transaction: Transaction, names: set[str]) -> None:
    """Remove what is stored of files that were read once and cannot be read any more."""
    store = transaction.store
    with store.transaction():
        for name in sorted(names):
            if (known := store.find(name)) is not None:
                store.remove_document(known[0], transaction.version)


def _noted(items: Iterator[Item], taken: set[str]) -> Iterator[Item]:
    """Pass items on, and note the ids of documents."""
    for item in items:
        if isinstance(item, Record):
            taken.add(item.id)
        yield item
