"""Milvus alone: generations, versions and locks, and kills of the server or of the process with milvus-lite."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from aveyb_retrieval import Retriever, encode_corpus, publish_index
from aveyb_retrieval.cli.index import main
from aveyb_retrieval.errors import ConfigError, EngineError, IndexFormatError, IndexLockedError, InputError
from aveyb_retrieval.indexes.engines.milvus import batch, lock, versions, view, writer
from aveyb_retrieval.indexes.engines.milvus.connection import Address, Server
from aveyb_retrieval.indexes.engines.opening import open_writer
from aveyb_retrieval.indexes.shards.encoded_shards import EncodedShards
from aveyb_retrieval.indexes.search import publish
from tests.engines import milvus_server
from tests.engines.stands import EMBEDDER, LocalStand, PublishedCollection
from tests.engines.test_searches import assert_same
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.engines.milvus.rows import Row

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
pytestmark = pytest.mark.engine
QUERY = "word1 word2 word3"
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[milvus_server.MilvusServer]:
    if not milvus_server.is_installed():
        pytest.skip("the wheel milvus is not installed, which has the server")
    made = milvus_server.MilvusServer(password=True)
    yield made
    made.close()


@pytest.fixture
def remote(server: milvus_server.MilvusServer) -> PublishedCollection:
    return PublishedCollection(server.url(f"t{next(NUMBERS)}"))


@pytest.fixture
def lite(tmp_path: Path) -> PublishedCollection:
    return PublishedCollection(f"milvus://{tmp_path}/lite.db/t")


@pytest.fixture(params=["lite", "remote"])
def one(request: pytest.FixtureRequest) -> PublishedCollection:
    """A collection of milvus-lite, and one of a server."""
    return request.getfixturevalue(request.param)


def encoded(rows: list[dict[str, Any]], folder: Path) -> list[Any]:
    """Documents as a writer takes them."""
    encode_corpus(rows, folder, model=EMBEDDER)
    shards = EncodedShards.open(folder)
    return [(record, shards.document(position, record.id)) for position, record in enumerate(shards.documents())]


def connected(collection: PublishedCollection) -> Server:
    return Server(Address.parse(collection.addresses[0]))


def reference(rows: list[dict[str, Any]], folder: Path) -> Retriever:
    ours = LocalStand(folder).collection()
    ours.publish(rows)
    return ours.load()


# --- searches ---------------------------------------------------------------------------------------------------------

SEARCHES: list[dict[str, Any]] = [
    {"mode": "dense"},
    {"mode": "dense", "filter": {"year": {"$gte": 2003}}},
    {"mode": "dense", "unit": "passage", "filter": {"tags": "a"}, "fold": False},
    {"mode": "lexical"},
    {},
    {"unit": "passage"},
]


@pytest.mark.parametrize(("few", "named"), [(0, 10_000), (0, 0), (0, 150)])
def test_a_filter_reaches_milvus_in_every_way(
    lite: PublishedCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, named: int
) -> None:
    monkeypatch.setattr(view, "FEW", few)
    monkeypatch.setattr(view, "MOST_NAMED", named)
    rows = make_documents(200)
    lite.publish(rows)
    with lite.load() as retriever, reference(rows, tmp_path / "ours") as ours:
        for options in SEARCHES:
            assert_same(retriever.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))
        for where in ({"year": {"$gte": 2003}}, {"year": 2003}, {}):
            assert_same(
                retriever.search(QUERY, 300, mode="dense", filter=where),
                ours.search(QUERY, 300, mode="dense", filter=where),
            )


def test_the_graph_finds_what_scoring_all_vectors_finds(remote: PublishedCollection, tmp_path: Path) -> None:
    rows = make_documents(1600)  # a graph is built from 1,024 rows
    remote.publish(rows)
    queries = [f"word{n} word{n + 7} word{n * 3}" for n in range(20)]
    with remote.load() as retriever:
        found = total = 0
        for query in queries:
            wanted = {hit.id for hit in retriever.search(query, 10, mode="dense", exact=True)}
            found += len(wanted & {hit.id for hit in retriever.search(query, 10, mode="dense")})
            total += len(wanted)
        assert found >= 0.95 * total
        with reference(rows, tmp_path / "ours") as ours:
            for options in ({"mode": "lexical"}, {"mode": "dense", "exact": True}):
                assert_same(retriever.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))  # type: ignore[arg-type]


def test_words_may_lie_in_many_segments(
    one: PublishedCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_POSTINGS", 1)
    monkeypatch.setattr(publish, "BATCH_DOCUMENTS", 16)
    rows = make_documents(60)
    one.publish(rows)
    one.upsert(rows[10:30])
    with one.load() as retriever, reference(rows, tmp_path / "ours") as ours:
        for options in ({"mode": "lexical"}, {"unit": "passage"}, {}):
            assert_same(retriever.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))  # type: ignore[arg-type]


def test_every_part_of_a_document_may_be_longer_than_a_row(one: PublishedCollection) -> None:
    text = "## " + "H" * 70_000 + "\n\n" + " ".join(f"ж{i % 300} word{i % 300}" for i in range(9000))
    metadata = {"note": "é" * 70_000, "year": 7}
    one.publish([{"_id": "i" * 60_000, "title": "T" * 70_000, "text": text, "metadata": metadata}])
    with one.load() as retriever:
        (document,) = retriever.documents({"year": 7})
        assert (document.id, document.title, document.text) == ("i" * 60_000, "T" * 70_000, text)
        assert document.metadata == metadata
        assert retriever.count({"note": {"$contains": "éé"}}) == 1
        assert retriever.search("word299", 5, mode="lexical", unit="passage")


def test_a_document_may_have_more_passages_than_its_row_can_name(
    lite: PublishedCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MOST_BYTES", 30)
    rows = make_documents(12)
    lite.publish(rows)
    with lite.load() as retriever, reference(rows, tmp_path / "ours") as ours:
        for options in ({"passages": 5}, {"unit": "passage"}):
            assert_same(retriever.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))  # type: ignore[arg-type]


def test_two_databases_share_the_documents(tmp_path: Path) -> None:
    rows = make_documents(80)
    two = PublishedCollection(*(f"milvus://{tmp_path}/{name}.db/t" for name in ("a", "b")))
    two.publish(rows)
    two.upsert(rows[:10])
    two.delete(["doc-70"])
    with two.load() as retriever, reference([row for row in rows if row["_id"] != "doc-70"], tmp_path / "ours") as ours:
        for options in SEARCHES:
            assert_same(retriever.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))
    with pytest.raises(ConfigError, match="share 1 of 2"):
        PublishedCollection(two.addresses[0], two.addresses[0]).load()


# --- generations ------------------------------------------------------------------------------------------------------


def documents_there(collection: PublishedCollection) -> list[Row]:
    server = connected(collection)
    try:
        server.client.load_collection(versions.alias(server))
        return server.client.query(
            versions.alias(server), filter="kind == 0", output_fields=["name", "born"], consistency_level="Strong"
        )
    finally:
        server.close()


def test_a_search_under_way_reads_one_generation(one: PublishedCollection) -> None:
    rows = make_documents(20)
    one.publish(rows)
    with one.load() as retriever:
        reading = retriever.documents()
        first = next(reading)
        with retriever._engine.view() as old:
            one.upsert([{"_id": row["_id"], "text": "another"} for row in rows])
            one.delete(["doc-3"])
            assert (old.info.documents, old.count("document")) == (20, 20)
            _, numbers = old.nearest("document", EMBEDDER.encode_queries([QUERY]), 50)
            held = old.documents(numbers[0].tolist())
            assert sorted((d.id, d.text) for d in held.values()) == sorted((r["_id"], r["text"]) for r in rows)
            assert len(old.by_words("document", "another", 50)) == 0
        assert [first.id, *(document.id for document in reading)] == [row["_id"] for row in rows]
        assert len(retriever) == 19
        assert {document.text for document in retriever.documents()} == {"another"}


def test_a_search_may_do_without_the_newest(remote: PublishedCollection) -> None:
    remote.publish(make_documents(20))
    remote.upsert(make_documents(5, first=20))
    with PublishedCollection(f"{remote.addresses[0]}&consistency=eventually").load() as retriever:
        until = time.monotonic() + 60
        while len(retriever) < 25 and time.monotonic() < until:
            assert len(retriever.search(QUERY, 50, mode="dense")) in (20, 25)
        assert len(retriever.search(QUERY, 50, mode="dense")) == 25


def test_rows_of_removed_documents_go_later(
    one: PublishedCollection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = make_documents(30)
    one.publish(rows)
    one.upsert(rows[:10])
    assert len(documents_there(one)) == 40
    monkeypatch.setattr(writer, "KEPT", 0)
    one.delete(["doc-29"])
    assert len(documents_there(one)) == 30
    one.upsert([{"_id": "last", "text": "word1"}])
    assert len(documents_there(one)) == 30
    with one.load() as retriever, reference([*rows[:29], {"_id": "last", "text": "word1"}], tmp_path) as ours:
        for options in SEARCHES:
            assert_same(retriever.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))


def test_an_interrupted_change_is_not_there_and_is_cleaned_up(
    one: PublishedCollection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = make_documents(20)
    one.publish(rows[:10])

    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_state_row", stop)
        with pytest.raises(KeyboardInterrupt):
            one.upsert(rows[5:15])
    assert len(documents_there(one)) == 20
    with one.load() as retriever:
        assert len(retriever) == len(retriever.search(QUERY, 50, mode="dense")) == 10
        one.upsert(rows[10:])
        assert len(documents_there(one)) == 20
        assert len(retriever) == 20
        with reference(rows, tmp_path / "ours") as ours:
            for options in SEARCHES:
                assert_same(retriever.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))


def test_old_versions_are_removed(one: PublishedCollection) -> None:
    server = None
    for count in range(1, 4):
        one.publish(make_documents(count))
        server = server or connected(one)
    assert server is not None
    assert list(versions.versions(server)) == [2, 3]
    with one.load() as retriever:
        one.publish(make_documents(4))
        assert len(retriever.search(QUERY, 10, mode="dense")) == 3
        one.publish(make_documents(5))
        with pytest.raises(IndexFormatError, match="replaced and removed"):
            retriever.search(QUERY, 3)
        retriever.reopen()
        assert len(retriever.search(QUERY, 10, mode="dense")) == 5
    server.close()


# --- publishing -------------------------------------------------------------------------------------------------------


def test_publishing_continues_and_shows_nothing_before_its_end(
    one: PublishedCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "BATCH_DOCUMENTS", 10)
    rows = make_documents(100)
    encode_corpus(rows, tmp_path / "shards", model=EMBEDDER)

    def stop(stage: str, done: int, total: int | None, tokens: int) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            publish_index(tmp_path / "shards", one.addresses, progress=stop)
    with pytest.raises(IndexFormatError, match="only in part; run the same"):
        one.load()
    with monkeypatch.context() as patch:
        patch.setattr(versions, "show", lambda *arguments: stop("", 0, 0, 0))
        with pytest.raises(KeyboardInterrupt):
            publish_index(tmp_path / "shards", one.addresses)
    report = publish_index(tmp_path / "shards", one.addresses)
    assert (report.documents, report.written) == (100, 0)
    with one.load() as retriever, reference(rows, tmp_path / "ours") as ours:
        for options in SEARCHES:
            assert_same(retriever.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))


def test_another_publication_does_not_continue_an_interrupted_one(
    one: PublishedCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "BATCH_DOCUMENTS", 5)
    one.publish(make_documents(3, first=900))
    encode_corpus(make_documents(60), tmp_path / "a", model=EMBEDDER)

    def stop(stage: str, done: int, total: int | None, tokens: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_index(tmp_path / "a", one.addresses, progress=stop)
    with one.load() as retriever:
        assert sorted(d.id for d in retriever.documents()) == ["doc-900", "doc-901", "doc-902"]
    one.publish(make_documents(7, first=100))
    with one.load() as retriever:
        assert len(retriever) == 7


def test_an_update_goes_into_the_version_that_readers_see_when_it_begins(
    one: PublishedCollection, tmp_path: Path
) -> None:
    one.publish(make_documents(3))
    target = open_writer(one.addresses[0])
    target.settings()
    one.publish(make_documents(5))
    target.upsert(encoded(make_documents(2, first=5), tmp_path / "shards"))
    target.close()
    with one.load() as retriever:
        assert len(retriever) == 7


def test_one_writer_at_a_time(one: PublishedCollection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT", 0.5)
    one.publish(make_documents(2))
    held = open_writer(one.addresses[0])
    held.delete(["doc-1"])
    try:
        for change in (lambda: one.publish(make_documents(3)), lambda: one.upsert(make_documents(1))):
            with pytest.raises(IndexLockedError, match="is writing under this name"):
                change()
    finally:
        held.close()
    one.upsert(make_documents(3))
    with one.load() as retriever:
        assert len(retriever) == 3


def test_the_lock_of_a_process_that_was_killed_is_taken_over(remote: PublishedCollection, tmp_path: Path) -> None:
    remote.publish(make_documents(2))
    script = (
        "import sys, os, signal\n"
        "from aveyb_retrieval.indexes.engines.opening import open_writer\n"
        "open_writer(sys.argv[1]).delete(['doc-0'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, remote.addresses[0]], cwd=Path.cwd(), timeout=120)
    assert done.returncode == -signal.SIGKILL
    server = connected(remote)
    assert f"{versions.alias(server)}_LOCK" in server.client.list_collections()
    remote.upsert(make_documents(2))
    assert f"{versions.alias(server)}_LOCK" not in server.client.list_collections()
    server.close()
    with remote.load() as retriever:
        assert len(retriever) == 2


# --- kills ------------------------------------------------------------------------------------------------------------


def check_after_kill(collection: PublishedCollection, acknowledged: list[str], rows: list[Any], folder: Path) -> None:
    """Nothing acknowledged is lost, a batch is there as a whole or not at all, and work goes on."""
    with collection.load() as retriever:
        held = {document.id for document in retriever.documents()}
        assert set(acknowledged) <= held
        assert len(held) == len(retriever) == len(retriever.search(QUERY, 1000, mode="dense"))
        assert len(held) - len({*acknowledged, "doc-0"}) in (0, 5)
    collection.upsert(rows)
    with collection.load() as retriever, reference(rows, folder) as ours:
        assert len(retriever) == len(rows)
        for options in SEARCHES:
            assert_same(retriever.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    server: milvus_server.MilvusServer, remote: PublishedCollection, tmp_path: Path
) -> None:
    rows = make_documents(300)
    remote.publish(rows[:1])
    documents = encoded(rows, tmp_path / "shards")
    acknowledged, failures, killer = list[str](), list[EngineError](), threading.Event()

    def write() -> None:
        target = open_writer(remote.addresses[0])
        try:
            for start in range(0, len(documents), 5):
                target.upsert(documents[start : start + 5])
                acknowledged.extend(record.id for record, _ in documents[start : start + 5])
                if len(acknowledged) == 50:
                    killer.set()
        except EngineError as error:
            failures.append(error)
        finally:
            killer.set()
            target.close()

    thread = threading.Thread(target=write)
    thread.start()
    assert killer.wait(120)
    server.kill()
    thread.join(120)
    server.start()
    assert failures
    assert 50 <= len(acknowledged) < 300
    check_after_kill(remote, acknowledged, rows, tmp_path / "ours")


WRITE = """
import sys
from tests.engines.test_milvus import encoded
from tests.indexes.conftest import make_documents
from aveyb_retrieval.indexes.engines.opening import open_writer
from pathlib import Path
documents = encoded(make_documents(300), Path(sys.argv[2]))
target = open_writer(sys.argv[1])
for start in range(0, 300, 5):
    target.upsert(documents[start : start + 5])
    print(*(record.id for record, _ in documents[start : start + 5]), flush=True)
"""


def test_nothing_acknowledged_is_lost_when_a_process_with_milvus_lite_is_killed(
    lite: PublishedCollection, tmp_path: Path
) -> None:
    rows = make_documents(300)
    lite.publish(rows[:1])
    with subprocess.Popen(
        [sys.executable, "-c", WRITE, lite.addresses[0], str(tmp_path / "shards")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        acknowledged = [name for _ in range(10) for name in process.stdout.readline().split()]
        with pytest.raises(EngineError, match="one process at a time"):
            lite.load()
        os.kill(process.pid, signal.SIGKILL)
        acknowledged += process.stdout.read().split()
    assert 50 <= len(acknowledged) < 300
    check_after_kill(lite, acknowledged, rows, tmp_path / "ours")


def test_publishing_continues_after_the_server_was_killed(
    server: milvus_server.MilvusServer, remote: PublishedCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "BATCH_DOCUMENTS", 10)
    rows = make_documents(200)
    encode_corpus(rows, tmp_path / "shards", model=EMBEDDER)

    def kill(stage: str, done: int, total: int | None, tokens: int) -> None:
        if done >= 80:
            server.kill()

    with pytest.raises(EngineError, match=r"127\.0\.0\.1"):
        publish_index(tmp_path / "shards", remote.addresses, progress=kill)
    with pytest.raises(EngineError, match="no connection"):
        remote.load()
    server.start()
    with pytest.raises(IndexFormatError, match="only in part; run the same"):
        remote.load()
    report = publish_index(tmp_path / "shards", remote.addresses)
    assert (report.documents, report.written) == (200, 120)
    with remote.load() as retriever, reference(rows, tmp_path / "ours") as ours:
        assert sorted(d.id for d in retriever.documents()) == sorted(row["_id"] for row in rows)
        for options in SEARCHES:
            assert_same(retriever.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))


def test_a_retriever_survives_a_restart_of_the_server(
    server: milvus_server.MilvusServer, remote: PublishedCollection
) -> None:
    remote.publish(make_documents(10))
    with remote.load() as retriever:
        before = [hit.id for hit in retriever.search(QUERY, 5)]
        server.kill()
        with pytest.raises(EngineError, match=r"127\.0\.0\.1"):
            retriever.search(QUERY, 5)
        server.start()
        assert [hit.id for hit in retriever.search(QUERY, 5)] == before


# --- what is refused --------------------------------------------------------------------------------------------------


def test_errors_say_where_and_never_show_the_password(
    server: milvus_server.MilvusServer, remote: PublishedCollection, tmp_path: Path
) -> None:
    encode_corpus(make_documents(3), tmp_path, model=EMBEDDER)
    wrong = server.url("elsewhere", password="secret word")
    nobody = "milvus://root:hidden@127.0.0.1:1/elsewhere?timeout=2"
    for url in (wrong, nobody):
        for call in (lambda url=url: Retriever.load(url), lambda url=url: publish_index(tmp_path, url)):
            with pytest.raises(EngineError, match=r"no connection.*user, password") as caught:
                call()
            assert "secret" not in str(caught.value)
            assert "hidden" not in str(caught.value)
            assert "/elsewhere" in str(caught.value)
    with pytest.raises(IndexFormatError, match="is not there; publish it"):
        Retriever.load(remote.addresses[0])
    with pytest.raises(EngineError, match="no_such_database"):
        Retriever.load(remote.addresses[0].replace("/t", "/no_such_database/t"))


def test_a_file_that_is_not_there_is_not_made_by_loading(lite: PublishedCollection, tmp_path: Path) -> None:
    with pytest.raises(IndexFormatError, match="is not there; publish it"):
        lite.load()
    assert not (tmp_path / "lite.db").exists()
    with pytest.raises(ConfigError, match="there is no folder"):
        PublishedCollection(f"milvus://{tmp_path}/nowhere/lite.db/t").publish(make_documents(2))


def test_documents_of_another_model_or_width_are_refused(one: PublishedCollection, tmp_path: Path) -> None:
    one.publish(make_documents(3))
    for number, other in enumerate((FakeEmbedder(seed="b"), FakeEmbedder(dim=24))):
        folder = tmp_path / str(number)
        encode_corpus(make_documents(2), folder, model=other)
        with pytest.raises(ConfigError, match=r"dimension|model"):
            publish_index(folder, one.addresses, update=True)
        with pytest.raises(IndexFormatError):
            one.load(model=other)
    with one.load() as retriever:
        assert len(retriever) == 3


def test_an_id_that_milvus_cannot_keep_is_named_and_nothing_is_visible(one: PublishedCollection) -> None:
    with pytest.raises(InputError, match=r"the id 'xxx.*70,001 bytes; Milvus keeps up to 65,535"):
        one.publish([{"_id": "a", "text": "word1"}, {"_id": "x" * 70_001, "text": "word2"}])
    with pytest.raises(IndexFormatError, match="only in part"):
        one.load()


def test_the_command_line_publishes_searches_and_removes(lite: PublishedCollection, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "lease", "text": "The notice period is three months."}\n{"_id": "loan", "text": "Repay in rates."}\n'
    )
    (url,) = lite.addresses

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, [*arguments])
        assert result.exit_code == code, result.output
        return result.output

    run("encode", str(tmp_path / "corpus.jsonl"), "-o", str(tmp_path / "shards"), "--quiet")
    assert "2 documents (2 written now)" in run("publish", str(tmp_path / "shards"), "--to", url, "--quiet")
    assert "[lease]" in run("search", url, "how long is the notice period?", "-k", "1")
    assert json.loads(run("get", url, "loan"))["text"] == "Repay in rates."
    assert run("unpublish", "lease", "--to", url) == "removed: 1 documents\n"
    assert run("count", url) == "1\n"
    assert "no document has the id 'lease'" in run("unpublish", "lease", "--to", url, code=2)
