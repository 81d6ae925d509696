"""Shards made by Ray's actors on two nodes: those of one process, whatever dies meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import RayCluster, Retriever, build_index, encode_corpus
from aveyb_retrieval.errors import ConfigError, EngineError, InputError
from tests.engines.ray_model import FATAL, POISON, LoggedModel, encoded, rows
from tests.indexes.test_shards import contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'aveyb-retrieval[ray]'")
pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
OF = 8
COUNT = 400
SLOW = 0.02  # seconds for each document


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes in processes of this machine, one CPU each, and this process connected to them."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=small)
    made.add_node(num_cpus=1, object_store_memory=100 << 20)
    ray.init(address=made.address, logging_level="warning", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


@pytest.fixture
def alone(tmp_path: Path, log: Path) -> dict[str, bytes]:
    """The shards that one process makes."""
    other = tmp_path / "log of one"
    other.mkdir()
    encode_corpus(rows(COUNT), tmp_path / "alone", of=OF, model=LoggedModel(other))
    return contents(tmp_path / "alone")


def shards_of(folder: Path) -> dict[str, bytes]:
    """All files but those that a killed process left half-written."""
    return {name: data for name, data in contents(folder).items() if not name.endswith(".tmp")}


def encode(out: Path, log: Path, seconds: float = 0.0, **options: Any) -> Any:
    given = {"corpus": rows(COUNT), "of": OF, "model": LoggedModel(log, seconds), **options}
    return encode_corpus(given.pop("corpus"), out, ray=RayCluster("auto", actors=2), **given)


def when(ready: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Do something as soon as something is true, beside what goes on."""

    def watch() -> None:
        until = time.monotonic() + 120
        while not ready() and time.monotonic() < until:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def amid_a_shard(log: Path) -> list[int]:
    """The processes of the actors that have begun a shard, and are not about to end it: killed now, they lose work."""
    size = COUNT // OF
    done = {int(file.name): len(file.read_text().split()) % size for file in log.iterdir()}
    return [process for process, documents in done.items() if 5 <= documents <= size // 2]


def parent(process: int) -> int | None:
    """The process that started it; None for one that has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return None


def print_twice(name: str, log: Path) -> int:
    """Print, and return, how many documents were encoded more than once."""
    counts = Counter(encoded(log))
    twice = sum(count - 1 for count in counts.values())
    print(f"\n{name}: {len(counts)} documents, {twice} encoded twice")
    assert len(counts) == COUNT
    return twice


def answers(root: Path, log: Path) -> list[Any]:
    with Retriever.load(root, model=LoggedModel(log)) as retriever:
        hits = retriever.search(["number7 word7", "word3 word1", "number11"], k=COUNT, mode="dense")
        return [sorted((h.id, round(h.score, 5)) for h in found) for found in hits]


def test_the_shards_of_two_nodes_are_those_of_one_process(
    cluster: Any, tmp_path: Path, log: Path, alone: dict[str, bytes]
) -> None:
    seen: list[tuple[Any, ...]] = []
    report = encode(tmp_path / "shards", log, 0.005, progress=lambda *news: seen.append(news))
    assert (report.documents, report.encoded, report.shards) == (COUNT, COUNT, tuple(range(1, OF + 1)))
    assert shards_of(tmp_path / "shards") == alone
    assert len(list(log.iterdir())) == 2  # both actors had something to do
    assert print_twice("undisturbed", log) == 0
    assert seen[-1][:3] == ("encoding", COUNT, COUNT)
    assert any(0 < done < COUNT for _, done, _, _ in seen)
    build_index(None, tmp_path / "from shards", vectors=tmp_path / "shards")
    build_index(rows(COUNT), tmp_path / "here", model=LoggedModel(log))
    found = answers(tmp_path / "from shards", log)
    assert found == answers(tmp_path / "here", log)
    assert [len({name for name, _ in hits}) for hits in found] == [COUNT] * 3  # no row twice
    assert encode(tmp_path / "shards", log).encoded == 0


def test_an_actor_is_killed(cluster: Any, tmp_path: Path, log: Path, alone: dict[str, bytes]) -> None:
    killer = when(lambda: bool(amid_a_shard(log)), lambda: os.kill(amid_a_shard(log)[0], signal.SIGKILL))
    report = encode(tmp_path / "shards", log, SLOW)
    killer.join()
    assert report.documents == COUNT
    assert shards_of(tmp_path / "shards") == alone
    assert 0 < print_twice("an actor killed", log) <= COUNT / OF * 2
    assert len(list(log.iterdir())) == 3  # another one came for it


def test_a_node_is_removed(cluster: Any, tmp_path: Path, log: Path, alone: dict[str, bytes]) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    cluster.wait_for_nodes()
    raylet = node.all_processes["raylet"][0].process.pid

    def busy_there() -> bool:
        return any(parent(process) == raylet for process in amid_a_shard(log))

    killer = when(busy_there, lambda: cluster.remove_node(node, allow_graceful=False))
    given = RayCluster("auto", actors=3)
    report = encode_corpus(rows(COUNT), tmp_path / "shards", of=OF, model=LoggedModel(log, SLOW), ray=given)
    killer.join()
    assert report.documents == COUNT
    assert shards_of(tmp_path / "shards") == alone
    assert 0 < print_twice("a node removed", log) <= COUNT / OF * 2


def test_the_driver_is_killed_and_started_again(
    cluster: Any, tmp_path: Path, log: Path, alone: dict[str, bytes]
) -> None:
    out = tmp_path / "shards"
    command = [sys.executable, "-m", "tests.engines.ray_model", cluster.address, out, log, COUNT, OF, SLOW]
    arguments = [str(part) for part in command]
    driver = subprocess.Popen(arguments, cwd=ROOT)
    until = time.monotonic() + 120
    while len(list(out.glob("*.json"))) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    complete = len(list(out.glob("*.json")))
    assert 3 <= complete < OF
    again = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    documents, now = map(int, again.stdout.split()[-2:])
    assert documents == COUNT
    assert now < COUNT * (OF - complete + 1) / OF  # what was complete is not encoded again
    assert shards_of(out) == alone
    assert print_twice("the driver killed", log) <= COUNT / OF * 2


def test_a_document_that_kills_every_actor_is_named(cluster: Any, tmp_path: Path, log: Path) -> None:
    bad = [{"_id": "bad", "text": f"{FATAL} word1"}]
    with pytest.raises(EngineError, match=r"shard \d/8: 3 workers died over it; the last one: "):
        encode(tmp_path / "shards", log, corpus=[*rows(20), *bad, *rows(60)[20:]])


def test_a_model_that_fails_names_the_document(cluster: Any, tmp_path: Path, log: Path) -> None:
    bad = [{"_id": "bad", "text": f"{POISON} word1"}]
    with pytest.raises(
        EngineError,
        match=r"node [\d.]+: shard \d/8 at the document 'bad' \(corpus, document 21\): RuntimeError: out of memory",
    ):
        encode(tmp_path / "shards", log, corpus=[*rows(20), *bad, *rows(60)[20:]])


def test_more_actors_than_the_cluster_has_room_for_are_refused_at_once(cluster: Any, tmp_path: Path, log: Path) -> None:
    started = time.monotonic()
    for wanted, message in (
        (RayCluster("auto", actors=50), "50 actors with cpus=1 and gpus=0 for each: the cluster has room for 2"),
        (RayCluster("auto", cpus=64), "1 actor with cpus=64"),
        (RayCluster("auto", gpus=1), "gpus=1, but device='cpu' leaves them idle"),
    ):
        with pytest.raises(ConfigError, match=message):
            encode_corpus(rows(3), tmp_path, of=100, model=LoggedModel(log), ray=wanted)
    with pytest.raises(ConfigError, match="with cpus=1 and gpus=1 for each"):
        encode_corpus(rows(3), tmp_path, of=100, device="cuda", ray=RayCluster("auto", gpus=1))
    assert time.monotonic() - started < 10


def test_what_the_workers_cannot_reach(cluster: Any, tmp_path: Path, log: Path) -> None:
    with pytest.raises(InputError, match=r"node [\d.]+: .*nowhere.jsonl: no such file"):
        encode(tmp_path / "shards", log, corpus=tmp_path / "nowhere.jsonl")
    with pytest.raises(InputError, match=r"memory://there: shard \d was written on the node .* is not here"):
        encode("memory://there", log)


def test_shards_of_another_model_or_corpus(cluster: Any, tmp_path: Path, log: Path) -> None:
    encode_corpus(rows(COUNT), tmp_path / "shards", of=OF, shard=3, model=LoggedModel(log, seed="b"))
    with pytest.raises(ConfigError, match=r"shard-0003-of-0008.json: encoded by another model or with other settings"):
        encode(tmp_path / "shards", log)
    encode_corpus(rows(COUNT - 1), tmp_path / "other", of=OF, shard=3, model=LoggedModel(log))
    with pytest.raises(ConfigError, match=r"shard-0003-of-0008.json: encoded from another corpus"):
        encode(tmp_path / "other", log)


def test_the_command_on_a_cluster_of_its_own(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(f'{{"_id": "{row["_id"]}", "text": "{row["text"]}"}}\n' for row in rows(40)))
    command = [sys.executable, "-m", "aveyb_retrieval.cli.index", "encode", "c.jsonl", "--of", "3"]
    once = {**os.environ, "OMP_NUM_THREADS": "1"}
    here = subprocess.run([*command, "-o", "here"], cwd=tmp_path, env=once, capture_output=True, text=True)
    assert here.returncode == 0, here.stderr
    there = subprocess.run(
        [*command, "-o", "there", "--ray", "local", "--actors", "2", "--cpus", "0.5", "--quiet"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert there.returncode == 0, there.stderr
    assert "shards all of 3: 40 documents (40 encoded now)" in there.stdout
    assert shards_of(tmp_path / "there") == shards_of(tmp_path / "here")  # to the last bit, with the embedded model
