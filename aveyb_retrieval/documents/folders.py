"""Folders and files that hold one document each: what is read, what is left out and why, and what a
folder says.

A folder gives its files metadata by their paths (`path_fields`), and by a file `metadata.csv` or
`metadata.jsonl`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import unicodedata
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.documents.exclusion import IGNORE_FILE, Exclusion
from aveyb_retrieval.documents.readers.chat import looks_like_chat
from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.file_limits import Watch, unwatched
from aveyb_retrieval.documents.readers.filetext import Unreadable, Unrecognized
from aveyb_retrieval.documents.readers.kinds import (
    CHAT,
    PICTURE,
    SAMPLE_BYTES,
    SUFFIXES,
    TABLES,
    USERS_FILE,
    FileKind,
    first_bytes,
    has_suffix,
    kind_of,
    looks_like_text,
    missing_package,
    read_bytes,
)
from aveyb_retrieval.documents.readers.mailbox import (
    is_maildir,
    looks_like_mailbox,
    maildir_messages,
    messages_of,
)
from aveyb_retrieval.documents.readers.ocr import OcrConditions, ocr_conditions
from aveyb_retrieval.documents.readers.process import FileReader
from aveyb_retrieval.documents.readers.suffixes_without_text import WITHOUT_TEXT
from aveyb_retrieval.documents.readers.table_lines import csv_rows
from aveyb_retrieval.documents.reading import (
    COMPRESSED,
    Reading,
    check_columns,
    column_types,
    convert,
    split_suffix,
)
from aveyb_retrieval.documents.records import (
    MAX_REASON_CHARACTERS,
    BadRecord,
    FieldNames,
    FileOrigin,
    Item,
    Notice,
    OcrTry,
    Record,
    Rejected,
    SourceLocation,
    check_metadata,
    metadata_json,
    parse_json,
    path_text,
    read_row,
)
from aveyb_retrieval.errors import (
    ConfigError,
    InputError,
    OptionalDependencyError,
    shortened,
)
from aveyb_retrieval.files import hash_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path, PurePath

    from aveyb_retrieval.documents.readers.filetext import FileText

SIDE_FILES = ("metadata.csv", "metadata.jsonl")
_PATH = "path"  # the field that says which files a line is about
_FILE_FIELDS = (_PATH, "type", "modified")  # what each file has by itself
_FIELD = re.compile(r"\{([^{}]*)\}")


def path_pattern(shape: str) -> re.Pattern[str]:
    """Compile a pattern of paths below a folder, such as "{team}/{year}/*", whose names become
    fields.

    A name takes a part of a path without "/", "*" likewise, "**" any part; a last "*" takes all
    that is below. Raises ConfigError: it names no field, one twice, or one that each file has by
    itself.
    """
    names = _FIELD.findall(shape)
    wrong = next(
        (
            name
            for name in names
            if not name.isidentifier() or name in _FILE_FIELDS or names.count(name) > 1
        ),
        None,
    )
    if wrong is not None or not names:
        fields = ", ".join(_FILE_FIELDS)
        reason = f"{{{wrong}}} is no name of a field, is there twice, or is one of {fields}"
        reason = reason if names else "names no field"
        raise ConfigError(f"path_fields={shape!r}: {reason}; write it as in '{{team}}/{{year}}/*'")
    end = "**" if shape.endswith("*") and not shape.endswith("**") else ""
    parts = re.split(r"(\{[^{}]*\}|\*\*|\*)", f"{shape[:-1]}{end}" if end else shape)
    written = {"*": "[^/]*", "**": ".*"}
    return re.compile(
        "".join(
            (
                f"(?P<{part[1:-1]}>[^/]+)"
                if part.startswith("{")
                else written.get(part, re.escape(part))
            )
            for part in parts
        ),
        re.DOTALL,
    )


class _Line(NamedTuple):
    number: int
    path: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Labels:
    """What a folder says of its files.

    Attributes:
        file: The file of metadata; None where there is none.
        lines: Its lines about one file each, by the path, composed (NFC); later ones win.
        patterns: Its lines about several files.
        pattern: How paths become fields; None: not at all.
    """

    file: Path | None = None
    lines: Mapping[str, Sequence[_Line]] = field(default_factory=dict)
    patterns: tuple[_Line, ...] = ()
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of_folder(
        cls, folder: Path, path_fields: str | None, *, follow_links: bool = False
    ) -> Labels:
        """Read what a folder says. Raises InputError: its file of metadata cannot be read."""
        pattern = None if path_fields is None else path_pattern(path_fields)
        for name in SIDE_FILES:
            path = folder / name
            if path.is_file() and (follow_links or not path.is_symlink()):
                lines = _lines_of(path, follow_links)
                if lines is not None:
                    by_path = defaultdict[str, list[_Line]](list)
                    for line in lines:
                        by_path[composed(line.path)].append(line)
                    patterns = tuple(line for line in lines if is_pattern(line.path))
                    return cls(path, by_path, patterns, pattern)
        return cls(pattern=pattern)

    def of(self, name: str) -> dict[str, Any]:
        """Return the metadata for a file, by its path below the folder."""
        match = self.pattern.fullmatch(name) if self.pattern else None
        metadata: dict[str, Any] = match.groupdict() if match else {}
        name = composed(name)
        lines = {line.number: line for line in self.lines.get(name, ())}
        lines |= {line.number: line for line in self.patterns if matches(name, line.path)}
        for number in sorted(lines):
            metadata |= lines[number].fields
        return metadata

    def unused(self, names: Iterable[str]) -> list[str]:
        """Return which lines are about none of these files."""
        present = {composed(name) for name in names}
        used = {
            line.number
            for line in self.patterns
            if any(matches(name, line.path) for name in present)
        }
        lines = [
            line
            for name, lines in self.lines.items()
            if name not in present
            for line in lines
            if line.number not in used
        ]
        lines.sort(key=lambda line: line.number)
        return [f"line {line.number}: no file is {line.path!r}" for line in lines]


def composed(name: str) -> str:
    """Return a name as it is typed (NFC): Macs keep letters and their accents apart."""
    return unicodedata.normalize("NFC", name)


def is_pattern(path: str) -> bool:
    """Return whether a line's path means several files."""
    return any(sign in path for sign in "*?[") or path.endswith("/")


def matches(name: str, pattern: str) -> bool:
    """Return whether a path is what a pattern means: "a/" all below, "*.pdf" in any folder,
    "a/*.md", "**/x".
    """
    pattern = composed(pattern)
    if not is_pattern(pattern):
        return name == pattern
    pattern_parts = pattern.removesuffix("/").split("/") + (["**"] if pattern.endswith("/") else [])
    if len(pattern_parts) == 1:
        pattern_parts.insert(0, "**")
    places = {0}  # in `pattern_parts`, to which the parts so far may lead
    for part in name.split("/"):
        for place in range(len(pattern_parts)):  # "**" may be no part at all
            places |= {place + 1} if place in places and pattern_parts[place] == "**" else set()
        places = {
            place + (pattern_parts[place] != "**")
            for place in places
            if place < len(pattern_parts)
            and (pattern_parts[place] == "**" or fnmatchcase(part, pattern_parts[place]))
        }
    return any(all(part == "**" for part in pattern_parts[place:]) for place in places)


def _lines_of(path: Path, follow_links: bool) -> tuple[_Line, ...] | None:
    """The lines of a file of metadata; None where it has no field for paths, and is a file like
    others.
    """
    try:
        text = decode(read_bytes(path, follow_links=follow_links)).lstrip("\ufeff")
        rows = _rows_of_csv(text, path) if path.suffix == ".csv" else _rows_of_json(text, path)
    except Unreadable as reason:
        raise InputError(f"{path_text(path)}: {reason}") from None
    if rows is None:
        return None
    lines = []
    for number, row in rows:
        name = row.pop(_PATH, None)
        where = f"{path_text(path)}, line {number}"
        if not isinstance(name, str) or not name:
            raise InputError(
                f"{where}: {_PATH} is {json.dumps(name)}; the path of a file below the folder is"
                " needed"
            )
        if taken := [key for key in _FILE_FIELDS if key in row]:
            raise InputError(
                f"{where}: {taken[0]!r} is what each file has by itself; give it another name"
            )
        lines.append(_Line(number, name.removeprefix("./"), check_metadata(row, where)))
    return tuple(lines)


def _rows_of_json(text: str, path: Path) -> list[tuple[int, dict[str, Any]]] | None:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                rows.append((number, dict(parse_json(line))))
            except BadRecord as error:
                raise InputError(f"{path_text(path)}, line {number}: {error}") from None
            if _PATH not in rows[0][1]:
                return None
    return rows


def _rows_of_csv(text: str, path: Path) -> list[tuple[int, dict[str, Any]]] | None:
    where = path_text(path)
    rows = [
        (number, row)
        for number, row in csv_rows(io.StringIO(text, newline=""), f"{where}, ")
        if row
    ]
    header = rows[0][1] if rows else []
    if _PATH not in header:
        return None
    check_columns(header, f"{where}, line 1")
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise InputError(
                f"{where}, line {number}: {len(row)} fields, but the header has {len(header)}"
            )
    types = column_types(header, (row for _, row in rows[1:]), (_PATH,))
    fields = ((number, zip(header, row, strict=True)) for number, row in rows[1:])
    return [
        (
            number,
            {
                name: convert(value, types.get(name, "string"))
                for name, value in row
                if value.strip()
            },
        )
        for number, row in fields
    ]


MANY_DOCUMENTS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
_SLACK_LISTS = (  # files of an export that hold no messages; the first two are in each
    USERS_FILE,
    "channels.json",
    "groups.json",
    "dms.json",
    "mpims.json",
    "canvases.json",
    "file_conversations.json",
    "huddle_transcripts.json",
    "integration_logs.json",
    "lists.json",
    "org_users.json",
)
_NAMED_SUFFIXES = 5  # suffixes that a summary names
_NOT_READ = "not_read"  # the field that says what of a document is missing
_OF_PICTURES = ("pdf", PICTURE)  # kinds of files that may hold pictures and no words


@dataclass(frozen=True)
class SourceFile:
    """A file that holds one document.

    `id` is its path below `folder`, with "/", composed (NFC); `metadata` what the folder says of
    it. `named`: it was not found in a folder, but asked for by its name: a link is followed, and it
    must be readable.
    """

    path: Path
    id: str
    folder: str
    kind: FileKind
    named: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """What notices call it: its path, of a message of a mailbox with the message's name."""
        path = path_text(self.path)
        if self.kind.part is None:
            return path
        return f"{path}/{self.id.rpartition('/')[2]}"

    def sha256(self, *, follow_links: bool) -> str:
        """Return the hash of the bytes that hold the document.

        Raises OSError, IndexFormatError, Unreadable: they cannot be read.
        """
        if self.kind.part is None:
            return hash_file(self.path, follow_links=follow_links).sha256
        message = read_bytes(self.path, follow_links=follow_links, part=self.kind.part)
        return hashlib.sha256(message).hexdigest()

    @property
    def labels_sha256(self) -> str:
        """The hash of what its folder says of it; "" where that is nothing."""
        if not self.metadata:
            return ""
        return hashlib.sha256(metadata_json(self.metadata).encode()).hexdigest()


class Listing(NamedTuple):
    """What a folder holds, each by name: files that are read, what is left out, and folders that
    cannot be listed.
    """

    files: list[SourceFile]
    notices: list[Notice]
    unreadable: list[Rejected]


def list_folder(folder: Path, reading: Reading | None = None) -> Listing:
    """List the documents below a folder, and what is left out; mailboxes are read through for
    theirs.

    Hidden files and folders are left out, what patterns exclude, and links, unless they are
    followed: a folder that somebody else has made may hold a link to a file that is nobody's
    business. Depth is bounded only by the longest path of the system. Raises InputError: the folder
    itself, or its file of metadata, cannot be read.
    """
    return _Lister(folder, reading or Reading()).list()


class _Lister:
    """One folder while it is listed."""

    def __init__(self, folder: Path, reading: Reading) -> None:
        self._folder = folder
        self._follow_links = reading.follow_links
        self._labels = Labels.of_folder(
            folder, reading.path_fields, follow_links=reading.follow_links
        )
        self._exclusion = Exclusion(reading.exclude)
        self._resolved = path_text(folder.resolve())
        self._files: list[SourceFile] = []
        self._names: list[str] = []  # of files; one of mails has many documents
        self._notices: list[Notice] = []
        self._unreadable: list[Rejected] = []
        self._waiting = [(folder, "")]  # folders, each with what is in front of its names
        self._seen = {_identity(folder)}

    def list(self) -> Listing:
        while self._waiting:
            self._enter(*self._waiting.pop())
        if self._labels.file is not None:
            file_name = path_text(self._labels.file)
            lines = self._labels.unused([*self._names, *(file.id for file in self._files)])
            self._notices += [Notice(file_name, line, left_out=False) for line in lines]
        self._notices += self._exclusion.notices
        return Listing(
            sorted(self._files, key=lambda file: file.id.split("/")),
            sorted(self._notices, key=lambda notice: notice.path),
            sorted(self._unreadable, key=lambda item: item.location.source),
        )

    def _enter(self, parent: Path, prefix: str) -> None:
        entries = _entries(parent, self._folder, self._unreadable)
        names = {entry.name for entry in entries}
        if is_maildir(names):
            self._files += _files_of_maildir(parent, prefix, self._resolved, self._labels)
            return
        if IGNORE_FILE in names:
            self._exclusion.enter(parent, path_text(prefix), follow_links=self._follow_links)
        for entry in entries:
            self._take(entry, parent / entry.name, prefix + entry.name)

    def _kind_of(self, path: Path) -> FileKind | None:
        """The kind of a file by its suffix, or its contents where that says nothing."""
        kind = kind_of(path, in_folder=True)
        if kind is not None:
            return kind
        is_json = path.suffix.lower() == ".json"
        if path.name.startswith(".") or (has_suffix(path.name) and not is_json):
            return None
        start = first_bytes(path, SAMPLE_BYTES, follow_links=self._follow_links)
        if is_json:
            return CHAT if looks_like_chat(start) else None
        if looks_like_mailbox(start):  # a folder of Thunderbird's
            return FileKind("mailbox", "")
        return FileKind("text", "") if looks_like_text(start) else None

    def _take(self, entry: os.DirEntry[str], path: Path, raw_name: str) -> None:
        name = path_text(raw_name)
        try:
            is_folder = entry.is_dir(follow_symlinks=self._follow_links)
        except OSError:  # a link in a circle
            is_folder = False
        is_link = entry.is_symlink() and not self._follow_links
        if self._exclusion.holds(name, is_folder=is_folder):
            self._notices.append(Notice(path_text(path), "excluded by a pattern", harmless=True))
            return
        kind = None if is_folder else self._kind_of(path)
        if notice := _left_out(path, kind, is_link=is_link, is_folder=is_folder):
            self._notices.append(notice)
        elif path == self._labels.file:
            reason = "metadata of the other files"
            self._notices.append(Notice(path_text(path), reason, left_out=False, harmless=True))
        elif kind is not None:
            labels = self._labels.of(name)
            file = SourceFile(path, composed(name), self._resolved, kind, metadata=labels)
            self._names.append(file.id)
            self._files += documents_of(file, self._unreadable)
        elif (identity := _identity(path)) in self._seen:
            reason = "a folder that is read already, by another name"
            self._notices.append(Notice(path_text(path), reason, harmless=True))
        else:
            self._seen.add(identity)
            self._waiting.append((path, f"{raw_name}/"))


def _entries(parent: Path, folder: Path, unreadable: list[Rejected]) -> list[os.DirEntry[str]]:
    """The entries of a folder below `folder`; one that cannot be listed is added to `unreadable`.

    Raises InputError: `folder` itself cannot be listed.
    """
    try:
        with os.scandir(parent) as entries:
            return list(entries)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        if parent == folder:
            raise InputError(f"{path_text(folder)}: {reason}") from error
        unreadable.append(
            Rejected(SourceLocation(path_text(parent), 0), reason, "", in_folder=True)
        )
        return []


def _files_of_maildir(
    parent: Path, before: str, folder: str, labels: Labels
) -> Iterator[SourceFile]:
    for path, message in maildir_messages(parent, before):
        name = path_text(message)
        yield SourceFile(path, name, folder, FileKind("mail", ""), metadata=labels.of(name))


def documents_of(file: SourceFile, unreadable: list[Rejected]) -> list[SourceFile]:
    """Return the documents of a file: the messages of a mailbox that is not compressed; itself for
    any other file and an empty mailbox.

    A mailbox that cannot be read is added to `unreadable`.
    """
    if file.kind.name != "mailbox" or file.kind.compression:
        return [file]
    try:
        messages = list(messages_of(file.path))
    except Unreadable as error:
        location = SourceLocation(path_text(file.path), 0)
        unreadable.append(Rejected(location, str(error), "", in_folder=not file.named))
        return []
    return [
        replace(
            file,
            id=f"{file.id}/{path_text(message.name)}",
            kind=FileKind("mail", "", (message.start, message.stop)),
        )
        for message in messages
    ] or [file]


def beir_corpus(folder: Path, *, follow_links: bool) -> Path | None:
    """The corpus of a folder in BEIR's form, which is read instead of its files; None where there
    is none.
    """
    corpus = folder / "corpus.jsonl"
    is_set = (folder / "queries.jsonl").is_file() or (folder / "qrels").is_dir()
    if not corpus.is_file() or (corpus.is_symlink() and not follow_links):
        return None
    other_names = {entry.name for entry in folder.iterdir()} - {corpus.name}
    return corpus if is_set or not other_names else None


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:  # listing it says why
        return None
    return status.st_dev, status.st_ino


def _left_out(
    path: Path, kind: FileKind | None, *, is_link: bool, is_folder: bool
) -> Notice | None:
    """Why a file or folder inside of a folder is not read; None where it is."""
    file_name = path_text(path)
    if path.name.startswith("."):
        return Notice(file_name, "hidden", harmless=True)
    if path.name.startswith("~$"):
        return Notice(file_name, "a lock file of an office program", harmless=True)
    if is_link:
        return Notice(file_name, "a link (--follow-links, follow_links)")
    if kind is not None and kind.name == PICTURE and missing_package(PICTURE):
        return Notice(
            file_name, "a picture (the extra [ocr] and tesseract read pages)", harmless=True
        )
    if is_folder or (kind is not None and path.is_file()):
        return None
    if kind is not None:
        return Notice(file_name, "not a plain file")
    suffix, _ = split_suffix(path)
    lists = {path.parent / name for name in _SLACK_LISTS[:2]}
    if path.name in _SLACK_LISTS and all(other.is_file() for other in lists):
        return Notice(file_name, "a list of an export of Slack", harmless=True)
    if suffix in MANY_DOCUMENTS:
        return Notice(file_name, f"{suffix} holds many documents: index it by itself")
    lower = path.suffix.lower()
    if not has_suffix(path.name):
        empty = _size(path) == 0
        reason = "empty" if empty else "no suffix, and not a text"
        return Notice(file_name, reason, harmless=empty)
    reason = f"unknown kind {path_text(path.suffix)}"
    reason += f", save it as {lower}x" if lower in (".doc", ".xls", ".ppt") else ""
    return Notice(file_name, reason, harmless=lower in WITHOUT_TEXT)


def summary(notices: list[Notice]) -> str:
    """Say in a few words how many files were left out, by their reasons."""
    counts = Counter(notice.reason for notice in notices if notice.left_out)
    named = [f"{count:,} {reason}" for reason, count in counts.most_common(_NAMED_SUFFIXES)]
    unnamed = len(counts) - len(named)
    return "; ".join([*named, *([f"{unnamed:,} other reasons"] if unnamed else [])])


def read_folder(folder: Path, reading: Reading, watch: Watch = unwatched) -> Iterator[Item]:
    """Read every file below a folder that holds one document. Raises InputError: there is none."""
    files, notices, unreadable = list_folder(folder, reading)
    if not files:
        left_out = f": {summary(notices)}" if notices else ""
        suffixes = ", ".join([*SUFFIXES, *TABLES])
        raise InputError(
            f"{path_text(folder)}: holds no file that is read{left_out}; {suffixes} are, and a"
            " corpus.jsonl"
        )
    yield from notices
    yield from unreadable
    yield from read_files(files, reading, watch)


class _WatchedFiles:
    """Tells a watch how many pictures of all files so far are read, and of how many.

    A file has a run of pictures for each file in it, and a PDF may have two: a run begins behind
    the last picture of the one before.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._before = 0  # pictures of the runs that have ended
        self._done = self._total = 0  # and of the run that goes on

    def __call__(self, done: int, total: int) -> None:
        if self._done == self._total:
            self.end_run()
        self._done, self._total = done, total
        self._watch(self._before + done, self._before + total)

    def end_run(self) -> None:
        """Count the pictures of a run as done, also where its file was given up."""
        self._before += self._total
        self._done = self._total = 0


def read_files(
    files: list[SourceFile], reading: Reading, watch: Watch = unwatched
) -> Iterator[Item]:
    """Read files that hold one document each: for each a document, a reason why there is none, or a
    notice.

    `watch` is told how many pictures are read, and of how many in the files so far.
    """
    follow_links = reading.follow_links or all(file.named for file in files)
    watched = _WatchedFiles(watch)
    limits = replace(reading.limits(follow_links=follow_links), watch=watched)
    conditions = cache(partial(ocr_conditions, limits))
    with FileReader(limits, reading.file_seconds) as reader:
        for file in files:
            yield from _read(file, reader, conditions)
            watched.end_run()


def _ocr_try(reason: Unreadable, conditions: Callable[[], OcrConditions]) -> OcrTry | None:
    """Under which conditions a picture was not read; None of another reason."""
    return OcrTry(reason.sha256, *conditions()) if isinstance(reason, Unrecognized) else None


def _read(
    file: SourceFile, reader: FileReader, conditions: Callable[[], OcrConditions]
) -> Iterator[Item]:
    """Read a file: its document, and what of it could not be read."""
    if _size(file.path) == 0 and not file.named:
        yield Notice(file.shown, "empty", harmless=True)
        return
    try:
        modified = _modified(file.path, reader.limits.follow_links)
        text, digest = reader.read(file.path, file.kind)
    except Unreadable as reason:
        ocr_try = _ocr_try(reason, conditions)
        yield _rejected(file, shortened(str(reason), MAX_REASON_CHARACTERS), ocr_try)
        return
    except OptionalDependencyError as error:
        if file.named:
            raise
        yield _rejected(file, f"{error.package} is needed and is not installed: {error.command}")
        return
    notice = _notice(file, text, digest, conditions)
    if notice is not None:
        yield notice
    if text.text.strip():
        origin = FileOrigin(digest, file.folder, text.pages, file.labels_sha256)
        yield _document(file, text, origin, modified)


def _rejected(file: SourceFile, reason: str, ocr_try: OcrTry | None = None) -> Rejected:
    """A file that cannot be read."""
    location = SourceLocation(file.shown, 0)
    return Rejected(location, reason, "", in_folder=not file.named, ocr_try=ocr_try)


def _notice(
    file: SourceFile, text: FileText, digest: str, conditions: Callable[[], OcrConditions]
) -> Notice | Rejected | None:
    """What there is to say of a file that was read; None if all of its text is there."""
    warning = shortened(text.warning, MAX_REASON_CHARACTERS)
    is_empty = not text.text.strip()
    # a picture without words is looked at once, as long as it stays the same
    is_tried = text.may_recognize_more or (is_empty and file.kind.name in _OF_PICTURES)
    ocr_try = OcrTry(digest, *conditions()) if is_tried else None
    if is_empty and text.is_incomplete:  # of an archive of which nothing could be read
        return _rejected(file, warning, ocr_try)
    if is_empty:
        return Notice(file.shown, warning or "holds no text", harmless=True, ocr_try=ocr_try)
    if not warning:
        return None
    return Notice(file.shown, warning, left_out=False, lost=text.is_incomplete, ocr_try=ocr_try)


def _document(
    file: SourceFile, text: FileText, origin: FileOrigin, modified: str
) -> Record | Rejected:
    """The document of a file that has text."""
    metadata = {**_renamed(text.metadata), **file.metadata}
    if text.is_incomplete:
        metadata[_NOT_READ] = shortened(text.warning, MAX_REASON_CHARACTERS)
    title = metadata.pop("title", None)
    row = {
        "_id": file.id,
        "title": title if isinstance(title, str) and title else text.title or _stem(file.path),
        "text": text.text,
        "path": file.id,
        "type": file.kind.name,
        "modified": modified,
        "metadata": metadata,
    }
    item = read_row(row, SourceLocation(file.shown, 0), FieldNames())
    if isinstance(item, Rejected):
        return replace(item, in_folder=not file.named)
    keywords = (words_of_path(file.id, str(row["title"])), text.keywords)
    return replace(item, origin=origin, keywords="\n".join(filter(None, keywords)))


_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_WORD = re.compile(r"\w+")


def words_of_path(name: str, title: str) -> str:
    """Return the words of a path, without suffixes, that a title does not have; of an absolute one
    those of the file's name.

    >>> words_of_path("Kessler Foods/PileSchedule rev C.md", "Overview of Kessler")
    'Foods PileSchedule Pile Schedule rev C'
    """
    parts = name.split("/")
    folders = [] if name.startswith(("/", "../")) else parts[:-1]
    words = [
        word
        for part in (*folders, _stem(PurePosixPath(parts[-1])))
        for joined in _WORD.findall(part.replace("_", " "))
        for word in dict.fromkeys((joined, *_CAMEL.split(joined)))
    ]
    title_words = set(_WORD.findall(title.casefold()))
    return " ".join(dict.fromkeys(word for word in words if word.casefold() not in title_words))


def _size(path: Path) -> int | None:
    """The bytes of a plain file; None of what is none: reading it says so."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _renamed(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a document's own; names that each file has by itself get "own_" in front."""
    return {
        f"own_{name}" if name in _FILE_FIELDS else name: value for name, value in metadata.items()
    }


def _modified(path: Path, follow_links: bool) -> str:
    """When a file was changed last, in UTC, as 2026-01-31T12:00:00+00:00."""
    try:
        status = path.stat() if follow_links else path.lstat()
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from None
    try:
        return datetime.fromtimestamp(int(status.st_mtime), UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        raise Unreadable("its time of modification is no date") from None


def _stem(path: PurePath) -> str:
    """The name of a file without its suffixes: "notes" for notes.txt.gz."""
    return path_text(path.with_suffix("").stem if path.suffix.lower() in COMPRESSED else path.stem)
