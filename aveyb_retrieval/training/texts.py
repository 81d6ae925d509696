"""Read training text, and identify exactly which text it was.

Files: `.jsonl`, `.jsonl.gz`, `.jsonl.zst` (one object a line, the text in one field) and `.txt` (the whole file is one
text). Nothing is loaded whole; order is the order of the files and their lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.json_lines import read_objects
from aveyb_retrieval.errors import InputError, extra_for
from aveyb_retrieval.files import hash_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt")


def read_texts(paths: Iterable[str | Path], *, field: str = "text") -> Iterator[str]:
    """Yield every text of the files, in order.

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


def text_key(text: str) -> str:
    """Return what two texts share that differ only in case and white space."""
    return " ".join(text.casefold().split())


def read_records(path: str | Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the line number and the object of each line of a JSON Lines file that is not blank.

    Raises:
        InputError: the file is missing, of an unknown kind, damaged, not UTF-8, or a line is not a JSON object.
    """
    path = Path(path)
    _check(path)
    yield from read_objects(path)


def read_hub(name: str, *, field: str = "text", split: str = "train") -> Iterator[str]:
    """Yield every text of a hub data set, streamed; see `read_hub_rows`.

    Raises:
        InputError: a row lacks the field, or what `read_hub_rows` raises.
    """
    for number, row in read_hub_rows(name, split=split):
        if not isinstance(row.get(field), str):
            raise InputError(f"data set {name!r}, row {number}: field {field!r} is not a text; it has {sorted(row)}")
        yield row[field]


def read_hub_rows(name: str, *, split: str = "train") -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the values of each row of a hub data set, streamed.

    Args:
        name: `owner/set` or `owner/set:config`; a folder of data files in a hub's layout does as well.
        split: which of its splits.

    Raises:
        OptionalDependencyError: `datasets` is not installed.
        InputError: the data set does not exist, or reading it fails.
    """
    with extra_for("reading a data set from the hub", "train"):
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
    path, _, config = name.partition(":")
    try:
        yield from enumerate(load_dataset(path, config or None, split=split, streaming=True))
    except (DatasetsError, OSError, ValueError) as error:
        raise InputError(f"data set {name!r} could not be read ({type(error).__name__}: {error})") from error


def fingerprint(path: str | Path) -> dict[str, Any]:
    """Return name, size in bytes and SHA-256 of a file, as a run folder records its data."""
    path = Path(path)
    _check(path)
    info = hash_file(path, follow_links=True)
    return {"name": path.name, "bytes": info.bytes, "sha256": info.sha256}


def _check(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    if not path.name.endswith(_SUFFIXES):
        raise InputError(f"{path}: unknown kind of file; training text is read from {', '.join(_SUFFIXES)}")


def _read_whole(path: Path) -> str:
    _check(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start} ({error.reason}); convert the file") from error
