"""Processes that search answer as threads do, follow as they do, are replaced when they end, end
with the server.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import httpx2
import pytest
from starlette.testclient import TestClient

from aveyb_retrieval import ConfigError, build_index
from aveyb_retrieval.errors import InputError, OptionalDependencyError
from aveyb_retrieval.server import processes
from aveyb_retrieval.server.app import create_app
from aveyb_retrieval.server.indexes import Indexes
from aveyb_retrieval.server.keys import KeyFile
from aveyb_retrieval.server.limits import ServerLimits
from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.server.tickets import Pool, Ticket
from tests import one_change
from tests.indexes.conftest import make_documents
from tests.server.conftest import CountingEmbedder, running
from tests.server.test_search import wait_for

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="needs Linux, to see processes"
)
READ, WRITE = "legal-0123456789", "writer-0123456789"
KEYS = [
    {"name": "legal", "key": READ, "filter": {"team": "legal"}},
    {"name": "all", "key": WRITE, "rights": ["search", "read", "write", "admin"]},
]
DOCUMENTS = [
    {
        "_id": f"d{i}",
        "text": f"Valve {i} opens. The pump stops.",
        "team": "legal" if i % 2 else "sales",
    }
    for i in range(9)
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    build_index(DOCUMENTS, folder / "a")
    build_index(DOCUMENTS[:3], folder / "b")
    (folder / "keys").write_text(json.dumps({"keys": KEYS}))
    return folder


@pytest.fixture(scope="module")
def server(paths):
    with running(paths / "a", paths / "b", "--keys", paths / "keys", "--processes", "2") as started:
        yield started
        pids = children(started)
        for pid in pids:
            os.kill(pid, signal.SIGTERM)  # as service managers do
        assert children(started) == pids
    assert started.process.returncode == 0
    wait_for(lambda: gone(pids))


def children(server):
    tasks = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    found = [pid for task in tasks for pid in task.read_text().split()]
    return sorted(
        int(pid) for pid in found if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    )


def gone(pids):
    return not any(
        Path(f"/proc/{pid}/cmdline").is_file() and Path(f"/proc/{pid}/cmdline").read_text()
        for pid in pids
    )


def search(server, key=WRITE, **fields):
    return httpx2.post(
        f"{server.url}/search", json=fields, headers={"Authorization": f"Bearer {key}"}, timeout=60
    )


def test_answers_and_errors_are_those_of_one_process(server, paths):
    alone = TestClient(
        create_app(
            Indexes.open({name: paths / name for name in "ab"}), keys=KeyFile(paths / "keys")
        )
    )
    asked = [
        {"query": "which valve?", "index": "a", "k": 3},
        {"query": ["valve 1", "pump"] * 5, "indexes": ["a", "b"], "text": True},
        {"query": "valve", "index": "a", "facets": ["team"], "filter": {"team": "sales"}},
        {"query": "valve", "index": "a", "filter": {"teem": 1}},
        {"query": "valve", "index": "a", "filter": {"$nor": 1}},
        {"query": "valve", "index": "a", "mode": "loud"},
        {"query": "valve", "index": "a", "k": 2, "cursor": "2-0123456789abcdef"},
        {"query": "valve", "index": "c"},
    ]
    with alone:
        for key in (READ, WRITE):
            for fields in asked:
                expected = alone.post(
                    "/search", json=fields, headers={"Authorization": f"Bearer {key}"}
                )
                got = search(server, key, **fields)
                assert (got.status_code, got.json()) == (expected.status_code, expected.json())
    first = search(server, query="valve", index="a", k=2).json()
    second = search(server, query="valve", index="a", k=2, cursor=first["next"]).json()
    assert not {hit["id"] for hit in first["hits"]} & {hit["id"] for hit in second["hits"]}


def test_what_was_written_is_found_by_the_next_search_and_what_others_write_soon(server, paths):
    for number in range(4):  # in either process
        httpx2.put(
            f"{server.url}/documents?index=a",
            json={"_id": f"new{number}", "text": f"A zygomorphic flange {number}."},
            headers={"Authorization": f"Bearer {WRITE}"},
            timeout=60,
        ).raise_for_status()
        found = search(server, query="zygomorphic", index="a").json()["hits"]
        assert f"new{number}" in {hit["id"] for hit in found}
    one_change.upsert([{"_id": "new", "text": "A zygomorphic flange."}], paths / "b")
    wait_for(
        lambda: search(server, query="zygomorphic", index="b").json()["hits"][0]["id"] == "new"
    )


def test_a_process_that_is_killed_fails_its_own_search_alone_and_is_replaced(server):
    killed = children(server)
    os.kill(killed[0], signal.SIGKILL)
    answers = [search(server, query="valve", index="a") for _ in range(6)]
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [503]
    assert [a.json()["error"] for a in answers if a.status_code == 503] == [
        "a process that searches has ended (SIGKILL); ask again"
    ]
    assert len(children(server)) == 2
    assert len(set(children(server)) & set(killed)) == 1


def test_none_outlives_a_server_that_is_killed(paths):
    with running(paths / "b", "--processes", "2") as server:
        pids = children(server)
        assert len(pids) == 2
        server.process.kill()
        wait_for(lambda: gone(pids))


ERRORS = [
    Refusal(404, "none", "model_not_found"),
    InputError("a line"),
    OptionalDependencyError("faiss", "cpu", "it"),
]


def fail(indexes, ticket, number):
    raise ERRORS[number] if number < len(ERRORS) else KeyError("a bug")


def sleep(indexes, ticket, seconds):
    time.sleep(seconds)
    indexes.model.encode_queries(["a"])  # which looks at the ticket
    return sorted(indexes.retrievers), ticket.only


def ticket(seconds=30.0):
    made = Ticket("somebody", Pool(), ServerLimits(timeout=seconds), None)
    made.only = {"team": "legal"}
    return made


def test_errors_arrive_as_they_are_and_too_long_work_is_ended(paths, monkeypatch):
    workers = processes.Processes(2, Indexes.open({"b": paths / "b"}))
    try:
        for number, error in enumerate(ERRORS):
            with pytest.raises(type(error)) as caught:
                workers.call(fail, ticket(), number)
            assert (str(caught.value), vars(caught.value)) == (str(error), vars(error))
        with pytest.raises(RuntimeError, match=r"in fail\n(.|\n)*KeyError: 'a bug'"):  # for the log
            workers.call(fail, ticket(), len(ERRORS))
        with pytest.raises(Refusal, match=r"took longer than the 0\.2 s"):
            workers.call(sleep, ticket(0.2), 0.3)
        monkeypatch.setattr(processes, "_OVERTIME_SECONDS", 0.0)
        with pytest.raises(Refusal, match="has ended"):
            workers.call(sleep, ticket(0.2), 600)
        assert workers.call(sleep, ticket(), 0) == (["b"], {"team": "legal"})
    finally:
        workers.close()


def test_a_loaded_model_is_refused(paths):
    build_index(make_documents(3), paths / "fake", model=CountingEmbedder())
    with pytest.raises(
        ConfigError, match="processes=2: each loads the model; give its folder or name"
    ):
        create_app(
            Indexes.open({"fake": paths / "fake"}, model=CountingEmbedder()),
            limits=ServerLimits(processes=2),
        )


def test_a_process_moves_to_another_model_when_the_server_has(tmp_path, monkeypatch):
    models = {each.fingerprint: each for each in (CountingEmbedder(), CountingEmbedder(seed="b"))}
    monkeypatch.setattr(
        "aveyb_retrieval.server.indexes.load_recorded",
        lambda places, described, **_: models[described["fingerprint"]],
    )
    first, second = models.values()
    build_index(make_documents(3), tmp_path / "a", model=first)
    indexes = Indexes.open({"a": tmp_path / "a"})
    build_index(make_documents(3), tmp_path / "a", model=second, overwrite=True)
    told = processes._answer(
        lambda: indexes, {"a": "another"}, lambda found, _: found.model.fingerprint, None
    )
    assert told == (second.fingerprint, None)
    indexes.close()
