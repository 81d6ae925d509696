"""What a version of an index says about itself. Written last, so a version with a manifest is complete."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.encoding import Encoding  # noqa: TC001  # msgspec reads it
from aveyb_retrieval.indexes.store import files
from aveyb_retrieval.indexes.store.directory import FAISS, REJECTED, IndexDirectory, is_version, version_name
from aveyb_retrieval.indexes.store.files import FileInfo  # noqa: TC001  # msgspec reads it
from aveyb_retrieval.indexes.store.lock import hold_version
from aveyb_retrieval.indexes.store.numbering import END

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aveyb_retrieval.indexes.types import Kind

FORMAT = 4
TABLES = ("documents", "texts", "passages")

_TRIES = 10  # to open what is visible, while writers replace it
_MAX_BYTES = 64 << 20
_MAX_DIM = 1 << 16
_MOST = 1 << 62  # no count of anything reaches it, and sums of a few still fit in 64 bits
_QUICK_BYTES = 64 << 20  # hashing this much takes less than a tenth of a second
FOLDERS = (*(f"{table}.lance" for table in TABLES), FAISS, REJECTED)  # all but the folder of manifests
_OURS = re.compile(rf"({'|'.join(map(re.escape, FOLDERS))})(/[A-Za-z0-9_][A-Za-z0-9_.\-]{{0,200}}){{1,4}}")
"""The name of a file below one of the folders of an index, and nothing else."""


def rejected_name(version: str) -> str:
    """The file that lists what the change that made a version left out."""
    return f"{REJECTED}/{version}.jsonl"


@dataclass(frozen=True)
class Tier:
    """One FAISS file: the vectors of one kind of all documents in a range of numbers, as they were when it was made.

    Attributes:
        kind: The kind of vectors.
        file: Its name inside the index directory.
        factory: FAISS's name of its type.
        first, stop: It covers the documents whose numbers are in `[first, stop)`.
        count: Vectors in it.
        dead: How many of them are of documents that were removed since; they are left out of every search.
        params: Settings of a search (`nprobe`, `efSearch`, `rescore`) that tuning found; empty: the defaults.
        recall, curve: What was measured for them against exact search: rows of {parameter, recall, milliseconds}.
    """

    kind: Literal["document", "passage"]
    file: str
    factory: str
    first: int
    stop: int
    count: int
    dead: int = 0
    params: dict[str, int] = field(default_factory=dict)
    recall: float | None = None
    curve: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Counts:
    """What an index holds; `characters` and `words` are of all passages, to know their mean lengths."""

    documents: int = 0
    passages: int = 0
    tokens: int = 0
    cut_documents: int = 0
    cut_tokens: int = 0
    characters: int = 0
    words: int = 0

    def of(self, kind: Kind) -> int:
        """How many vectors of a kind there are."""
        return self.documents if kind == "document" else self.passages

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def __neg__(self) -> Counts:
        return Counts(*(-value for value in dataclasses.astuple(self)))


@dataclass(frozen=True)
class Changes:
    """How many documents the change that made a version concerned."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    renamed: int = 0
    deleted: int = 0
    rejected: int = 0


@dataclass(frozen=True)
class Manifest:
    """Contents of a version's manifest.

    Attributes:
        number: Counts the versions of an index, from 1.
        build: Identifies the index: given by chance when it is built, kept by all its changes.
        encoding: How its vectors and words were made.
        index: The FAISS factory string that was asked for, or "auto".
        recall: What its search settings are tuned for; None: not tuned.
        next_doc: The number that the next document gets.
        tables: The version of each Lance dataset.
        tiers: The FAISS files; vectors of later documents are searched exactly beside them.
        files: Size and hash of every file, by its name inside the index directory.
        job: Identifies the change that made this version.
    """

    number: int
    build: str
    created: str
    package: str
    encoding: Encoding
    index: str
    recall: float | None
    next_doc: int
    counts: Counts
    changes: Changes
    tables: dict[str, int]
    tiers: list[Tier]
    files: dict[str, FileInfo]
    job: dict[str, Any]
    format: int = FORMAT

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
        return sorted((tier for tier in self.tiers if tier.kind == kind), key=lambda tier: tier.first)

    def rejected_file(self, root: Path) -> Path | None:
        """The list of what the change that made this version left out; None where it left nothing out."""
        name = rejected_name(self.name)
        return root / name if name in self.files else None

    def write(self, path: Path) -> None:
        """Write it, atomically, with a checksum of itself."""
        import msgspec

        files.write_atomic(path, sealed(msgspec.to_builtins(self)))

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read and check a manifest (not the files it lists: see `check_files`).

        Raises:
            IndexFormatError: missing, damaged, of another format, or naming things outside its folder.
        """
        try:
            data = files.read_bounded(path, _MAX_BYTES + 1)
        except FileNotFoundError:
            raise IndexFormatError(f"{path}: missing, so this is no complete version of an index") from None
        except OSError as error:
            raise IndexFormatError(f"{path}: cannot be read ({error.strerror})") from error
        if len(data) > _MAX_BYTES:
            raise _bad(path, f"larger than {_MAX_BYTES} bytes")
        manifest = _parse(data, path)
        if path.stem != manifest.name:
            raise _bad(path, f"it is of the version {manifest.name}")
        return manifest


def read_manifest(root: str | Path) -> Manifest:
    """Return the manifest of the visible version of an index.

    Raises:
        IndexFormatError: there is no index, or its manifest is damaged.
    """
    index_dir = IndexDirectory(root)
    return Manifest.read(index_dir.manifest(index_dir.visible()))


def hold_visible(index_dir: IndexDirectory) -> tuple[Manifest, BinaryIO]:
    """Read the manifest of the visible version, and mark it as being read: keep the file open as long as it is.

    Raises:
        IndexFormatError: there is no index, or its manifest is damaged or cannot be read.
        AveyBError: the file system has no locks.
    """
    for _ in range(_TRIES):
        name = index_dir.visible()
        path = index_dir.manifest(name)
        try:
            manifest, held = Manifest.read(path), hold_version(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise IndexFormatError(f"{path}: cannot be read ({error.strerror})") from error
        except IndexFormatError:
            if index_dir.current() == name:
                raise
            continue
        if index_dir.current() == name:  # else a writer that hid it before it was marked may be deleting its files
            return manifest, held
        held.close()
    raise IndexFormatError(f"{index_dir.root}: it is replaced faster than it can be opened; try again")


def _parse(data: bytes, path: Path) -> Manifest:
    import msgspec

    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"not JSON ({error})") from error
    if not isinstance(body, dict):
        raise _bad(path, "not a JSON object")
    if body.get("format") != FORMAT:
        raise IndexFormatError(
            f"{path}: format {body.get('format')!r}, this version of the package reads {FORMAT}; open the index with "
            "the version that made it, or build it again"
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
    if not is_version(m.name):
        return f"the version {m.name!r}"
    if not 1 <= m.encoding.dim <= _MAX_DIM:
        return f"dimension {m.encoding.dim}"
    if not (m.index.isascii() and m.index.isprintable()):
        return f"the index type {m.index[:100]!r}"
    if set(m.tables) != set(TABLES) or not all(1 <= version < _MOST for version in m.tables.values()):
        return f"the tables {m.tables}"
    counted = (*dataclasses.astuple(m.counts), *dataclasses.astuple(m.changes), *(tier.count for tier in m.tiers))
    if min(counted) < 0 or m.next_doc < 1:
        return "a negative count"
    if max(counted) >= _MOST or m.next_doc > END:
        return "a count larger than any index"
    for kind in ("document", "passage"):
        stop = 0
        for tier in m.tiers_of(kind):
            fits = stop <= tier.first < tier.stop <= m.next_doc and tier.count >= tier.dead >= 0
            if not fits or kind not in m.encoding.kinds:
                return f"the range of {tier.file[:100]!r}"
            stop = tier.stop
    return None


def _file_problem(m: Manifest) -> str | None:
    """What of the model and the files that a manifest names cannot be, or None."""
    model = m.encoding.model
    if model is not None and not all(isinstance(model.get(key), str) for key in ("name", "fingerprint")):
        return "the description of the model"
    for name, file in m.files.items():
        if not _OURS.fullmatch(name) or file.bytes < 0:
            return f"it lists {name[:100]!r}, which is no file of an index"
    unlisted = next((tier.file for tier in m.tiers if tier.file not in m.files), None)
    return None if unlisted is None else f"it does not list {unlisted[:100]!r}"


def check_files(
    manifest: Manifest, root: Path, *, full: bool = False, known: Mapping[str, FileInfo] | None = None
) -> None:
    """Check that every listed file is there with its size, and its hash too if `full` or they are small together.

    `known` are files that were checked before and cannot have changed since.

    Raises:
        IndexFormatError: the first difference found.
    """
    new = {name: info for name, info in manifest.files.items() if known is None or known.get(name) != info}
    full = full or sum(info.bytes for info in new.values()) <= _QUICK_BYTES
    for problem in file_problems(new, root, full=full).values():
        raise IndexFormatError(f"{problem}; restore it from a copy, or run `aveyb-index verify --repair {root}`")


def file_problems(listed: Mapping[str, FileInfo], root: Path, *, full: bool) -> dict[str, str]:
    """All differences between files and what a manifest says of them: by the file's name, a sentence."""
    problems = {}
    for name, info in listed.items():
        path = root / name
        if any(part.is_symlink() for part in (path, *path.parents[: name.count("/")])) or not path.is_file():
            problems[name] = f"{path}: missing, or not a plain file"
        elif (size := path.stat().st_size) != info.bytes:
            problems[name] = f"{path}: {size} bytes, the manifest says {info.bytes}"
        elif full and (problem := _content_problem(path, info)):
            problems[name] = f"{path}: {problem}"
    return problems


def _content_problem(path: Path, info: FileInfo) -> str | None:
    try:
        same = files.hash_file(path).sha256 == info.sha256
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if same else "its contents do not fit the sha256 in the manifest"


def sealed(body: Mapping[str, Any]) -> bytes:
    """Return an object as JSON, with a checksum of itself."""
    return json.dumps({"checksum": _checksum(body), **body}, separators=(",", ":")).encode()


def take_checksum(body: dict[str, Any]) -> bool:
    """Take the checksum out of an object that `sealed` wrote: whether it fits the rest."""
    return body.pop("checksum", None) == _checksum(body)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _bad(path: Path, what: str) -> IndexFormatError:
    return IndexFormatError(f"{path}: damaged ({what}); restore the file from a copy or build the index again")
