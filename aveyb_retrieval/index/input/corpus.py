"""Readers: every supported input becomes one stream of documents, in a fixed order and constant memory.

`.jsonl` `.csv` `.tsv` (each also `.gz` or `.zst`), `.parquet`, a folder of `.txt`/`.md` (or a BEIR folder, with its
`corpus.jsonl`), globs, `-` for JSON lines on standard input, the name of a Hugging Face dataset (`owner/name` or
`owner/name:split`), or any Python iterable of mappings. A line that is not a document comes out as `Rejected`; a file
that cannot be read at all raises `InputError`.
"""

from __future__ import annotations

import codecs
import csv
import glob
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aveyb_retrieval.errors import ConfigError, InputError, OptionalDependencyError
from aveyb_retrieval.index.input.documents import (
    LARGEST_LINE,
    MAX_LINE,
    BadRecord,
    FieldNames,
    Record,
    Rejected,
    SourceLocation,
    make_record,
    parse_json,
    shown,
)
from aveyb_retrieval.index.input.json_lines import LongLine, decompress, read_blocks, split_lines

Item = Record | Rejected
Source = str | Path | Iterable[Mapping[str, Any]]

STDIN = "-"
_FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
_COMPRESSED = (".gz", ".zst")
_TEXT = (".txt", ".md")
_DATASET = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.+-]+)?")


def read_corpus(
    corpus: Source | Sequence[str | Path], names: FieldNames | None = None, max_line: int = MAX_LINE
) -> Iterator[Item]:
    """Read documents from one source or several, one after the other; a line (a row of a table) has `max_line` bytes.

    Raises:
        InputError: a source is missing, unreadable, or of a format that is not known.
        OptionalDependencyError: the format needs a package that is not installed.
    """
    names = names or FieldNames()
    if isinstance(max_line, bool) or not isinstance(max_line, int) or not 1 <= max_line <= LARGEST_LINE:
        raise ConfigError(f"max_line={max_line!r}: must be a whole number of bytes from 1 to {LARGEST_LINE:,}")
    sources = source_names(corpus)
    if sources is None:
        yield from _read_rows(corpus, names)  # type: ignore[arg-type]  # source_names told that these are mappings
        return
    for source in sources:
        try:
            yield from _read_source(source, names, max_line)
        except OSError as error:
            raise InputError(f"{source}: cannot be read ({error.strerror or error})") from error


def source_names(corpus: Source | Sequence[str | Path]) -> list[str] | None:
    """Names of the files and other sources a corpus argument stands for, or None for an iterable of mappings."""
    if isinstance(corpus, (str, Path)):
        return [str(corpus)]
    if isinstance(corpus, Sequence) and corpus and all(isinstance(c, (str, Path)) for c in corpus):
        return [str(c) for c in corpus]
    return None


def _read_source(source: str, names: FieldNames, longest: int) -> Iterator[Item]:
    if source == STDIN:
        yield from _read_jsonl(read_blocks(sys.stdin.buffer), "standard input", names, longest)
        return
    path = Path(source)
    if path.is_dir():
        yield from _read_folder(path, names, longest)
    elif path.is_file():
        yield from _read_file(path, names, longest)
    elif any(c in source for c in "*?["):
        matches = sorted(glob.glob(source, recursive=True))  # noqa: PTH207  # patterns may be absolute
        if not matches:
            raise InputError(f"{source}: no file matches this pattern")
        for match in matches:
            yield from _read_source(match, names, longest)
    elif _looks_like_dataset(path, source):
        yield from _read_dataset(source, names)
    else:
        raise InputError(f"{source}: no such file or folder")


def _looks_like_dataset(path: Path, source: str) -> bool:
    if _DATASET.fullmatch(source) is None or path.suffix.lower() in _FORMATS + _TEXT + _COMPRESSED:
        return False
    # "owner/name" is also what a mistyped path looks like: a folder that exists decides
    return not path.parent.is_dir() if "/" in source else not path.suffix


def _read_file(path: Path, names: FieldNames, longest: int) -> Iterator[Item]:
    suffixes = [s.lower() for s in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _COMPRESSED else ""
    kind = suffixes[-1] if suffixes else ""
    if kind == ".parquet" and not compression:
        yield from _read_parquet(path, names)
        return
    if kind not in _FORMATS or kind == ".parquet":
        raise InputError(
            f"{path}: the format {''.join(path.suffixes) or '(no suffix)'!r} is not known; known are "
            f"{', '.join(_FORMATS)}, each of the text formats also with .gz or .zst, and folders of .txt and .md"
        )
    with path.open("rb") as handle:
        chunks = decompress(handle, path, compression)
        if kind in (".csv", ".tsv"):
            yield from _read_table(chunks, str(path), "\t" if kind == ".tsv" else ",", names, longest)
        else:
            yield from _read_jsonl(chunks, str(path), names, longest)


# --- formats ---------------------------------------------------------------------------------------------------------


def _read_jsonl(chunks: Iterable[bytes], source: str, names: FieldNames, longest: int) -> Iterator[Item]:
    for number, line in enumerate(split_lines(chunks, longest), start=1):
        if isinstance(line, LongLine):
            start = line.start.decode("utf-8", "backslashreplace")
            yield Rejected(SourceLocation(source, number), _too_long(line.length, longest), f"{start}...")
            continue
        if line.strip():
            yield _parse_line(line, SourceLocation(source, number), names)


def _too_long(length: int, longest: int) -> str:
    return f"{length:,} bytes, at most {longest:,} are read as one document (--max-line, max_line)"


def _parse_line(line: bytes, location: SourceLocation, names: FieldNames) -> Item:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return Rejected(location, f"invalid UTF-8 at byte {error.start}", _shown_bytes(line))
    try:
        return make_record(parse_json(text), location, names)
    except BadRecord as error:
        return Rejected(location, str(error), shown(text))


def _shown_bytes(data: bytes) -> str:
    return shown(data.decode("utf-8", "backslashreplace"))


def _read_table(
    chunks: Iterable[bytes], source: str, delimiter: str, names: FieldNames, longest: int
) -> Iterator[Item]:
    csv.field_size_limit(sys.maxsize)  # rows are bounded below, whatever their fields
    lines = _RowLines(chunks, source, longest)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for row in rows:
            location = SourceLocation(source, rows.line_num)
            lines.held = 0
            if header is None:
                header = row
                _check_header(header, location, names)
            elif len(row) != len(header):
                reason = f"{len(row)} fields where the header names {len(header)}"
                yield Rejected(location, reason, shown(delimiter.join(row)))
            else:
                yield _from_row(dict(zip(header, row, strict=True)), location, names)
    except csv.Error as error:
        raise InputError(f"{source}, line {rows.line_num}: {error}; quote fields as in RFC 4180") from error


def _check_header(header: list[str], location: SourceLocation, names: FieldNames) -> None:
    id_fields = [names.id] if names.id else ["_id", "id"]
    if names.text not in header or not any(f in header for f in id_fields):
        raise InputError(
            f"{location}: the header names {header}; a column {names.text!r} and one of {id_fields} are needed "
            "(--text-field and --id-field choose others)"
        )


class _RowLines:
    """The lines of a table as text. A quoted field may span lines, so one bad line spoils the row: the file is refused.

    `held` counts the bytes of the row so far; the reader of rows sets it to 0 after each row.
    """

    def __init__(self, chunks: Iterable[bytes], source: str, longest: int) -> None:
        self.held = 0
        self._lines = enumerate(split_lines(chunks, longest), start=1)
        self._source = source
        self._longest = longest

    def __iter__(self) -> _RowLines:
        return self

    def __next__(self) -> str:
        number, line = next(self._lines)
        self.held += line.length if isinstance(line, LongLine) else len(line)
        if isinstance(line, LongLine) or self.held > self._longest + 1:
            raise InputError(f"{self._source}, line {number}: a row of {_too_long(self.held, self._longest)}")
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self._source}, line {number}: invalid UTF-8 at byte {error.start}; save it as UTF-8"
            ) from error


def _from_row(row: Mapping[str, Any], location: SourceLocation, names: FieldNames) -> Item:
    try:
        return make_record(row, location, names)
    except BadRecord as error:
        return Rejected(location, str(error), shown(dict(row)))


def _read_parquet(path: Path, names: FieldNames) -> Iterator[Item]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            number = 0
            for batch in table.iter_batches(batch_size=256):
                for row in _parquet_rows(batch):
                    number += 1
                    location = SourceLocation(str(path), number, "row")
                    if isinstance(row, str):
                        yield Rejected(location, row, "")
                    else:
                        yield _from_row(row, location, names)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: of a column's name
        raise InputError(f"{path}: not readable as Parquet ({error})") from error


def _parquet_rows(batch: Any) -> Iterator[dict[str, Any] | str]:
    """The rows of a record batch; in place of one that Python has no values for (year 300000), the reason."""
    try:
        yield from batch.to_pylist()
        return
    except (ValueError, OverflowError):  # all at once is fast; one by one tells which
        pass
    for number in range(batch.num_rows):
        try:
            yield batch.slice(number, 1).to_pylist()[0]
        except (ValueError, OverflowError) as error:
            yield f"the row holds a value that cannot be read: {error}"


def _read_folder(folder: Path, names: FieldNames, longest: int) -> Iterator[Item]:
    beir = folder / "corpus.jsonl"
    if beir.is_file():
        yield from _read_file(beir, names, longest)
        return
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _TEXT and p.is_file())
    if not paths:
        raise InputError(f"{folder}: holds no .txt or .md file and no corpus.jsonl")
    for path in paths:
        location = SourceLocation(str(path), 1)
        if path.stat().st_size > longest:
            yield Rejected(location, _too_long(path.stat().st_size, longest), "")
            continue
        data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            yield Rejected(location, f"invalid UTF-8 at byte {error.start}", _shown_bytes(data))
            continue
        row = {"_id": path.relative_to(folder).as_posix(), "title": path.stem, "text": text}
        yield _from_row(row, location, FieldNames())


def _read_dataset(source: str, names: FieldNames) -> Iterator[Item]:
    name, _, split = source.partition(":")
    try:
        import datasets
    except ImportError as error:
        raise OptionalDependencyError("datasets", "hub", f"reading the Hugging Face dataset {name!r}") from error
    try:
        rows = datasets.load_dataset(name, split=split or "train", streaming=True)
    except (OSError, ValueError) as error:  # datasets' own errors derive from these two
        raise InputError(f"{source}: no such file, and no Hugging Face dataset either ({error})") from error
    for number, row in enumerate(rows, start=1):
        yield _from_row(row, SourceLocation(source, number, "row"), names)


def _read_rows(rows: Iterable[Any], names: FieldNames) -> Iterator[Item]:
    for number, row in enumerate(rows, start=1):
        location = SourceLocation("corpus", number, "document")
        if isinstance(row, Mapping):
            yield _from_row(row, location, names)
        else:
            yield Rejected(location, f"a mapping is needed, this is of type {type(row).__name__}", shown(row))
