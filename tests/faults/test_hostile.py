"""Inputs made to harm: nothing hangs, nothing crashes, nothing outside of the index is touched."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexFormatError, InputError
from aveyb_retrieval.indexes.changes.update import add_documents, delete_documents
from aveyb_retrieval.indexes.changes.verify import verify_index
from aveyb_retrieval.indexes.input.corpus import read_corpus
from aveyb_retrieval.indexes.input.documents import Record, Rejected
from aveyb_retrieval.indexes.input.precomputed import PrecomputedVectors
from aveyb_retrieval.indexes.nearest import faiss_check
from aveyb_retrieval.indexes.store import store_check
from tests.faults.test_damage import rewrite, use, version
from tests.faults.test_kill import ROOT, environment
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile") / "ix"
    build_index(make_documents(60), root, model=FakeEmbedder())
    return root


@pytest.fixture
def index(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "ix")
    return tmp_path / "ix"


def rehash(root: Path, name: str) -> None:
    """Make the manifest say of a file what it now is."""
    data = (version(root) / name).read_bytes()
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite(root, lambda m: m["files"].update({name: entry}))


def within(seconds: float, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python in another process, which is killed (and the test fails) if it hangs."""
    prelude = "from tests.faults.test_hostile import *\n"
    command = [sys.executable, "-c", prelude + code, *map(str, arguments)]
    return subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=seconds)


# --- links, pipes and devices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lock", "current.tmp"])
@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_a_link_in_place_of_a_file_never_leads_a_writer_outside(
    index: Path, tmp_path: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (index / name).unlink(missing_ok=True)
    plant(index / name, victim)
    try:
        add_documents([{"_id": "new", "text": "word1"}], index, model=FakeEmbedder())
    except IndexFormatError as error:
        assert name == "lock"
        assert "remove it" in str(error)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["building", "building/store.sqlite", "building/vectors"])
def test_a_link_in_an_unfinished_change_is_refused(index: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("precious")
    path = index / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(outside)
    with pytest.raises(IndexFormatError, match="not a plain file"):
        add_documents([{"_id": "new", "text": "word1"}], index, model=FakeEmbedder())
    assert [p.name for p in outside.iterdir()] == ["kept"]


def endless(path: Path, how: str) -> None:
    path.unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(path)
    elif how == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as handle:
            handle.truncate(1 << 40)


ENDLESS = """
root = Path(sys.argv[1])
for work in (use, verify_index, lambda root: add_documents([{"_id": "new", "text": "a"}], root, model=FakeEmbedder())):
    try:
        verdict = work(root)
        assert verdict is not None and (verdict.problems or "add" in str(verdict)), "nothing was noticed"
    except AveyBError:
        pass
"""


@pytest.mark.parametrize("name", ["current", "v000001/manifest.json"])
def test_what_can_be_read_without_end_is_refused(sound: Path, tmp_path: Path, name: str) -> None:
    root = tmp_path / "ix"
    for how in ("pipe", "device", "sparse"):
        shutil.copytree(sound, root)
        endless(root / name, how)
        done = within(60, ENDLESS, root)
        assert done.returncode == 0, f"{how}: {done.stderr}"
        shutil.rmtree(root)


# --- stores -----------------------------------------------------------------------------------------------------------


def change_store(root: Path, *statements: str) -> None:
    path = version(root) / "store.sqlite"
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()
    rehash(root, "store.sqlite")


ENDLESS_VIEW = (
    "CREATE VIEW documents AS WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) "
    "SELECT i AS doc, 'a' AS id, '{}' AS metadata, x'' AS digest, 1 AS n_tokens, 0 AS n_cut, 1 AS n_passages FROM n"
)


@pytest.mark.parametrize(
    "statements",
    [
        ("DROP TABLE documents", ENDLESS_VIEW),
        ("CREATE TRIGGER t AFTER INSERT ON documents BEGIN DELETE FROM texts; END",),
        ("CREATE TABLE more(a, b AS (a + 1))",),
        ("ALTER TABLE texts ADD COLUMN more AS (upper(text))",),
        ("DROP TABLE fulltext", "CREATE VIRTUAL TABLE fulltext USING fts5(title, text, content='documents')"),
    ],
)
def test_a_store_that_defines_more_than_tables_is_refused(index: Path, statements: tuple[str, ...]) -> None:
    change_store(index, *statements)
    assert any("not of an index" in p for p in verify_index(index).problems)
    with pytest.raises(IndexFormatError, match="not of an index"):
        use(index)
    with pytest.raises(IndexFormatError, match="not of an index"):
        add_documents([{"_id": "new", "text": "word1"}], index, model=FakeEmbedder())


def test_a_schema_that_is_not_utf_8_is_an_error_of_ours(index: Path) -> None:
    path = version(index) / "store.sqlite"
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE texts", b"CREATE T\xd1BLE texts"))
    rehash(index, "store.sqlite")
    assert verify_index(index).problems
    with pytest.raises(IndexFormatError, match="cannot be opened"):
        use(index)


def test_a_statement_without_end_is_stopped(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_check, "STATEMENT_SECONDS", 0.2)
    with (
        Retriever.load(index, model=FakeEmbedder()) as retriever,
        pytest.raises(IndexFormatError, match="interrupted"),
        retriever._engine.snapshot.store() as store,
    ):
        store.db.execute("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE passages SET start = 'one'",
        "UPDATE documents SET metadata = '[]'",
        "UPDATE documents SET metadata = replace(printf('%100000d', 0), ' ', '[')",
        "UPDATE documents SET n_passages = 20000000000000",
        "UPDATE documents SET n_passages = 'many'",
        "UPDATE passages SET heading = x'00'",
        "UPDATE texts SET text = x'ff'",
        "INSERT OR REPLACE INTO meta VALUES ('language', '[]')",
        "DELETE FROM passages",
    ],
)
def test_rows_of_other_types_are_an_error_of_ours(index: Path, statement: str) -> None:
    change_store(index, statement)
    assert verify_index(index, deep=True).problems
    with Retriever.load(index, model=FakeEmbedder()) as retriever, pytest.raises(IndexFormatError):
        retriever.search("word1 word2", k=20, mode="lexical", context=1)
        retriever.search("word1 word2", k=20, filter={"year": {"$gte": 2001}}, granularity="passage")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE texts SET text = text || ' more'",
        "UPDATE passages SET stop = 100000 WHERE passage = (SELECT max(passage) FROM passages)",
        "UPDATE passages SET start = stop + 1 WHERE passage = (SELECT min(passage) FROM passages)",
        "UPDATE passages SET start = start + 2 WHERE passage = (SELECT min(passage) FROM passages)",
        "UPDATE passages SET heading = 'elsewhere' WHERE passage = (SELECT min(passage) FROM passages)",
        "DELETE FROM fulltext_docsize WHERE id = (SELECT max(id) FROM fulltext_docsize)",
        "DELETE FROM passages WHERE passage = (SELECT max(passage) FROM passages)",
        "INSERT INTO passages SELECT max(passage) + 5, start, stop, norm, heading FROM passages",
        "UPDATE fulltext_data SET block = zeroblob(8) WHERE id > 10",
        "DELETE FROM fulltext_idx",
    ],
)
def test_verify_deep_sees_content_that_was_changed_with_its_hash(index: Path, statement: str) -> None:
    change_store(index, statement)
    assert verify_index(index, deep=True).problems


def test_verify_deep_finds_nothing_in_an_index_in_order(index: Path) -> None:
    assert verify_index(index, deep=True).problems == []
    add_documents([{"_id": "new", "text": "word1 東京"}], index, model=FakeEmbedder())
    delete_documents(index, ids=["doc-3"])
    assert verify_index(index, deep=True).problems == []


# --- manifests --------------------------------------------------------------------------------------------------------

TYPES: dict[str, Callable[[dict[str, Any]], object]] = {
    "model is a list": lambda m: m.update(model=[]),
    "model without fingerprint": lambda m: m.update(model={}),
    "counts are empty": lambda m: m.update(counts={}),
    "no lists to look into": lambda m: m["indexes"]["document"].update(params={"nprobe": 0}),
    "unknown parameter": lambda m: m["indexes"]["document"].update(params={"other": 1}),
    "a curve of text": lambda m: m["indexes"]["document"].update(curve=["x"]),
    "a recall of text": lambda m: m["indexes"]["document"].update(recall="high"),
    "settings are empty": lambda m: m.update(settings={}),
    "settings of other types": lambda m: m["settings"].update(index=5),
    "index fields are a list": lambda m: m.update(index_fields=["year"]),
    "version is a number": lambda m: m.update(version=1),
    "job is null": lambda m: m.update(job=None),
    "vectors of integers": lambda m: m.update(dtype="int8"),
    "a setting that nobody knows": lambda m: m["settings"].update(other=1),
    "a language that nobody speaks": lambda m: m["settings"].update(language=["english"]),
    "passages of half a token": lambda m: m["settings"].update(passage_tokens=0.5),
    "overlap is null": lambda m: m["settings"].update(passage_overlap=None),
    "late is a number": lambda m: m["settings"].update(late=1),
    "created is a list": lambda m: m.update(created=[]),
}


@pytest.mark.parametrize("what", TYPES)
def test_a_manifest_with_fields_of_other_types_is_refused(index: Path, what: str) -> None:
    rewrite(index, TYPES[what])
    with pytest.raises(IndexFormatError, match="damaged"):
        use(index)
    assert verify_index(index).problems


# --- FAISS files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["SQ8", "IVF4_HNSW8,Flat", "PCA8,IVF4,Flat"])
def test_verify_survives_and_repairs_a_faiss_file_that_is_cut_short(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(80), root, model=FakeEmbedder(), index=kind, granularity="document")
    path = version(root) / "document.faiss"
    os.truncate(path, path.stat().st_size - 100)
    done = within(120, "print(verify_index(Path(sys.argv[1]), repair=True).repaired)", root)
    assert done.stdout.strip() == "True", (done.returncode, done.stderr)
    assert verify_index(root).problems == []


@pytest.mark.parametrize("kind", ["SQ8", "PCA8,IVF4,Flat"])
def test_a_faiss_file_that_was_cut_with_its_hash_is_a_problem_not_a_crash(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(80), root, model=FakeEmbedder(), index=kind, granularity="document")
    path = version(root) / "document.faiss"
    os.truncate(path, path.stat().st_size - 100)
    rehash(root, "document.faiss")
    done = within(120, "print(len(verify_index(Path(sys.argv[1])).problems))", root)
    assert done.stdout.strip() == "1", (done.returncode, done.stderr)


def test_a_crash_of_faiss_is_reported_by_name(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    killed = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    run = subprocess.run
    monkeypatch.setattr(
        faiss_check.subprocess, "run", lambda command, **options: run([sys.executable, "-c", killed], **options)
    )
    item = faiss_check.Expected(version(index) / "document.faiss", "document", np.arange(3), 16)
    first, second = faiss_check.problems([item, item])  # one process for each, as both end it
    assert "SIGSEGV" in first
    assert "SIGSEGV" in second


@pytest.mark.parametrize("factory", ["HNSW0", "HNSW1", "IVF4_HNSW0,Flat", "PCA8,HNSW0"])
def test_a_graph_without_links_is_refused(factory: str, tmp_path: Path) -> None:
    done = within(
        60,
        "build_index(make_documents(50), Path(sys.argv[1]), model=FakeEmbedder(), index=sys.argv[2])",
        tmp_path / "ix",
        factory,
    )
    assert "ConfigError" in done.stderr
    assert "at least 2 links" in done.stderr


# --- corpora ----------------------------------------------------------------------------------------------------------

BOMB = """
import re
in_use = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10  # of what is imported
limit = in_use + (int(sys.argv[2]) << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
print([type(item).__name__ for item in read_corpus(sys.argv[1])])
"""


@pytest.mark.parametrize("compress", [zstandard.compress, gzip.compress])
def test_a_compressed_bomb_is_one_line_too_long(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    suffix = "zst" if compress is zstandard.compress else "gz"
    path = tmp_path / f"bomb.jsonl.{suffix}"
    good = b'{"_id": "a", "text": "b"}\n'
    path.write_bytes(compress(bytes(256 << 20)) + compress(b"\n" * (1 << 20)) + compress(good))
    done = within(120, BOMB, path, 400)
    assert done.stdout.strip() == "['Rejected', 'Record']", done.stderr[-500:]


def test_lines_and_rows_longer_than_the_limit_are_named_and_what_follows_is_read(tmp_path: Path) -> None:
    good = b'{"_id": "a", "text": "b"}\n'
    path = tmp_path / "c.jsonl"
    for length in (1000, 1001, 5_000_000):
        path.write_bytes(b"x" * length + b"\n" + good + b"y" * length)
        first, record, last = read_corpus(path, max_line=1000)
        assert isinstance(first, Rejected)
        assert isinstance(record, Record)
        assert isinstance(last, Rejected)
        assert (f"{length:,} bytes" in first.reason) == (length > 1000)
        assert first.location.line == 1
        assert last.location.line == 3
    table = tmp_path / "c.csv"
    table.write_text('id,text\na,"' + "line\n" * 400 + '"\n')
    with pytest.raises(InputError, match="max-line"):
        list(read_corpus(table, max_line=1000))
    assert len(list(read_corpus(table, max_line=3000))) == 1
    with pytest.raises(ConfigError, match="max_line"):
        list(read_corpus(path, max_line=1 << 40))


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
    path.write_bytes((b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded) if header else b"")
    with pytest.raises(InputError, match="not readable as vectors"):
        PrecomputedVectors.open(path)


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, 5, "", "a\0b", "x" * 5000, "y/" * 5000])
def test_a_path_that_is_none_is_an_error_of_ours(path: Any) -> None:
    with pytest.raises(AveyBError):
        Retriever.load(path)


@pytest.mark.parametrize("name", ["k", "passages", "candidates"])
def test_a_number_that_is_none_is_an_error_of_ours(index: Path, name: str) -> None:
    with Retriever.load(index, model=FakeEmbedder()) as retriever, pytest.raises(ConfigError, match=name):
        retriever.search("word1", **{name: None})


def test_filters_with_huge_numbers_and_lone_surrogates(index: Path) -> None:
    with Retriever.load(index, model=FakeEmbedder()) as retriever:
        assert len(retriever.search("word1", filter={"year": {"$lt": 10**400}})) == 10
        assert retriever.search("word1", filter={"year": {"$lt": -(10**400)}}) == []
        for where in ({"year": HUGE}, {"\ud800": 1}, {"year": "\ud800"}, {"a.\udfff": {"$exists": True}}):
            with pytest.raises(ConfigError):
                retriever.search("word1", filter=where)


def test_the_lock_of_a_hostile_folder_is_only_read_so_far(index: Path) -> None:
    endless(index / "lock", "sparse")
    report = add_documents([{"_id": "new", "text": "word1"}], index, model=FakeEmbedder())
    assert report.documents == 61
    assert json.loads((version(index) / "manifest.json").read_bytes())["counts"]["documents"] == 61
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 8 << 20  # KiB
