"""Every supported input as one stream of documents, in a fixed order and constant memory.

`.jsonl` `.json` `.csv` `.tsv` (each also `.gz` or `.zst`), `.parquet`, files that hold one document each (PDF, DOCX,
HTML, EPUB, Markdown, text) and folders of them (or a BEIR folder, with its `corpus.jsonl`), globs, `-` for JSON on
standard input, `hf:owner/name` or `hf:owner/name:split` for a data set of the Hugging Face hub, or any Python iterable
of mappings or texts. A line that is not a document comes out as `Rejected`, a file of a folder that is not read as
`Notice`; a table or a file of JSON lines that cannot be read at all raises `InputError`.
"""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from aveyb_retrieval.errors import InputError, extra_for
from aveyb_retrieval.indexes.input.documents import (
    FieldNames,
    Item,
    Notice,
    Record,
    Rejected,
    SourceLocation,
    path_text,
    read_row,
    shown,
)
from aveyb_retrieval.indexes.input.folders import (
    MANY_DOCUMENTS,
    SourceFile,
    beir_corpus,
    known_files,
    list_folder,
    read_files,
    read_folder,
)
from aveyb_retrieval.indexes.input.json_lines import (
    COMPRESSED,
    decompress,
    read_blocks,
    read_json,
    read_json_lines,
    split_suffix,
)
from aveyb_retrieval.indexes.input.readers.base import Unreadable
from aveyb_retrieval.indexes.input.readers.code import LANGUAGES
from aveyb_retrieval.indexes.input.readers.formats import SUFFIXES, kind_of
from aveyb_retrieval.indexes.input.readers.process import FileReader
from aveyb_retrieval.indexes.input.reading import Reading, transcode
from aveyb_retrieval.indexes.input.tables import read_table

Source = str | Path | Iterable[Mapping[str, Any]] | Iterable[str]

STDIN = "-"
HUB = "hf:"


def read_corpus(corpus: Source | Sequence[str | Path], reading: Reading | None = None) -> Iterator[Item]:
    """Read documents from one source or several, one after the other.

    Args:
        corpus: Where they are, or the documents themselves.
        reading: How; None is as `Reading` says by default.

    Raises:
        InputError: a source is missing, unreadable, or of a format that is not known.
        OptionalDependencyError: the format needs a package that is not installed.
    """
    reading = reading or Reading()
    sources = source_names(corpus)
    titles = False
    if sources is None:
        items = _read_rows(corpus, reading.names)  # type: ignore[arg-type]  # source_names told that these are rows
    else:
        items = (item for source in sources for item in _read_safely(source, reading))
    for item in items:
        titles |= isinstance(item, Record) and bool(item.title)
        yield item
    if not titles and reading.names.title != FieldNames().title:
        yield Notice("corpus", f"no document has a title in the field {reading.names.title!r}", left_out=False)


def source_names(corpus: Source | Sequence[str | Path]) -> list[str] | None:
    """Names of the files and other sources a corpus argument stands for, or None for an iterable of documents."""
    if isinstance(corpus, (str, Path)):
        return [str(corpus)]
    if isinstance(corpus, Sequence) and corpus and all(isinstance(c, (str, Path)) for c in corpus):
        return None if _are_texts(corpus) else [str(c) for c in corpus]
    return None


def _are_texts(strings: Sequence[str | Path]) -> bool:
    """Whether a list of strings holds texts: each has blanks, and none names a file, a folder or a file's format."""
    return all(isinstance(s, str) and len(s.split()) > 1 and not _could_be_path(s) for s in strings)


def _could_be_path(text: str) -> bool:
    if "\n" in text or len(text) > 4096:
        return False
    files = (suffix for suffix, name in SUFFIXES.items() if name not in LANGUAGES)  # a sentence may end in "node.js"
    try:
        return text.lower().endswith((*files, *MANY_DOCUMENTS, *COMPRESSED)) or Path(text).exists()
    except (OSError, ValueError):
        return False


def _read_safely(source: str, reading: Reading) -> Iterator[Item]:
    try:
        yield from _read_source(source, reading)
    except OSError as error:
        raise InputError(f"{path_text(source)}: cannot be read ({error.strerror or error})") from error


def _read_source(source: str, reading: Reading) -> Iterator[Item]:
    if source == STDIN:
        blocks = transcode(read_blocks(sys.stdin.buffer), reading.encoding, "standard input")
        yield from read_json(blocks, "standard input", reading)
        return
    path = Path(source)
    if path.is_dir():
        beir = beir_corpus(path, follow_links=reading.follow_links)
        yield from read_folder(path, reading) if beir is None else _read_file(beir, reading)
    elif path.is_file():
        yield from _read_file(path, reading)
    elif source.startswith(HUB):
        yield from _read_dataset(source.removeprefix(HUB), reading.names)
    elif any(c in source for c in "*?["):
        matches = sorted(glob.glob(source, recursive=True))  # noqa: PTH207  # patterns may be absolute
        if not matches:
            raise InputError(f"{path_text(source)}: no file matches this pattern")
        for match in matches:
            yield from _read_source(match, reading)
    else:
        raise InputError(
            f"{path_text(source)}: no such file or folder (a text is given as {{'text': ...}}, a data set of the "
            f"Hugging Face hub as {HUB}owner/name)"
        )


def _read_file(path: Path, reading: Reading) -> Iterator[Item]:
    kind = kind_of(path)
    if kind is not None:
        yield from read_files(
            [SourceFile(path, path_text(path.as_posix()), path_text(path.parent.resolve()), kind, named=True)], reading
        )
        return
    suffix, compression = split_suffix(path)
    if suffix not in MANY_DOCUMENTS or (suffix == ".parquet" and compression):
        raise InputError(
            f"{path_text(path)}: the format {''.join(path.suffixes) or '(no suffix)'!r} is not known; known are "
            f"{', '.join(MANY_DOCUMENTS)}, {known_files()}, and those of text also with .gz or .zst"
        )
    if suffix == ".parquet":
        yield from _read_parquet(path, reading)
    elif suffix in (".csv", ".tsv"):
        yield from read_table(
            lambda: _blocks(path, compression, reading.encoding), path_text(path), reading, tabs=suffix == ".tsv"
        )
    else:
        read = read_json if suffix == ".json" else read_json_lines
        yield from read(_blocks(path, compression, reading.encoding), path_text(path), reading)


def _read_parquet(path: Path, reading: Reading) -> Iterator[Item]:
    with FileReader(None, reading.max_line, reading.file_seconds) as reader:
        try:
            yield from reader.read_rows(path, reading.names)
        except Unreadable as reason:
            raise InputError(f"{path_text(path)}: {reason}") from None


def _blocks(path: Path, compression: str, encoding: str | None) -> Iterator[bytes]:
    """The contents of a file, decompressed, as UTF-8."""
    with path.open("rb") as handle:
        yield from transcode(decompress(handle, path, compression), encoding, path_text(path))


def _read_dataset(source: str, names: FieldNames) -> Iterator[Item]:
    name, _, split = source.partition(":")
    with extra_for(f"reading the Hugging Face dataset {name!r}", "hub"):
        import datasets
    try:
        rows = datasets.load_dataset(name, split=split or "train", streaming=True)
    except (OSError, ValueError) as error:  # datasets' own errors derive from these two
        raise InputError(f"{HUB}{source}: cannot be loaded from the Hugging Face hub ({error})") from error
    for number, row in enumerate(rows, start=1):
        yield read_row(row, SourceLocation(f"{HUB}{source}", number, "row"), names)


def _read_rows(rows: Iterable[Any], names: FieldNames) -> Iterator[Item]:
    for number, row in enumerate(rows, start=1):
        location = SourceLocation("corpus", number, "document")
        if isinstance(row, (Record, Rejected)):  # read before, by whoever wrote a shard
            yield row
        elif isinstance(row, str):
            yield read_row({names.text: row}, location, names)
        elif isinstance(row, Mapping):
            yield read_row(row, location, names)
        else:
            kind = type(row).__name__
            yield Rejected(location, f"a mapping or a text is needed, this is of type {kind}", shown(row))


def count_items(corpus: Source | Sequence[str | Path]) -> int | None:
    """Count documents: exactly for folders, lists and JSON lines, about for tables; None where that would need parsing.

    What cannot be read is not counted: the reading that follows says why.
    """
    sources = source_names(corpus)
    if sources is None:
        return len(corpus) if isinstance(corpus, Sized) else None
    total = 0
    for source in sources:
        count = None if source == STDIN else _count(Path(source))
        if count is None:
            return None
        total += count
    return total


def _count(path: Path) -> int | None:
    try:
        if path.is_dir():
            beir = beir_corpus(path, follow_links=False)
            return len(list_folder(path).files) if beir is None else _lines(beir, "")
        if not path.is_file():
            return None
        if kind_of(path) is not None:
            return 1
        suffix, compression = split_suffix(path)
        if suffix in (".jsonl", ".ndjson"):
            return _lines(path, compression)
        if suffix in (".csv", ".tsv"):
            return max(0, _lines(path, compression) - 1)  # the header
        return _parquet_rows(path) if suffix == ".parquet" else None
    except (OSError, InputError):
        return None


def _lines(path: Path, compression: str) -> int:
    count, last = 0, b"\n"
    with path.open("rb") as handle:
        for block in decompress(handle, path, compression):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def _parquet_rows(path: Path) -> int | None:
    import pyarrow
    import pyarrow.parquet

    try:
        return int(pyarrow.parquet.read_metadata(path).num_rows)
    except pyarrow.ArrowException:
        return None
