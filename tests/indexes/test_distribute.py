"""Shards in the hands of workers that die, without Ray: the same shards, whoever made them."""

from __future__ import annotations

import pickle
import socket
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Embedder, EngineError, OptionalDependencyError, RayCluster, encode_corpus
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.model import load_model
from aveyb_retrieval.indexes.shards import ray_cluster, ray_workers
from aveyb_retrieval.indexes.shards import shard as shard_file
from aveyb_retrieval.indexes.shards.distribute import ATTEMPTS, Distribution, Done, Lost, Ready, Status
from aveyb_retrieval.indexes.shards.encoder import EncodeJob, ShardEncoder
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.ray_workers import RayWorkers
from aveyb_retrieval.indexes.types import silent
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder
from tests.indexes.test_shards import Interrupted, contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aveyb_retrieval.indexes.shards.shard import ShardManifest

OF = 6


def make_job(out: Path, rows: list[dict[str, Any]], embedder: FakeEmbedder) -> EncodeJob:
    return EncodeJob(rows, str(out), OF, {"model": embedder})


class Here:
    """Workers in this process, one of which dies now and then: `dies(worker, shard)` says after how many documents."""

    def __init__(self, job: EncodeJob, count: int, dies: Callable[[int, int], int | None] = lambda *_: None) -> None:
        self.job = job
        self.dies = dies
        self.events: list[Ready | Status | Done | Lost] = [Ready(n) for n in range(count)]
        self.next = count
        self.assigned: list[int] = []
        self.encoded = 0

    def assign(self, worker: int, shard: int) -> None:
        self.assigned.append(shard)
        after = self.dies(worker, shard)
        embedder = Interrupted(after) if after is not None else FakeEmbedder()
        encoder = ShardEncoder(replace(self.job, options={"model": embedder}), silent)
        try:
            manifest = encoder.encode(shard, log=False)
        except KeyboardInterrupt:
            at = encoder.at
            self.events.append(Status(worker, shard, encoder.encoded, 0, repr(at.id) if at else ""))
            self.events += [Lost(worker, "killed"), Ready(self.next)]
            self.next += 1
        else:
            self.events.append(self.done(worker, manifest, encoder.encoded))
        self.encoded += encoder.encoded

    def done(self, worker: int, manifest: ShardManifest, encoded: int) -> Done:
        return Done(worker, manifest, encoded, 0, "here")

    def wait(self, unfinished: int) -> Iterator[Ready | Status | Done | Lost]:
        assert self.events, "nobody would ever wake up"
        while self.events:
            yield self.events.pop(0)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_file, "PART_DOCUMENTS", 10)


@pytest.fixture
def job(tmp_path: Path, embedder: FakeEmbedder) -> EncodeJob:
    rows = make_documents(120)
    encode_corpus(rows, tmp_path / "alone", of=OF, model=embedder)
    return make_job(tmp_path / "shards", rows, embedder)


def run(workers: Here, progress: Any = silent) -> tuple[list[ShardManifest], int]:
    shards = Distribution(workers, Place(workers.job.out), OF, progress)
    return shards.run(), shards.encoded


def test_workers_make_the_shards_of_one_process(job: EncodeJob, tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []
    workers = Here(job, 3)
    manifests, encoded = run(workers, lambda *news: seen.append(news))
    assert [manifest.shard for manifest in manifests] == list(range(1, OF + 1))
    assert encoded == 120
    assert sorted(workers.assigned) == list(range(1, OF + 1))
    assert contents(tmp_path / "shards") == contents(tmp_path / "alone")
    assert seen[-1][:3] == ("encoding", 120, 120)


def test_the_shard_of_a_lost_worker_is_continued_by_another(job: EncodeJob, tmp_path: Path) -> None:
    workers = Here(job, 2, lambda worker, shard: 13 if worker == 1 else None)
    run(workers)
    assert len(workers.assigned) == OF + 1
    assert workers.encoded == 120 + 3  # ten of the thirteen were a part, and are not encoded again
    assert contents(tmp_path / "shards") == contents(tmp_path / "alone")


def test_what_is_complete_is_not_encoded_again(job: EncodeJob, embedder: FakeEmbedder, tmp_path: Path) -> None:
    encode_corpus(job.corpus, job.out, shard=2, of=OF, model=embedder)
    workers = Here(job, 2)
    _, encoded = run(workers)
    assert encoded == workers.encoded < 120
    assert contents(tmp_path / "shards") == contents(tmp_path / "alone")


def test_a_shard_over_which_workers_die_is_given_up(job: EncodeJob) -> None:
    workers = Here(job, 2, lambda worker, shard: 4 if shard == 3 else None)
    with pytest.raises(
        EngineError, match=rf"shard 3/{OF}: {ATTEMPTS} workers died over it; the last one: killed. It .* 'doc-"
    ):
        run(workers)


def test_a_shard_that_is_written_elsewhere_is_seen(job: EncodeJob, tmp_path: Path) -> None:
    shards = Distribution(Here(job, 2), Place(tmp_path / "other"), OF, silent)
    with pytest.raises(
        InputError, match=r"was written on the node here, but is not here; give a folder that all nodes"
    ):
        shards.run()


def test_workers_that_read_different_corpora_are_seen(job: EncodeJob, tmp_path: Path) -> None:
    class Different(Here):
        def assign(self, worker: int, shard: int) -> None:
            self.job = replace(self.job, corpus=make_documents(120, seed=worker))
            super().assign(worker, shard)

    with pytest.raises(InputError, match="are of different corpora; every node must read the same files"):
        run(Different(job, 2))


def test_what_a_worker_refuses_ends_the_call(job: EncodeJob) -> None:
    run(Here(job, 2))
    with pytest.raises(ConfigError, match="encoded from another corpus"):
        run(Here(replace(job, corpus=make_documents(30)), 2))


NODES = [
    {"Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0, "GPU": 1.0}},
    {"Alive": True, "NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 2.0}},
    {"Alive": False, "NodeManagerAddress": "10.0.0.3", "Resources": {"CPU": 64.0, "GPU": 8.0}},
]


class TestCluster:
    @pytest.mark.parametrize(
        ("cluster", "room"),
        [
            (RayCluster(), 6),
            (RayCluster(cpus=0.5), 12),
            (RayCluster(cpus=3), 1),
            (RayCluster(cpus=0.1), 60),
            (RayCluster(gpus=1), 1),
            (RayCluster(gpus=0.25), 4),
            (RayCluster(cpus=5), 0),
        ],
    )
    def test_room(self, cluster: RayCluster, room: int) -> None:
        assert cluster.room(NODES) == room

    def test_actors(self) -> None:
        assert RayCluster().actors_for(NODES, 100) == 6
        assert RayCluster().actors_for(NODES, 4) == 4
        assert RayCluster(actors=3).actors_for(NODES, 100) == 3
        with pytest.raises(
            ConfigError,
            match=r"7 actors with cpus=1 .* has room for 6 \(10.0.0.1: CPU 4, GPU 1; 10.0.0.2: CPU 2, GPU 0\)",
        ):
            RayCluster(actors=7).actors_for(NODES, 100)
        with pytest.raises(ConfigError, match=r"1 actor with cpus=8"):
            RayCluster(cpus=8).actors_for(NODES, 100)
        with pytest.raises(ConfigError, match=r"3 actors for 2 shards"):
            RayCluster(actors=3).actors_for(NODES, 2)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"address": "nowhere"}, "the address 'nowhere' is none"),
            ({"address": "ray://head:10001"}, "is none; write local, auto, or HOST:PORT"),
            ({"actors": 0}, "actors=0"),
            ({"cpus": 0}, "cpus=0"),
            ({"gpus": -1}, "gpus=-1"),
            ({"gpus": 1.5}, "gpus=1.5"),
        ],
    )
    def test_what_cannot_be(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            RayCluster(**options)

    def test_a_device_without_gpus_and_gpus_without_a_device(self) -> None:
        with pytest.raises(ConfigError, match="gpus=0: Ray hides GPUs"):
            RayCluster().check_device("cuda")
        with pytest.raises(ConfigError, match="leaves them idle"):
            RayCluster(gpus=1).check_device("cpu")
        RayCluster(gpus=0.5).check_device("cuda:0")

    def test_an_address_without_a_cluster_is_an_error_at_once(self, tmp_path: Path, embedder: FakeEmbedder) -> None:
        pytest.importorskip("ray", reason="ray is not installed")
        with pytest.raises(EngineError, match=r"nothing answers at 127.0.0.1:1 "):
            encode_corpus(make_documents(3), tmp_path, of=2, model=embedder, ray=RayCluster("127.0.0.1:1"))

    @pytest.mark.parametrize(
        ("says", "message"), [(b"", "timed out"), (b"HTTP/1.1 400 Bad Request", "is no head of Ray")]
    )
    def test_what_listens_is_not_ray(
        self, says: bytes, message: str, tmp_path: Path, embedder: FakeEmbedder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("ray", reason="ray is not installed")
        monkeypatch.setattr(ray_cluster, "_ANSWER", 0.2)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()

            def answer() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(says)
                    connection.recv(100)
                    ended.wait(10)

            ended = threading.Event()
            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(EngineError, match=message):
                address = f"127.0.0.1:{listener.getsockname()[1]}"
                encode_corpus(make_documents(3), tmp_path, of=2, model=embedder, ray=RayCluster(address))
            ended.set()
            thread.join()

    def test_without_the_extra(self, tmp_path: Path, embedder: FakeEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(OptionalDependencyError, match=r"pip install 'aveyb-retrieval\[ray\]'") as raised:
            encode_corpus(make_documents(3), tmp_path, of=2, model=embedder, ray=RayCluster())
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)  # an actor may raise one, too

    def test_what_actors_cannot_read(self, tmp_path: Path, embedder: FakeEmbedder) -> None:
        with pytest.raises(ConfigError, match="cannot read this command's standard input"):
            encode_corpus("-", tmp_path, of=2, model=embedder, ray=RayCluster())
        with pytest.raises(ConfigError, match="corpus of type generator"):
            encode_corpus((row for row in make_documents(3)), tmp_path, of=2, model=embedder, ray=RayCluster())
        with pytest.raises(ConfigError, match="leave shard out"):
            encode_corpus(make_documents(3), tmp_path, shard=1, of=2, model=embedder, ray=RayCluster())


class FakeRay:
    """As much of Ray as `RayWorkers` uses; a test says which question is answered, and how."""

    class exceptions:
        class RayError(Exception): ...

        class RayTaskError(RayError): ...

    def __init__(self, cpus: float) -> None:
        self.cpus = cpus
        self.actors = 0
        self.killed: list[int] = []
        self.asked: dict[str, Any] = {}
        self.answers: list[tuple[str, Any]] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "NodeManagerAddress": "n", "Resources": {"CPU": self.cpus}}]

    def remote(self, cls: type) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.actor))

    def actor(self, *_: Any) -> Any:
        self.actors += 1
        number = self.actors
        asks = {
            what: SimpleNamespace(remote=lambda *a, w=what: f"{w} {number}") for what in ("start", "status", "encode")
        }
        return SimpleNamespace(number=number, **asks)

    def kill(self, actor: Any) -> None:
        self.killed.append(actor.number)

    def wait(self, questions: list[str], timeout: float) -> tuple[list[str], list[str]]:
        assert questions
        found = [question for question, _ in self.answers[:1] if question in questions]
        return found, []

    def get(self, question: str) -> Any:
        answered, answer = self.answers.pop(0)
        assert answered == question
        if isinstance(answer, Exception):
            raise answer
        return answer


class TestRayWorkers:
    @pytest.fixture
    def ray(self) -> FakeRay:
        return FakeRay(2)

    @pytest.fixture
    def workers(self, ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RayWorkers:
        monkeypatch.setattr(ray_workers, "_TICK", 0.0)
        return RayWorkers(ray, RayCluster(actors=2), make_job(tmp_path, [], FakeEmbedder()), 2)

    def test_an_actor_that_seems_to_be_gone_is_ended_and_replaced(self, ray: FakeRay, workers: RayWorkers) -> None:
        ray.answers = [("start 1", "10.0.0.1")]
        assert list(workers.wait(5)) == [Ready(1)]
        workers.assign(1, 4)
        ray.answers = [("status 1", ray.exceptions.RayError("unavailable"))]
        assert list(workers.wait(5)) == [Lost(1, "unavailable")]
        assert ray.killed == [1]
        ray.answers = [("encode 1", "too late")]
        assert list(workers.wait(5)) == []
        assert ray.actors == 3
        workers.close()
        assert ray.killed == [1, 2, 3]

    def test_no_more_actors_than_shards_that_are_left(self, ray: FakeRay, workers: RayWorkers) -> None:
        list(workers.wait(1))
        assert ray.actors == 1

    def test_without_a_node_it_ends(self, ray: FakeRay, workers: RayWorkers) -> None:
        ray.answers = [("start 1", "10.0.0.1")]
        list(workers.wait(5))
        ray.cpus = 0
        ray.answers = [("status 1", ray.exceptions.RayError("node died"))]
        list(workers.wait(5))
        with pytest.raises(EngineError, match="no node of the cluster with room for an actor is left"):
            list(workers.wait(5))

    def test_actors_that_die_before_they_are_ready(self, ray: FakeRay, workers: RayWorkers) -> None:
        with pytest.raises(EngineError, match="6 actors died before they were ready; the last one: no module"):
            for number in range(1, 10):
                ray.answers = [(f"start {number}", ray.exceptions.RayError("no module"))]
                list(workers.wait(5))

    def test_it_is_said_what_is_waited_for(
        self, ray: FakeRay, workers: RayWorkers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(ray_workers, "_PATIENCE", -1.0)
        ray.available_resources = lambda: {"CPU": 0.5}
        for _ in range(4):
            list(workers.wait(5))
        assert [record.getMessage() for record in caplog.records] == [
            "ray: no actor is ready yet; each needs cpus=1 and gpus=0 (free: 0.5 and 0), and loads its model"
        ]


def test_batch_tokens_reach_the_model(embedder: FakeEmbedder) -> None:
    model = load_model(None, batch_tokens=64)
    assert isinstance(model, Embedder)
    assert model.batch_tokens == 64
    with pytest.raises(ConfigError, match="batch_tokens=64 beside the loaded model"):
        load_model(embedder, batch_tokens=64)


def test_a_job_checks_itself(tmp_path: Path, embedder: FakeEmbedder) -> None:
    with pytest.raises(ConfigError, match="on_error='fix'"):
        encode_corpus([], tmp_path, model=embedder, on_error="fix")  # type: ignore[arg-type]
    for of, words in ((True, "must be a whole number"), (1.5, "must be a whole number"), (0, "counted from 1/N")):
        with pytest.raises(ConfigError, match=words):
            replace(make_job(tmp_path, [], embedder), of=of)  # type: ignore[arg-type]
