"""Building: what goes in comes out, errors leave no trace, interrupted work continues, other
arguments are refused.
"""

from __future__ import annotations

import errno
import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from aveyb_retrieval import Index, Retriever, build_index
from aveyb_retrieval.errors import (
    AveyBError,
    ConfigError,
    IndexFormatError,
    IndexLockedError,
    InputError,
)
from aveyb_retrieval.indexes.changes import ingest
from aveyb_retrieval.indexes.changes.transaction import Transaction
from aveyb_retrieval.indexes.changes.verify import verify_index
from aveyb_retrieval.indexes.store.manifest import IndexDirectory, writer_lock
from aveyb_retrieval.indexes.store.place import describe
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import assert_best, make_documents, true_scores
from tests.indexes.disk import files_of, files_of_one_version
from tests.indexes.fake import FakeEmbedder, InterruptedEmbedder
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aveyb_retrieval.indexes.store.manifest import Counts


@pytest.mark.parametrize("granularity", ["document", "passage", "both"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_document_is_found_with_all_that_belongs_to_it(
    tmp_path: Path,
    embedder: FakeEmbedder,
    granularity: str,
    dtype: str,
    documents: list[dict[str, Any]],
) -> None:
    report = build_index(
        documents, tmp_path / "ix", model=embedder, granularity=granularity, storage_dtype=dtype
    )
    assert (report.documents, report.rejected, report.resumed) == (len(documents), 0, False)
    assert verify_index(tmp_path / "ix").problems == []
    with Retriever.load(tmp_path / "ix", model=embedder) as retriever:
        for row in documents[:40:3]:
            query = row["text"] or "word1 word2"
            hits = retriever.search(query, k=7, mode="dense")
            tolerance = 1e-5 if dtype == "float32" else 2e-3
            assert_best(
                hits, true_scores(documents, embedder, query, granularity), 7, tolerance=tolerance
            )
            for hit in hits:
                source = documents[int(hit.id.removeprefix("doc-"))]
                assert (hit.text, hit.title) == (source["text"], source["title"])
                assert hit.metadata == {"year": source["year"], "tags": source["tags"]}
                if granularity == "document":
                    assert hit.passage is hit.span is None
                elif hit.text:
                    assert hit.span is not None
                    assert hit.passage == hit.text[slice(*hit.span)]


def test_counts_tokens_cut_and_empty_texts(tmp_path: Path) -> None:
    rows = [
        {"_id": "long", "text": "w " * 50},
        {"_id": "short", "text": "w"},
        {"_id": "empty", "text": ""},
    ]
    report = build_index(rows, tmp_path / "ix", model=FakeEmbedder(max_tokens=20))
    assert (report.tokens, report.cut_documents, report.cut_tokens) == (21, 1, 30)
    assert (report.documents, report.passages) == (3, 4)


def test_skipping_counts_and_lists_what_is_left_out(
    tmp_path: Path, embedder: FakeEmbedder, jsonl: Callable[..., Path]
) -> None:
    lines = [
        {"_id": "a", "text": "x"},
        b"broken \xff",
        {"_id": "a", "text": "again"},
        {"_id": "b", "text": "y"},
        "[]",
    ]
    report = build_index(jsonl(lines), tmp_path / "ix", model=embedder, on_error="skip")
    assert (report.documents, report.rejected) == (2, 3)
    assert report.rejected_file is not None
    rejected = [
        json.loads(line) for line in report.rejected_file.read_text(encoding="utf-8").splitlines()
    ]
    assert [r["line"] for r in rejected] == [2, 3, 5]
    assert "UTF-8" in rejected[0]["reason"]
    assert "'a' is already in use" in rejected[1]["reason"]
    assert json.loads(rejected[1]["raw"])["text"] == "again"
    assert rejected[2]["raw"].strip() == "[]"


def test_an_error_in_the_corpus_leaves_no_trace(
    tmp_path: Path, embedder: FakeEmbedder, jsonl: Callable[..., Path]
) -> None:
    bad = jsonl([{"_id": "a", "text": "x"}, "{"])
    with pytest.raises(InputError, match="line 2: not JSON"):
        build_index(bad, tmp_path / "new", model=embedder)
    assert not (tmp_path / "new").exists()
    build_index([{"_id": "old", "text": "x"}], tmp_path / "ix", model=embedder)
    with pytest.raises(InputError, match="line 2"):
        build_index(bad, tmp_path / "ix", model=embedder, overwrite=True)
    assert files_of(tmp_path / "ix") == files_of_one_version(tmp_path / "ix")
    with Retriever.load(tmp_path / "ix", model=embedder) as retriever:
        assert [h.id for h in retriever.search("x")] == ["old"]


def test_duplicate_ids_across_files_are_told_with_their_place(
    tmp_path: Path, embedder: FakeEmbedder, jsonl: Callable[..., Path]
) -> None:
    files = [
        jsonl([{"_id": "same", "text": "x"}], "1.jsonl"),
        jsonl([{"id": "same", "text": "y"}], "2.jsonl"),
    ]
    with pytest.raises(InputError, match=r"2\.jsonl, line 1: the id 'same' is already in use"):
        build_index(files, tmp_path / "ix", model=embedder)


@pytest.mark.parametrize("rows", [[], ["", "  "]])
def test_an_empty_corpus_is_an_error(
    tmp_path: Path, embedder: FakeEmbedder, jsonl: Callable[..., Path], rows: list[str]
) -> None:
    with pytest.raises(InputError, match="no documents"):
        build_index(jsonl(rows), tmp_path / "ix", model=embedder)
    assert not (tmp_path / "ix").exists()


def test_a_target_that_exists_needs_overwrite(tmp_path: Path, embedder: FakeEmbedder) -> None:
    first, second = [{"_id": "1", "text": "x"}], [{"_id": "2", "text": "x"}]
    build_index(first, tmp_path / "ix", model=embedder)
    with pytest.raises(ConfigError, match="--overwrite"):
        build_index(second, tmp_path / "ix", model=embedder)
    reader = Retriever.load(tmp_path / "ix", model=embedder)
    build_index(second, tmp_path / "ix", model=embedder, overwrite=True)
    assert [h.id for h in reader.search("x")] == ["1"], "an open reader keeps its version"
    assert reader.is_stale
    reader.reopen()
    assert [h.id for h in reader.search("x")] == ["2"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("data")
    with pytest.raises(ConfigError, match="not empty and not an index"):
        build_index(first, tmp_path / "other", model=embedder)
    with pytest.raises(ConfigError, match="is a file"):
        build_index(first, tmp_path / "other" / "precious", model=embedder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"granularity": "word"}, "granularity='word'"),
        ({"storage_dtype": "int8"}, "storage_dtype='int8'"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        (
            {"index": "Flat;nprobes=8"},
            "'nprobes=8' is not one of the settings nprobe, efSearch, rescore",
        ),
        ({"index": "IVF4,Flat;nprobe=0"}, "nprobe=0"),
        ({"index": "NoSuchIndex7"}, "NoSuchIndex7"),
        ({"index": "PQ7"}, "dimension 16"),
        ({"index_fields": ["year"]}, "no option 'index_fields'"),
        ({"granularty": "both"}, "no option 'granularty'; did you mean 'granularity'"),
        ({"language": "latin"}, "language='latin': must be one of auto, english"),
        ({"token_vectors": "int4"}, "token_vectors='int4'"),
        ({"late": True}, "chooses the size of passages itself"),
        ({"corpus": None}, "no corpus and no vectors"),
    ],
)
def test_an_argument_out_of_range_is_told(
    tmp_path: Path, embedder: FakeEmbedder, arguments: dict[str, Any], words: str
) -> None:
    corpus = arguments.pop("corpus", [{"_id": "1", "text": "x"}])
    with pytest.raises(ConfigError, match=words):
        build_index(corpus, tmp_path / "ix", model=embedder, **arguments)
    assert not (tmp_path / "ix").exists()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 10)


@pytest.mark.usefixtures("small_batches")
def test_an_interrupted_build_continues_and_encodes_nothing_twice(
    tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(documents, tmp_path / "ix", model=InterruptedEmbedder(after=57))
    with pytest.raises(IndexFormatError, match="no index here"):
        Retriever.load(tmp_path / "ix")
    embedder, whole = FakeEmbedder(), FakeEmbedder()
    report = build_index(documents, tmp_path / "ix", model=embedder)
    build_index(documents, tmp_path / "whole", model=whole)
    assert report.resumed
    assert report.documents == len(documents)
    assert 0 < embedder.encoded_words < 0.65 * whole.encoded_words
    assert files_of(tmp_path / "ix") == files_of_one_version(tmp_path / "ix")
    assert problems_of(tmp_path / "ix") == []
    queries = [row["text"] for row in documents[::4] if row["text"]]
    with (
        Retriever.load(tmp_path / "ix", model=whole) as a,
        Retriever.load(tmp_path / "whole", model=whole) as b,
    ):
        assert a.search(queries, k=10) == b.search(queries, k=10)


@pytest.mark.usefixtures("small_batches")
def test_the_first_error_ends_a_build_and_nothing_is_written_after_it(
    tmp_path: Path, documents: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are written while later ones are read: here the third fails, and what is read after
    it is no document.
    """
    written, add = list[int](), Transaction.add

    def full(transaction: Transaction, rows: dict[str, Any], counts: Counts) -> None:
        written.append(counts.documents)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(transaction, rows, counts)

    with monkeypatch.context() as patch, pytest.raises(AveyBError, match="No space left"):
        patch.setattr(Transaction, "add", full)
        build_index([*documents[:35], {"no": "text"}], tmp_path / "ix", model=FakeEmbedder())
    assert written == [10, 10, 10]
    report = build_index(documents, tmp_path / "ix", model=FakeEmbedder())
    assert report.resumed
    assert report.documents == len(documents)
    assert problems_of(tmp_path / "ix") == []


class PlacedEmbedder(FakeEmbedder):
    """Says where it computes, and notes that it has read the first document of a second batch."""

    def __init__(self, *, computes_on_cpu: bool) -> None:
        super().__init__()
        self.computes_on_cpu = computes_on_cpu
        self.goes_on = threading.Event()

    def encode_documents(self, documents: Any) -> Iterator[Any]:
        for place, encoded in enumerate(super().encode_documents(documents)):
            yield encoded
            if place == 10:
                self.goes_on.set()


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("computes_on_cpu", [False, True])
def test_a_model_elsewhere_reads_on_while_a_batch_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, computes_on_cpu: bool
) -> None:
    embedder, add = PlacedEmbedder(computes_on_cpu=computes_on_cpu), Transaction.add
    reads_on = list[bool]()

    def waiting(transaction: Transaction, rows: dict[str, Any], counts: Counts) -> None:
        reads_on.append(embedder.goes_on.wait(0.01 if computes_on_cpu else 60))
        add(transaction, rows, counts)

    monkeypatch.setattr(Transaction, "add", waiting)
    build_index(make_documents(25), tmp_path / "ix", model=embedder)
    assert reads_on[0] != computes_on_cpu
    assert problems_of(tmp_path / "ix") == []


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("computes_on_cpu", [False, True])
@pytest.mark.parametrize("look_ahead", [1, 4, 32])
def test_an_id_of_a_batch_that_is_being_written_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, computes_on_cpu: bool, look_ahead: int
) -> None:
    """Of 32 documents and more, some are committed, some are being written, some wait."""
    monkeypatch.setattr(ingest, "LOOK_AHEAD_ITEMS", look_ahead)
    rows = [{"_id": f"d{i}", "text": f"word{i}"} for i in range(38)]
    again = [{"_id": f"d{i}", "text": "another"} for i in (3, 15, 21, 31, 34)]
    rows = [*rows[:24], again[0], *rows[24:32], *again[1:4], *rows[32:], again[4]]
    for mode, root in (("add", tmp_path / "add"), ("upsert", tmp_path / "upsert")):
        embedder = PlacedEmbedder(computes_on_cpu=computes_on_cpu)
        if mode == "add":
            report = build_index(rows, root, model=embedder, on_error="skip")
            assert (report.documents, report.rejected) == (38, 5)
        else:
            with Index.open(root, create=True, model=embedder) as index:
                assert index.upsert(rows).documents == 38
        with Retriever.load(root, model=embedder) as retriever:
            texts = {document.id: document.text for document in retriever.documents()}
        assert len(texts) == 38
        replaced = {row["_id"] for row in again if texts[row["_id"]] == "another"}
        assert replaced == (set() if mode == "add" else {row["_id"] for row in again})
        assert problems_of(root) == []


@pytest.mark.usefixtures("small_batches")
def test_ids_of_ready_made_vectors_and_made_ids_are_known_meanwhile(tmp_path: Path) -> None:
    texts = [f"word{i}" for i in range(256)]
    texts += [texts[3], texts[245], "the last one"]
    made = build_index(texts, tmp_path / "made", model=FakeEmbedder())
    assert (made.documents, made.unchanged) == (257, 2)
    rows = [{"_id": text, "text": text} for text in texts]
    vectors = np.random.default_rng(0).normal(size=(len(rows), 8)).astype(np.float32)
    given = build_index(
        rows, tmp_path / "given", vectors=vectors, granularity="document", on_error="skip"
    )
    assert (given.documents, given.rejected) == (257, 2)
    for name in ("made", "given"):
        assert problems_of(tmp_path / name) == []


@pytest.mark.usefixtures("small_batches")
def test_an_interrupted_build_refuses_other_arguments_and_another_input(
    tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(documents, tmp_path / "ix", model=InterruptedEmbedder(after=57))
    with pytest.raises(ConfigError, match="granularity was 'both' and is 'document'"):
        build_index(documents, tmp_path / "ix", model=FakeEmbedder(), granularity="document")
    with pytest.raises(ConfigError, match="model was"):
        build_index(documents, tmp_path / "ix", model=FakeEmbedder(seed="other"))
    changed = [{**documents[0], "text": "something else"}, *documents[1:]]
    with pytest.raises(ConfigError, match="the first 50 documents of the input differ"):
        build_index(changed, tmp_path / "ix", model=FakeEmbedder())
    with pytest.raises(ConfigError, match="the first 50 documents of the input differ"):
        build_index(documents[:20], tmp_path / "ix", model=FakeEmbedder())
    corrected = [*documents[:80], {**documents[80], "text": "corrected"}, *documents[81:]]
    assert build_index(corrected, tmp_path / "ix", model=FakeEmbedder()).resumed, (
        "what was not read yet may change"
    )


@pytest.mark.usefixtures("small_batches")
def test_other_commands_are_told_what_is_unfinished(
    tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    root = tmp_path / "ix"
    build_index(documents[:30], root, model=FakeEmbedder())
    before = (root / "current").read_text()
    with pytest.raises(KeyboardInterrupt):
        one_change.add(documents[30:], root, model=InterruptedEmbedder(after=57))
    others: list[Callable[[], object]] = [
        lambda: one_change.upsert(documents, root, model=FakeEmbedder()),
        lambda: one_change.delete(root, ["doc-1"]),
        lambda: one_change.update_metadata(root, {"a": 1}, where={}),
        lambda: one_change.compact(root),
        lambda: build_index(documents, root, model=FakeEmbedder(), overwrite=True),
    ]
    for other in others:
        with pytest.raises(
            ConfigError,
            match=r"interrupted change with other arguments is unfinished .*'add'.*--restart",
        ):
            other()
    assert describe(root)["unfinished"]
    assert (root / "current").read_text() == before
    with Retriever.load(root, model=FakeEmbedder()) as reader:
        assert (len(reader), reader.is_stale) == (30, False)
    report = one_change.add(documents[30:], root, model=FakeEmbedder())
    assert (report.resumed, report.documents, report.added) == (True, 120, 90)
    assert problems_of(root) == []


@pytest.mark.usefixtures("small_batches")
def test_an_unfinished_change_can_be_thrown_away_by_another(
    tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    root = tmp_path / "ix"
    build_index(documents[:30], root, model=FakeEmbedder())
    with pytest.raises(KeyboardInterrupt):
        one_change.add(documents[30:], root, model=InterruptedEmbedder(after=57))
    assert one_change.delete(root, ["doc-1"], restart=True).documents == 29
    assert problems_of(root) == []
    assert one_change.compact(root).documents == 29
    assert files_of(root) == files_of_one_version(root)
    assert problems_of(root) == []


@pytest.mark.usefixtures("small_batches")
def test_what_was_left_out_before_an_interruption_is_listed_once(tmp_path: Path) -> None:
    rows: list[Any] = [
        row for i, good in enumerate(make_documents(60)) for row in (good, {"_id": f"bad-{i}"})
    ]
    with pytest.raises(KeyboardInterrupt):
        build_index(rows, tmp_path / "ix", model=InterruptedEmbedder(after=45), on_error="skip")
    report = build_index(rows, tmp_path / "ix", model=FakeEmbedder(), on_error="skip")
    assert (report.resumed, report.documents, report.rejected) == (True, 60, 60)
    assert report.rejected_file is not None
    lines = report.rejected_file.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["line"] for line in lines] == list(range(2, 121, 2))
    assert one_change.delete(tmp_path / "ix", ["doc-1"]).rejected_file is None, (
        "it is of the change that made it"
    )


@pytest.mark.usefixtures("small_batches")
def test_restart_throws_interrupted_work_away(
    tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(documents, tmp_path / "ix", model=InterruptedEmbedder(after=57))
    report = build_index(documents[:5], tmp_path / "ix", model=FakeEmbedder(seed="b"), restart=True)
    assert (report.documents, report.resumed) == (5, False)


def test_an_index_that_faiss_refuses_after_encoding_can_be_replaced(tmp_path: Path) -> None:
    rows, embedder = make_documents(20), FakeEmbedder()
    with pytest.raises(ConfigError, match="cannot be trained on"):
        build_index(rows, tmp_path / "ix", model=embedder, index="IVF64,Flat")
    embedder.encoded_words = 0
    report = build_index(rows, tmp_path / "ix", model=embedder, index="Flat")
    assert (report.resumed, report.documents, embedder.encoded_words) == (True, 20, 0)


def test_a_second_writer_is_told_who_holds_the_lock(tmp_path: Path, embedder: FakeEmbedder) -> None:
    with (
        writer_lock(tmp_path / "ix" / "lock"),
        pytest.raises(IndexLockedError, match=r"pid \d+ on "),
    ):
        build_index([{"_id": "1", "text": "x"}], tmp_path / "ix", model=embedder)


def test_a_stale_lock_is_noticed(
    tmp_path: Path, embedder: FakeEmbedder, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ix").mkdir()
    note = {"pid": 4711, "host": "there", "since": "yesterday", "command": "aveyb-index build"}
    (tmp_path / "ix" / "lock").write_text(json.dumps(note))
    build_index([{"_id": "1", "text": "x"}], tmp_path / "ix", model=embedder)
    assert "its lock is stale" in caplog.text
    assert "pid 4711 on there" in caplog.text


class SpoiledEmbedder(FakeEmbedder):
    """Puts a number into a vector of the second document."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def encode_documents(self, documents: Any) -> Iterator[Any]:
        for place, encoded in enumerate(super().encode_documents(documents)):
            if place == 1:
                encoded.passages[0, 3] = self.number
            yield encoded


class SwallowingEmbedder(FakeEmbedder):
    """Gives no vectors of the last document."""

    def encode_documents(self, documents: Any) -> Iterator[Any]:
        return iter(list(super().encode_documents(documents))[:-1])


class RepeatingEmbedder(FakeEmbedder):
    """Gives the vectors of the last document twice."""

    def encode_documents(self, documents: Any) -> Iterator[Any]:
        encoded = list(super().encode_documents(documents))
        return iter([*encoded, encoded[-1]])


@refusals(
    {
        InputError: {
            "document 'doc-1': its vectors hold NaN or infinity": [
                partial(build_index, model=SpoiledEmbedder(number)) for number in (np.nan, np.inf)
            ],
        },
        AveyBError: {
            "gave no vectors": partial(build_index, model=SwallowingEmbedder()),
            "more vectors than it was given documents": partial(
                build_index, model=RepeatingEmbedder()
            ),
        },
    }
)
def test_vectors_that_a_model_does_not_give_are_refused(tmp_path: Path, refused: Refusal) -> None:
    refused(make_documents(3), tmp_path / "ix")


# --- ready-made vectors --------------------------------------------------------------------------


def test_ready_vectors_with_and_without_a_corpus(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 8)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    report = build_index(None, tmp_path / "ix", vectors=tmp_path / "v.npy", granularity="document")
    assert report.documents == 50
    with Retriever.load(tmp_path / "ix") as retriever:
        hits = retriever.search_vectors(vectors[:5] * 3.0, k=1)
        assert [h[0].id for h in hits] == ["0", "1", "2", "3", "4"]
        assert hits[0][0].score == pytest.approx(1.0, abs=1e-5)
        with pytest.raises(ConfigError, match="search_vectors"):
            retriever.search("text")
    rows = [{"_id": f"d{i}", "text": f"text {i}"} for i in range(50)]
    table = pyarrow.table({"_id": [r["_id"] for r in rows], "vector": vectors.tolist()})
    pyarrow.parquet.write_table(table, tmp_path / "v.parquet")
    build_index(rows, tmp_path / "ix2", vectors=tmp_path / "v.parquet", granularity="document")
    with Retriever.load(tmp_path / "ix2") as retriever:
        assert retriever.search_vectors(vectors[7:8], k=1)[0][0].text == "text 7"
        assert retriever.search("text 7", mode="lexical")[0].id == "d7"


@pytest.mark.parametrize(
    ("vectors", "count", "words"),
    [
        (np.zeros((3, 4), np.float32), 4, "more documents"),
        (np.zeros((5, 4), np.float32), 4, "5 vectors for 4 documents"),
        (np.full((4, 4), np.nan, np.float32), 4, "NaN"),
        (np.full((4, 4), np.inf, np.float32), 4, "NaN or infinity"),
        (np.zeros((4,), np.float32), 4, "shape"),
        (np.zeros((4, 4), np.int64), 4, "int64"),
        (np.zeros((4, 0), np.float32), 4, "shape"),
    ],
)
def test_ready_vectors_that_do_not_fit_are_refused(
    tmp_path: Path, vectors: np.ndarray, count: int, words: str
) -> None:
    rows = [{"_id": str(i), "text": "t"} for i in range(count)]
    with pytest.raises(InputError, match=words):
        build_index(rows, tmp_path / "ix", vectors=vectors, granularity="document")
    assert IndexDirectory(tmp_path / "ix").current() is None


TWO = ({"_id": "a", "text": ""}, {"_id": "b", "text": ""})


def in_another_order(path: Path) -> None:
    table = pyarrow.table({"id": ["b", "a"], "vector": [[1.0], [2.0]]})
    pyarrow.parquet.write_table(table, path.with_suffix(".parquet"))
    build_index([*TWO], path, vectors=path.with_suffix(".parquet"), granularity="document")


def of_a_pickle(path: Path) -> None:
    np.save(path.with_suffix(".npy"), np.array([{}], dtype=object), allow_pickle=True)
    build_index([*TWO], path, vectors=path.with_suffix(".npy"), granularity="document")


@refusals(
    {
        InputError: {
            "same order": in_another_order,
            "not readable as vectors": of_a_pickle,
        },
        ConfigError: {
            "one per document": lambda path: build_index(
                [*TWO], path, vectors=np.ones((2, 3), np.float32)
            ),
            "passage_overlap=8 .* no passages are cut": lambda path: build_index(
                [*TWO],
                path,
                vectors=np.ones((2, 3), np.float32),
                granularity="document",
                passage_overlap=8,
            ),
        },
    }
)
def test_ready_vectors_of_another_form_are_refused(tmp_path: Path, refused: Refusal) -> None:
    refused(tmp_path / "ix")


def test_ready_vectors_of_any_size_become_unit_length(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(6, 8)).astype(np.float32)
    directions /= np.abs(directions).max(axis=1, keepdims=True)
    # most of their squares are no float32
    sizes = np.array([1, 3e38, 1e-38, 1e20, 1e-25, 0], np.float32)
    build_index(None, tmp_path / "ix", vectors=directions * sizes[:, None], granularity="document")
    assert verify_index(tmp_path / "ix").problems == []
    with Retriever.load(tmp_path / "ix") as retriever:
        for row in range(5):
            for size in (1, 1e30, 1e-30):
                hit = retriever.search_vectors(directions[row : row + 1] * np.float32(size), k=1)[
                    0
                ][0]
                assert (hit.id, hit.score) == (str(row), pytest.approx(1, abs=1e-5))


def test_inverted_lists_without_a_passage_are_sound(tmp_path: Path, embedder: FakeEmbedder) -> None:
    build_index([{"_id": "a", "text": ""}], tmp_path / "ix", model=embedder, index="IVF1,Flat")
    assert verify_index(tmp_path / "ix").problems == []
