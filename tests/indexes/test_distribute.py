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
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.indexes.model import load_model
from aveyb_retrieval.indexes.shards import ray_cluster, ray_workers
from aveyb_retrieval.indexes.shards import shard as shard_file
from aveyb_retrieval.indexes.shards.encoder import EncodeJob
from aveyb_retrieval.indexes.shards.ray_workers import ATTEMPTS, Distribution, ShardActor
from aveyb_retrieval.indexes.types import silent
from tests.indexes.conftest import make_documents
from tests.indexes.test_shards import Interrupted, contents

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aveyb_retrieval.indexes.shards.shard import ShardManifest
    from tests.indexes.fake import FakeEmbedder

OF = 6


class FakeRay:
    """As much of Ray as `Distribution` uses, in this process: a call is made when its answer is asked for.

    `dies(shard)` says after how many documents an actor dies over a shard. Answers come in turn.
    """

    class exceptions:
        class RayError(Exception): ...

        class RayTaskError(RayError):
            @property
            def cause(self) -> BaseException | None:
                return self.__cause__

    util = SimpleNamespace(get_node_ip_address=lambda: "here")

    def __init__(self, dies: Callable[[int], int | None] = lambda _: None) -> None:
        self.cpus, self.dies = 8, dies
        self.corpora: list[Any] = []  # what one actor after the other reads, where it is not what all read
        self.actors = 0
        self.killed: list[int] = []
        self.assigned: list[int] = []
        self.encoded = 0

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "NodeManagerAddress": "n", "Resources": {"CPU": self.cpus}}]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.5}

    def remote(self, cls: type) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.actor))

    def actor(self, job: EncodeJob, *arguments: Any) -> Any:
        self.actors += 1
        job = replace(job, corpus=self.corpora.pop(0) if self.corpora else job.corpus)
        made = ShardActor(job, *arguments)

        def encode(shard: int) -> Any:
            self.assigned.append(shard)
            after = self.dies(shard)
            if after is not None:
                made._job, made._encoder = replace(job, options={"model": Interrupted(after)}), None
            before = made._encoder.encoded if made._encoder else 0
            try:
                return made.encode(shard)
            except KeyboardInterrupt as death:
                raise self.exceptions.RayError("killed") from death
            finally:
                self.encoded += made._encoder.encoded - before if made._encoder else 0

        calls = {"encode": encode, "status": made.status}
        asks = {
            what: SimpleNamespace(remote=lambda *given, call=call: lambda: call(*given)) for what, call in calls.items()
        }
        return SimpleNamespace(number=self.actors, **asks)

    def kill(self, actor: Any) -> None:
        self.killed.append(actor.number)

    def wait(self, questions: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        assert questions, "nobody would ever wake up"
        return questions[:1], []

    def get(self, question: Any) -> Any:
        try:
            return question()
        except self.exceptions.RayError:
            raise
        except Exception as error:
            raise self.exceptions.RayTaskError(str(error)) from error


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_file, "PART_DOCUMENTS", 10)


@pytest.fixture
def job(tmp_path: Path, embedder: FakeEmbedder, monkeypatch: pytest.MonkeyPatch) -> EncodeJob:
    monkeypatch.setattr(ray_workers, "_TICK", 0.0)
    rows = make_documents(120)
    encode_corpus(rows, tmp_path / "alone", of=OF, model=embedder)
    return EncodeJob(rows, str(tmp_path / "shards"), OF, {"model": embedder})


def run(
    job: EncodeJob, ray: FakeRay, actors: int | None = 2, progress: Any = silent
) -> tuple[list[ShardManifest], int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", ray)
        shards = Distribution(ray, RayCluster(actors=actors), job, progress)
        try:
            return shards.run(), shards.encoded
        finally:
            shards.close()


def test_workers_make_the_shards_of_one_process(job: EncodeJob, tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []
    ray = FakeRay()
    manifests, encoded = run(job, ray, 3, lambda *news: seen.append(news))
    assert [manifest.shard for manifest in manifests] == list(range(1, OF + 1))
    assert encoded == 120
    assert ray.assigned == list(range(1, OF + 1))
    assert contents(tmp_path / "shards") == contents(tmp_path / "alone")
    assert seen[-1][:3] == ("encoding", 120, 120)
    assert set(ray.killed) == {1, 2, 3}


def test_a_lost_shard_is_continued(job: EncodeJob, tmp_path: Path) -> None:
    left = iter([13])
    ray = FakeRay(dies=lambda shard: next(left, None))
    run(job, ray)
    assert ray.assigned[:3] == [1, 2, 1]
    assert (ray.actors, len(ray.assigned)) == (3, OF + 1)
    assert ray.encoded == 120 + 3  # ten of the thirteen were a part, and are not encoded again
    assert contents(tmp_path / "shards") == contents(tmp_path / "alone")


def test_what_is_complete_is_not_encoded_again(job: EncodeJob, embedder: FakeEmbedder, tmp_path: Path) -> None:
    encode_corpus(job.corpus, job.out, shard=2, of=OF, model=embedder)
    ray = FakeRay()
    _, encoded = run(job, ray)
    assert encoded == ray.encoded < 120
    assert contents(tmp_path / "shards") == contents(tmp_path / "alone")


def test_a_shard_over_which_workers_die_is_given_up(job: EncodeJob) -> None:
    ray = FakeRay(dies=lambda shard: 4 if shard == 3 else None)
    with pytest.raises(EngineError, match=rf"shard 3/{OF}: {ATTEMPTS} workers died over it; the last one: killed"):
        run(job, ray)


def test_it_is_said_at_which_document_a_worker_died(job: EncodeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardActor, "status", lambda self: (3, 4, 0, "'doc-7' (corpus, document 8)"))
    ray = FakeRay(dies=lambda shard: 4 if shard == 3 else None)
    with pytest.raises(EngineError, match=r"killed. It was last seen at the document 'doc-7' \(corpus, document 8\)"):
        run(job, ray, 1)


def test_a_shard_that_is_written_elsewhere_is_seen(job: EncodeJob, tmp_path: Path) -> None:
    ray = FakeRay()
    original = ray.actor
    ray.actor = lambda job, *given: original(replace(job, out=str(tmp_path / "other")), *given)  # type: ignore[method-assign]
    with pytest.raises(
        InputError, match=r"was written on the node here, but is not here; give a folder that all nodes"
    ):
        run(job, ray)


def test_workers_that_read_different_corpora_are_seen(job: EncodeJob, tmp_path: Path) -> None:
    ray = FakeRay()
    ray.corpora = [make_documents(120, seed=seed) for seed in (1, 2)]
    with pytest.raises(InputError, match="are of different corpora; every node must read the same files"):
        run(job, ray)


def test_what_a_worker_refuses_ends_the_call(job: EncodeJob) -> None:
    run(job, FakeRay())
    with pytest.raises(ConfigError, match=r"node here: .*encoded from another corpus"):
        run(replace(job, corpus=make_documents(30)), FakeRay())
    with pytest.raises(InputError, match=r"node here: .*nowhere.jsonl: no such file"):
        run(replace(job, corpus="nowhere.jsonl"), FakeRay())
    with pytest.raises(ModelError, match=r"node here: .*nowhere"):
        run(replace(job, options={"model": "nowhere"}), FakeRay())


def test_without_a_node_it_ends(job: EncodeJob) -> None:
    def nobody(shard: int) -> None:
        ray.cpus = 0

    ray = FakeRay(dies=nobody)
    with pytest.raises(EngineError, match="no node of the cluster with room for an actor is left"):
        run(job, ray)


def test_another_version_on_a_node(job: EncodeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    with pytest.raises(ConfigError, match=r"node here: this node has aveyb-retrieval .*, the command 0.0; install the"):
        ShardActor(job, ".", "0.0").encode(1)


def test_it_is_said_what_is_waited_for(
    job: EncodeJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_workers, "_PATIENCE", -1.0)
    ray = FakeRay()
    answered: list[int] = []

    def wait(questions: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        answered.append(len(questions))
        return (questions[:1], []) if len(answered) > 4 else ([], [])

    monkeypatch.setattr(ray, "wait", wait)
    run(job, ray)
    assert [record.getMessage() for record in caplog.records] == [
        "ray: no actor is ready yet; each needs cpus=1 and gpus=0 (free: 0.5 and 0), and loads its model"
    ]


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
        with pytest.raises(OptionalDependencyError, match=r"pip install .*\[ray\]'") as raised:
            encode_corpus(make_documents(3), tmp_path, of=2, model=embedder, ray=RayCluster())
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)  # an actor may raise one, too

    def test_what_actors_cannot_read(self, tmp_path: Path, embedder: FakeEmbedder) -> None:
        with pytest.raises(ConfigError, match="cannot read this command's standard input"):
            encode_corpus("-", tmp_path, of=2, model=embedder, ray=RayCluster())
        with pytest.raises(ConfigError, match="corpus of type generator"):
            encode_corpus((row for row in make_documents(3)), tmp_path, of=2, model=embedder, ray=RayCluster())
        with pytest.raises(ConfigError, match="leave shard out"):
            encode_corpus(make_documents(3), tmp_path, shard=1, of=2, model=embedder, ray=RayCluster())


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
            EncodeJob([], str(tmp_path), of, {})  # type: ignore[arg-type]
