"""Where an index is, a folder or an object store, and its visible version: held, read and
described.

Of an index in an object store there are copies in the cache folder (`AVEYB_INDEX_CACHE`), opened as
folders are:

    CACHE/KEY/lock          held by whoever changes the copy that is read
    CACHE/KEY/1f0c94ab/     the copy of a build that is read: manifests, and the files they name
    CACHE/KEY/writing/      the copy that a writer changes; `current` is the version it began with

In the store are the same names, and an object `lease`. Only `current` and the lease are ever
replaced, on the condition that they are what was read before; a version is there when `current`
names it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import secrets
import time
from contextlib import contextmanager
from copy import copy as shallow_copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from aveyb_retrieval import files
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexFormatError, IndexLockedError
from aveyb_retrieval.indexes.store.manifest import (
    DOCUMENTS,
    FAISS,
    FOLDERS,
    VERSIONS,
    IndexDirectory,
    Manifest,
    file_problems,
    hold_version,
    is_read,
    is_stored,
    locked,
    note_checked,
    number_of,
    parse_pointer,
    version_name,
    writer_lock,
)
from aveyb_retrieval.indexes.store.objects import WAIT_SECONDS, Lease, ObjectStore, held_lease

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aveyb_retrieval.files import FileInfo
    from aveyb_retrieval.indexes.store.objects import StoredObject

logger = logging.getLogger(__name__)

CURRENT = "current"  # the object, and the file, that names the visible version
# the suffixes of what is kept here of a file that is not here whole
IN_PARTS = (".parts", ".marks")

# that the objects of a version stay after the next one is there, for those who read parts of them
KEPT_SECONDS = 120.0
CLEAN_EVERY_VERSIONS = 8  # versions: what nobody needs any more is deleted with every so many
_TRIES = 10  # to open what is visible, while writers replace it
_LOCK_SECONDS = 3600.0  # that another process may take to bring a version


@dataclasses.dataclass(frozen=True)
class Cache:
    """Where copies of stored indexes are kept on this machine."""

    folder: Path  # `AVEYB_INDEX_CACHE`, by default `~/.cache/aveyb-retrieval/indexes`
    limit: int  # `AVEYB_INDEX_CACHE_LIMIT`, bytes of all copies together
    whole: int  # `AVEYB_INDEX_CACHE_WHOLE`: of an index of more bytes, Lance reads parts

    @classmethod
    def of_environment(cls) -> Cache:
        """Read the settings, or raise ConfigError."""
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = os.environ.get("AVEYB_INDEX_CACHE") or Path(home, "aveyb-retrieval", "indexes")
        sizes = {}
        for name, default in (("LIMIT", 10 << 30), ("WHOLE", 256 << 20)):
            setting = os.environ.get(f"AVEYB_INDEX_CACHE_{name}") or str(default)
            if not (setting.isascii() and setting.isdigit()):
                raise ConfigError(
                    f"AVEYB_INDEX_CACHE_{name}={setting!r}: must be a number of bytes"
                )
            sizes[name.lower()] = int(setting)
        return cls(Path(folder).absolute(), **sizes)

    def make_room(self, needed: int, keep: Path) -> None:
        """Delete the copies that were used longest ago until so many bytes fit; never `keep`, or
        what is in use.
        """
        copies = [
            copy
            for copy in self.folder.glob("*/*/")
            if copy.name == WRITING or (copy / VERSIONS).is_dir()
        ]
        seen, sizes = set[int](), dict[Path, int]()
        for copy in sorted(copies, key=lambda copy: (copy != keep, -copy.stat().st_mtime)):
            stats = [path.stat() for path in copy.rglob("*") if path.is_file()]
            new = [stat for stat in stats if stat.st_ino not in seen]  # copies share files by links
            sizes[copy] = sum(
                min(stat.st_size, 512 * getattr(stat, "st_blocks", 1 << 40)) for stat in new
            )
            seen.update(stat.st_ino for stat in stats)
        total = sum(sizes.values())
        for copy in reversed(sizes):
            if total + needed <= self.limit:
                return
            if copy == keep:
                continue
            lock = copy / "lock" if copy.name == WRITING else copy.parent / "lock"
            # in use, or the disk fails
            with contextlib.suppress(OSError, IndexLockedError), locked(lock, 0):
                total -= sizes[copy] if _remove_copy(copy) else 0
        if total + needed > self.limit:
            raise ConfigError(
                f"{self.folder}: {needed:,} more bytes are needed here, {total:,} are in use,"
                f" and the limit is {self.limit:,} (--cache-limit, AVEYB_INDEX_CACHE_LIMIT):"
                " raise it, or name another folder with --cache"
            )


WRITING = "writing"


def _remove_copy(copy: Path) -> bool:
    """Delete a copy that nobody reads and that holds no unfinished change; return whether that was
    done.
    """
    index_dir = IndexDirectory(copy)
    if index_dir.journal.exists() or any(
        is_read(index_dir.manifest(name)) for name in index_dir.versions()
    ):
        return False
    files.remove_tree(copy)
    return True


@contextmanager
def _cache_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AveyBError(
            f"{folder}: the cache of stored indexes cannot be written ({error.strerror or error});"
            " make room or name another folder with --cache (AVEYB_INDEX_CACHE)"
        ) from error


def bring(
    store: ObjectStore,
    listing: Mapping[str, FileInfo],
    root: Path,
    linked_folder: Path | None = None,
) -> None:
    """Put files below `root`: those that another folder has by links to these, the others from the
    store.
    """
    left = dict(listing)
    for name, info in listing.items():
        if linked_folder is not None and not file_problems({name: info}, linked_folder, full=True):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            temporary.unlink(missing_ok=True)
            try:
                os.link(linked_folder / name, temporary)
            except OSError:  # a file system without links
                continue
            temporary.replace(path)
            del left[name]
    store.fetch(left, root)


class StoredDirectory(IndexDirectory):
    """An index in an object store, with the copy of it that is read on this machine."""

    holds_checked = True
    is_copy = True

    def __init__(self, address: str, *, whole: bool = True) -> None:
        """Take an address; nothing is asked yet.

        `whole`: all files are needed here, however large the index is.
        """
        self.store = ObjectStore.at(address)
        self.cache = Cache.of_environment()
        self.base = self.cache.folder / hashlib.sha256(self.store.name.encode()).hexdigest()[:16]
        super().__init__(self.base / "unknown")
        self.place = self.name = self.store.name
        self._whole = whole
        self._seen: StoredObject | None = None
        # the files that `hold` checked, by the folder of their build
        self._checked: dict[Path, dict[str, FileInfo]] = {}

    def apart(self) -> StoredDirectory:
        return shallow_copy(self)

    def current(self) -> str | None:
        seen = self.store.read(CURRENT, self._seen)
        self._seen = seen
        if seen is None:
            return None
        name = parse_pointer(seen.data, f"{self.name}/{CURRENT}", self.name)
        # another build has a copy of its own
        self.root = self.base / name.rpartition("-")[2]
        return name

    def has(self, name: str) -> bool:
        """Whether a version has a manifest: the store's errors tell of one that has none."""
        return True

    def read(self, name: str) -> Manifest:
        with _cache_errors(self.cache.folder):
            return read_stored(self.store, name, self.manifest(name))

    def hold(self, name: str) -> tuple[Manifest, BinaryIO]:
        with _cache_errors(self.cache.folder), locked(self.base / "lock", _LOCK_SECONDS):
            manifest = self.read(name)
            # of a large index FAISS's files are brought here, and the small ones of the datasets
            is_small = self.address(manifest) is None
            local_files = {
                name: info
                for name, info in manifest.files.items()
                if is_small or _WHOLE.match(name)
            }
            checked = self._checked.get(self.root, {})
            new = {name: info for name, info in local_files.items() if checked.get(name) != info}
            missing = file_problems(new, self.root)
            if missing:
                self.cache.make_room(sum(local_files[name].bytes for name in missing), self.root)
                bring(
                    self.store,
                    {name: local_files[name] for name in missing},
                    self.root,
                    self.base / WRITING,
                )
                note_checked(self.root, local_files, missing)
            self._checked.clear()
            self._checked[self.root] = local_files
            os.utime(self.root)
            held = hold_version(self.manifest(name))
            if missing:
                delete_unused(self, name)
                for other in self.base.iterdir():
                    if other.is_dir() and other not in (self.root, self.base / WRITING):
                        _remove_copy(other)
        return manifest, held

    def address(self, manifest: Manifest) -> str | None:
        size = sum(info.bytes for info in manifest.files.values())
        return None if self._whole or size <= self.cache.whole else self.name

    def keeps(self, name: str) -> bool:
        """Whether a version that was held stays: nobody else deletes from a copy that is held."""
        return True

    def problems(self, listing: Mapping[str, FileInfo]) -> dict[str, str]:
        listed, problems = self.store.listed() if listing else {}, {}
        for name, info in listing.items():
            if (name in listed and listed[name][0] == info.bytes) or (
                stored := self.store.about(name)
            ) is None:
                size = info.bytes if name in listed else None
            else:
                size = stored[0].bytes  # the list was late
            if size != info.bytes:
                what = (
                    "missing"
                    if size is None
                    else f"{size:,} bytes, the manifest says {info.bytes:,}"
                )
                problems[name] = f"{self.name}/{name}: {what}; {self.store.remedy}"
        return problems

    @contextmanager
    def writing(self, wait: float) -> Iterator[IndexDirectory]:
        """Hold the lease, and give the copy to change, which `publish` sends; 0 seconds to wait are
        a minute here.
        """
        with self.lease(wait) as lease:
            copy = _WriteCopy(self, self.base / WRITING, lease)
            copy.begin()
            yield copy

    @contextmanager
    def lease(self, wait: float) -> Iterator[Lease]:
        """Hold the lock of the copy that is changed, and the lease; errors are those of
        `writing`.
        """
        wait, began, folder = wait or WAIT_SECONDS, time.monotonic(), self.base / WRITING
        with _cache_errors(self.cache.folder):
            folder.mkdir(parents=True, exist_ok=True)
            files.check_plain(folder)
        with writer_lock(folder / "lock", wait):
            left = max(0.0, wait - (time.monotonic() - began))
            identity = folder / "id"  # tells the copy of this folder from all others
            if not identity.exists():
                files.write_atomic(identity, secrets.token_hex(16).encode())
            copy = files.read_bounded(identity, 64).decode("ascii", "replace")
            with held_lease(self.store, copy, left) as lease:
                yield lease


_WHOLE = re.compile(rf"{FAISS}/|.*/(?:_versions|_deletions)/")


def read_stored(store: ObjectStore, name: str, path: Path) -> Manifest:
    """Read and check the manifest of a stored version, which is brought to `path` unless it is
    there.
    """
    if path.exists():
        with contextlib.suppress(IndexFormatError):
            return Manifest.read(path)
    where = f"{store.name}/{VERSIONS}/{path.name}"
    listing = store.read(f"{VERSIONS}/{path.name}")
    if listing is None:
        raise IndexFormatError(
            f"{where}: missing, so this is no complete version of an index; restore it from a copy"
            " or build the index again"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, listing.data, tag=f".{os.getpid()}")
    try:
        return Manifest.read(path)
    except IndexFormatError as error:
        raise IndexFormatError(str(error).replace(str(path), where)) from None


class _WriteCopy(IndexDirectory):
    """The copy of a stored index that its writer changes."""

    is_copy = True

    def __init__(self, place: StoredDirectory, folder: Path, lease: Lease) -> None:
        super().__init__(folder)
        self.place = self.name = place.name
        self._place, self._lease = place, lease
        self._pointer: StoredObject | None = None
        self._sent: Mapping[str, FileInfo] = {}

    def begin(self) -> None:
        """Make the copy what is in the store, which another machine may have changed."""
        store, self.least_number = self._place.store, self._lease.number
        self._pointer = pointer = store.read(CURRENT)
        name = (
            None
            if pointer is None
            else parse_pointer(pointer.data, f"{self.name}/{CURRENT}", self.name)
        )
        try:
            local = self.current()
        except IndexFormatError:
            local = None
        if self.journal.exists() and name not in (local, self._unfinished()):
            logger.warning(
                "%s: what an interrupted change did is dropped: the index was changed meanwhile",
                self.name,
            )
            self.journal.unlink()
        if name is None:
            self.pointer.unlink(missing_ok=True)
            if local is not None:
                for folder in (*FOLDERS, VERSIONS):
                    files.remove_tree(self.root / folder)
            return
        self._lease.claim(number_of(name) + 1)
        self.least_number = self._lease.number
        local_files: Mapping[str, FileInfo] = {}
        with contextlib.suppress(IndexFormatError):
            local_files = {} if local is None else self.read(local).files
        path = self.manifest(name)
        if local != name:
            # of that name an earlier holder of the lease may have made another
            path.unlink(missing_ok=True)
        try:
            manifest = read_stored(store, name, path)
        except IndexFormatError as error:  # only a build can go on, which replaces the index
            logger.warning("%s", error)
            super().publish(name)
            return
        same = {
            file: info for file, info in manifest.files.items() if local_files.get(file) == info
        }
        other = {file: info for file, info in manifest.files.items() if file not in same}
        wrong = [
            *file_problems(same, self.root, full=False),
            *file_problems(other, self.root, full=True),
        ]
        build = name.rpartition("-")[2]
        with _cache_errors(self._place.cache.folder):
            if wrong:
                self._place.cache.make_room(
                    sum(manifest.files[file].bytes for file in wrong), self.root
                )
            bring(
                store,
                {file: manifest.files[file] for file in wrong},
                self.root,
                self._place.base / build,
            )
        super().publish(name)
        self._sent = manifest.files

    def _unfinished(self) -> str | None:
        """The name of the version that an interrupted change would make."""
        try:
            body = json.loads(files.read_bounded(self.journal, 64 << 20))
            return version_name(int(body["number"]), str(body["build"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def publish(self, name: str) -> None:
        """Send what is new of a version, then its manifest, and make it the visible one in the
        store and here.
        """
        manifest = Manifest.read(self.manifest(name))
        self._lease.written = True
        send_version(self._place.store, manifest, self.root, self._pointer, self._sent, self._lease)
        super().publish(name)
        if self._lease.left_behind or manifest.number % CLEAN_EVERY_VERSIONS == 0:
            clean_store(self._place.store, manifest, self._lease)


def send_version(
    store: ObjectStore,
    manifest: Manifest,
    root: Path,
    pointer: StoredObject | None,
    present_files: Mapping[str, FileInfo],
    lease: Lease,
) -> int:
    """Make a version of `root` visible in a store, where `pointer` was `current`; return the bytes
    that were sent.
    """
    new = {name: info for name, info in manifest.files.items() if present_files.get(name) != info}
    sent = store.send(root, new, lease.check)
    listing = f"{VERSIONS}/{manifest.name}.json"
    store.send(root, {listing: files.hash_file(root / listing)}, lease.check)
    lease.check()
    line = f"{manifest.name}\n".encode()
    done = (
        store.create(CURRENT, line)
        if pointer is None
        else store.replace(CURRENT, line, pointer.mark)
    )
    if done is None:
        raise IndexLockedError(
            f"{store.name}: another writer has published a version meanwhile; nothing of this"
            " change is visible: run the same command again"
        )
    return sent


def clean_store(store: ObjectStore, manifest: Manifest, lease: Lease) -> None:
    """Delete, where that is possible, the objects that no version needs that was visible in the
    last two minutes.
    """
    try:
        listed = store.listed()
        times = {
            name: written
            for name, (_, written) in listed.items()
            if name.startswith(f"{VERSIONS}/")
        }
        own = f"{VERSIONS}/{manifest.name}.json"
        if own not in times:  # a listing that is behind
            return
        used, following = {own, *manifest.files}, times[own]
        for name, written in sorted(times.items(), key=lambda entry: (-entry[1], entry[0])):
            if name != own and times[own] - following < KEPT_SECONDS:
                listing = store.read(name)
                used |= {name, *(json.loads(listing.data)["files"] if listing is not None else ())}
            following = written
        doomed = [
            name for name in listed if name.startswith((*FOLDERS, VERSIONS)) and name not in used
        ]
        lease.check(sure=True)
        store.remove([name for name in doomed if not _is_newer(name, manifest)])
    except (AveyBError, ValueError, KeyError, TypeError) as error:
        logger.warning(
            "%s: objects that are not needed any more could not be deleted (%s)", store.name, error
        )


def _is_newer(name: str, manifest: Manifest) -> bool:
    """Whether this is a newer version of a dataset than there should be: another writer may use its
    name.
    """
    folder, _, rest = name.partition("/")
    stem = rest.removeprefix("_versions/").removesuffix(".manifest")
    is_dataset = folder == f"{DOCUMENTS}.lance" and stem.isdigit()
    return is_dataset and (1 << 64) - 1 - int(stem) > manifest.tables.documents


def open_directory(root: str | Path | IndexDirectory, *, whole: bool = True) -> IndexDirectory:
    """Return the directory of an index, by an absolute path; a new one for an object store.

    `whole`: all files of an index in an object store are needed here, however large it is.
    """
    if isinstance(root, StoredDirectory):
        root = root.name
    elif isinstance(root, IndexDirectory):
        return root
    return StoredDirectory(str(root), whole=whole) if is_stored(root) else IndexDirectory(root)


def delete_unused(index_dir: IndexDirectory, visible: str) -> None:
    """Delete all files that neither the visible version nor one that somebody reads is made of."""
    used = set[str]()
    for name in index_dir.versions():
        path = index_dir.manifest(name)
        if name == visible or is_read(path):
            used.add(f"{VERSIONS}/{path.name}")
            used.update(Manifest.read(path).files)
    for folder in (*FOLDERS, VERSIONS):
        for parent, _, names in os.walk(index_dir.root / folder):
            inside = os.path.relpath(parent, index_dir.root)
            for name in names:
                stem, suffix = os.path.splitext(name)  # a Path for each costs more than it  # noqa: PTH122
                if f"{inside}/{stem if suffix in IN_PARTS else name}" not in used:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(parent, name))  # a Path for each costs more than it  # noqa: PTH108, PTH118


def read_manifest(root: str | Path | IndexDirectory) -> Manifest:
    """Return the manifest of the visible version of an index; IndexFormatError where it is missing
    or damaged.
    """
    index_dir = open_directory(root)
    return index_dir.read(index_dir.visible())


def hold_visible(index_dir: IndexDirectory) -> tuple[Manifest, BinaryIO]:
    """Read the manifest of the visible version, and mark it as being read as long as the file is
    open.
    """
    for _ in range(_TRIES):
        name = index_dir.visible()
        try:
            manifest, held = index_dir.hold(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise IndexFormatError(
                f"{index_dir.manifest(name)}: cannot be read ({error.strerror})"
            ) from error
        except IndexFormatError:
            if index_dir.current() == name:
                raise
            continue
        # else a writer that hid it before it was marked may be deleting its files
        if index_dir.keeps(name):
            return manifest, held
        held.close()
    raise IndexFormatError(
        f"{index_dir.place}: it is replaced faster than it can be opened; try again"
    )


def describe(root: str | Path) -> dict[str, Any]:
    """Describe the visible version of an index: how it was made, counts, FAISS files, size,
    unfinished changes.
    """
    index_dir = open_directory(root)
    manifest = index_dir.read(index_dir.visible())
    return {
        "path": str(index_dir.place),
        "version": manifest.version,
        "build": manifest.build,
        "format": manifest.format,
        "created": manifest.created,
        "package": manifest.package,
        **dataclasses.asdict(manifest.encoding),
        "index": manifest.index,
        **dataclasses.asdict(manifest.counts),
        "rejected": manifest.changes.rejected,
        "indexes": {
            kind: [dataclasses.asdict(tier) for tier in manifest.tiers_of(kind)]
            for kind in manifest.encoding.kinds
        },
        "bytes": sum(info.bytes for info in manifest.files.values()),
        "files": len(manifest.files),
        "unfinished": index_dir.journal.exists(),
    }
