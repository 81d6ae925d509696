"""Folders and files that hold one document each: what is read of them, what is left out and why."""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.input.documents import (
    FieldNames,
    FileOrigin,
    Notice,
    Record,
    Rejected,
    SourceLocation,
)
from aveyb_retrieval.indexes.input.readers.base import Unreadable
from aveyb_retrieval.indexes.input.readers.formats import COMPRESSED, SUFFIXES, FileKind, kind_of
from aveyb_retrieval.indexes.input.readers.process import FileReader
from aveyb_retrieval.indexes.input.rows import Item, read_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.input.reading import Reading

MANY_DOCUMENTS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
_NAMED = 5  # suffixes that a summary names


@dataclass(frozen=True)
class SourceFile:
    """A file that holds one document.

    Attributes:
        path: Where it is.
        id: Of its document: its path below the folder that is read, with "/".
        folder: The folder that is read.
        kind: How it is read.
    """

    path: Path
    id: str
    folder: Path
    kind: FileKind


def list_folder(folder: Path) -> tuple[list[SourceFile], list[Notice]]:
    """List the files below a folder that hold one document each, by name, and what is left out.

    Hidden files and folders are left out, and links to folders: they may lead in a circle.

    Raises:
        InputError: the folder, or one below it, cannot be read.
    """
    files: list[SourceFile] = []
    notices: list[Notice] = []
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        for name in [*folders]:
            path = Path(parent, name)
            if name.startswith(".") or path.is_symlink():
                notices.append(Notice(str(path), "hidden" if name.startswith(".") else "a link to a folder"))
                folders.remove(name)
        for name in names:
            path = Path(parent, name)
            kind = kind_of(path)
            if reason := _left_out(path, kind):
                notices.append(Notice(str(path), reason))
            else:
                assert kind is not None  # `_left_out` has a reason for the others
                files.append(SourceFile(path, path.relative_to(folder).as_posix(), folder, kind))
    return sorted(files, key=lambda file: Path(file.id)), sorted(notices, key=lambda notice: notice.path)


def _refuse(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _left_out(path: Path, kind: FileKind | None) -> str:
    """Why a file of a folder is not read; "" where it is."""
    if path.name.startswith("."):
        return "hidden"
    if path.name.startswith("~$"):
        return "a lock file of an office program"
    if kind is not None:
        return "" if path.is_file() else "not a plain file"
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    if suffixes and suffixes[-1] in MANY_DOCUMENTS:
        return f"{suffixes[-1]} holds many documents: index it by itself"
    return f"unknown kind {path.suffix}" if path.suffix else "no suffix"


def summary(notices: list[Notice]) -> str:
    """Say in a few words how many files were left out, by their reasons."""
    counts = Counter(notice.reason for notice in notices if notice.left_out)
    named = [f"{count:,} {reason}" for reason, count in counts.most_common(_NAMED)]
    others = len(counts) - len(named)
    return "; ".join([*named, *([f"{others:,} other reasons"] if others else [])])


def read_folder(folder: Path, reading: Reading) -> Iterator[Item]:
    """Read every file below a folder that holds one document.

    Raises:
        InputError: there is none.
    """
    files, notices = list_folder(folder)
    if not files:
        found = f": {summary(notices)}" if notices else ""
        raise InputError(f"{folder}: holds no file that is read{found}; {known_files()} are, and a corpus.jsonl")
    yield from notices
    yield from read_files(files, reading)


def known_files() -> str:
    """The suffixes of files that hold one document each, as a list in words."""
    return ", ".join(SUFFIXES)


def read_files(files: list[SourceFile], reading: Reading) -> Iterator[Item]:
    """Read files that hold one document each: for each a document, a reason why there is none, or a notice."""
    with FileReader(reading.encoding, reading.max_line) as reader:
        for file in files:
            yield from _read(file, reader)


def _read(file: SourceFile, reader: FileReader) -> Iterator[Item]:
    location = SourceLocation(str(file.path), 0)
    try:
        modified = _modified(file.path)
        found, digest = reader.read(file.path, file.kind)
    except Unreadable as reason:
        yield Rejected(location, str(reason), "")
        return
    if not found.text.strip():
        yield Notice(str(file.path), "holds no text")
        return
    if found.warning:
        yield Notice(str(file.path), found.warning, left_out=False)
    row = {
        "_id": file.id,
        "title": found.title or _stem(file.path),
        "text": found.text,
        "path": file.id,
        "type": file.kind.name,
        "modified": modified,
    }
    item = read_row(row, location, FieldNames())
    origin = FileOrigin(digest, str(file.folder.resolve()), found.pages)
    yield replace(item, origin=origin) if isinstance(item, Record) else item


def _modified(path: Path) -> str:
    """When a file was changed last, in UTC, as 2026-01-31T12:00:00+00:00."""
    try:
        about = path.stat()
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(about.st_mode):
        raise Unreadable("not a plain file")
    try:
        return datetime.fromtimestamp(int(about.st_mtime), timezone.utc).isoformat()
    except (ValueError, OverflowError, OSError):
        raise Unreadable("its time of modification is no date") from None


def _stem(path: Path) -> str:
    """The name of a file without its suffixes: "notes" for notes.txt.gz."""
    return path.with_suffix("").stem if path.suffix.lower() in COMPRESSED else path.stem
