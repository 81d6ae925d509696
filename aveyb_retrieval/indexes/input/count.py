"""How many documents a corpus has, counted without parsing them: for the time that a build still takes."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.input.corpus import STDIN, source_names
from aveyb_retrieval.indexes.input.folders import beir_corpus, list_folder
from aveyb_retrieval.indexes.input.json_lines import decompress, split_suffix
from aveyb_retrieval.indexes.input.readers.formats import kind_of

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.input.corpus import Source


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
