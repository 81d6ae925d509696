"""Shards of encoded documents: whoever makes them, in whatever order, an index of them is that of one process."""

from __future__ import annotations

import json
import random
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

import numpy as np
import pyarrow.parquet
import pytest

from aveyb_retrieval import (
    Embedder,
    Retriever,
    add_documents,
    build_index,
    compact_index,
    delete_documents,
    encode_corpus,
    export_index,
    files,
    upsert_documents,
    verify_index,
)
from aveyb_retrieval.documents.pages import Pages
from aveyb_retrieval.documents.records import FileOrigin, Record, SourceLocation
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.indexes.encoding import Encoding
from aveyb_retrieval.indexes.search import search
from aveyb_retrieval.indexes.shards import encoder as shard_encoder
from aveyb_retrieval.indexes.shards import shard as shard_file
from aveyb_retrieval.indexes.shards.encoded_shards import EncodedShards
from aveyb_retrieval.indexes.shards.parts import Reach, encoded_of, read_part, write_part
from aveyb_retrieval.indexes.shards.shard import shard_of
from aveyb_retrieval.indexes.types import EncodedRow
from tests.indexes.conftest import WORDS, make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from aveyb_retrieval.encoder.embedders.embedder import EncodedDocument

QUERIES = ["word1 word2", "word7 word80 word120", "title 7"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_file, "PART_DOCUMENTS", 10)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def answers(root: Path, embedder: FakeEmbedder) -> list[Any]:
    """Scores of all that is found, by what it is, for each kind of search and query.

    In one part: at the edge of another the last digits of scores decide which documents belong to it.
    """
    found = []
    with Retriever.load(root, model=embedder) as retriever, patch.object(search, "READ", 200):
        for mode in ("dense", "lexical", "hybrid"):
            for unit in ("document", "passage"):
                for hits in retriever.search(QUERIES, k=200, mode=mode, unit=unit):
                    found.append({(hit.id, hit.span, hit.passage, hit.title): hit.score for hit in hits})
    return found


def assert_same_answers(one: Path, other: Path, embedder: FakeEmbedder) -> None:
    """Two indexes answer alike, but for the last digits of scores."""
    expected = [pytest.approx(scores, abs=1e-5) for scores in answers(other, embedder)]
    assert answers(one, embedder) == expected


@pytest.mark.parametrize("of", [1, 3])
def test_an_index_of_shards_answers_as_one_built_here(
    of: int, tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
) -> None:
    for shard in range(of, 0, -1):  # any order
        encode_corpus(documents, tmp_path / "shards", shard=shard, of=of, model=embedder)
    build_index(None, tmp_path / "from-shards", vectors=tmp_path / "shards")
    build_index(documents, tmp_path / "here", model=embedder)
    assert_same_answers(tmp_path / "from-shards", tmp_path / "here", embedder)
    with Retriever.load(tmp_path / "from-shards", model=embedder) as retriever:
        assert retriever.search("word1", k=1, filter={"year": 2003})[0].metadata["year"] == 2003


def test_every_document_is_in_the_shard_of_its_id(
    tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
) -> None:
    report = encode_corpus(documents, tmp_path, of=4, model=embedder)
    assert (report.documents, report.shards, report.of) == (len(documents), (1, 2, 3, 4), 4)
    for part in tmp_path.glob("shard-*/*.parquet"):
        shard = int(part.parent.name[6:10])
        ids = pyarrow.parquet.read_table(part, columns=["_id"]).column(0).to_pylist()
        assert ids
        assert {shard_of(name, 4) for name in ids} == {shard}


def test_the_parts_hold_what_their_table_says(tmp_path: Path, embedder: FakeEmbedder) -> None:
    text = "one two three " * 10 + "\n\n# Later\n\n" + "four five six " * 10
    row = {"_id": "a", "title": "T", "text": text, "year": 3}
    encode_corpus([row], tmp_path, model=embedder, storage_dtype="float16")
    table = pyarrow.parquet.read_table(tmp_path / "shard-0001-of-0001" / "part-00001.parquet")
    (found,) = table.to_pylist()
    (expected,) = embedder.encode_documents([("T\n", row["text"])])
    assert (found["_id"], found["title"], found["text"]) == ("a", "T", row["text"])
    assert json.loads(found["metadata"]) == {"year": 3}
    assert (found["n_tokens"], found["n_cut"]) == (expected.n_tokens, 0)
    assert (found["sha256"], found["pages"]) == (None, None)
    passages = found["passages"]
    assert [[p["start"], p["stop"]] for p in passages] == expected.spans.tolist()
    assert [p["heading"] for p in passages] == list(expected.headings)
    assert set(expected.headings) == {"", "Later"}
    assert np.allclose(found["vector"], expected.vector, atol=1e-3)
    assert np.allclose([p["vector"] for p in passages], expected.passages, atol=1e-3)
    assert np.allclose([p["norm"] for p in passages], expected.norms)
    assert str(table.schema.field("vector").type) == "fixed_size_list<element: halffloat not null>[16]"


@pytest.mark.parametrize("granularity", ["document", "passage"])
def test_one_kind_of_vectors(
    granularity: str, tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
) -> None:
    encode_corpus(documents, tmp_path / "shards", model=embedder, granularity=granularity)
    with pytest.raises(ConfigError, match=f"granularity '{granularity}', of .*both 'both'; choose one that both have"):
        build_index(None, tmp_path / "both", vectors=tmp_path / "shards", granularity="both")
    build_index(None, tmp_path / "ix", vectors=tmp_path / "shards")
    build_index(documents, tmp_path / "here", model=embedder, granularity=granularity)
    found = []
    for root in ("ix", "here"):
        with Retriever.load(tmp_path / root, model=embedder) as retriever:
            found.append([(h.id, round(h.score, 5)) for h in retriever.search("word1 word2", k=20, mode="dense")])
    assert found[0] == found[1]


class Interrupted(FakeEmbedder):
    """A model that stops after some documents, as a killed process does."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedDocument]:
        for document in super().encode_documents(documents):
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
            yield document


def test_an_interrupted_shard_is_continued_and_ends_byte_for_byte_the_same(
    tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
) -> None:
    encode_corpus(documents, tmp_path / "whole", of=2, model=embedder)
    with pytest.raises(KeyboardInterrupt):
        encode_corpus(documents, tmp_path / "cut", of=2, model=Interrupted(33))
    assert len(list(tmp_path.glob("cut/*/*.parquet"))) == 3
    with pytest.raises(InputError, match="no complete shards"):
        EncodedShards(tmp_path / "cut")
    report = encode_corpus(documents, tmp_path / "cut", of=2, model=embedder)
    assert report.encoded == len(documents) - 30  # three parts of ten were there
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert encode_corpus(documents, tmp_path / "cut", of=2, model=embedder).encoded == 0


def test_a_real_model_gives_a_continued_shard_the_same_bytes(tmp_path: Path) -> None:
    """Its numbers depend, in their last bits, on what is encoded together: so on where a part begins."""
    rng = random.Random(0)
    rows = [{"_id": f"d{i}", "text": " ".join(rng.choices(WORDS, k=rng.randint(5, 300)))} for i in range(40)]
    model = Embedder.load()
    encode_corpus(rows, tmp_path / "whole", model=model)

    def cut(stage: str, done: int, total: int | None, tokens: int) -> None:
        if done > 23:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shard_encoder, "_TELL_SECONDS", 0.0)
        encode_corpus(rows, tmp_path / "cut", model=model, progress=cut)
    assert encode_corpus(rows, tmp_path / "cut", model=model).encoded == 20
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_killed_at_any_operation_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedder: FakeEmbedder
) -> None:
    """An exception stands for the kill: it leaves the same disk behind."""
    documents = make_documents(25)
    encode_corpus(documents, tmp_path / "whole", of=2, model=embedder)
    names = ("write", "fsync", "rename", "fsync_folder")
    originals = {name: getattr(files, name) for name in names}
    left = [0]

    def counted(name: str) -> Any:
        def operation(*arguments: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            originals[name](*arguments)

        return operation

    for name in names:
        monkeypatch.setattr(files, name, counted(name))
    left[0] = 10_000
    encode_corpus(documents, tmp_path / "count", of=2, model=embedder)
    total = 10_000 - left[0]
    assert total > 20
    for kill in range(0, total, 3):
        place = tmp_path / str(kill)
        left[0] = kill
        with pytest.raises(KeyboardInterrupt):
            encode_corpus(documents, place, of=2, model=embedder)
        left[0] = 10_000
        encode_corpus(documents, place, of=2, model=embedder)
        found = {name: data for name, data in contents(place).items() if not name.endswith(".tmp")}
        assert found == contents(tmp_path / "whole")


def test_shards_in_memory(documents: list[dict[str, Any]], tmp_path: Path, embedder: FakeEmbedder) -> None:
    url = f"memory://{uuid4().hex}/shards"
    with pytest.raises(KeyboardInterrupt):
        encode_corpus(documents, url, of=2, model=Interrupted(33))
    assert encode_corpus(documents, url, of=2, model=embedder).encoded == len(documents) - 30
    build_index(None, tmp_path / "ix", vectors=url)
    build_index(documents, tmp_path / "here", model=embedder)
    assert_same_answers(tmp_path / "ix", tmp_path / "here", embedder)


def test_a_url_without_fsspec_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError, match=r"s3://bucket/shards: .*fsspec.*pip install s3fs"):
        build_index(None, tmp_path / "ix", vectors="s3://bucket/shards")


def test_export_gives_back_what_can_be_built_again(
    tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
) -> None:
    build_index(documents, tmp_path / "ix", model=embedder)
    delete_documents(tmp_path / "ix", ["doc-3", "doc-50"])
    compact_index(tmp_path / "ix")
    report = export_index(tmp_path / "ix", tmp_path / "shards", of=3)
    assert report.documents == len(documents) - 2
    build_index(None, tmp_path / "again", vectors=tmp_path / "shards")
    assert_same_answers(tmp_path / "again", tmp_path / "ix", embedder)
    assert verify_index(tmp_path / "again", deep=True).problems == []
    with pytest.raises(ConfigError, match="there are shards already"):
        export_index(tmp_path / "ix", tmp_path / "shards")
    export_index(tmp_path / "ix", tmp_path / "shards", overwrite=True)
    assert len(EncodedShards(tmp_path / "shards")) == len(documents) - 2


def test_an_export_equals_an_encoding(tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder) -> None:
    encode_corpus(documents, tmp_path / "encoded", model=embedder)
    build_index(documents, tmp_path / "ix", model=embedder)
    export_index(tmp_path / "ix", tmp_path / "exported")
    both = [EncodedShards(tmp_path / name) for name in ("encoded", "exported")]
    for one, other in zip(*(shards.documents() for shards in both), strict=True):
        assert replace(one, location=other.location) == other
        rows = [encoded_of(record) for record in (one, other)]
        for name in ("vector", "passages", "spans", "norms"):
            assert np.array_equal(getattr(rows[0], name), getattr(rows[1], name))
        assert (rows[0].headings, rows[0].n_tokens) == (rows[1].headings, rows[1].n_tokens)


def test_shards_are_added_and_upserted(tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder) -> None:
    build_index(documents[:60], tmp_path / "ix", model=embedder)
    encode_corpus(documents[60:], tmp_path / "more", of=2, model=embedder)
    assert add_documents(None, tmp_path / "ix", vectors=tmp_path / "more").documents == len(documents)
    changed = [{**documents[5], "text": "word1 word2 word3"}, documents[6]]
    encode_corpus(changed, tmp_path / "changed", model=embedder)
    upsert_documents(None, tmp_path / "ix", vectors=tmp_path / "changed")
    compact_index(tmp_path / "ix")
    build_index([*documents[:5], *changed, *documents[7:]], tmp_path / "here", model=embedder)
    assert_same_answers(tmp_path / "ix", tmp_path / "here", embedder)


def test_a_build_of_shards_is_continued(
    tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aveyb_retrieval.indexes.changes import ingest
    from aveyb_retrieval.indexes.changes import ingest as source

    encode_corpus(documents, tmp_path / "shards", of=2, model=embedder)
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 8)
    rows = [0]

    def stopping(record: Record) -> EncodedRow:
        rows[0] += 1
        if rows[0] == 40:
            raise KeyboardInterrupt
        return encoded_of(record)

    monkeypatch.setattr(source, "encoded_of", stopping)
    with pytest.raises(KeyboardInterrupt):
        build_index(None, tmp_path / "ix", vectors=tmp_path / "shards")
    report = build_index(None, tmp_path / "ix", vectors=tmp_path / "shards")
    assert report.resumed
    assert rows[0] < len(documents) + 20
    build_index(documents, tmp_path / "here", model=embedder)
    assert_same_answers(tmp_path / "ix", tmp_path / "here", embedder)


def test_lines_that_are_no_documents_are_counted_once(tmp_path: Path, embedder: FakeEmbedder) -> None:
    rows: list[Any] = [*make_documents(30), {"_id": "x"}, {"_id": "", "text": "y"}, *make_documents(10, first=50)]
    with pytest.raises(InputError, match="no text"):
        encode_corpus(rows, tmp_path, of=3, model=embedder)
    report = encode_corpus(rows, tmp_path, of=3, model=embedder, on_error="skip")
    assert (report.documents, report.rejected) == (40, 2)


@pytest.mark.parametrize(
    ("sha256", "starts", "message"),
    [
        ("ab" * 32, (0, 3), None),
        ("ab" * 32, None, None),
        ("ab" * 31, None, "the hash of its file is none"),
        (None, (0, 3), "the hash of its file is none"),
        ("ab" * 32, (0, 9), "pages outside the text"),
    ],
)
def test_files_and_pages_in_a_part(sha256: Any, starts: tuple[int, ...] | None, message: str | None) -> None:
    origin = FileOrigin(sha256, "/here", Pages(starts) if starts else None)
    none = np.zeros((0, 4), dtype=np.float32)
    row = EncodedRow(np.zeros(4, dtype=np.float32), none, np.zeros((0, 2), dtype=np.int64), n_tokens=2)
    record = Record("a", "", "one two", {"path": "a"}, SourceLocation("x", 1), origin, encoded=row)
    encoding, reach = Encoding(None, None, 4, "document"), Reach(Encoding(None, None, 4, "document").digest, 1)
    data = write_part([record], encoding, reach)
    if message is None:
        assert read_part(data, "part", encoding, "/there") == (
            [replace(record, location=SourceLocation("part", 1, "row"), origin=replace(origin, folder="/there"))],
            reach,
        )
    else:
        with pytest.raises(InputError, match=rf"part: row 1 \('a'\): {message}"):
            read_part(data, "part", encoding, "/there")


ROW = EncodedRow(
    np.array([1, 0], np.float32), np.array([[0, 1]], np.float32), np.array([[0, 3]]), np.ones(1, np.float32), ("",)
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"vector": np.array([np.nan, 0], np.float32)}, "a vector that is not of unit length"),
        ({"passages": np.array([[0, 2]], np.float32)}, "a vector that is not of unit length"),
        ({"spans": np.array([[-1, 3]])}, "a passage outside the text of 7 characters"),
        ({"spans": np.array([[0, 8]])}, "a passage outside the text of 7 characters"),
    ],
)
def test_what_a_part_must_not_hold(change: dict[str, Any], message: str | None) -> None:
    record = Record("a", "", "one two", {}, SourceLocation("x", 1), encoded=replace(ROW, **change))
    encoding = Encoding(None, None, 2, "both")
    data = write_part([record], encoding, Reach(encoding.digest))
    if message is None:
        (found,), _ = read_part(data, "part", encoding, "")
        assert found.encoded is not None
        assert np.array_equal(found.encoded.passages, ROW.passages)
        other = replace(encoding, dim=3)
        with pytest.raises(ConfigError, match="part: encoded by another model or with other settings"):
            read_part(data, "part", other, "")
        with pytest.raises(InputError, match="part: columns of other types than those of a part"):
            read_part(write_part([record], encoding, Reach(other.digest)), "part", other, "")
        with pytest.raises(InputError, match=r"part: not a part of a shard: .*; encode this shard again"):
            read_part(data[:-20], "part", encoding, "")
    else:
        with pytest.raises(InputError, match=rf"part: row 1 \('a'\): {message}"):
            read_part(data, "part", encoding, "")


class TestRefused:
    @pytest.fixture
    def shards(self, tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder) -> Path:
        encode_corpus(documents, tmp_path / "shards", of=3, model=embedder)
        return tmp_path / "shards"

    def refused(self, shards: Path, message: str) -> None:
        with pytest.raises(InputError, match=message):
            build_index(None, shards.parent / "ix", vectors=shards)

    def test_a_missing_shard(self, shards: Path) -> None:
        (shards / "shard-0002-of-0003.json").unlink()
        self.refused(shards, r"1 of 3 shards are missing or not complete: 2; encode them with --shard 2/3")

    def test_a_missing_part(self, shards: Path) -> None:
        (shards / "shard-0002-of-0003" / "part-00002.parquet").unlink()
        self.refused(shards, r"part-00002.parquet: missing; encode shard 2/3 again")

    @pytest.mark.parametrize("place", [3, 500, -3])
    def test_a_damaged_part(self, shards: Path, place: int) -> None:
        path = shards / "shard-0001-of-0003" / "part-00001.parquet"
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)
        self.refused(shards, r"part-00001.parquet: damaged")

    def test_another_division(self, shards: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder) -> None:
        encode_corpus(documents, shards, of=2, shard=1, model=embedder)
        self.refused(shards, "shards of 2 and shards of 3")

    def test_another_model(self, shards: Path, documents: list[dict[str, Any]]) -> None:
        with pytest.raises(ConfigError, match="encoded by another model or with other settings"):
            encode_corpus(documents, shards, of=3, shard=2, model=FakeEmbedder(seed="b"))
        encode_corpus(documents, shards, of=3, shard=2, model=FakeEmbedder(seed="b"), restart=True)
        self.refused(shards, r"shard 1 and shard 2 were encoded differently: model is 'fake-a \(.*' and 'fake-b \(")

    def test_another_corpus(self, shards: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder) -> None:
        with pytest.raises(ConfigError, match="encoded from another corpus"):
            encode_corpus(documents[1:], shards, of=3, shard=2, model=embedder)
        encode_corpus(documents[1:], shards, of=3, shard=2, model=embedder, restart=True)
        self.refused(shards, "shard 1 and shard 2 are of different corpora")

    def test_parts_of_another_corpus(
        self, tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
    ) -> None:
        with pytest.raises(KeyboardInterrupt):
            encode_corpus(documents, tmp_path / "cut", model=Interrupted(33))
        with pytest.raises(ConfigError, match="another corpus"):
            encode_corpus(documents[1:], tmp_path / "cut", model=embedder)
        with pytest.raises(ConfigError, match="another corpus"):
            encode_corpus(documents[:5], tmp_path / "cut", model=embedder)

    def test_an_id_twice(self, tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder) -> None:
        with pytest.raises(InputError, match=r"document 121: the id 'doc-4' is already in use"):
            encode_corpus([*documents, documents[4]], tmp_path / "twice", of=2, model=embedder)

    def test_copies_are_as_in_an_index(self, tmp_path: Path, embedder: FakeEmbedder) -> None:
        rows = [{"_id": "a", "text": "word1"}, {"text": "word2"}, {"_id": "a", "text": "word3"}, {"text": "word2"}]
        build_index(rows, tmp_path / "ix", model=embedder, on_error="skip")
        done = encode_corpus(rows, tmp_path / "shards", of=3, model=embedder, on_error="skip")
        assert (done.documents, done.rejected) == (2, 1)
        build_index(None, tmp_path / "of-shards", vectors=tmp_path / "shards")
        found = [
            sorted((each.id, each.text) for each in Retriever.load(tmp_path / name).documents())
            for name in ("ix", "of-shards")
        ]
        assert found[0] == found[1]
        assert {text for _, text in found[0]} == {"word1", "word2"}

    def test_a_document_of_another_shard(self, shards: Path, embedder: FakeEmbedder) -> None:
        rows = [{"_id": "doc-3", "text": "word1"}]
        encode_corpus(rows, shards.parent / "one", model=embedder)
        manifest = json.loads((shards.parent / "one" / "shard-0001-of-0001.json").read_text())
        wrong = shard_of("doc-3", 3) % 3 + 1
        folder = f"shard-{wrong:04}-of-0003"
        old = json.loads((shards / f"{folder}.json").read_text())
        shutil.rmtree(shards / folder)
        shutil.copytree(shards.parent / "one" / "shard-0001-of-0001", shards / folder)
        manifest.update(shard=wrong, of=3, corpus=old["corpus"])
        (shards / f"{folder}.json").write_text(json.dumps(manifest))
        self.refused(shards, rf"row 1: the document 'doc-3' belongs to shard {shard_of('doc-3', 3)} of 3")

    @pytest.mark.parametrize(
        "change",
        [
            {"format": 1},
            {"documents": "many"},
            {"documents": -1},
            {"parts": None},
            {"encoding": {}},
            {"encoding": None},
            {"of": 4},
        ],
    )
    def test_a_damaged_manifest(self, shards: Path, change: dict[str, Any]) -> None:
        path = shards / "shard-0001-of-0003.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        self.refused(shards, "damaged manifest")

    def test_a_corpus_beside_shards(self, shards: Path, documents: list[dict[str, Any]]) -> None:
        with pytest.raises(ConfigError, match="leave the corpus out"):
            build_index(documents, shards.parent / "ix", vectors=shards)

    def test_settings_that_the_shards_do_not_have(self, shards: Path, embedder: FakeEmbedder) -> None:
        with pytest.raises(ConfigError, match="passage_tokens=64: the shards"):
            build_index(None, shards.parent / "ix", vectors=shards, passage_tokens=64)
        with pytest.raises(ConfigError, match=r"model is 'fake-a \(.*'fake-b \("):
            build_index(None, shards.parent / "ix", vectors=shards, model=FakeEmbedder(seed="b"))
        build_index([{"_id": "a", "text": "b"}], shards.parent / "ix", model=FakeEmbedder(dim=8))
        with pytest.raises(ConfigError, match=r"model is 'fake-a \(.*encode them with what is there"):
            add_documents(None, shards.parent / "ix", vectors=shards)

    @pytest.mark.parametrize(("shard", "of"), [(0, 3), (4, 3), (1, 10_000)])
    def test_no_such_shard(self, shard: int, of: int, tmp_path: Path, embedder: FakeEmbedder) -> None:
        with pytest.raises(ConfigError, match="shards are counted from 1/N to N/N"):
            encode_corpus(make_documents(2), tmp_path, shard=shard, of=of, model=embedder)

    def test_a_model_that_breaks(self, tmp_path: Path) -> None:
        class Broken(FakeEmbedder):
            def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedDocument]:
                for document in super().encode_documents(documents):
                    yield replace(document, vector=document.vector * np.nan)

        with pytest.raises(ModelError, match=r"document 1: document 'doc-0': its vectors hold NaN"):
            encode_corpus(make_documents(2), tmp_path, model=Broken())

    def test_a_url_of_no_kind(self, embedder: FakeEmbedder) -> None:
        with pytest.raises(InputError, match="nowhere"):
            encode_corpus(make_documents(2), "nowhere://x", model=embedder)
