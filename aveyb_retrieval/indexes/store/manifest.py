"""The directory of an index: names, the lock of its writer, and the manifest of each version.

    DIR/current             one line, the name of the visible version; replaced by one rename
    DIR/versions/v000007-1f0c94ab.json
                            a version's manifest: all that it is made of; never changed
    DIR/documents.lance/    a Lance dataset; versions share its files
    DIR/texts/  vectors/  passages/
                            Arrow files of rows, named by the version that made them
    DIR/words/              the lists of their words, likewise
    DIR/faiss/              FAISS files, likewise
    DIR/checked.json        which FAISS files were compared with their hashes
    DIR/rejected/           what a change left out, with reasons
    DIR/journal.json        how far an unfinished change is; the same command continues it
    DIR/lock                held by the one writer; says who that is

The name of a version holds a number and the build's own id, so no index that was made again has it.
Readers hold a shared lock on the manifest of their version; a writer deletes what only versions
need that nobody reads any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import socket
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import portalocker

from aveyb_retrieval import files
from aveyb_retrieval.documents.records import OcrTry  # msgspec reads it  # noqa: TC001
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexFormatError, IndexLockedError
from aveyb_retrieval.files import FileInfo  # msgspec reads it  # noqa: TC001
from aveyb_retrieval.indexes.encoding import Encoding  # msgspec reads it  # noqa: TC001
from aveyb_retrieval.indexes.store.checked import CheckedFiles
from aveyb_retrieval.indexes.types import END_NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aveyb_retrieval.indexes.types import Kind

FAISS = "faiss"
REJECTED = "rejected"
VERSIONS = "versions"
_VERSION = re.compile(r"v(\d{6,})-([0-9a-f]{8})")
_OLD = re.compile(r"v\d{6,}")


SCHEMES = ("s3", "gs", "az")  # of addresses in object stores


def is_stored(path: object) -> bool:
    """Whether a name is the address of an index in an object store."""
    return isinstance(path, str) and path.partition("://")[0] in SCHEMES and "://" in path


class IndexDirectory:
    """The names inside one index directory.

    `root` is its absolute path, so that an open index stays the same one when the process changes
    its folder. `place` is the path as it was given, which messages name, or the address that the
    directory is a copy of.
    """

    is_copy = False  # of an index in an object store
    least_number = 1  # that the next version may have
    holds_checked = False  # whether `hold` has checked the files of a version already

    def __init__(self, root: str | Path) -> None:
        path = _path(root)
        self.root = path.absolute()
        self.place: str | Path = path
        self.pointer = self.root / "current"
        self.lock = self.root / "lock"
        self.journal = self.root / "journal.json"

    def __str__(self) -> str:
        return str(self.place)

    @property
    def location(self) -> str | Path:
        """What finds the index from any folder: its absolute path, or its address."""
        return self.place if self.is_copy else self.root

    @property
    def shown_root(self) -> Path:
        """The directory as messages and reports name it."""
        return self.root if self.is_copy else Path(self.place)

    def apart(self) -> IndexDirectory:
        """The same index for one opening: no other thread changes its root, as looking for newer
        versions in an object store does.
        """
        return self

    def current(self) -> str | None:
        """Name of the visible version, or None where there is no index."""
        try:
            data = files.read_bounded(self.pointer, 64)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise IndexFormatError(f"{self.pointer}: cannot be read ({error.strerror})") from error
        return parse_pointer(data, self.shown_root / self.pointer.name, self.shown_root)

    def visible(self) -> str:
        """Name of the visible version."""
        name = self.current()
        if name is None:
            raise self.missing()
        return name

    def missing(self) -> IndexFormatError:
        """Return the error that says that there is no index."""
        return IndexFormatError(
            f"{self.place}: no index here; make one with `aveyb-index build ... -o {self.place}`"
        )

    def manifest(self, name: str) -> Path:
        return self.root / VERSIONS / f"{name}.json"

    def versions(self) -> list[str]:
        """Names of all versions that have a manifest, oldest first."""
        folder = self.root / VERSIONS
        if not folder.is_dir() or folder.is_symlink():
            return []
        return sorted(
            path.stem
            for path in folder.iterdir()
            if path.suffix == ".json" and _VERSION.fullmatch(path.stem)
        )

    def has(self, name: str) -> bool:
        return self.manifest(name).exists()

    def read(self, name: str) -> Manifest:
        return Manifest.read(self.manifest(name))

    def hold(self, name: str) -> tuple[Manifest, BinaryIO]:
        """Read a version and lock its manifest, so that no writer deletes its files until the lock
        is closed.
        """
        return self.read(name), hold_version(self.manifest(name))

    def keeps(self, name: str) -> bool:
        """Whether a version that was held is the visible one still, which no writer deletes."""
        return self.current() == name

    def address(self, manifest: Manifest) -> str | None:
        """Where Lance reads the datasets of a version, if not here."""
        return None

    def problems(self, listing: Mapping[str, FileInfo]) -> dict[str, str]:
        """What is wrong with the files of a version, besides these here: by the name, a
        sentence.
        """
        return {}

    @contextlib.contextmanager
    def writing(self, wait: float) -> Iterator[IndexDirectory]:
        """Hold the writer lock, as `writer_lock`, and give the directory to change."""
        with writer_lock(self.lock, wait):
            yield self

    def publish(self, name: str) -> None:
        """Make a complete version the visible one: from here on readers open it."""
        files.write_atomic(self.pointer, f"{name}\n".encode())


def parse_pointer(data: bytes, where: str | Path, root: str | Path) -> str:
    """Return the name of the version that the pointer of the index at `root` holds."""
    name = data.decode("ascii", "replace").strip()
    if _OLD.fullmatch(name):
        raise IndexFormatError(
            f"{root}: an index of format 1 or 2, which is not read any more; build it again"
        )
    if not _VERSION.fullmatch(name):
        raise IndexFormatError(
            f"{where}: holds {name[:64]!r}, not the name of a version; write the name of a file in"
            f" {root}/{VERSIONS} into it, without .json, or build the index again"
        )
    return name


def version_name(number: int, build: str) -> str:
    """The name of version `number` of a build (8 hexadecimal digits)."""
    return f"v{number:06d}-{build}"


def number_of(name: str) -> int:
    """The number in the name of a version."""
    return int(name[1:].partition("-")[0])


def _path(root: str | Path) -> Path:
    if not isinstance(root, (str, Path)):
        raise ConfigError(f"the index directory is of type {type(root).__name__}; a path is needed")
    if "\0" in str(root) or not str(root):
        raise ConfigError(
            f"the index directory {str(root)!r} is not a path: it is empty or holds a NUL"
        )
    if isinstance(root, str) and "://" in root:
        raise ConfigError(
            f"{root.partition('://')[0]}://...: an address, but an index directory is needed;"
            " search collections of engines with Retriever.load, and change them with"
            " publish_index (publish) and unpublish_documents"
        )
    if isinstance(root, Path) and root.parts[0].endswith(":") and root.parts[0][:-1] in SCHEMES:
        raise ConfigError(f"{root.parts[0]}//...: an address as a path; give it as a string")
    return Path(root)


logger = logging.getLogger(__name__)

_NOTE_BYTES = 4096
_LOOK_SECONDS = 0.05  # between two looks at a lock that another writer holds
_EXCLUSIVE = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
_SHARED = portalocker.LockFlags.SHARED | portalocker.LockFlags.NON_BLOCKING


@contextlib.contextmanager
def writer_lock(path: Path, wait: float = 0) -> Iterator[None]:
    """Hold the writer lock of an index while the block runs; another writer may take `wait` seconds
    to end.
    """
    with locked(path, wait) as handle:
        if path.stat().st_size:  # a writer that ends in order leaves an empty file
            logger.warning(
                "%s: the previous writer did not end in order (%s); its lock is stale",
                path,
                _holder(path),
            )
        note = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv)[:200],
        }
        handle.truncate(0)
        handle.write(json.dumps(note).encode())
        handle.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a full disk must not hide what went wrong before
                handle.truncate(0)


@contextlib.contextmanager
def locked(path: Path, wait: float) -> Iterator[BinaryIO]:
    """Open and lock the file that has this name once the lock is held: a build that failed may just
    have removed it.
    """
    until = time.monotonic() + wait
    while True:
        files.make_folder(path.parent)
        with files.open_regular(path, os.O_RDWR | os.O_CREAT) as handle:
            # writing to it would change a file that is elsewhere too
            if os.fstat(handle.fileno()).st_nlink > 1:
                raise IndexFormatError(
                    f"{path}: this file has other names (hard links); remove it and try again"
                )
            try:
                portalocker.lock(handle, _EXCLUSIVE)
            except portalocker.AlreadyLocked:
                if (left := until - time.monotonic()) > 0:
                    time.sleep(min(_LOOK_SECONDS, left))
                    continue
                waited = f", still after {wait:g} seconds" if wait else ""
                raise IndexLockedError(
                    f"{path}: another writer is at work ({_holder(path)}){waited}; wait longer"
                    " (wait=, --wait), or stop it and try again"
                ) from None
            except portalocker.LockException as error:
                raise _no_locks(path, error) from error
            if _is_at(handle, path):
                yield handle
                return


def _no_locks(path: Path, error: Exception) -> AveyBError:
    return AveyBError(
        f"{path}: cannot be locked ({error}); keep the index on a file system that has locks"
    )


def _is_at(handle: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    try:
        note = json.loads(files.read_bounded(path, _NOTE_BYTES))
        return f"pid {note['pid']} on {note['host']} since {note['since']}: {note['command']}"
    except (OSError, IndexFormatError, ValueError, KeyError, TypeError, RecursionError):
        return "it left no note of itself"


def hold_version(manifest: Path) -> BinaryIO:
    """Mark a version as being read: returns a file to keep open as long as it is."""
    handle = files.open_regular(manifest)
    try:
        portalocker.lock(handle, _SHARED)
    except portalocker.LockException as error:
        handle.close()
        if isinstance(error, portalocker.AlreadyLocked):
            raise FileNotFoundError(manifest) from None
        raise _no_locks(manifest, error) from error
    return handle


def is_read(manifest: Path) -> bool:
    """Whether anybody holds a version."""
    try:
        with files.open_regular(manifest) as handle:
            portalocker.lock(handle, _EXCLUSIVE)
    except portalocker.LockException:
        return True
    except (FileNotFoundError, IndexFormatError):
        # no reader can have opened what is not a manifest
        return False
    return False


FORMAT_VERSION = 12
DOCUMENTS = "documents"  # the table that Lance keeps
ROW_TABLES = ("texts", "vectors", "passages")  # in files of ours
WORD_LISTS = "words"  # the folder of their lists of words

_MAX_BYTES = 64 << 20
_MAX_DIMENSIONS = 1 << 16
_MAX_COUNT = 1 << 62  # no count of anything reaches it, and sums of a few still fit in 64 bits
_QUICK_BYTES = 64 << 20  # hashing this much takes less than a tenth of a second
# all but the folder of manifests
FOLDERS = (f"{DOCUMENTS}.lance", *ROW_TABLES, WORD_LISTS, FAISS, REJECTED)
_OURS = re.compile(
    rf"({'|'.join(map(re.escape, FOLDERS))})(/[A-Za-z0-9_][A-Za-z0-9_.\-]{{0,200}}){{1,4}}"
)
"""The name of a file below one of the folders of an index, and nothing else."""


def rejected_name(version: str) -> str:
    """The file that lists what the change that made a version left out."""
    return f"{REJECTED}/{version}.jsonl"


@dataclass(frozen=True)
class Tier:
    """One FAISS file: the vectors of one kind of all documents in a range of numbers, as they were
    when it was made.
    """

    kind: Literal["document", "passage"]
    file: str  # its name inside the index directory
    factory: str  # FAISS's name of its type
    first: int  # it covers the documents whose numbers are in `[first, stop)`
    stop: int
    count: int
    dead: int = 0  # vectors of documents that were removed since; they are left out of every search
    # of a search, where they are not the defaults
    params: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """One file of rows, or of lists of their words: of the documents in a range of numbers."""

    file: str  # its name inside the index directory
    first: int  # it is of the documents whose numbers are in `[first, stop)`
    stop: int
    rows: int


@dataclass(frozen=True)
class TableFiles:
    """What the tables of an index are made of."""

    documents: int = 1  # the version of the Lance dataset
    rows: dict[str, list[Piece]] = field(default_factory=dict)  # by table, `ROW_TABLES`
    # by table and column: "texts/words"
    words: dict[str, list[Piece]] = field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        """The names of the files of all pieces."""
        return [
            piece.file for pieces in (*self.rows.values(), *self.words.values()) for piece in pieces
        ]


@dataclass(frozen=True)
class Counts:
    """What an index holds; `characters` and `words` are of all passages, to know their mean
    lengths.
    """

    documents: int = 0
    passages: int = 0
    tokens: int = 0
    cut_documents: int = 0
    cut_tokens: int = 0
    characters: int = 0
    words: int = 0

    def of(self, kind: Kind) -> int:
        return self.documents if kind == "document" else self.passages

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            *(
                a + b
                for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
            )
        )

    def __neg__(self) -> Counts:
        return Counts(*(-value for value in dataclasses.astuple(self)))


@dataclass(frozen=True)
class Changes:
    """How many documents the change that made a version concerned."""

    added: int = 0
    replaced: int = 0
    updated: int = 0
    unchanged: int = 0
    renamed: int = 0
    deleted: int = 0
    rejected: int = 0


@dataclass(frozen=True)
class Manifest:
    """What the manifest of a version holds."""

    number: int  # counts the versions of an index, from 1
    build: str  # identifies the index: given by chance when it is built, kept by all its changes
    created: str
    package: str
    encoding: Encoding
    index: str  # the FAISS factory string that was asked for, "auto", or "none"
    next_doc: int  # the number that the next document gets
    counts: Counts
    changes: Changes
    tables: TableFiles
    tiers: list[Tier]  # vectors of later documents are searched exactly beside these files
    # size and hash of every file, by its name inside the index directory
    files: dict[str, FileInfo]
    # files of folders that were left out, whole or in part, with the reasons: they are told once
    left_out: dict[str, str]
    job: dict[str, Any]  # identifies the change that made this version
    # of a folder, as `Reading.of_folder` gives it
    reading: dict[str, Any] = field(default_factory=dict)
    # files that OCR has not read, or not all of them, by their paths
    ocr_tries: dict[str, OcrTry] = field(default_factory=dict)
    corpus: str = (
        ""  # hash of all that this change read, whatever it took of it; "" where it read nothing
    )
    format: int = FORMAT_VERSION

    @property
    def share(self) -> tuple[int, int] | None:
        """Which share of a corpus it was built of, from 1, and of how many; None: of all of it, or
        it was changed.
        """
        number, of = self.job.get("share") or (0, 0)
        return (number, of) if of else None

    @property
    def name(self) -> str:
        """The name of the version, unlike that of any other version of any index at this place."""
        return version_name(self.number, self.build)

    @property
    def version(self) -> str:
        """What people see of it: "v000007"."""
        return self.name.partition("-")[0]

    def tiers_of(self, kind: str) -> list[Tier]:
        """The FAISS files of one kind of vectors, by the numbers that they cover."""
        return sorted(
            (tier for tier in self.tiers if tier.kind == kind), key=lambda tier: tier.first
        )

    def rejected_file(self, root: Path) -> Path | None:
        """The list of what the change that made this version left out; None where it left nothing
        out.
        """
        name = rejected_name(self.name)
        return root / name if name in self.files else None

    def write(self, path: Path) -> None:
        """Write it, atomically, with a checksum of itself."""
        import msgspec

        files.write_atomic(path, sealed(msgspec.to_builtins(self)))

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read and check a manifest (not the files it lists: see `check_files`)."""
        try:
            data = files.read_bounded(path, _MAX_BYTES + 1)
        except FileNotFoundError:
            raise IndexFormatError(
                f"{path}: missing, so this is no complete version of an index"
            ) from None
        except OSError as error:
            raise IndexFormatError(f"{path}: cannot be read ({error.strerror})") from error
        if len(data) > _MAX_BYTES:
            raise _bad(path, f"larger than {_MAX_BYTES} bytes")
        manifest = _parse(data, path)
        if path.stem != manifest.name:
            raise _bad(path, f"it is of the version {manifest.name}")
        return manifest


def _parse(data: bytes, path: Path) -> Manifest:
    import msgspec

    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"not JSON ({error})") from error
    if not isinstance(body, dict):
        raise _bad(path, "not a JSON object")
    if body.get("format") != FORMAT_VERSION:
        raise IndexFormatError(
            f"{path}: format {body.get('format')!r}, this version of the package reads"
            f" {FORMAT_VERSION}; open the index with the version that made it, or build it again"
        )
    if not take_checksum(body):
        raise _bad(path, "its checksum does not fit its contents")
    try:
        manifest = msgspec.convert(body, Manifest, strict=True)
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError) as error:
        raise _bad(path, str(error)) from error
    if wrong := problem(manifest) or _file_problem(manifest):
        raise _bad(path, wrong)
    return manifest


def problem(m: Manifest) -> str | None:
    """What of a manifest's numbers cannot be, or None."""
    if not _VERSION.fullmatch(m.name):
        return f"the version {m.name!r}"
    if not 1 <= m.encoding.dim <= _MAX_DIMENSIONS:
        return f"dimension {m.encoding.dim}"
    if not (m.index.isascii() and m.index.isprintable()):
        return f"the index type {m.index[:100]!r}"
    counted = (
        *dataclasses.astuple(m.counts),
        *dataclasses.astuple(m.changes),
        *(tier.count for tier in m.tiers),
    )
    if min(counted) < 0 or m.next_doc < 1:
        return "a negative count"
    if max(counted) >= _MAX_COUNT or m.next_doc > END_NUMBER:
        return "a count larger than any index"
    if wrong := _wrong_contents(m.tables, m.next_doc):
        return wrong
    for kind in ("document", "passage"):
        stop = 0
        for tier in m.tiers_of(kind):
            fits = stop <= tier.first < tier.stop <= m.next_doc and tier.count >= tier.dead >= 0
            if not fits or kind not in m.encoding.kinds:
                return f"the range of {tier.file[:100]!r}"
            stop = tier.stop
    return None


def _wrong_contents(contents: TableFiles, next_doc: int) -> str | None:
    """What of the pieces of tables cannot be, or None."""
    if not 1 <= contents.documents < _MAX_COUNT or set(contents.rows) != set(ROW_TABLES):
        return f"the tables {sorted(contents.rows)}, version {contents.documents} of the documents"
    strange = [name for name in contents.words if name.partition("/")[0] not in ROW_TABLES]
    if strange:
        return f"the lists of words {strange[0][:100]!r}"
    for name, pieces in {**contents.rows, **contents.words}.items():
        stop = 0
        for piece in pieces:
            fits = stop <= piece.first < piece.stop <= next_doc and 0 <= piece.rows < _MAX_COUNT
            if not fits and piece.rows:
                return f"the range of {piece.file[:100]!r} of {name[:100]!r}"
            stop = piece.stop
    return None


def _file_problem(m: Manifest) -> str | None:
    """What of the model and the files that a manifest names cannot be, or None."""
    model = m.encoding.model
    if model is not None and not all(
        isinstance(model.get(key), str) for key in ("name", "fingerprint")
    ):
        return "the description of the model"
    for name, file in m.files.items():
        if not _OURS.fullmatch(name) or file.bytes < 0:
            return f"it lists {name[:100]!r}, which is no file of an index"
    named = (*(tier.file for tier in m.tiers), *m.tables.files)
    unlisted = next((name for name in named if name not in m.files), None)
    return None if unlisted is None else f"it does not list {unlisted[:100]!r}"


def check_files(
    manifest: Manifest,
    root: Path,
    *,
    full: bool = False,
    known: Mapping[str, FileInfo] | None = None,
) -> None:
    """Check the sizes and hashes of files, as `file_problems`, but of those `known`, which were
    checked before.
    """
    new = {
        name: info
        for name, info in manifest.files.items()
        if known is None or known.get(name) != info
    }
    for problem in file_problems(new, root, full=full or None).values():
        raise IndexFormatError(
            f"{problem}; restore it from a copy, or run `aveyb-index verify --repair {root}`"
        )


def file_problems(
    listed: Mapping[str, FileInfo], root: Path, *, full: bool | None = None
) -> dict[str, str]:
    """All differences between files and what a manifest says of them: by the file's name, a
    sentence.

    Without `full`, hashes are compared where all files are small together, and else of those of
    FAISS's files, which FAISS trusts, that were not compared since they were written.
    """
    is_small, checked = _are_small(listed), CheckedFiles(root)
    problems = dict[str, str]()
    for name, info in listed.items():
        hashed = (is_small or name.startswith(f"{FAISS}/")) if full is None else full
        problem = _file_difference(root / name, name.count("/"), info)
        if problem is None and hashed:
            is_noted = not is_small and name.startswith(f"{FAISS}/")
            if is_noted and full is None and checked.has(name, info):
                continue
            mark = checked.mark(name, info) if is_noted else None
            problem = _hash_difference(root / name, info)
            if problem is None and mark is not None:
                checked.add(name, mark)
        if problem is not None:
            problems[name] = problem
    checked.save()
    return problems


def _are_small(listed: Mapping[str, FileInfo]) -> bool:
    """Whether files together take no time to be hashed."""
    return sum(info.bytes for info in listed.values()) <= _QUICK_BYTES


def _file_difference(path: Path, depth: int, info: FileInfo) -> str | None:
    """What is wrong with a file, `depth` folders below the index, or with its size."""
    if any(part.is_symlink() for part in (path, *path.parents[:depth])) or not path.is_file():
        return f"{path}: missing, or not a plain file"
    size = path.stat().st_size
    return None if size == info.bytes else f"{path}: {size} bytes, the manifest says {info.bytes}"


def _hash_difference(path: Path, info: FileInfo) -> str | None:
    """What is wrong with the contents of a file."""
    try:
        if files.hash_file(path).sha256 != info.sha256:
            return f"{path}: its contents do not fit the sha256 in the manifest"
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror})"
    return None


def note_checked(root: Path, listed: Mapping[str, FileInfo], new: Iterable[str]) -> None:
    """Note which `new` ones of the files of a version are FAISS's: their hashes are those of what
    was just written.
    """
    if _are_small(listed):
        return
    checked = CheckedFiles(root)
    for name in new:
        if name.startswith(f"{FAISS}/"):
            checked.add(name, checked.mark(name, listed[name]))
    checked.save()


def sealed(body: Mapping[str, Any]) -> bytes:
    """Return an object as JSON, with a checksum of itself."""
    return json.dumps({"checksum": _checksum(body), **body}, separators=(",", ":")).encode()


def take_checksum(body: dict[str, Any]) -> bool:
    """Take the checksum out of an object that `sealed` wrote: whether it fits the rest."""
    return body.pop("checksum", None) == _checksum(body)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(
        json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def _bad(path: Path, what: str) -> IndexFormatError:
    return IndexFormatError(
        f"{path}: damaged ({what}); restore the file from a copy or build the index again"
    )
