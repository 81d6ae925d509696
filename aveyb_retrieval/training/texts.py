"""Reading training text, and saying exactly which text it was.

Files: `.jsonl`, `.jsonl.gz`, `.jsonl.zst` (one object a line, the text in one field) and `.txt` (the whole file is one
text). Nothing is loaded whole; order is the order of the files and their lines.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from aveyb_retrieval.errors import InputError, OptionalDependencyError

_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt")


def read_texts(paths: Iterable[str | Path], *, field: str = "text") -> Iterator[str]:
    """Every text of the files, in order.

    Raises:
        InputError: a file is missing or of an unknown kind, or a line is not an object with a string in `field`.
    """
    for path in map(Path, paths):
        if path.suffix == ".txt":
            yield _read_whole(path)
            continue
        for number, record in read_records(path):
            text = record.get(field)
            if not isinstance(text, str):
                raise InputError(
                    f"{path}, line {number}: field {field!r} must be a string, it is {type(text).__name__}; "
                    f"the line has {sorted(record)}"
                )
            yield text


def read_records(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) for each line of a JSON Lines file that is not blank.

    Raises:
        InputError: the file is missing, of an unknown kind, not UTF-8, or a line is not a JSON object.
    """
    path = Path(path)
    with _open_text(path) as lines:
        number = 0
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _parse(line, path, number)
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, after line {number}: not UTF-8 ({error.reason}); convert the file") from error


def read_hub(name: str, *, field: str = "text", split: str = "train") -> Iterator[str]:
    """Every text of a hub data set, streamed; see `read_hub_rows`.

    Raises:
        InputError: no such field, or what `read_hub_rows` raises.
    """
    for number, row in read_hub_rows(name, split=split):
        if not isinstance(row.get(field), str):
            raise InputError(f"data set {name!r}, row {number}: no text in field {field!r}; it has {sorted(row)}")
        yield row[field]


def read_hub_rows(name: str, *, split: str = "train") -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) for each row of a hub data set, streamed.

    Args:
        name: `owner/set` or `owner/set:config`; a folder of data files in a hub's layout does as well.

    Raises:
        OptionalDependencyError: `datasets` is not installed.
        InputError: no such data set, or it cannot be read on.
    """
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise OptionalDependencyError("datasets", "train", "reading a data set from the hub") from error
    path, _, config = name.partition(":")
    try:
        yield from enumerate(load_dataset(path, config or None, split=split, streaming=True))
    except (DatasetsError, OSError, ValueError) as error:
        raise InputError(f"data set {name!r} could not be read ({type(error).__name__}: {error})") from error


def fingerprint(path: str | Path) -> dict[str, Any]:
    """Name, size in bytes and SHA-256 of a file: what a run folder says it was trained on."""
    path = Path(path)
    _check(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {number}: not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(record, dict):
        raise InputError(f"{path}, line {number}: expected an object, got {type(record).__name__}")
    return record


def _check(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    if not path.name.endswith(_SUFFIXES):
        raise InputError(f"{path}: unknown kind of file; training text is read from {', '.join(_SUFFIXES)}")


@contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    _check(path)
    if path.suffix == ".zst":
        import zstandard

        with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            yield io.TextIOWrapper(stream, encoding="utf-8")
    elif path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield lines
    else:
        with path.open(encoding="utf-8") as lines:
            yield lines


def _read_whole(path: Path) -> str:
    _check(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start} ({error.reason}); convert the file") from error
