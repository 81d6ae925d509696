"""What only servers do: they are killed, they are down, they refuse."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Retriever, build_index, publish_index, unpublish_documents
from aveyb_retrieval.engines import publish
from aveyb_retrieval.errors import (
    ConfigError,
    EngineError,
    IndexFormatError,
    IndexLockedError,
    InputError,
)
from aveyb_retrieval.indexes.engine import open_writer
from aveyb_retrieval.indexes.vectors import StoredShards, encoded_of
from tests.engines.commands import check_commands
from tests.engines.stands import EMBEDDER, LocalStand, PostgresStand, PublishedCollection
from tests.engines.test_searches import assert_same
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engines.postgres_server import PostgresServer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
pytestmark = pytest.mark.engine
QUERY = "word1 word2 word3"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    stand = PostgresStand()
    yield stand.server
    stand.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.name)) % 10**9}"


@pytest.fixture
def one(server: PostgresServer, name: str) -> PublishedCollection:
    return PublishedCollection(server.url(name))


def load(collection: PublishedCollection, **options: Any) -> Retriever:
    return collection.load(**options)


# --- searching a graph ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "dense"},
        {"mode": "dense", "filter": {"year": {"$gte": 2003}}},
        {"mode": "dense", "filter": {"year": 2003}},
        {"mode": "dense", "unit": "passage", "filter": {"tags": "a"}},
        {"mode": "dense", "passages": 2},
    ],
    ids=str,
)
def test_the_graph_finds_what_scoring_all_vectors_finds(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("aveyb_retrieval.engines.postgres.EXACT_ROWS", 0)
    monkeypatch.setattr("aveyb_retrieval.engines.postgres.EXACT_SHARE", 0)
    rows = make_documents(600)
    ours = LocalStand(tmp_path).collection()
    ours.publish(rows)
    one = PublishedCollection(server.url("graph"))
    try:
        opened = one.load()
    except IndexFormatError:
        one.publish(rows)
        opened = one.load()
    with opened as retriever, ours.load() as reference:
        for query in (QUERY, "word17 word40", "word99"):
            assert_same(
                retriever.search(query, 10, **options), reference.search(query, 10, **options)
            )
        # as many as there are, if not by the graph
        assert len(retriever.search(QUERY, 5000, mode="dense")) == 600


# --- kills ---------------------------------------------------------------------------------------


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    server: PostgresServer, one: PublishedCollection, tmp_path: Path
) -> None:
    rows = make_documents(400)
    one.publish(rows[:1])
    build_index(rows, tmp_path / "made", model=EMBEDDER)
    shards = StoredShards(tmp_path)
    batches = [
        [(record, encoded_of(record)) for record in shards.documents()][i : i + 5]
        for i in range(0, 400, 5)
    ]
    acknowledged, failures = list[str](), list[EngineError]()

    def write() -> None:
        writer = open_writer(one.address)
        try:
            for batch in batches:
                writer.upsert(batch)  # type: ignore[arg-type]
                acknowledged.extend(record.id for record, _ in batch)  # type: ignore[union-attr]
                if len(acknowledged) == 50:
                    killer.set()
        except EngineError as error:
            failures.append(error)
        finally:
            writer.close()

    killer = threading.Event()
    thread = threading.Thread(target=write)
    thread.start()
    assert killer.wait(120)
    server.kill()
    thread.join(60)
    server.start()
    assert failures
    assert 50 <= len(acknowledged) < 400
    with one.load() as retriever:
        held = {document.id for document in retriever.documents()}
        assert set(acknowledged) <= held
        assert len(held) == len(retriever) == len(retriever.search(QUERY, 1000, mode="dense"))
        # a batch is there as a whole or not at all
        assert len(held) - len({*acknowledged, "doc-0"}) in (0, 5)
    one.upsert(rows)
    with one.load() as retriever:
        assert len(retriever) == 400
        fresh = LocalStand(tmp_path / "ours").collection()
        fresh.publish(rows)
        with fresh.load() as reference:
            # words are counted right, too
            assert_same(retriever.search(QUERY, 10), reference.search(QUERY, 10))


def test_publishing_continues_after_a_kill_and_shows_nothing_before_its_end(
    server: PostgresServer,
    one: PublishedCollection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "BATCH_DOCUMENTS", 10)
    rows = make_documents(200)
    build_index(rows, tmp_path / "shards", model=EMBEDDER)

    def kill(stage: str, done: int, total: int | None, tokens: int) -> None:
        if done >= 80:
            server.kill()

    with pytest.raises(EngineError, match=r"server failed or went away|no connection"):
        publish_index(tmp_path / "shards", one.address, progress=kill)
    server.start()
    with pytest.raises(IndexFormatError, match="only in part; run the same"):
        one.load()
    report = publish_index(tmp_path / "shards", one.address)
    assert (report.documents, report.written) == (200, 120)
    with one.load() as retriever:
        assert len(retriever) == 200
        assert sorted(d.id for d in retriever.documents()) == sorted(row["_id"] for row in rows)
        assert retriever.search(QUERY, 3)


def test_another_publication_does_not_continue_an_interrupted_one(
    one: PublishedCollection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "BATCH_DOCUMENTS", 5)
    one.publish(make_documents(3, first=900))
    build_index(make_documents(60), tmp_path / "a", model=EMBEDDER)

    def stop(stage: str, done: int, total: int | None, tokens: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_index(tmp_path / "a", one.address, progress=stop)
    with one.load() as retriever:
        assert sorted(d.id for d in retriever.documents()) == ["doc-900", "doc-901", "doc-902"]
    one.publish(make_documents(7, first=100))
    with one.load() as retriever:
        assert len(retriever) == 7


def test_a_retriever_survives_a_restart_of_the_server(
    server: PostgresServer, one: PublishedCollection
) -> None:
    one.publish(make_documents(10))
    with one.load() as retriever:
        before = [hit.id for hit in retriever.search(QUERY, 5)]
        server.kill()
        with pytest.raises(EngineError):
            retriever.search(QUERY, 5)
        server.start()
        assert [hit.id for hit in retriever.search(QUERY, 5)] == before


def test_old_versions_are_removed_unless_they_are_read(
    server: PostgresServer, one: PublishedCollection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aveyb_retrieval.engines.postgres.LOCK_WAIT_SECONDS", 1)

    def versions() -> list[str]:
        with psycopg.connect(server.conninfo("company")) as connection:
            found = connection.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname ~ %s", (f"aveyb_{name}_",)
            )
            return sorted(schema for (schema,) in found.fetchall())

    for count in range(1, 5):
        one.publish(make_documents(count))
    assert versions() == [f"aveyb_{name}_3", f"aveyb_{name}_4"]
    with one.load() as retriever:
        reading = retriever.documents()
        next(reading)
        one.publish(make_documents(5))
        # as long as it takes
        assert [document.id for document in reading] == ["doc-1", "doc-2", "doc-3"]
        reading = retriever.documents()
        next(reading)
        one.publish(make_documents(6))
        assert f"aveyb_{name}_4" in versions()
        assert len(list(reading)) == 3
        one.publish(make_documents(7))
        assert versions() == [f"aveyb_{name}_6", f"aveyb_{name}_7"]
        with pytest.raises(IndexFormatError, match="replaced and removed"):
            retriever.search(QUERY, 3)
        retriever.reopen()
        assert len(retriever.search(QUERY, 10, mode="dense")) == 7


def test_only_one_process_publishes_under_a_name(one: PublishedCollection, tmp_path: Path) -> None:
    one.publish(make_documents(2))
    writer = open_writer(one.address)
    try:
        writer.begin(writer.version.settings, restart=True)
        with pytest.raises(IndexLockedError, match="another process"):
            one.publish(make_documents(3))
    finally:
        writer.close()
    one.publish(make_documents(3))


# --- what is refused -----------------------------------------------------------------------------


def test_errors_say_where_and_never_show_the_password(
    server: PostgresServer, name: str, one: PublishedCollection, tmp_path: Path
) -> None:
    build_index(make_documents(3), tmp_path / "made", model=EMBEDDER)
    wrong = server.url(name, password="secret word")
    nobody = f"postgresql://ann:hidden@127.0.0.1:1/company/{name}"
    no_database = one.address.replace("/company/", "/elsewhere/")
    for url, what in ((wrong, "password"), (nobody, "refused"), (no_database, "elsewhere")):
        for call in (
            lambda url=url: Retriever.load(url),
            lambda url=url: publish_index(tmp_path, url),
        ):
            with pytest.raises(EngineError, match=what) as caught:
                call()
            assert "secret" not in str(caught.value)
            assert "hidden" not in str(caught.value)
            assert f"/{name}" in str(caught.value)
    with pytest.raises(IndexFormatError, match=r"is not there; publish it"):
        Retriever.load(one.address)


@pytest.mark.parametrize(
    "path", ["", "/company", "/company/", "/company/x/y", "/company/Upper", "/company/1x"]
)
def test_addresses_name_a_database_and_a_collection(path: str) -> None:
    with pytest.raises(ConfigError, match=r"postgresql://USER@HOST|cannot be the name"):
        Retriever.load(f"postgresql://ann:secret@127.0.0.1{path}")


def test_documents_of_another_model_or_width_are_refused(
    one: PublishedCollection, tmp_path: Path
) -> None:
    one.publish(make_documents(3))
    for number, other in enumerate((FakeEmbedder(seed="b"), FakeEmbedder(dim=24))):
        folder = tmp_path / str(number)
        build_index(make_documents(2), folder, model=other)
        with pytest.raises(ConfigError, match=r"dimension|model"):
            publish_index(folder, one.address, update=True)
        with pytest.raises(IndexFormatError):
            one.load(model=other)
    with one.load() as retriever:
        assert len(retriever) == 3


def test_what_postgresql_cannot_hold_is_named_and_nothing_is_visible(
    one: PublishedCollection,
) -> None:
    with pytest.raises(InputError, match=r"text of document 'b' holds a NUL"):
        one.publish([{"_id": "a", "text": "word1"}, {"_id": "b", "text": "word\0two"}])
    with pytest.raises(IndexFormatError, match="only in part"):
        one.load()


def test_a_directory_is_not_an_address_and_the_other_way_round(
    one: PublishedCollection, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="not the address of an engine"):
        publish_index(tmp_path, tmp_path)  # type: ignore[arg-type]
    one.publish(make_documents(2))
    for options in ({"verify": True}, {"mapped": False}):
        with pytest.raises(ConfigError):
            one.load(**options)
    with pytest.raises(ConfigError, match="give ids or a filter"):
        unpublish_documents(one.address)


# --- from an index directory ---------------------------------------------------------------------


def test_an_index_directory_is_published_with_its_pages_and_words(
    one: PublishedCollection, tmp_path: Path
) -> None:
    rows = make_documents(40)
    ours = LocalStand(tmp_path).collection()
    ours.publish(rows)
    report = publish_index(ours.path, one.address)
    assert (report.documents, report.written) == (40, 40)
    with one.load() as retriever, ours.load() as reference:
        for options in ({}, {"unit": "passage"}, {"mode": "dense"}):
            assert_same(
                retriever.search(QUERY, 10, **options), reference.search(QUERY, 10, **options)
            )  # type: ignore[arg-type]
    assert unpublish_documents(one.address, ["doc-1"], where={"year": 2005}) == 1 + sum(
        r["year"] == 2005 for r in rows
    )


def test_the_command_line_publishes_searches_and_removes(
    one: PublishedCollection, tmp_path: Path
) -> None:
    published = check_commands(one.address, tmp_path)
    assert "%" not in published  # the password, quoted
