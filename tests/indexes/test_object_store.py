"""An index in an object store: built, changed, followed and copied there, with failures
on the way.
"""

from __future__ import annotations

import errno
import itertools
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from aveyb_retrieval import Index, Retriever, build_index, copy_index, verify_index
from aveyb_retrieval.cli.index import main
from aveyb_retrieval.errors import (
    AveyBError,
    ConfigError,
    EngineError,
    IndexFormatError,
    IndexLockedError,
)
from aveyb_retrieval.indexes.changes.transaction import Transaction
from aveyb_retrieval.indexes.search import local, snapshot
from aveyb_retrieval.indexes.store import objects, place, remote_blocks
from aveyb_retrieval.indexes.store.manifest import IndexDirectory, Manifest
from aveyb_retrieval.indexes.store.objects import ObjectStore
from aveyb_retrieval.indexes.store.place import read_manifest
from aveyb_retrieval.server.indexes import Indexes
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder
from tests.indexes.store_server import SECRET, Weather, store_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("moto.server", reason="moto, the stand-in for S3, is not installed")
pytest.importorskip("obstore")

MODEL = FakeEmbedder()
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Weather, dict[str, str]]]:
    with store_server() as running:
        yield running


@pytest.fixture
def weather(
    server: tuple[Weather, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Weather]:
    for name, value in server[1].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AVEYB_INDEX_CACHE", str(tmp_path / "cache"))
    server[0].clear()
    yield server[0]
    server[0].clear()


@pytest.fixture
def where(weather: Weather) -> str:
    return f"s3://shelf/indexes/{next(_NUMBERS)}.index"


def build(where: str | Path, count: int = 30) -> None:
    build_index(make_documents(count), where, model=MODEL)


def upsert(where: str | Path, name: str, **options: Any) -> None:
    one_change.upsert(
        [{"_id": name, "text": f"a document called {name}"}], where, model=MODEL, **options
    )


def ids(where: str | Path) -> set[str]:
    with Retriever.load(where, model=MODEL) as opened:
        return {document.id for document in opened.documents()}


def names_in(where: str) -> set[str]:
    return set(ObjectStore.at(where).listed())


def other_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str = "other") -> None:
    """What follows has a cache, and a name, of its own."""
    monkeypatch.setenv("AVEYB_INDEX_CACHE", str(tmp_path / name))
    monkeypatch.setattr(objects.socket, "gethostname", lambda: name)


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", ["0", "268435456"])
def test_it_finds_what_a_folder_finds(
    whole: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AVEYB_INDEX_CACHE_WHOLE", whole)
    for each in (where, tmp_path / "folder"):
        build(each, 60)
        one_change.delete(each, ["doc-3", "doc-4"])
        upsert(each, "fresh")
    with (
        Retriever.load(where, model=MODEL) as there,
        Retriever.load(tmp_path / "folder", model=MODEL) as here,
    ):
        for options in (
            {},
            {"mode": "lexical"},
            {"mode": "dense", "exact": True},
            {"unit": "passage"},
        ):
            questions = ["word1 word2 word3", "called fresh", "word250"]
            found = [
                there.search(questions, k=7, **options),
                here.search(questions, k=7, **options),
            ]
            pairs = [
                [[(hit.id, round(hit.score, 5), hit.text) for hit in hits] for hits in each]
                for each in found
            ]
            assert pairs[0] == pairs[1]
        assert there.count({"year": 2004}) == here.count({"year": 2004})
        assert str(there.path) == where


def test_a_warm_cache_asks_for_the_pointer_alone(where: str, weather: Weather) -> None:
    build(where)
    ids(where)
    weather.clear()
    assert len(ids(where)) == 30
    assert weather.log == [f"GET /shelf/{where.removeprefix('s3://shelf/')}/current"]
    assert weather.bytes < 100


def test_what_was_read_of_a_large_index_is_kept_and_mended(
    where: str,
    weather: Weather,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AVEYB_INDEX_CACHE_WHOLE", "0")
    build(where, 60)
    other_machine(monkeypatch, tmp_path, "parts")

    def asked() -> tuple[list[tuple[str, float]], int]:
        weather.clear()
        with Retriever.load(where, model=MODEL) as opened:
            found = opened.search("word1 word2", k=7)
        return [(hit.id, hit.score) for hit in found], len(
            [line for line in weather.log if ".arrow" in line]
        )

    first, cold = asked()
    again, warm = asked()
    assert (again, warm < cold) == (first, True)
    kept = list(tmp_path.glob("parts/*/*/*/*.parts"))
    assert kept
    for path in kept:
        # as after a power cut: the checksums do not fit
        path.write_bytes(bytes(path.stat().st_size))
    assert asked()[0] == first
    assert asked() == (first, warm)
    for path in kept:
        path.with_suffix(".marks").write_bytes(b"")
    with monkeypatch.context() as context:
        context.setattr(remote_blocks.Cache, "make_room", unroomy)
        assert asked()[0] == first
        assert caplog.text.count("nothing more of the index is kept here (full)") >= 1
    # another version brings files here, and what was kept stays
    one_change.delete(where, ["doc-3"])
    assert "doc-3" not in dict(asked()[0])
    assert set(kept) <= set(tmp_path.glob("parts/*/*/*/*.parts"))


@pytest.mark.parametrize("has_room", [True, False])
def test_threads_read_parts_as_one_alone_does(
    has_room: bool, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also past the cache, where what is read is forgotten again and again."""
    build(where, 25)
    queries = [f"word{i} word{i + 1}" for i in range(0, 48, 4)]

    def ask(opened: Retriever, query: str) -> list[tuple[Any, ...]]:
        hits = opened.search(query, k=9, unit="passage", filter={"year": {"$gte": 2003}})
        return [(hit.id, hit.span, hit.score, hit.text) for hit in hits]

    with Retriever.load(where, model=MODEL) as opened:
        expected = [ask(opened, query) for query in queries]
    monkeypatch.setenv("AVEYB_INDEX_CACHE_WHOLE", "0")
    other_machine(monkeypatch, tmp_path, "parts")
    monkeypatch.setattr(remote_blocks, "BLOCK_BYTES", 256)
    monkeypatch.setattr(remote_blocks, "MAX_MEMORY_BLOCKS", 4)
    with Retriever.load(where, model=MODEL) as opened, ThreadPoolExecutor(8) as threads:
        if not has_room:
            monkeypatch.setattr(remote_blocks.Cache, "make_room", unroomy)
        assert list(threads.map(partial(ask, opened), queries)) == expected


def unroomy(*arguments: Any) -> None:
    raise ConfigError("full")


def test_searches_follow_and_never_wait_for_the_store(
    where: str, weather: Weather, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(where)
    with Retriever.load(where, model=MODEL) as opened:
        upsert(where, "zeppelin")
        assert opened.version == "v000001"
        monkeypatch.setattr(local, "_LOOK_SECONDS", 0.0)
        asked, go = threading.Event(), threading.Event()
        weather.hook = lambda number: (asked.set(), go.wait(10))  # type: ignore[assignment]
        # while the store has not answered
        assert opened.search("zeppelin", k=1)[0].id != "zeppelin"
        assert asked.wait(10)
        go.set()
        for thread in threading.enumerate():
            if thread.name == "follow-index":
                thread.join()
        assert opened.search("zeppelin", mode="lexical")[0].id == "zeppelin"
        monkeypatch.setattr(local, "_LOOK_WAIT_SECONDS", -1.0)
        weather.clear()
        upsert(where, "later")
        assert opened.search("later", mode="lexical")[0].id == "later"
        weather.fails = 1.0
        monkeypatch.setattr(objects, "_RETRIES", {"max_retries": 0})
        objects._opened.cache_clear()
        assert opened.search("later", mode="lexical")[0].id == "later"


def test_an_opening_reads_one_build_though_another_becomes_visible(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(where)
    with Retriever.load(where, model=MODEL) as opened:
        upsert(where, "late")
        held = snapshot.hold_visible

        def meanwhile(directory: IndexDirectory) -> Any:
            monkeypatch.setattr(snapshot, "hold_visible", held)
            version = held(directory)
            build_index([{"_id": "other", "text": "word"}], where, model=MODEL, overwrite=True)
            assert opened.is_stale  # another thread looks
            return version

        monkeypatch.setattr(snapshot, "hold_visible", meanwhile)
        opened.reopen()
        assert len(opened) == 31
        assert opened.get(["late"])[0].text == "a document called late"
        opened.reopen()
        assert [document.id for document in opened.documents()] == ["other"]


def test_an_index_sees_what_it_writes(where: str) -> None:
    with Index.open(where, model=MODEL, create=True) as index:
        index.add([{"_id": "a", "text": "the first"}])
        assert [hit.id for hit in index.search("first", mode="lexical")] == ["a"]
        with index.batch() as batch:
            batch.delete(["a"])
            batch.upsert([{"_id": "b", "text": "the second"}])
        assert {each.id for each in index.documents()} == {"b"}
        index.compact()
        assert problems_of(index.path) == []


def test_a_damaged_cache_is_mended_and_a_damaged_store_is_told(where: str, tmp_path: Path) -> None:
    build(where)
    ids(where)
    (cached,) = (path for path in (tmp_path / "cache").glob("*/????????/passages/*.arrow"))
    cached.write_bytes(b"x" * cached.stat().st_size)
    assert len(ids(where)) == 30
    name = f"passages/{cached.name}"
    ObjectStore.at(where).remove([name])
    assert any(f"{where}/{name}: missing" in problem for problem in verify_index(where).problems)
    cached.unlink()
    for other in (tmp_path / "cache").glob("*/writing/passages/*"):
        other.unlink()
    with pytest.raises(
        IndexFormatError,
        match=re.escape(f"{where}/{name}: missing; copy a sound index there again"),
    ):
        ids(where)


def test_the_cache_is_bounded(where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    second = f"{where}.2"
    for each in (where, second):
        build(each)
        ids(each)
    size = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
    copies = {path.parent.parent.name for path in (tmp_path / "cache").glob("*/*/versions")}
    monkeypatch.setenv("AVEYB_INDEX_CACHE", str(tmp_path / "small"))
    monkeypatch.setenv("AVEYB_INDEX_CACHE_LIMIT", str(size // 3))
    for each in (where, second, where):
        assert len(ids(each)) == 30
    assert len(copies) == 2
    assert len(list((tmp_path / "small").glob("*/*/versions"))) == 1
    monkeypatch.setenv("AVEYB_INDEX_CACHE_LIMIT", "1000")
    with pytest.raises(ConfigError, match="--cache-limit"):
        ids(second)


# --- writing -------------------------------------------------------------------------------------


def test_a_second_writer_is_told_who_is_first_and_takes_over_where_that_one_is_gone(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build(where)
    with place.StoredDirectory(where).lease(1) as held:
        held._ended.set()  # it renews nothing any more
        with monkeypatch.context() as changed:
            other_machine(changed, tmp_path)
            with pytest.raises(
                IndexLockedError, match=r"another writer is at work \(pid \d+ on .*wait longer"
            ):
                upsert(where, "late", wait=0.1)
            changed.setattr(objects, "LEASE_TAKEN_SECONDS", 0.2)
            changed.setattr(objects, "_LOOK_SECONDS", 0.05)
            upsert(where, "late", wait=5)
        with pytest.raises(IndexLockedError, match="could not renew its lease"):
            held._renew()
            held.check()
    assert "late" in ids(where)


def test_a_writer_that_lost_its_lease_publishes_nothing(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build(where)
    send, taken = place.send_version, []

    def stalled(*arguments: Any) -> int:
        if not taken:
            taken.append(True)
            arguments[-1]._ended.set()
            with monkeypatch.context() as changed:
                other_machine(changed, tmp_path)
                changed.setattr(objects, "LEASE_TAKEN_SECONDS", -1.0)
                upsert(where, "winner")
        return send(*arguments)

    monkeypatch.setattr(place, "send_version", stalled)
    with pytest.raises(
        IndexLockedError, match=r"nothing of this change is visible|could not renew"
    ):
        upsert(where, "loser")
    assert {"winner"} == ids(where) - {row["_id"] for row in make_documents(30)}
    upsert(where, "loser")
    assert {"winner", "loser"} <= ids(where)
    assert problems_of(where) == []


class Killed(BaseException):
    """What stands for SIGKILL: nothing that the package catches."""


class Dying:
    """A client of the store that is killed at its n-th request, and every one after."""

    def __init__(self, client: Any, left: int) -> None:
        self.client, self.left = client, left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        if name == "exceptions":
            return found

        def ask(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Killed
            return found(*arguments, **options)

        return ask


@pytest.mark.slow
def test_writers_killed_at_any_request_lose_nothing_and_leave_nothing(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(where, 5)
    monkeypatch.setattr(place, "KEPT_SECONDS", -1.0)
    acknowledged = {f"doc-{i}" for i in range(5)}
    with Retriever.load(where, model=MODEL) as reader:
        for turn in range(0, 40, 3):
            objects._opened.cache_clear()
            store = ObjectStore.at(where)
            store._obstore = Dying(store._obstore, turn)
            try:
                upsert(where, f"k{turn}")
                acknowledged.add(f"k{turn}")
            except Killed:
                pass
            objects._opened.cache_clear()
            assert {hit.id for hit in reader.search("word1", k=50, mode="dense")} >= {
                f"doc-{i}" for i in range(5)
            }
            assert acknowledged <= ids(where)
            if f"k{turn}" in acknowledged:
                break
        assert turn > 9
        upsert(where, "last")
        one_change.upsert([{"_id": "last", "text": "again"}], where, model=MODEL)
    assert problems_of(where) == []
    objects._opened.cache_clear()
    with place.StoredDirectory(where).lease(1) as held:
        place.clean_store(ObjectStore.at(where), read_manifest(where), held)
    manifest = read_manifest(where)
    assert names_in(where) == {
        "current",
        "lease",
        f"versions/{manifest.name}.json",
        *manifest.files,
    }


def test_a_build_that_was_interrupted_goes_on(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Transaction.publish

    def fail(transaction: Transaction) -> Manifest:
        transaction.save()
        raise EngineError("the store is gone")

    monkeypatch.setattr(Transaction, "publish", fail)
    with pytest.raises(EngineError, match="gone"):
        build(where)
    monkeypatch.setattr(Transaction, "publish", publish)
    model = FakeEmbedder()
    report = build_index(make_documents(30), where, model=model)
    assert report.resumed
    assert model.encoded_words == 0
    assert len(ids(where)) == 30


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [{"fails": 0.2}, {"cuts": 0.2}, {"forgets": True}])
def test_a_store_with_troubles_loses_nothing(
    trouble: dict[str, Any], where: str, weather: Weather
) -> None:
    build(where, 10)
    vars(weather).update(trouble)
    acknowledged, reader = set(), Retriever.load(where, model=MODEL)
    for turn in range(5):
        try:
            upsert(where, f"t{turn}")
            acknowledged.add(f"t{turn}")
        except AveyBError as error:
            assert "\n" not in str(error)
        assert reader.search("word1", k=1)
    weather.clear()
    assert len(acknowledged) > 2
    assert acknowledged <= ids(where)
    assert problems_of(where) == []


def test_one_of_two_writers_wins_each_time(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both believe that they hold the lease: the condition on `current` lets one of
    them publish.
    """
    build(where, 5)
    store = ObjectStore.at(where)
    for turn in range(10):
        pointer, start, won = store.read("current"), threading.Barrier(2), []
        assert pointer is not None

        def write(
            name: bytes, pointer: objects.StoredObject = pointer, start: Any = start, won: Any = won
        ) -> None:
            start.wait()
            if store.replace("current", name, pointer.mark) is not None:
                won.append(name)

        writers = [
            threading.Thread(target=write, args=(f"v{turn:06d}-{x * 8}\n".encode(),)) for x in "ab"
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        found = store.read("current")
        assert found is not None
        assert [found.data] == won


def test_a_store_without_conditional_writes_is_refused(where: str, weather: Weather) -> None:
    weather.ignores = True
    with pytest.raises(EngineError, match="no conditional writes"):
        build(where)
    assert names_in(where) == set()


# --- copies --------------------------------------------------------------------------------------


def test_copies_carry_only_what_is_missing(where: str, weather: Weather, tmp_path: Path) -> None:
    here, back = tmp_path / "here", tmp_path / "back"
    build(here, 40)
    first = copy_index(here, where)
    assert first.copied == first.bytes
    assert copy_index(here, where).copied == 0
    upsert(here, "more")
    assert 0 < copy_index(here, where).copied < first.bytes / 2
    down = copy_index(where, back)
    assert down.copied == down.bytes
    next((back / "texts").iterdir()).unlink()
    assert 0 < copy_index(where, back).copied < down.bytes
    assert ids(back) == ids(here) == ids(where)
    assert problems_of(back) == []
    assert copy_index(where, f"{where}.2").copied == down.bytes
    upsert(back, "changed here, too")
    upsert(where, "and there")
    with pytest.raises(ConfigError, match="both were changed since"):
        copy_index(back, where)
    build(tmp_path / "other", 3)
    for target in (where, back):
        with pytest.raises(
            ConfigError, match="another index is already there; replace it with --overwrite"
        ):
            copy_index(tmp_path / "other", target)
        copy_index(tmp_path / "other", target, overwrite=True)
        assert len(ids(target)) == 3
    upsert(where, "after a copy")
    assert len(ids(where)) == 4


def test_an_interrupted_copy_is_not_seen_and_goes_on(where: str, tmp_path: Path) -> None:
    build(tmp_path / "here", 40)
    store = ObjectStore.at(where)
    store._obstore = Dying(store._obstore, 20)
    with pytest.raises(Killed):
        copy_index(tmp_path / "here", where)
    objects._opened.cache_clear()
    with pytest.raises(IndexFormatError, match="no index here"):
        Retriever.load(where)
    report = copy_index(tmp_path / "here", where)
    assert report.copied < report.bytes
    assert ids(where) == ids(tmp_path / "here")


# --- what is refused -----------------------------------------------------------------------------


def test_what_cannot_be_is_one_line_without_secrets(
    where: str, weather: Weather, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build(where, 3)

    def said(*arguments: str) -> str:
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2, result.output
        assert SECRET not in result.output
        assert len(result.output.strip().splitlines()) == 1
        return result.output

    assert "no index here" in said("search", f"{where}.none", "x")
    assert "no such bucket" in said("info", "s3://nobucket/x.index")
    assert "no such bucket" in said("delete", "s3://nobucket/x.index", "d1")
    assert "credentials in it" in said("info", f"s3://AKIA:{SECRET}@shelf/x.index")
    for address in (
        f"s3://shelf/x?sig={SECRET}",
        f"az://shelf/x#{SECRET}",
        f"https://AKIA:{SECRET}@shelf/x",
    ):
        assert ":" in said("info", address)
        assert ":" in said("copy", where, address)
    assert "write it as s3://BUCKET/PATH" in said("info", "s3://shelf")
    for command in (
        ("add", where, "a question", "--name", "a"),
        ("list", where),
        ("remove", where, "a"),
    ):
        assert "saved questions are kept in folders" in said("alerts", *command)
    assert "cannot be written" in said("count", where, "--cache", "/proc/none")
    monkeypatch.setenv("AVEYB_INDEX_CACHE", str(tmp_path / "cache"))
    store = ObjectStore.at(where)
    (name,) = (name for name in names_in(where) if name.startswith("versions/"))
    found, pointer = store.read(name), store.read("current")
    assert found is not None
    assert pointer is not None
    body = json.loads(found.data) | {"format": 4}
    store.replace(name, json.dumps(body).encode(), found.mark)
    monkeypatch.setenv("AVEYB_INDEX_CACHE", str(tmp_path / "fresh"))
    assert f"{where}/{name}: format 4" in said("info", where)
    with pytest.raises(ConfigError, match="give it as a string"):
        IndexDirectory(tmp_path.__class__("s3://shelf/x"))


def _xml(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code} of arn:aws:iam::1:user/x</Message></Error>".encode()  # noqa: E501


@pytest.mark.parametrize("whole", ["0", "268435456"])
@pytest.mark.parametrize(
    ("failure", "line"),
    [
        ((403, _xml("AccessDenied")), "no right to do this (AccessDenied)"),
        ((403, _xml("InvalidAccessKeyId")), "no right to do this (InvalidAccessKeyId)"),
        ((301, _xml("PermanentRedirect")), "the bucket is in another region; set AWS_REGION"),
        (
            (400, _xml("AuthorizationHeaderMalformed")),
            "the bucket is in another region; set AWS_REGION",
        ),
    ],
    ids=["no rights", "no such key", "another region", "signed for another region"],
)
def test_what_a_store_refuses_is_one_line_of_every_command(
    failure: tuple[int, bytes],
    line: str,
    whole: str,
    where: str,
    weather: Weather,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.setenv("AVEYB_INDEX_CACHE_WHOLE", whole)
    build(where, 3)
    build(tmp_path / "here", 3)
    monkeypatch.setenv("AVEYB_INDEX_CACHE", str(tmp_path / "fresh"))
    weather.fails, weather.failure = 1.0, failure
    (tmp_path / "c.jsonl").write_text('{"_id": "n", "text": "new"}\n')
    for command in (
        ("info", where),
        ("search", where, "word1"),
        ("delete", where, "doc-1"),
        ("verify", where),
        ("copy", str(tmp_path / "here"), where),
        ("check", where, str(tmp_path / "c.jsonl")),
    ):
        done = CliRunner().invoke(main, command)
        assert (done.exit_code, line in done.output, SECRET in done.output) == (2, True, False), (
            command,
            done.output,
        )
        assert len(done.output.strip().splitlines()) == 1, done.output


def test_a_store_that_asks_for_rights(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto looks at who asks, once it is told to."""
    build(where, 3)
    with monkeypatch.context() as context:
        context.setattr("moto.core.authorization.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0)
        with pytest.raises(EngineError, match="no right to do this") as error:
            ids(where)
    assert SECRET not in str(error.value)
    assert "\n" not in str(error.value)
    assert len(ids(where)) == 3


def test_a_cache_that_is_full_is_one_line(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build(where, 3)
    monkeypatch.setenv("AVEYB_INDEX_CACHE", str(tmp_path / "full"))

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ObjectStore, "fetch", full)
    for command in (("search", where, "x"), ("delete", where, "doc-1"), ("count", where)):
        done = CliRunner().invoke(main, command)
        assert (done.exit_code, len(done.output.strip().splitlines())) == (2, 1), done.output
        assert (
            f"{tmp_path / 'full'}: the cache of stored indexes cannot be written (No space left"
            in done.output
        )


def test_what_is_missing_in_a_store_is_named_with_the_remedy(where: str, tmp_path: Path) -> None:
    build(where, 3)
    copy_index(where, tmp_path / "good")
    store = ObjectStore.at(where)
    lost = next(name for name in names_in(where) if name.startswith("texts/"))
    store.remove([lost])
    for options in ((), ("--repair",)):
        done = CliRunner().invoke(main, ["verify", where, *options])
        assert done.exit_code != 0 and f"{where}/{lost}: missing" in done.output, done.output
        assert "Traceback" not in done.output
    assert "aveyb-index copy" in done.output
    assert CliRunner().invoke(main, ["copy", str(tmp_path / "good"), where]).exit_code == 0
    assert CliRunner().invoke(main, ["verify", where]).exit_code == 0


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("403 Forbidden: <Code>AccessDenied</Code>", "no right to do this (AccessDenied)"),
        ("301 Moved Permanently", "in another region; set AWS_REGION"),
        (
            "500 Internal Server Error: <Code>InternalError</Code>",
            "the store failed (500 Internal Server Error",
        ),
    ],
)
def test_errors_of_a_store_are_told_in_a_line(answer: str, line: str, where: str) -> None:
    error = ObjectStore.at(where)._error(
        "current", OSError(f"Error - Server returned non-2xx status code: {answer}\n")
    )
    assert line in str(error)
    assert "\n" not in str(error)


def test_a_server_follows_a_stored_index(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "aveyb_retrieval.server.indexes.load_recorded", lambda *places, **options: MODEL
    )
    build(where, 3)
    served = Indexes.open({"there": where})
    assert served.model is not None
    upsert(where, "new")
    served.follow()
    assert served.failures == {}
    assert served.retrievers["there"].get(["new"])[0].id == "new"
    served.close()
