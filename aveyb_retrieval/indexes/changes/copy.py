"""`copy_index`: the visible version of an index, from a folder or an object store to another."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aveyb_retrieval import files
from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.changes.update import check_target
from aveyb_retrieval.indexes.model import check_wait
from aveyb_retrieval.indexes.progress import shown
from aveyb_retrieval.indexes.store.manifest import VERSIONS, file_problems, note_checked
from aveyb_retrieval.indexes.store.place import (
    CURRENT,
    StoredDirectory,
    bring,
    clean_store,
    delete_unused,
    hold_visible,
    open_directory,
    read_manifest,
    send_version,
)

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.files import FileInfo
    from aveyb_retrieval.indexes.store.manifest import IndexDirectory, Manifest
    from aveyb_retrieval.indexes.types import Progress

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class CopyReport:
    """What was copied: where the copy is, its version, of how many files and bytes, and how long it
    took in seconds.

    `copied` are the bytes that were missing there, and were copied now.
    """

    path: str | Path
    version: str
    files: int
    bytes: int
    copied: int
    seconds: float


def copy_index(
    source: str | Path,
    target: str | Path,
    *,
    overwrite: bool = False,
    wait: float = 0,
    progress: Progress | None = None,
) -> CopyReport:
    """Copy the visible version of an index: between folders, to an object store, from one, or
    between two.

    Each file is compared by its hash; those that are there already are not copied again, so that a
    call that was interrupted goes on where it ended. Readers see the copy when it is complete.
    Saved questions stay behind.

    An older version of the same index at the target is replaced; another index, or a newer version,
    only with `overwrite`. Another writer of the target is waited for, at most `wait` seconds.

    Raises IndexFormatError where there is no index at the source, or it is damaged; ConfigError
    where something else is at the target; IndexLockedError where another process is writing to it;
    EngineError where a store fails.
    """
    started = time.monotonic()
    check_wait(wait)
    origin, place = open_directory(source), open_directory(target)
    if origin.location == place.location:
        raise ConfigError(f"{source}: cannot be copied to itself; name another place")
    with ExitStack() as stack:
        show = stack.enter_context(shown(progress))
        if isinstance(origin, StoredDirectory) and not isinstance(place, StoredDirectory):
            # its files go where they shall be, not into the cache
            manifest = origin.read(origin.visible())
        else:
            manifest, held = hold_visible(origin)
            stack.enter_context(held)
        size = sum(info.bytes for info in manifest.files.values())
        show("copying", 0, size, 0)
        copied = (
            _to_store(origin, place, manifest, overwrite, wait)
            if isinstance(place, StoredDirectory)
            else (_to_folder(origin, place, manifest, overwrite, wait))
        )
        show("copying", size, size, 0)
    return CopyReport(
        place.place, manifest.version, len(manifest.files), size, copied, time.monotonic() - started
    )


def _check_replaced(place: IndexDirectory, manifest: Manifest, overwrite: bool) -> Manifest | None:
    """Return the manifest that is replaced, None where there is none that can be read."""
    try:
        target = read_manifest(place)
    except IndexFormatError:
        if place.current() is None or overwrite:
            return None
        raise
    if target.name == manifest.name and target != manifest:
        raise ConfigError(
            f"{place.place}: version {target.version} of the same index, with other contents: both"
            " were changed since one was copied from the other; name another place"
        )
    if not overwrite and (target.build != manifest.build or target.number > manifest.number):
        what = (
            "another index"
            if target.build != manifest.build
            else f"the newer version {target.version}"
        )
        raise ConfigError(
            f"{place.place}: {what} is already there; replace it with --overwrite (overwrite=True)"
        )
    return target


def _to_store(
    origin: IndexDirectory, place: StoredDirectory, manifest: Manifest, overwrite: bool, wait: float
) -> int:
    with place.lease(wait) as lease:
        replaced = _check_replaced(place, manifest, overwrite)
        pointer = place.store.read(CURRENT)
        target_files = {} if replaced is None else replaced.files
        shared = {
            name: info for name, info in manifest.files.items() if target_files.get(name) == info
        }
        wrong = place.problems(shared)
        sound = {name: info for name, info in shared.items() if name not in wrong}
        lease.claim(manifest.number)
        copied = send_version(place.store, manifest, origin.root, pointer, sound, lease)
        if pointer is not None or lease.left_behind:
            clean_store(place.store, manifest, lease)
    return copied


def _to_folder(
    origin: IndexDirectory, place: IndexDirectory, manifest: Manifest, overwrite: bool, wait: float
) -> int:
    check_target(place, overwrite=True)
    with place.writing(wait):
        if place.journal.exists():
            raise ConfigError(
                f"{place.place}: it has an interrupted change; finish it, or name another place"
            )
        _check_replaced(place, manifest, overwrite)
        missing = {
            name: manifest.files[name]
            for name in file_problems(manifest.files, place.root, full=True)
        }
        if isinstance(origin, StoredDirectory):
            bring(origin.store, missing, place.root)
        else:
            for name, info in missing.items():
                _copy(origin.root / name, place.root / name, info)
        note_checked(place.root, manifest.files, missing)
        files.fsync_all(place.root, missing)
        (place.root / VERSIONS).mkdir(exist_ok=True)
        manifest.write(place.manifest(manifest.name))
        place.publish(manifest.name)
        delete_unused(place, manifest.name)
    return sum(info.bytes for info in missing.values())


def _copy(source: Path, target: Path, info: FileInfo) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.open_regular(source) as handle, files.atomic_writer(target) as out:
        while block := handle.read(_BLOCK_BYTES):
            out.write(block)
        if out.info() != info:
            raise IndexFormatError(
                f"{source}: its contents do not fit the sha256 in the manifest; run `aveyb-index"
                " verify` there"
            )
