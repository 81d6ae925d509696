"""What an index version says about itself. Written last, so a version with a manifest is complete."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store import directory, files, manifest_fields
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from aveyb_retrieval.indexes.store.files import FileInfo
from aveyb_retrieval.indexes.store.manifest_fields import is_count
from aveyb_retrieval.indexes.store.store_check import SHARD_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aveyb_retrieval.indexes.types import Kind

FORMAT = 2
OLD_FORMATS = (1,)  # opened as they are; the next change of an index brings it up to date
GRANULARITIES: dict[str, tuple[Kind, ...]] = {
    "document": ("document",),
    "passage": ("passage",),
    "both": ("document", "passage"),
}

_MAX_BYTES = 64 << 20
_MAX_DIM = 1 << 16
_FILE = re.compile(rf"store\.sqlite|rejected\.jsonl|(document|passage)\.faiss|{SHARD_NAME.pattern}")
_QUICK_BYTES = 64 << 20  # hashing this much takes less than a tenth of a second


@dataclass(frozen=True)
class IndexInfo:
    """One FAISS index of a version.

    `count` vectors are in the file, `tombstones` of them are of removed documents (HNSW cannot forget) and left out of
    every search. `params` are the search-time settings (`nprobe`, `efSearch`); `recall` and `curve` what was measured
    for them against exact search: rows of {parameter, recall, milliseconds}.
    """

    factory: str
    count: int
    trained_on: int
    tombstones: int = 0
    params: dict[str, int] = field(default_factory=dict)
    recall: float | None = None
    curve: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Manifest:
    """Contents of `manifest.json`.

    `model` is None for an index of ready-made vectors whose model nobody named. `files` maps names relative to the
    version's folder to size and sha256. `settings` are the arguments that later changes keep to.
    """

    version: str
    created: str
    package: str
    model: dict[str, Any] | None
    granularity: str
    dim: int
    storage_dtype: str
    settings: dict[str, Any]
    index_fields: dict[str, str]
    counts: dict[str, int]
    indexes: dict[str, IndexInfo]
    files: dict[str, FileInfo]
    job: dict[str, Any]
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write `manifest.json`, atomically, with a checksum of itself."""
        body = dataclasses.asdict(self)
        body["dtype"] = body.pop("storage_dtype")  # its name in format 1
        data = json.dumps({"checksum": _checksum(body), **body}, indent=1, ensure_ascii=False)
        files.write_atomic(folder / directory.MANIFEST, data.encode())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read and check a version's manifest (not the files it lists: see `check_files`).

        Raises:
            IndexFormatError: missing, damaged, from another format version, or naming things outside its folder.
        """
        path = folder / directory.MANIFEST
        try:
            data = files.read_bounded(path, _MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise _bad(path, f"larger than {_MAX_BYTES} bytes")
            body = json.loads(data)
        except FileNotFoundError:
            raise IndexFormatError(
                f"{folder}: no {directory.MANIFEST} here; this is not a complete index version"
            ) from None
        except (ValueError, RecursionError) as error:
            raise _bad(path, f"not JSON ({error})") from error
        return _parse(body, path)


def read_manifest(root: str | Path) -> Manifest:
    """Return the manifest of the visible version of an index.

    Raises:
        IndexFormatError: there is no index, or its manifest is damaged.
    """
    index_dir = IndexDirectory(root)
    return Manifest.read(index_dir.root / index_dir.visible())


def _parse(body: Any, path: Path) -> Manifest:
    if not isinstance(body, dict):
        raise _bad(path, "not a JSON object")
    if body.get("format") not in (FORMAT, *OLD_FORMATS):
        raise IndexFormatError(
            f"{path}: format version {body.get('format')!r}, this package reads versions 1 to {FORMAT}; "
            "open the index with the package version that made it, or build it again"
        )
    if body.pop("checksum", None) != _checksum(body):
        raise _bad(path, "its checksum does not fit its contents")
    try:
        indexes = {kind: IndexInfo(**info) for kind, info in body.pop("indexes").items()}
        listed = {name: FileInfo(**info) for name, info in body.pop("files").items()}
        manifest = Manifest(indexes=indexes, files=listed, storage_dtype=body.pop("dtype"), **body)
        _check(manifest, path)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _bad(path, f"unexpected fields ({error})") from error
    return manifest


def _check(m: Manifest, path: Path) -> None:
    if wrong := manifest_fields.problem(vars(m)):
        raise _bad(path, wrong)
    if m.granularity not in GRANULARITIES:
        raise _bad(path, f"granularity {m.granularity!r}")
    if not 1 <= m.dim <= _MAX_DIM:
        raise _bad(path, f"dimension {m.dim!r}")
    if set(m.indexes) != set(GRANULARITIES[m.granularity]):
        raise _bad(path, f"indexes {sorted(m.indexes)} for granularity {m.granularity!r}")
    for kind, info in m.indexes.items():
        wrong = manifest_fields.info_problem(vars(info))
        if wrong or info.tombstones > info.count:
            raise _bad(path, f"description of the {kind} index: {wrong or 'more tombstones than vectors'}")
    _check_listed(m, path)


def _check_listed(m: Manifest, path: Path) -> None:
    for name, file in m.files.items():
        if not _FILE.fullmatch(name):
            raise _bad(path, f"it lists {name!r}, which is no file of an index")
        if not is_count(file.bytes) or not isinstance(file.sha256, str):
            raise _bad(path, f"size or hash of {name!r}")
    needed = {directory.STORE, *(directory.faiss_file(kind) for kind in m.indexes)}
    if missing := needed - set(m.files):
        raise _bad(path, f"it does not list {sorted(missing)}")


def check_files(manifest: Manifest, folder: Path, *, full: bool = False) -> None:
    """Check that every listed file is there with its size, and its hash too if `full` or the index is small.

    Raises:
        IndexFormatError: the first difference found.
    """
    for problem in file_problems(manifest, folder, full=full or _total(manifest) <= _QUICK_BYTES).values():
        raise IndexFormatError(
            f"{problem}; restore it from a copy, or run `aveyb-index verify --repair {folder.parent}`"
        )


def file_problems(manifest: Manifest, folder: Path, *, full: bool) -> dict[str, str]:
    """All differences between a version's files and what its manifest says of them: by the file's name, a sentence."""
    problems = {}
    for name, info in manifest.files.items():
        path = folder / name
        if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
            problems[name] = f"{path}: missing, or not a plain file"
        elif (size := path.stat().st_size) != info.bytes:
            problems[name] = f"{path}: {size} bytes, the manifest says {info.bytes}"
        elif full and files.hash_file(path).sha256 != info.sha256:
            problems[name] = f"{path}: its contents do not fit the sha256 in the manifest"
    return problems


def _total(manifest: Manifest) -> int:
    return sum(info.bytes for info in manifest.files.values())


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _bad(path: Path, what: str) -> IndexFormatError:
    return IndexFormatError(f"{path}: damaged ({what}); restore the file from a copy or build the index again")
