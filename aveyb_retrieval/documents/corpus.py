"""Corpora as one stream of documents, in a fixed order and constant memory.

Read are files of JSON lines, JSON, CSV and TSV (each also `.gz` or `.zst`), Parquet, files that
hold one document each and folders of them (or a BEIR folder), globs, `-` for JSON on standard
input, `hf:owner/name[:split]` of the Hugging Face hub, and any iterable of mappings or texts. A
line that is no document comes out as `Rejected`, a file that is left out as `Notice`; a table or a
file of JSON lines that cannot be read at all raises `InputError`.
"""

from __future__ import annotations

import glob
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from aveyb_retrieval.documents.folders import (
    MANY_DOCUMENTS,
    SourceFile,
    beir_corpus,
    documents_of,
    list_folder,
    read_files,
    read_folder,
)
from aveyb_retrieval.documents.readers.encodings import is_seven_bit
from aveyb_retrieval.documents.readers.file_limits import Limits, Watch, unwatched
from aveyb_retrieval.documents.readers.filetext import Unreadable, too_long
from aveyb_retrieval.documents.readers.kinds import SUFFIXES, kind_of
from aveyb_retrieval.documents.readers.process import FileReader
from aveyb_retrieval.documents.readers.table_lines import csv_rows, split_header
from aveyb_retrieval.documents.reading import (
    LongLine,
    Reading,
    check_columns,
    column_types,
    convert,
    decompress,
    is_utf8,
    read_blocks,
    read_json,
    read_json_lines,
    split_lines,
    split_suffix,
    transcode,
)
from aveyb_retrieval.documents.records import (
    FieldNames,
    Item,
    Notice,
    Record,
    Rejected,
    SourceLocation,
    as_text,
    path_text,
    read_row,
)
from aveyb_retrieval.errors import InputError, extra_for

OpenBlocks = Callable[[], Iterator[bytes]]  # of a table from its start, as UTF-8


def read_table_rows(
    open_blocks: OpenBlocks, source: str, reading: Reading, *, tabs: bool
) -> Iterator[Item]:
    """Read a CSV or TSV file twice: for the types of its columns, then for its documents.

    The separator is the one by which the header has a column of that name for the text: a tab in a
    TSV file, else a comma, a semicolon, a tab or a bar. Raises InputError: the header lacks a
    column, or the file is not a table.
    """
    separator = "\t" if tabs else _separator(open_blocks, reading)
    header, types = _columns(open_blocks, source, separator, reading)
    for location, row in itertools.islice(
        _rows(open_blocks(), source, separator, reading.max_line), 1, None
    ):
        if row and len(row) != len(header):
            reason = f"{len(row)} fields, but the header has {len(header)}"
            yield Rejected(location, reason, as_text(separator.join(row)))
        elif row:  # no blank line
            yield _document(dict(zip(header, row, strict=True)), types, location, reading.names)


def _document(
    row: dict[str, Any], types: Mapping[str, str], location: SourceLocation, names: FieldNames
) -> Item:
    typed = dict(row)
    for column, kind in types.items():
        try:
            typed[column] = convert(row[column], kind)
        except ValueError as error:
            return Rejected(location, f"column {column!r}: {error} (--types, types)", as_text(row))
    return read_row(typed, location, names)


def _separator(open_blocks: OpenBlocks, reading: Reading) -> str:
    first = next(split_lines(open_blocks(), reading.max_line), b"")
    line = "" if isinstance(first, LongLine) else first.decode("utf-8", "replace").rstrip("\r\n")
    headers = split_header(line)
    # else the message shows the columns as they would be
    return next(
        (separator for separator in headers if reading.names.text in headers[separator]),
        max(headers, key=line.count),
    )


def _columns(
    open_blocks: OpenBlocks, source: str, separator: str, reading: Reading
) -> tuple[list[str], dict[str, str]]:
    """The names of all columns, and the types, given or of their values, of those that are metadata
    and no strings.

    A column without a name is called by its place: "column 3".
    """
    rows = _rows(open_blocks(), source, separator, reading.max_line)
    location, first = next(rows, (SourceLocation(source, 1), []))
    header = [
        name if name.strip() else f"column {place}" for place, name in enumerate(first, start=1)
    ]
    names = reading.names
    check_columns(header, str(location))
    needed = [
        names.text,
        names.id or names.text,
        names.title if names.title != FieldNames().title else names.text,
    ]
    if missing := [name for name in needed if name not in header]:
        raise InputError(
            f"{location}: the header has {header} but no column {missing[0]!r}; choose others"
            " with --text-field, --id-field and --title-field"
        )
    if unknown := [name for name in reading.types if name not in header]:
        raise InputError(
            f"{location}: the header has {header} but no column {unknown[0]!r}, which --types names"
        )
    id_field = names.id or ("_id" if "_id" in header else "id")
    but = (id_field, names.title, names.text, *reading.types)
    typed = {column: kind for column, kind in reading.types.items() if kind != "string"}
    return header, column_types(header, (row for _, row in rows), but) | typed


def _rows(
    blocks: Iterable[bytes], source: str, separator: str, longest: int
) -> Iterator[tuple[SourceLocation, list[str]]]:
    held = 0  # bytes of the row so far

    # a quoted field may span lines, so one bad line spoils the row: the file is refused
    def lines() -> Iterator[str]:
        nonlocal held
        for number, line in enumerate(split_lines(blocks, longest), start=1):
            held += line.length if isinstance(line, LongLine) else len(line)
            if isinstance(line, LongLine) or held > longest + 1:
                raise InputError(f"{source}, line {number}: a row of {too_long(held, longest)}")
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{source}, line {number}: invalid UTF-8 at byte {error.start}; give its"
                    " encoding with --encoding, or save it as UTF-8"
                ) from error

    for number, row in csv_rows(lines(), f"{source}, ", separator):
        held = 0
        yield SourceLocation(source, number), row


Source = str | Path | Iterable[Mapping[str, Any]] | Iterable[str] | Sequence[Path]
"""A corpus: a `str` or `Path` alone and a list of `Path` name places, a list of `str` holds texts.
"""

STDIN = "-"
HUB = "hf:"


def read_corpus(
    corpus: Source, reading: Reading | None = None, watch: Watch = unwatched
) -> Iterator[Item]:
    """Read documents from one source or several, one after the other. `reading` of None is as
    `Reading` by default; `watch` is told how many pictures are read, as by `read_files`.

    Raises:
        InputError: a source is missing, unreadable, or of a format that is not known.
        OptionalDependencyError: the format needs a package that is not installed.
    """
    reading = reading or Reading()
    sources = source_names(corpus)
    titles = False
    if sources is None:
        items = _read_rows(corpus, reading.names)  # type: ignore[arg-type]  # source_names says that these are rows
    else:
        items = (
            item
            for source in sources
            for item in readable(_read_source(source, reading, watch), source)
        )
    for item in items:
        titles |= isinstance(item, Record) and bool(item.title)
        yield item
    if not titles and reading.names.title != FieldNames().title:
        yield Notice(
            "corpus",
            f"no document has a title in the field {reading.names.title!r}",
            left_out=False,
        )


def source_names(corpus: Source) -> list[str] | None:
    """Return the names of the places of a corpus, None of documents.

    The type alone decides: a `str` or `Path` is a place, a sequence of `Path` are places, and a
    `str` in a list is a text, whatever lies on the disk. Raises InputError: it is neither places
    nor documents.
    """
    _check_iterable(corpus)
    if isinstance(corpus, (str, Path)):
        return [str(corpus)]
    if not isinstance(corpus, Sequence):
        return None
    places = [item for item in corpus if isinstance(item, Path)]
    if not places:
        return None
    if len(places) < len(corpus):
        other = next(item for item in corpus if not isinstance(item, Path))
        raise InputError(
            f"the corpus mixes places such as {as_text(str(places[0]))} with others such as"
            f" {as_text(str(other))} of type {type(other).__name__}: give only Path objects, or"
            " only documents"
        )
    return [str(place) for place in places]


def _check_iterable(corpus: object) -> None:
    """Raise InputError where iterating would give something else than documents: keys, columns,
    bytes.
    """
    kind = type(corpus).__name__
    if isinstance(corpus, Mapping):
        fields = ", ".join(repr(name) for name in itertools.islice(corpus, 5))
        raise InputError(
            f"the corpus is one {kind} with the fields {as_text(fields)}: give a list,"
            " [{'_id': ..., 'text': ...}], even for a single document; turn a mapping of ids"
            " to texts into [{'_id': id, 'text': text} for ...]"
        )
    if isinstance(corpus, (bytes, bytearray, memoryview)):
        raise InputError(f"the corpus is of type {kind}: give a path, or a list of documents")
    if hasattr(corpus, "columns"):
        raise InputError(
            f"the corpus is a table of type {kind}: give its rows as a list of mappings:"
            " table.to_dict('records') of pandas, table.to_dicts() of polars"
        )
    if not isinstance(corpus, (Path, Iterable)):
        raise InputError(
            f"the corpus is of type {kind}: give a path, or a list of documents with a 'text' each"
        )


def readable(items: Iterable[Item], place: str) -> Iterator[Item]:
    """Yield what is read of a place; InputError where the disk does not give it."""
    try:
        yield from items
    except OSError as error:
        raise InputError(
            f"{path_text(place)}: cannot be read ({error.strerror or error})"
        ) from error


def _read_source(source: str, reading: Reading, watch: Watch) -> Iterator[Item]:
    if source == STDIN:
        blocks = transcode(read_blocks(sys.stdin.buffer), reading.encoding, "standard input")
        yield from read_json(blocks, "standard input", reading)
        return
    path = Path(source)
    if path.is_dir():
        beir = beir_corpus(path, follow_links=reading.follow_links)
        if beir is None:
            yield from read_folder(path, reading, watch)
        else:
            yield from _read_file(beir, reading, watch)
    elif path.is_file():
        yield from _read_file(path, reading, watch)
    elif source.startswith(HUB):
        yield from _read_dataset(source.removeprefix(HUB), reading.names)
    elif any(c in source for c in "*?["):
        matches = sorted(glob.glob(source, recursive=True))  # patterns may be absolute  # noqa: PTH207
        if not matches:
            raise InputError(f"{path_text(source)}: no file matches this pattern")
        folders = {Path(match) for match in matches if Path(match).is_dir()}
        for match in matches:
            if folders.isdisjoint(Path(match).parents):  # else it is read with its folder
                yield from _read_source(match, reading, watch)
    else:
        raise InputError(
            f"{path_text(source)}: no such file or folder; give a text in a list, [text], and a"
            f" data set of the Hugging Face hub as {HUB}owner/name"
        )


def _read_file(path: Path, reading: Reading, watch: Watch) -> Iterator[Item]:
    kind = kind_of(path)
    if kind is not None:
        folder = path_text(path.parent.resolve())
        file = SourceFile(path, path_text(path.as_posix()), folder, kind, named=True)
        unreadable: list[Rejected] = []
        yield from read_files(documents_of(file, unreadable), reading, watch)
        yield from unreadable
        return
    suffix, compression = split_suffix(path)
    if suffix not in MANY_DOCUMENTS or (suffix == ".parquet" and compression):
        raise InputError(
            f"{path_text(path)}: the format {''.join(path.suffixes) or '(no suffix)'!r} is not"
            f" known; known are {', '.join([*MANY_DOCUMENTS, *SUFFIXES])}, and those of text also"
            " with .gz or .zst"
        )
    if suffix == ".parquet":
        with FileReader(Limits(reading.max_line), reading.file_seconds) as reader:
            try:
                yield from reader.read_rows(path, reading.names)
            except Unreadable as reason:
                raise InputError(f"{path_text(path)}: {reason}") from None
    elif suffix in (".csv", ".tsv"):
        yield from read_table_rows(
            lambda: _blocks(path, compression, reading.encoding),
            path_text(path),
            reading,
            tabs=suffix == ".tsv",
        )
    else:
        read = read_json if suffix == ".json" else read_json_lines
        yield from read(_blocks(path, compression, reading.encoding), path_text(path), reading)


def _blocks(path: Path, compression: str, encoding: str | None) -> Iterator[bytes]:
    """The contents of a file, decompressed, as UTF-8; `encoding` is for a file that is not."""
    if encoding is not None and not is_seven_bit(encoding):
        with path.open("rb") as handle:
            encoding = None if is_utf8(decompress(handle, path, compression)) else encoding
    with path.open("rb") as handle:
        yield from transcode(decompress(handle, path, compression), encoding, path_text(path))


def _read_dataset(source: str, names: FieldNames) -> Iterator[Item]:
    name, _, split = source.partition(":")
    with extra_for(f"reading the Hugging Face dataset {name!r}", "hub"):
        import datasets
    try:
        rows = datasets.load_dataset(name, split=split or "train", streaming=True)
    except (OSError, ValueError) as error:  # datasets' own errors derive from these two
        raise InputError(
            f"{HUB}{source}: cannot be loaded from the Hugging Face hub ({error})"
        ) from error
    for number, row in enumerate(rows, start=1):
        yield read_row(row, SourceLocation(f"{HUB}{source}", number, "row"), names)


def _read_rows(rows: Iterable[Any], names: FieldNames) -> Iterator[Item]:
    for number, row in enumerate(rows, start=1):
        location = SourceLocation("corpus", number, "document")
        if isinstance(row, (Record, Rejected)):  # read before, by whoever wrote a shard
            yield row
        elif isinstance(row, (str, Mapping)):
            yield read_row({names.text: row} if isinstance(row, str) else row, location, names)
        else:
            advice = "; give places as a list of Path alone" if isinstance(row, Path) else ""
            reason = f"a mapping or a text is needed, this is of type {type(row).__name__}{advice}"
            yield Rejected(location, reason, as_text(row))


def count_items(corpus: Source, reading: Reading | None = None) -> int | None:
    """Count documents, of tables about; None where that would need parsing, or fails: the reading
    says why.
    """
    sources = source_names(corpus)
    if sources is None:
        return len(corpus) if isinstance(corpus, Sized) else None
    total = 0
    for source in sources:
        count = None if source == STDIN else _count(Path(source), reading or Reading())
        if count is None:
            return None
        total += count
    return total


def _count(path: Path, reading: Reading) -> int | None:
    try:
        if path.is_dir():
            beir = beir_corpus(path, follow_links=reading.follow_links)
            return len(list_folder(path, reading).files) if beir is None else _lines(beir, "")
        if not path.is_file():
            return None
        if kind_of(path) is not None:
            return 1
        suffix, compression = split_suffix(path)
        if suffix in (".jsonl", ".ndjson"):
            return _lines(path, compression)
        if suffix in (".csv", ".tsv"):
            return max(0, _lines(path, compression) - 1)  # the header
        if suffix == ".parquet":
            from pyarrow.parquet import read_metadata

            return int(read_metadata(path).num_rows)
    except (OSError, ValueError, NotImplementedError, InputError):  # the second and third: of Arrow
        pass
    return None


def _lines(path: Path, compression: str) -> int:
    count, last = 0, b"\n"
    with path.open("rb") as handle:
        for block in decompress(handle, path, compression):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")
