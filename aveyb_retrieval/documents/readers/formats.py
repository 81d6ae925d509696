"""Which files hold one document each, the reader of each kind, and the process that reads them
(`main`).

The process is ended when a file takes too long or too much memory.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.documents.readers.base import (
    FILE_SECONDS,
    LONGEST_TITLE,
    MAX_FILE,
    FileText,
    InnerFiles,
    Unreadable,
    read_zip,
    too_long,
)
from aveyb_retrieval.documents.readers.docx import read_docx
from aveyb_retrieval.documents.readers.html import read_epub, read_html
from aveyb_retrieval.documents.readers.mail import read_eml, read_msg
from aveyb_retrieval.documents.readers.ooxml import read_pptx
from aveyb_retrieval.documents.readers.opendocument import read_odt
from aveyb_retrieval.documents.readers.originals import look
from aveyb_retrieval.documents.readers.pdf import read_pdf
from aveyb_retrieval.documents.readers.sheets import read_spreadsheet
from aveyb_retrieval.documents.readers.tables import read_rows, read_table
from aveyb_retrieval.documents.readers.text import (
    LANGUAGES,
    read_calendar,
    read_code,
    read_markdown,
    read_notebook,
    read_rtf,
    read_subtitles,
    read_text,
)
from aveyb_retrieval.documents.reading import decompress, split_suffix
from aveyb_retrieval.documents.records import (
    LONGEST_REASON,
    FieldNames,
    Pages,
    Record,
    Rejected,
    SourceLocation,
    path_text,
)
from aveyb_retrieval.errors import InputError, OptionalDependencyError, how_it_ended, shortened
from aveyb_retrieval.files import open_file
from aveyb_retrieval.system import (
    LIMITED,
    forbid_dumps,
    limit_memory,
    limit_seconds,
    memory_of_the_machine,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Each name is one of _READERS or _HOLDERS, below, or of LANGUAGES.
SUFFIXES = {
    ".pdf": "pdf", ".docx": "docx", ".odt": "odt", ".rtf": "rtf", ".epub": "epub", ".pptx": "pptx",
    ".xlsx": "spreadsheet", ".xlsm": "spreadsheet", ".xls": "spreadsheet", ".ods": "spreadsheet",
    ".html": "html", ".htm": "html", ".xhtml": "html",
    ".md": "markdown", ".markdown": "markdown",
    ".txt": "text", ".text": "text", ".rst": "text", ".adoc": "text", ".org": "text",
    ".eml": "mail", ".msg": "outlook", ".ics": "calendar",
    ".ipynb": "notebook", ".srt": "subtitles", ".vtt": "subtitles", ".zip": "zip",
    **{suffix: name for name, language in LANGUAGES.items() for suffix in language.suffixes},
}  # fmt: skip
# Files that are many documents where they are named, and one sheet where they are found in a folder
# or a mail.
TABLES = dict.fromkeys((".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"), "table")
PACKAGES = {  # what a kind needs, and the extra that brings it
    "pdf": ("pypdfium2", "files"),
    "docx": ("lxml", "files"),
    "odt": ("lxml", "files"),
    "rtf": ("striprtf", "files"),
    "epub": ("selectolax", "files"),
    "html": ("selectolax", "files"),
    "pptx": ("lxml", "files"),
    "spreadsheet": ("lxml", "files"),
    "mail": ("selectolax", "files"),
    "outlook": ("oxmsg", "files"),
    **{
        name: (language.package, "code") for name, language in LANGUAGES.items() if language.package
    },
}
AS_LONG = (
    "markdown",
    "text",
)  # their text is about as long as their bytes: refused before it is decoded


class FileKind(NamedTuple):
    """How a file is read: by which reader, and whether it is decompressed first."""

    name: str
    compression: str


def kind_of(path: PurePath, *, found: bool = False) -> FileKind | None:
    """The kind of a file, by its suffix; None where it does not hold one document.

    `found`: in a folder, an archive or a mail, where tables are sheets.
    """
    suffix, compression = split_suffix(path)
    name = SUFFIXES.get(suffix) or (TABLES.get(suffix) if found else None)
    return FileKind(name, compression) if name else None


def read_file(
    path: Path, kind: FileKind, encoding: str | None, longest: int, *, follow_links: bool = True
) -> tuple[FileText, str]:
    """Read the document that a file holds; also give the SHA-256 of the file's bytes.

    `encoding` is that of text files that do not name their own; the text may have `longest` bytes
    in UTF-8. Raises Unreadable: it cannot be read; the message is the reason.
    """
    data = read_bytes(path, follow_links=follow_links)
    digest = hashlib.sha256(data).hexdigest()
    if kind.compression:
        data = _unpack(data, path, kind.compression, longest)
    if kind.name in AS_LONG:
        _check_length(len(data), longest)
    found = _parse(kind.name, data, encoding, longest)
    _check_length(
        len(found.text) if found.text.isascii() else len(found.text.encode(errors="replace")),
        longest,
    )
    if (length := len(found.title)) > LONGEST_TITLE:
        cut = f"a title of {length:,} characters, of which {LONGEST_TITLE:,} are kept"
        warning = "; ".join(filter(None, (found.warning, cut)))
        found = replace(found, title=shortened(found.title, LONGEST_TITLE), warning=warning)
    return found, digest


def read_bytes(path: Path, *, follow_links: bool = True) -> bytes:
    """Read a whole file.

    Raises Unreadable: it is not a plain file, too large, or the system refuses.
    """
    try:
        with os.fdopen(open_file(path, os.O_RDONLY, follow_links=follow_links), "rb") as handle:
            about = os.fstat(handle.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise Unreadable("not a plain file")
            if about.st_size > MAX_FILE:
                raise Unreadable(f"{about.st_size:,} bytes; files of at most {MAX_FILE:,} are read")
            data = handle.read(MAX_FILE + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error})") from None
    if len(data) > MAX_FILE:
        raise Unreadable(f"more than {MAX_FILE:,} bytes")
    return data


def _unpack(data: bytes, path: PurePath, compression: str, longest: int) -> bytes:
    """Decompress the bytes that were read and hashed: the file itself may be another one by now."""
    blocks, length = [], 0
    try:
        for block in decompress(io.BytesIO(data), path, compression):
            blocks.append(block)
            length += len(block)
            if length > longest:
                raise Unreadable(f"more than {longest:,} bytes unpacked (--max-line, max_line)")
    except InputError as error:
        raise Unreadable(str(error).removeprefix(f"{path}: ")) from None
    return b"".join(blocks)


def _check_length(length: int, longest: int) -> None:
    if length > longest:
        raise Unreadable(too_long(length, longest))


def missing_package(kind: str) -> tuple[str, str] | None:
    """The package that a kind needs and the extra that brings it, where it is not installed; None
    where nothing is.
    """
    needed = PACKAGES.get(kind)
    return needed if needed and importlib.util.find_spec(needed[0]) is None else None


def _parse(kind: str, data: bytes, encoding: str | None, longest: int, depth: int = 0) -> FileText:
    """Read contents by the reader of their kind; files that they hold are read the same way,
    `depth` deep.
    """
    if kind in LANGUAGES:
        return read_code(data, encoding, longest, kind)
    if kind in _HOLDERS:
        return _HOLDERS[kind](
            data, encoding, InnerFiles(partial(_parse_inner, encoding, longest), longest, depth)
        )
    return _READERS[kind](data, encoding, longest)


def _parse_inner(
    encoding: str | None, longest: int, name: str, data: bytes, depth: int
) -> FileText | None:
    kind = kind_of(PurePosixPath(name), found=True)
    if kind is None:
        return None
    if missing := missing_package(kind.name):
        raise Unreadable(f"needs the package {missing[0]!r} (the extra [{missing[1]}])")
    if kind.compression:
        data = _unpack(data, PurePosixPath(name), kind.compression, longest)
    return _parse(kind.name, data, encoding, longest, depth)


# `longest` is for readers whose text may be longer than their bytes, or that use `Parts`.
_HOLDERS: dict[str, Callable[[bytes, str | None, InnerFiles], FileText]] = {
    "mail": read_eml,
    "outlook": lambda data, _, inner: read_msg(data, inner),
    "zip": lambda data, _, inner: read_zip(data, inner),
}
_READERS: dict[str, Callable[[bytes, str | None, int], FileText]] = {
    "pdf": lambda data, _, longest: read_pdf(data, longest),
    "docx": lambda data, *_: read_docx(data),
    "odt": lambda data, *_: read_odt(data),
    "rtf": lambda data, encoding, _: read_rtf(data, encoding),
    "epub": lambda data, _, longest: read_epub(data, longest),
    "pptx": lambda data, _, longest: read_pptx(data, longest),
    "spreadsheet": lambda data, _, longest: read_spreadsheet(data, longest),
    "html": lambda data, encoding, _: read_html(data, encoding),
    "markdown": lambda data, encoding, _: read_markdown(data, encoding),
    "text": lambda data, encoding, _: read_text(data, encoding),
    "notebook": lambda data, encoding, _: read_notebook(data, encoding),
    "calendar": lambda data, encoding, _: read_calendar(data, encoding),
    "table": read_table,
    "subtitles": read_subtitles,
}


WALL_SECONDS = 900.0  # a process that waits for something else than the processor
LOST_SECONDS = (
    600.0  # what files that cannot be read may take together, before each has SHORT_SECONDS only
)
SHORT_SECONDS = 5

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from aveyb_retrieval.documents.readers.formats import main; main()"
)


class FileReader:
    """Reads files in another process, one after the other, each in `seconds` of processor time. Use
    it in a `with`.

    Where files that could not be read have taken `LOST_SECONDS` together, somebody has made them
    for that, and each further file has `SHORT_SECONDS`.
    """

    def __init__(self, encoding: str | None, longest: int, seconds: int = FILE_SECONDS) -> None:
        self._encoding, self._longest, self._seconds = encoding, longest, seconds
        self._lost = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()

    def read(
        self, path: Path, kind: FileKind, *, follow_links: bool = True
    ) -> tuple[FileText, str]:
        """Read a file as `read_file` does.

        Also raises OptionalDependencyError: a package is not installed.
        """
        if missing := missing_package(kind.name):
            raise OptionalDependencyError(*missing, f"reading {path_text(path)}")
        began = time.monotonic()
        try:
            self._ask(
                path,
                kind=kind,
                encoding=self._encoding,
                longest=self._longest,
                follow_links=follow_links,
            )
            answer = self._answer()
        except Unreadable:
            self._lost += time.monotonic() - began
            raise
        digest, pages = answer.pop("sha256"), answer.pop("pages")
        try:
            return (
                FileText(**answer, pages=None if pages is None else Pages.from_json(pages)),
                digest,
            )
        except ValueError as error:
            raise Unreadable(f"its pages cannot be told ({error})") from None

    def read_rows(self, path: Path, names: FieldNames) -> Iterator[Record | Rejected]:
        """Read the documents of a Parquet file, each batch in the seconds of a file.

        Raises Unreadable.
        """
        self._ask(path, kind=None, names=[names.id, names.title, names.text], longest=self._longest)
        source = path_text(path)
        while (rows := self._answer()["rows"]) is not None:
            for row in rows:
                location = SourceLocation(source, row.pop("row"), "row")
                yield (
                    Rejected(location, **row)
                    if "reason" in row
                    else Record(location=location, **row)
                )

    def look(self, **asked: Any) -> dict[str, Any]:
        """Look into an original, as `originals.look` does; raises Unreadable where that cannot be
        done.
        """
        self._ask(Path(), look=asked)
        return self._answer()

    @property
    def _allowed(self) -> int:
        return self._seconds if self._lost < LOST_SECONDS else min(self._seconds, SHORT_SECONDS)

    def _ask(self, path: Path, **request: Any) -> None:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process = _start()
        assert self._process.stdin is not None  # a pipe, as `_start` asks for
        request |= {"path": os.fsencode(path.absolute()).hex(), "seconds": self._allowed}
        with suppress(BrokenPipeError):  # reading the answer says of what it died
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._line())
        if answer.get("last"):
            self._stop()
        if "reason" in answer:
            raise Unreadable(answer["reason"])
        return answer

    def _line(self) -> bytes:
        process = self._process
        assert process is not None and process.stdout is not None  # `_ask` has started it
        late, most = threading.Event(), WALL_SECONDS if LIMITED else self._allowed

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(most, end)
        timer.daemon = True
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if line.endswith(b"\n"):
            return line
        if late.is_set():
            self._stop()
            raise Unreadable(f"took more than {most:.0f} s to read")
        if (how := how_it_ended(process.wait())) == "SIGXCPU":
            raise Unreadable(
                f"took more than {self._allowed} s of processor time to read (--file-seconds,"
                " file_seconds)"
            )
        raise Unreadable(f"its reader crashed ({how}): damaged, or made to do that")

    def _stop(self) -> None:
        if self._process is not None:
            with suppress(BrokenPipeError), self._process:  # what it was sent last and did not read
                self._process.kill()
            self._process = None


def _start() -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-I",
        "-c",
        _START,
        json.dumps([entry or str(Path.cwd()) for entry in sys.path]),
    ]
    return subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )  # a line of ours


# Half of a small machine: what the file does not take is needed for the index.
MEMORY = min(4 << 30, (memory_of_the_machine() or 8 << 30) // 2)


def main() -> None:
    """Answer requests until there are no more."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    for stream in (
        1,
        2,
    ):  # a parser's own messages must not stand between answers, nor on the terminal
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    limit_memory(MEMORY)
    forbid_dumps()
    for line in sys.stdin:
        request = json.loads(line)
        limit_seconds(request["seconds"])
        for answer in _answers(request):
            out.write(json.dumps(answer) + "\n")
            out.flush()
            if answer.get("last"):
                return
            limit_seconds(request["seconds"])


def _answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        if "look" in request:
            yield look(**request["look"])
            return
        path, longest = Path(os.fsdecode(bytes.fromhex(request["path"]))), request["longest"]
        if request["kind"] is None:
            yield from (
                {"rows": rows} for rows in read_rows(path, FieldNames(*request["names"]), longest)
            )
            yield {"rows": None}
        else:
            kind, links = FileKind(*request["kind"]), request["follow_links"]
            found, digest = read_file(path, kind, request["encoding"], longest, follow_links=links)
            yield {
                **vars(found),
                "pages": None if found.pages is None else found.pages.to_dict(),
                "sha256": digest,
            }
    except Unreadable as error:
        yield {"reason": shortened(str(error), LONGEST_REASON)}
    except MemoryError:
        yield {
            "reason": f"needs more than {MEMORY / 2**30:.1f} GiB of memory to be read",
            "last": True,
        }
    except RecursionError:
        yield {"reason": "nested too deeply to be read"}
    except Exception as error:  # of a parser that a damaged file has confused
        yield {
            "reason": shortened(f"not readable ({type(error).__name__}: {error})", LONGEST_REASON)
        }
