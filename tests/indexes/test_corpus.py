"""Readers: every format gives the same documents; every broken line is told with its file, line and
reason.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import sys
import tracemalloc
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from aveyb_retrieval import Index, build_index
from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.reading import Reading, read_json
from aveyb_retrieval.documents.records import FieldNames, Notice, Pages, Record, Rejected
from aveyb_retrieval.errors import ConfigError, InputError
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = [
    {"_id": "a", "title": "First", "text": 'one\ttwo \u00e9\n"three"', "lang": "en"},
    {"_id": "b\u4e2d", "title": "", "text": "", "lang": "de"},
    {"_id": "c c", "title": "Third, last", "text": "x" * 3000, "lang": "fr"},
]


def content(items: Any) -> list[tuple[str, str, str, Any]]:
    found = list(items)
    assert all(isinstance(item, Record) for item in found), found
    return [(r.id, r.title, r.text, r.metadata["lang"]) for r in found]


EXPECTED = [(r["_id"], r["title"], r["text"], r["lang"]) for r in ROWS]


def jsonl_bytes() -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in ROWS)


def table_bytes(delimiter: str) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(ROWS[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return out.getvalue().encode()


FORMATS: dict[str, Callable[[Path], object]] = {
    "c.jsonl": lambda p: p.write_bytes(jsonl_bytes()),
    "c.json": lambda p: p.write_bytes(b"\xef\xbb\xbf" + jsonl_bytes().replace(b"\n{", b"\n\n{")),
    "c.jsonl.gz": lambda p: p.write_bytes(gzip.compress(jsonl_bytes())),
    "c.jsonl.zst": lambda p: p.write_bytes(zstandard.compress(jsonl_bytes())),
    "two-members.jsonl.gz": lambda p: p.write_bytes(
        gzip.compress(jsonl_bytes()[:40]) + gzip.compress(jsonl_bytes()[40:])
    ),
    "two-frames.jsonl.zst": lambda p: p.write_bytes(
        zstandard.compress(jsonl_bytes()[:40]) + zstandard.compress(jsonl_bytes()[40:])
    ),
    "c.csv": lambda p: p.write_bytes(table_bytes(",")),
    "c.tsv.gz": lambda p: p.write_bytes(gzip.compress(table_bytes("\t"))),
    "c.parquet": lambda p: pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), p),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_documents(tmp_path: Path, name: str) -> None:
    FORMATS[name](tmp_path / name)
    assert content(read_corpus(tmp_path / name)) == EXPECTED


def test_standard_input_mappings_and_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(jsonl_bytes())))
    assert content(read_corpus("-")) == EXPECTED
    assert content(read_corpus(ROWS)) == EXPECTED
    datasets = pytest.importorskip("datasets")
    assert content(read_corpus(datasets.Dataset.from_list(ROWS))) == EXPECTED


@pytest.mark.parametrize("name", ["build", "add", "upsert"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"_id": "a", "text": "hello world"}, "even for a single document"),
        ({"a": "hello world", "b": "good bye"}, "turn a mapping of ids to texts into"),
        (b"hello world", "of type bytes: give a path, or a list of documents"),
        ("hello, wide world", "hello, wide world"),
    ],
)
def test_what_is_no_list_of_documents_is_refused(
    tmp_path: Path, name: str, given: Any, words: str
) -> None:
    with (
        Index.create(tmp_path / "ix", model=FakeEmbedder()) as index,
        pytest.raises(InputError, match=words),
    ):
        if name == "build":
            build_index(given, tmp_path / "other", model=FakeEmbedder())
        else:
            getattr(index, name)(given)


def test_several_files_and_globs_are_read_in_order(tmp_path: Path) -> None:
    for i in (2, 1, 3):
        (tmp_path / f"part-{i}.jsonl").write_text(json.dumps({"id": i, "text": "t"}) + "\n")
    globbed = [r.id for r in read_corpus(str(tmp_path / "part-*.jsonl")) if isinstance(r, Record)]
    listed = [
        r.id
        for r in read_corpus([tmp_path / "part-3.jsonl", tmp_path / "part-1.jsonl"])
        if isinstance(r, Record)
    ]
    assert (globbed, listed) == (["1", "2", "3"], ["3", "1"])


def test_a_folder_of_texts_has_paths_as_ids_and_a_beir_folder_its_corpus(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.md").write_text("# B\nbody", encoding="utf-8")
    (tmp_path / "a.txt").write_text("plain", encoding="utf-8")
    (tmp_path / "ignored.bin").write_bytes(b"\xff")
    items = list(read_corpus(tmp_path))
    found = [(r.id, r.title, r.text) for r in items if isinstance(r, Record)]
    assert found == [("a.txt", "a", "plain"), ("sub/b.md", "B", "# B\nbody")]
    assert [(n.path, n.reason) for n in items if isinstance(n, Notice)] == [
        (str(tmp_path / "ignored.bin"), "unknown kind .bin")
    ]
    first = next(item for item in items if isinstance(item, Record))
    assert first.metadata.keys() == {"path", "type", "modified"}
    assert (first.metadata["path"], first.metadata["type"]) == ("a.txt", "text")
    assert first.metadata["modified"].endswith("+00:00")
    (tmp_path / "corpus.jsonl").write_bytes(jsonl_bytes())
    items = list(read_corpus(tmp_path))  # a folder of other files is read whole
    assert [item.id for item in items if isinstance(item, Record)] == ["a.txt", "sub/b.md"]
    (tmp_path / "rows.PARQUET").write_bytes(b"PAR1")
    reasons = {Path(n.path).name: n.reason for n in read_corpus(tmp_path) if isinstance(n, Notice)}
    assert reasons["corpus.jsonl"] == ".jsonl holds many documents: index it by itself"
    assert reasons["rows.PARQUET"] == ".parquet holds many documents: index it by itself"
    (tmp_path / "rows.PARQUET").unlink()
    beir = tmp_path / "beir"
    beir.mkdir()
    (tmp_path / "corpus.jsonl").rename(beir / "corpus.jsonl")
    assert content(read_corpus(beir)) == EXPECTED


def test_nested_metadata_is_merged_and_fields_can_be_renamed() -> None:
    (item,) = read_corpus(
        [{"_id": 7, "text": "t", "metadata": {"a": 1, "b": 3}, "b": 3, "id": "kept"}]
    )
    assert isinstance(item, Record)
    assert (item.id, item.metadata) == ("7", {"a": 1, "b": 3, "id": "kept"})
    (item,) = read_corpus(
        [{"key": "k", "head": "h", "body": "b"}], Reading(FieldNames("key", "head", "body"))
    )
    assert isinstance(item, Record)
    assert (item.id, item.title, item.text, item.metadata) == ("k", "h", "b", {})


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"_id": "1", "source": "crm", "metadata": {"source": "scan.pdf"}}, "source"),
        ({"_id": "1", "metadata": {"_id": "77"}}, "_id"),
        ({"id": "1", "metadata": {"_id": "77"}}, "_id"),
        ({"_id": "1", "title": "One", "metadata": {"title": "Two"}}, "title"),
        ({"_id": "1", "metadata": {"text": "another"}}, "text"),
        ({"_id": "1", "n": {"a": [1]}, "metadata": {"n": {"a": [2]}}}, "n"),
    ],
)
def test_a_field_that_nested_metadata_contradict_is_refused(row: Any, field: str) -> None:
    (item,) = read_corpus([{"text": "t", **row}])
    assert isinstance(item, Rejected)
    assert f"the field '{field}' is " in item.reason
    assert "rename one of them" in item.reason


def test_nested_metadata_that_say_the_same_and_null_are_kept() -> None:
    row = {"_id": 1, "title": "T", "text": "t", "n": 1}
    same, null, text = read_corpus(
        [
            {**row, "metadata": {"_id": "1", "title": "T", "n": 1}},
            {**row, "metadata": None},
            {**row, "metadata": "a text"},
        ]
    )
    assert isinstance(same, Record)
    assert same.metadata == {"_id": "1", "title": "T", "n": 1}
    assert isinstance(null, Record)
    assert null.metadata == {"n": 1, "metadata": None}
    assert isinstance(text, Record)
    assert text.metadata == {"n": 1, "metadata": "a text"}


def test_ids_and_metadata_of_uuids_and_paths_are_texts() -> None:
    one = UUID(int=7)
    (item,) = read_corpus([{"_id": one, "text": "t", "of": one, "at": [PurePosixPath("a/b.txt")]}])
    assert isinstance(item, Record)
    assert (item.id, item.metadata) == (str(one), {"of": str(one), "at": ["a/b.txt"]})


def test_arrays_and_sets_of_metadata_are_lists() -> None:
    fields = {
        "shape": np.array([[1, 2], [3, 4]], np.int32),
        "days": np.array(["2024-05-06"], "datetime64[D]"),
        "weights": {"by": np.array([0.5], np.float32)},
        "tags": {"b", "a", "c"},
        "mixed": frozenset({10, 9, "x", None, (1, 2), UUID(int=7)}),
    }
    (item,) = read_corpus([{"_id": "a", "text": "t", **fields}])
    assert isinstance(item, Record)
    assert item.metadata == {
        "shape": [[1, 2], [3, 4]],
        "days": ["2024-05-06"],
        "weights": {"by": [0.5]},
        "tags": ["a", "b", "c"],
        "mixed": [9, 10, str(UUID(int=7)), "x", [1, 2], None],
    }
    (bad,) = read_corpus([{"_id": "a", "text": "t", "x": np.array([np.nan])}])
    assert isinstance(bad, Rejected)
    assert "nan" in bad.reason


DEEP = "[" * 200 + "]" * 200
BAD_LINES = {
    b'{"_id": "x", "text": ': "not JSON",
    b"[1, 2]": "a list",
    b'"text"': "object is needed",
    b'{"_id": "x"}': "'text' is missing",
    b'{"_id": "x", "text": null}': "'text' is null",
    b'{"_id": "x", "content": "t"}': "the fields are '_id', 'content' (--text-field",
    b'{"_id": "x", "text": 5}': "an integer, not a string",
    b'{"_id": "x", "text": ["t"]}': "a list, not a string",
    b'{"_id": "x", "text": "t", "title": {}}': "'title' is an object",
    b'{"_id": null, "text": "t"}': "no id",
    b'{"_id": "", "text": "t"}': "is empty",
    b'{"_id": true, "text": "t"}': "a boolean",
    b'{"_id": 1.5, "text": "t"}': "a number",
    b'{"_id": "x", "text": "\xff"}': "invalid UTF-8 at byte 22",
    b'{"_id": "x", "text": "\\ud800"}': "surrogate",
    b'{"_id": "x", "text": "t", "m": "\\udfff"}': "surrogate",
    b'{"_id": "x", "text": "t", "m": NaN}': "NaN",
    b'{"_id": "x", "text": "t", "m": -Infinity}': "Infinity",
    b'{"_id": "x", "text": "t", "m": 1e999}': "inf",
    b'{"_id": "x", "text": "t", "m": ' + DEEP.encode() + b"}": "nested",
    b'{"_id": "x", "text": "t", "m": ' + b"[" * 100_000 + b"}": "nested",
    b'{"_id": "x", "text": "t", "m": 1' + b"0" * 5000 + b"}": "not JSON",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_line_is_told_with_file_line_and_reason(
    jsonl: Callable[..., Path], line: bytes
) -> None:
    path = jsonl([ROWS[0], line, ROWS[1]])
    first, bad, last = read_corpus(path)
    assert isinstance(first, Record)
    assert isinstance(last, Record)
    assert isinstance(bad, Rejected)
    assert (bad.location.source, bad.location.line) == (str(path), 2)
    assert BAD_LINES[line] in bad.reason
    assert f"{path}, line 2" in str(bad.error())


def test_a_row_of_the_wrong_length_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text('_id,text\na,"one\ntwo"\nb,x,y\n')
    good, bad = read_corpus(path)
    assert isinstance(good, Record)
    assert isinstance(bad, Rejected)
    assert bad.location.line == 4


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("c.csv", b"a,b\n1,2\n", "'text'"),
        ("c.csv", b"_id,text\na,\xff\n", "line 2: invalid UTF-8"),
        ("c.csv", b'_id,text\na,"open\n', "line 2"),
        ("c.csv", b"_id,text\ra,t\r", "line 1: new-line character"),  # line ends of old Macs
        ("c.jsonl.gz", gzip.compress(jsonl_bytes(), mtime=0)[:-9], "cut short"),
        ("c.jsonl.zst", zstandard.compress(jsonl_bytes())[:-3], "cut short"),
        ("c.jsonl.gz", b"not gzip at all", "not valid gz"),
        ("c.jsonl.zst", b"not zstd at all", "not valid zst"),
        ("c.parquet", b"PAR1 not parquet", "Parquet"),
        ("c.xyz", b"", "'.xyz' is not known"),
        ("c", b"", "no suffix"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=words) as caught:
        list(read_corpus(tmp_path / name))
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("missing.jsonl", r"no such file|no file matches"),
        ("no-folder/x", r"no such file|no file matches"),
        ("*.jsonl", r"no such file|no file matches"),
        ("", "holds no"),
    ],
)
def test_sources_that_do_not_exist_are_refused(tmp_path: Path, source: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        list(read_corpus(str(tmp_path / source)))


ARRAYS = {
    "array": lambda rows: json.dumps(rows),
    "pretty array": lambda rows: "\n" + json.dumps(rows, indent=2),
    "pretty objects": lambda rows: "\n".join(json.dumps(row, indent=1) for row in rows),
    "an array in two lines": lambda rows: "[" + ",\n".join(json.dumps(row) for row in rows) + "]",
}


@pytest.mark.parametrize("form", ARRAYS)
def test_json_arrays_and_objects_over_several_lines_are_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(ARRAYS[form](ROWS), encoding="utf-8")
    assert content(read_corpus(path)) == EXPECTED
    many = [{"_id": str(i), "text": "x" * (i % 2000)} for i in range(3000)]
    path.write_text(ARRAYS[form](many), encoding="utf-8")
    assert [item.id for item in read_corpus(path) if isinstance(item, Record)] == [
        row["_id"] for row in many
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"_id": "a", "text": "t"},\n {"_id": "b"', "line 2: not JSON"),
        ('[{"_id": "a", "text": "t"},\n', "line 2: the file ends inside of its array"),
        ('[{"_id": "a", "text": "t"}] x', "behind the end"),
        ('[{"_id": "a", "text": NaN}]', "NaN"),
        ("[" * 100_000, "nested too deeply"),
        ('[{"_id": "a", "text": "' + "x" * (3 << 20) + '"}]', "at most 1,000"),
    ],
)
def test_a_broken_array_is_an_error_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        list(read_corpus(path, Reading(max_line=1000)))


@pytest.mark.parametrize("form", ["lines", "array"])
def test_white_space_before_documents_is_counted_and_not_kept(form: str) -> None:
    """Positions in messages count it; memory holds one block of it, however much there is."""
    texts = {
        "lines": b'{"_id": "a", "text": "t"}\n5\n',
        "array": b'[{"_id": "a", "text": "t"},\n5]',
    }
    blank = b"\n" * (1 << 20)
    blocks = itertools.chain((blank for _ in range(64)), [texts[form]])
    tracemalloc.start()
    record, rejected = read_json(blocks, "c.json", Reading())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(record, Record)
    assert isinstance(rejected, Rejected)
    assert rejected.location.line == 64 * (1 << 20) + 2
    assert most < 8 << 20

    with pytest.raises(InputError, match=f"byte {len(blank) + 1:,} "):
        list(read_json(iter([blank, b"[\xff]"]), "c.json", Reading()))


def test_elements_that_are_no_documents_are_rejected_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(
        '[{"_id": "a", "text": "t"},\n 5,\n {"_id": "b"}, {"_id": "c", "text": "%s"}]'
        % ("x" * 3000)
    )
    first, second, third, fourth = read_corpus(path, Reading(max_line=1000))
    assert isinstance(fourth, Rejected)
    assert "at most 1,000" in fourth.reason
    assert isinstance(first, Record)
    assert isinstance(second, Rejected)
    assert isinstance(third, Rejected)
    assert (second.location.line, third.location.line) == (2, 3)


def test_blank_lines_of_a_table_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("_id,text,year\n1,hello,2016\n\n2,world,2017\n\n")
    assert [(item.id, item.metadata) for item in read_corpus(path) if isinstance(item, Record)] == [
        ("1", {"year": 2016}),
        ("2", {"year": 2017}),
    ]
    assert len(list(read_corpus(path))) == 2


def test_a_number_of_too_many_digits_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(
        '[{"_id": "a", "text": "t"},\n {"_id": "b", "text": "t", "n": ' + "1" * 5000 + "}]"
    )
    with pytest.raises(InputError, match=r"c\.json, line 2: "):
        list(read_corpus(path))


def test_columns_have_types_inferred_or_given(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text(
        "_id;text;year;price;code;open;mixed;blank\n1;t;2016;1.5;007;true;3;\n2;t;;-2;12;False;x;\n"
    )
    first, second = read_corpus(path)
    assert isinstance(first, Record)
    assert isinstance(second, Record)
    assert first.metadata == {
        "year": 2016, "price": 1.5, "code": "007", "open": True, "mixed": "3", "blank": ""
    }  # fmt: skip
    assert second.metadata["year"] is None
    assert (second.metadata["price"], second.metadata["open"]) == (-2.0, False)
    given = list(read_corpus(path, Reading(types={"year": "string", "mixed": "int"})))
    assert isinstance(given[0], Record)
    assert (given[0].metadata["year"], given[0].metadata["mixed"]) == ("2016", 3)
    assert isinstance(given[1], Rejected)
    assert "column 'mixed': 'x' is not of type int" in given[1].reason
    with pytest.raises(InputError, match="no column 'nobody', which --types names"):
        list(read_corpus(path, Reading(types={"nobody": "int"})))
    with pytest.raises(ConfigError, match="must be one of int, float"):
        list(read_corpus(path, Reading(types={"year": "date"})))


def test_tables_have_other_separators_and_encodings(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    for separator in ",;\t|":
        path.write_text(
            separator.join(["_id", "text"]) + "\n" + separator.join(["a", "caf\u00e9"]),
            encoding="cp1252",
        )
        (item,) = read_corpus(path, Reading(encoding="cp1252"))
        assert isinstance(item, Record)
        assert item.text == "caf\u00e9"
    path.write_text("_id,text\na,caf\u00e9", encoding="utf-16")
    (item,) = read_corpus(path)
    assert isinstance(item, Record)
    assert item.text == "caf\u00e9"
    path.write_bytes(b"_id,text\na,\x81")
    with pytest.raises(InputError, match=r"byte 11 \(0x81\) is not cp1252"):
        list(read_corpus(path, Reading(encoding="cp1252")))
    with pytest.raises(ConfigError, match="not an encoding of text"):
        list(read_corpus(path, Reading(encoding="base64")))


def test_ids_are_made_of_the_content_where_there_are_none(tmp_path: Path) -> None:
    rows = [{"text": "a", "year": 1}, {"text": "a", "year": 2}, {"text": "a", "year": 1}]
    made = [item.id for item in read_corpus(rows) if isinstance(item, Record)]
    assert made[0] == made[2] != made[1]
    assert all(len(name) == 32 for name in made)
    path = tmp_path / "c.csv"
    path.write_text("text,year\na,1\n")
    (item,) = read_corpus(path)
    assert isinstance(item, Record)
    assert item.id == made[0]
    (item,) = read_corpus([{"text": "a"}], Reading(FieldNames(id="key")))
    assert isinstance(item, Rejected)


@pytest.mark.parametrize(
    "texts",
    [
        ["one text of words", "another one"],
        ["word"],
        ["notes.txt"],
        ["private"],
        ["*.txt"],
        ["see notes.txt", "the rent is due"],
        ["hf:owner/name"],
        ["-"],
        ["~/notes.txt", "/etc/hosts", "https://example.org/a.pdf"],
        ["we use node.js", "written in main.c"],
    ],
)
@pytest.mark.parametrize("kind", [list, tuple, iter, lambda texts: (text for text in texts)])
def test_a_list_of_strings_holds_texts_whatever_lies_on_the_disk(
    texts: list[str], kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "private").mkdir()
    for name in ("notes.txt", "private/keys.txt"):
        (tmp_path / name).write_text("secret")
    assert [item.text for item in read_corpus(kind(texts)) if isinstance(item, Record)] == texts


def test_a_string_or_path_alone_and_a_list_of_paths_are_places(tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    for corpus, names in (
        (str(one), ["one"]),
        (one, ["one"]),
        ([two, one], ["two", "one"]),
        ((one,), ["one"]),
        (str(tmp_path / "*.txt"), ["one", "two"]),
        ([tmp_path / "t*.txt"], ["two"]),
    ):
        texts = [item.text for item in read_corpus(corpus) if isinstance(item, Record)]
        assert texts == [f"text of {name}.txt" for name in names]


@pytest.mark.parametrize("mistyped", ["handbok", "data/handbok", "hand book.jsonl"])
@pytest.mark.parametrize(
    "form", [str, Path, lambda place: [Path(place)]], ids=["text", "path", "list"]
)
def test_a_mistyped_path_is_no_text(
    mistyped: str, form: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"no such file or folder; give a text in a list"):
        list(read_corpus(form(mistyped)))


def test_places_and_documents_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    for other in ("a text", {"text": "a text"}, str(tmp_path / "a.txt")):
        with pytest.raises(InputError, match="give only Path objects, or only documents"):
            list(read_corpus([tmp_path / "a.txt", other]))
    (item,) = read_corpus(iter([tmp_path / "a.txt"]))
    assert isinstance(item, Rejected)
    assert "give places as a list of Path alone" in item.reason


def test_a_title_field_that_no_document_has_is_reported() -> None:
    *_, last = read_corpus(
        [{"_id": "a", "text": "t", "title": "T"}], Reading(FieldNames(title="name"))
    )
    assert isinstance(last, Notice)
    assert "'name'" in last.reason


class Table:
    """What iterates over the names of its columns, as data frames do."""

    columns = ("_id", "text")

    def __iter__(self) -> Any:
        return iter(self.columns)


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ({"_id": "a", "text": "hello world"}, "one dict with the fields '_id', 'text'"),
        ({"doc1": "text one", "doc2": "text two"}, "id, 'text': text"),
        (b"hello world", "of type bytes"),
        (Table(), "a table of type Table"),
        (5, "of type int"),
        (None, "of type NoneType"),
        ("hello world", "no such file or folder"),
    ],
    ids=["dict", "texts by id", "bytes", "table", "number", "nothing", "no path"],
)
def test_what_is_no_corpus_is_refused(corpus: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_corpus(corpus))


# --- pages ---------------------------------------------------------------------------------------


def test_pages_are_found_by_their_characters() -> None:
    pages = Pages((0, 5, 5, 9), ("i", "ii", "1", "2"))
    first, third, last = (1, "i", "page"), (3, "1", "page"), (4, "2", "page")
    assert [pages.at(i) for i in (0, 4, 5, 8, 100)] == [first, first, third, third, last]
    assert Pages((0, 3)).at(3) == (2, "2", "page")
    assert [page.number for page in pages.range(3, 6)] == [1, 3]
    assert [page.number for page in pages.range(4, 5)] == [1, 1]
    assert [page.number for page in pages.range(4, 4)] == [1, 1]
    assert str(Pages((0, 3), ("0:01", "0:02"), "time").at(3)) == "time 0:02"


@pytest.mark.parametrize(
    "pages", [Pages((0, 5, 5, 9), ("i", "ii", "1", "2")), Pages((0, 5)), Pages((0, 5), (), "slide")]
)
def test_pages_are_read_as_they_were_written(pages: Pages) -> None:
    assert Pages.from_json(json.loads(pages.to_json())) == pages
    assert ("unit" in pages.to_json()) == (pages.unit != "page")


@pytest.mark.parametrize(
    "wrong",
    [
        {"starts": [], "labels": []},
        {"starts": [1], "labels": []},
        {"starts": [0, 5, 2], "labels": []},
        {"starts": [0], "labels": ["a", "b"]},
        {"starts": [0, True], "labels": []},
        {"starts": 0, "labels": []},
        {"starts": [0], "labels": [5]},
        {"starts": [0]},
        [],
        None,
        {"starts": [0], "labels": [], "unit": "chapter"},
        {"starts": [0], "labels": [], "x": 1},
    ],
    ids=str,
)
def test_what_is_no_list_of_pages_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="page"):
        Pages.from_json(wrong)
