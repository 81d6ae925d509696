"""Inputs made to harm: nothing hangs, nothing crashes."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.reading import Reading
from aveyb_retrieval.documents.records import Record, Rejected
from aveyb_retrieval.errors import AveyBError, ConfigError, InputError
from aveyb_retrieval.indexes.vectors import PrecomputedVectors
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]


def within(seconds: float, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python in another process, which is killed (and the test fails) if
    it hangs.
    """
    prelude = (
        "import resource, sys\nfrom pathlib import Path\nfrom aveyb_retrieval.documents.corpus"
        " import read_corpus\n"
    )
    command = [sys.executable, "-c", prelude + code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=seconds
    )


# --- corpora -------------------------------------------------------------------------------------

BOMB = """
import re
in_use = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10  # of what is imported
limit = in_use + (int(sys.argv[2]) << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
print([type(item).__name__ for item in read_corpus(sys.argv[1])])
"""  # noqa: E501


@pytest.mark.parametrize("compress", [zstandard.compress, gzip.compress])
def test_a_compressed_bomb_is_one_line_too_long(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    suffix = "zst" if compress is zstandard.compress else "gz"
    path = tmp_path / f"bomb.jsonl.{suffix}"
    good = b'{"_id": "a", "text": "b"}\n'
    path.write_bytes(compress(bytes(256 << 20)) + compress(b"\n" * (1 << 20)) + compress(good))
    done = within(120, BOMB, path, 400)
    assert done.stdout.strip() == "['Rejected', 'Record']", done.stderr[-500:]


def test_lines_and_rows_longer_than_the_limit_are_named_and_what_follows_is_read(
    tmp_path: Path,
) -> None:
    good = b'{"_id": "a", "text": "b"}\n'
    path = tmp_path / "c.jsonl"
    for length in (1000, 1001, 5_000_000):
        path.write_bytes(b"x" * length + b"\n" + good + b"y" * length)
        first, record, last = read_corpus(path, Reading(max_line=1000))
        assert isinstance(first, Rejected)
        assert isinstance(record, Record)
        assert isinstance(last, Rejected)
        assert (f"{length:,} bytes" in first.reason) == (length > 1000)
        assert first.location.line == 1
        assert last.location.line == 3
    table = tmp_path / "c.csv"
    table.write_text('id,text\na,"' + "line\n" * 400 + '"\n')
    with pytest.raises(InputError, match="max-line"):
        list(read_corpus(table, Reading(max_line=1000)))
    assert len(list(read_corpus(table, Reading(max_line=3000)))) == 1
    with pytest.raises(ConfigError, match="max_line"):
        list(read_corpus(path, Reading(max_line=1 << 40)))


def test_a_rejected_giant_does_not_reach_the_store(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"z" * 3_000_000 + b'\n{"_id": "a", "text": "b"}\n')
    report = build_index(path, tmp_path / "ix", model=FakeEmbedder(), on_error="skip")
    assert report.rejected == 1
    assert report.rejected_file is not None
    assert report.rejected_file.stat().st_size < 20_000
    assert "3,000,001 characters in all" in report.rejected_file.read_text()


HUGE = 10**5000


@pytest.mark.parametrize(
    "row",
    [
        {"_id": "a", "text": "b", "n": HUGE},
        {"_id": HUGE, "text": "b"},
        {"_id": "a", "text": HUGE},
        {"_id": "a", "text": "b", "n": Decimal("sNaN")},
        {"_id": "a", "text": "b", "n": {"x": [Decimal("NaN")]}},
        {"_id": "a", "n": HUGE},
    ],
)
def test_a_row_that_cannot_be_kept_is_rejected(row: dict[str, Any]) -> None:
    (item,) = read_corpus([row])
    assert isinstance(item, Rejected)


def test_parquet_values_that_python_does_not_have_are_rejected(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "c.parquet"
    years = pyarrow.array([0, 300_000 * 366 * 24 * 3600], pyarrow.timestamp("s"))
    table = pyarrow.table({"_id": ["a", "b"], "text": ["x", "y"], "when": years})
    pyarrow.parquet.write_table(table, path)
    first, second = read_corpus(path)
    assert isinstance(first, Record)
    assert isinstance(second, Rejected)
    broken = pyarrow.array([b"x", b"\xff\xfe"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"_id": ["a", "b"], "text": broken}), path)
    first, second = read_corpus(path)
    assert isinstance(first, Record)
    assert isinstance(second, Rejected)


def test_a_parquet_column_whose_name_is_no_text_is_an_error_of_ours(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"_id": ["a"], "text": ["x"], "column": [1]}), path)
    path.write_bytes(path.read_bytes().replace(b"column", b"\xffolumn"))
    with pytest.raises(InputError, match="not readable as Parquet"):
        list(read_corpus(path))


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (6, 4",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (6, 4)}\0",
        b"",
    ],
)
def test_a_damaged_header_of_an_array_is_an_error_of_ours(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "v.npy"
    padded = header.ljust(118) + b"\n" if header else b""
    path.write_bytes(
        (b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded) if header else b""
    )
    with pytest.raises(InputError, match="not readable as vectors"):
        PrecomputedVectors.open(path)


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, 5, "", "a\0b", "x" * 5000, "y/" * 5000])
def test_a_path_that_is_none_is_an_error_of_ours(path: Any) -> None:
    with pytest.raises(AveyBError):
        Retriever.load(path)


@pytest.mark.parametrize("name", ["k", "passages", "candidates"])
def test_a_number_that_is_none_is_an_error_of_ours(tmp_path: Path, name: str) -> None:
    build_index(make_documents(60), tmp_path / "ix", model=FakeEmbedder())
    with (
        Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever,
        pytest.raises(ConfigError, match=name),
    ):
        retriever.search("word1", **{name: None})


def test_filters_with_huge_numbers_and_lone_surrogates(tmp_path: Path) -> None:
    build_index(make_documents(60), tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        assert len(retriever.search("word1", filter={"year": {"$lt": 10**400}})) == 10
        assert retriever.search("word1", filter={"year": {"$lt": -(10**400)}}) == []
        for where in (
            {"year": HUGE},
            {"\ud800": 1},
            {"year": "\ud800"},
            {"a.\udfff": {"$exists": True}},
        ):
            with pytest.raises(ConfigError):
                retriever.search("word1", filter=where)
