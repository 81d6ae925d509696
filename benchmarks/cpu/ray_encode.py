"""Shards made by one process, by four, and by Ray's actors: the same ids and scores, and what each way costs.

    python benchmarks/cpu/ray_encode.py --json benchmarks/results/ray_encode.json     # 20,000 documents, about an hour
    python benchmarks/cpu/ray_encode.py --documents 400                               # a quick look

Documents are 60 to 100 words drawn at random from the running text of this project's pages. Every process and every
actor has one thread. Steps run one after the other, each in a process of its own; with --json, steps that the file
holds already are not run again. Processor seconds are those of a step's process and of all its descendants, Ray's own
daemons among them. Those of the model hardly change when the machine is busy; the daemons take some as long as a step
lasts. Wall times do change, so the load before each step is kept with them.

In the steps with faults, two actors encode --fault-documents on a cluster of two nodes (processes of this machine): one
actor is killed, one node is removed, or the driver is killed and started again, each after a part of the documents. The
model logs each document that it encodes, so that those encoded twice are counted, and not guessed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = Path(__file__).parents[2]
OF = 8
QUERIES = 100
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
LOOK = 0.25  # seconds


def write_corpus(path: Path, count: int) -> None:
    """Documents of 60 to 100 words of this project's pages, each with words of its own.

    Those of a run that is continued stay: the pages may have changed since.
    """
    if path.exists():
        if (there := path.read_bytes().count(b"\n")) != count:
            raise SystemExit(f"{path}: {there} documents, but {count} are asked for; take another --folder")
        return
    pages = " ".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
    words = re.findall(r"[a-z]{2,}", pages.lower())  # frequent ones as often as they are
    rng = random.Random(0)
    with path.open("w", encoding="utf-8") as out:
        for number in range(count):
            chosen = rng.choices(words, k=rng.randint(60, 100))
            ends = {i for i in range(len(chosen)) if i % 13 == 12} | {len(chosen) - 1}
            text = " ".join(word + "." * (i in ends) for i, word in enumerate(chosen))
            out.write(json.dumps({"_id": f"d{number}", "title": f"Note {number}", "text": text}) + "\n")


class CountedModel:
    """The embedded model, loaded where it is first needed; logs the titles of the documents that it encodes."""

    def __init__(self, log: Path | None) -> None:
        self.log = log
        self._model: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"log": self.log, "_model": None}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._model is None:
            from aveyb_retrieval import Embedder

            self._model = Embedder.load(precision="float32")
        return getattr(self._model, name)

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[Any]:
        pairs = list(documents)
        encoded = self.__getattr__("encode_documents")(pairs)
        if self.log is None:
            yield from encoded
            return
        with (self.log / str(os.getpid())).open("a", buffering=1) as out:
            for (prefix, _), document in zip(pairs, encoded, strict=True):
                out.write(prefix.strip().replace("Note ", "") + "\n")
                yield document


class Usage:
    """Processor seconds of this process and its descendants, those that have ended included."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, float], float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK):
            self._look()

    def _look(self) -> None:
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            try:
                times = process.cpu_times()
                self._seconds[process.pid, process.create_time()] = times.user + times.system
            except psutil.NoSuchProcess:
                continue

    def seconds(self) -> float:
        self._look()
        self._ended.set()
        return sum(self._seconds.values())


def titles(log: Path) -> list[str]:
    return [title for file in log.iterdir() for title in file.read_text().split()]


def when(ready: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Do something as soon as something is true, beside what goes on."""

    def watch() -> None:
        while not ready():
            time.sleep(LOOK)
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


class Steps:
    """The ways to encode the corpus in a folder, each a method that returns its figures."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.corpus = folder / "corpus.jsonl"

    @classmethod
    def of(cls, step: str, folder: Path, documents: int, fault_documents: int) -> Steps:
        """The folder that a step works in, without what an earlier run of the step left there.

        Steps with faults have a corpus of their own there, and the shards that one process makes of it.
        """
        made = cls(folder, documents)
        if step in FAULTS:
            made = cls(folder / f"faults {fault_documents}", fault_documents)
            if not (made.folder / "one process").is_dir():
                made.folder.mkdir(exist_ok=True)
                write_corpus(made.corpus, fault_documents)
                made.one_process()
        made.clear(step)
        return made

    def clear(self, step: str) -> None:
        """Remove what an earlier run of a step left."""
        for name in (OUTPUTS.get(step, step), f"log of {OUTPUTS.get(step, step)}"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def parts(self) -> dict[str, Any]:
        """What an encoding does beside the model: reading, cutting into tokens and passages, writing."""
        from aveyb_retrieval import Embedder
        from aveyb_retrieval.documents.corpus import read_corpus
        from aveyb_retrieval.documents.records import chain_digest
        from aveyb_retrieval.indexes.shards.encoded_shards import EncodedShards
        from aveyb_retrieval.indexes.shards.parts import Reach, write_part
        from aveyb_retrieval.indexes.shards.shard import PART_DOCUMENTS

        started = time.process_time()
        reduce(chain_digest, read_corpus(self.corpus), "")  # type: ignore[arg-type]
        reading = time.process_time() - started
        some = [item for _, item in zip(range(2000), read_corpus(self.corpus), strict=False)]
        embedder = Embedder.load(precision="float32")
        started = time.process_time()
        tokens = sum(len(embedder._cut(item.prefix, item.text).ids) for item in some)  # type: ignore[union-attr]
        cutting = time.process_time() - started
        shards = EncodedShards(self.folder / "one process")
        rows = list(itertools.islice(shards.documents(), PART_DOCUMENTS))
        started = time.process_time()
        data = write_part(rows, shards.encoding, Reach(shards.encoding.digest))
        writing = time.process_time() - started
        sys.path.insert(0, str(ROOT / "benchmarks" / "gpu"))
        from common import layer_flops

        return {
            "flops_per_token": layer_flops(embedder.model.config),
            "layers": embedder.model.config.num_hidden_layers,
            "dim": embedder.dim,
            "read_documents_per_cpu_second": self.count / reading,
            "cut_tokens_per_cpu_second": tokens / cutting,
            "write_documents_per_cpu_second": len(rows) / writing,
            "shard_bytes_per_document": len(data) / len(rows),
        }

    def local_build(self) -> dict[str, Any]:
        """build_index in one process."""
        from aveyb_retrieval import build_index

        report = build_index(self.corpus, self.folder / "local.index", model=CountedModel(None))  # type: ignore[arg-type]
        return {"documents": report.documents}

    def four_processes(self) -> dict[str, Any]:
        """`aveyb-index encode --shard i/4` in four processes at once."""
        command = [sys.executable, "-m", "aveyb_retrieval.cli.index", "encode", str(self.corpus), "--quiet"]
        out = self.folder / "four processes"
        running = [subprocess.Popen([*command, "-o", str(out), "--shard", f"{i}/4"]) for i in range(1, 5)]
        assert [process.wait() for process in running] == [0] * 4
        return {"documents": self.count}

    def one_process(self) -> dict[str, Any]:
        """encode_corpus in this process, all shards: what Ray is compared with."""
        from aveyb_retrieval import encode_corpus

        report = encode_corpus(self.corpus, self.folder / "one process", of=OF)
        return {"documents": report.documents, "tokens": report.tokens}

    def ray_one_actor(self) -> dict[str, Any]:
        """One actor on a cluster that the call starts."""
        return self._ray("ray, one actor", "local", 1)

    def ray_two_actors(self) -> dict[str, Any]:
        """Two actors, each on a node of its own."""
        with two_nodes():
            return self._ray("ray, two nodes", "auto", 2)

    def actor_killed(self) -> dict[str, Any]:
        """SIGKILL for one of two actors after two fifths of the documents."""
        log = self._log("actor killed")
        with two_nodes():
            killer = when(
                lambda: len(titles(log)) > 0.4 * self.count,
                lambda: os.kill(int(next(log.iterdir()).name), signal.SIGKILL),
            )
            found = self._ray("actor killed", "auto", 2)
            killer.join()
        return found

    def node_removed(self) -> dict[str, Any]:
        """One of two nodes is removed after two fifths of the documents; the other goes on alone."""
        log = self._log("node removed")
        with two_nodes() as (cluster, second):
            killer = when(
                lambda: len(titles(log)) > 0.4 * self.count,
                lambda: cluster.remove_node(second, allow_graceful=False),
            )
            found = self._ray("node removed", "auto", 2)
            killer.join()
        return found

    def driver_killed(self) -> dict[str, Any]:
        """SIGKILL for the driver when three of eight shards are complete; then the same call again."""
        name = "driver killed"
        log, out = self._log(name), self.folder / name
        with two_nodes() as (cluster, _):
            command = [sys.executable, __file__, "--step", "drive", "--folder", str(self.folder)]
            command += ["--documents", str(self.count), "--name", name, "--address", cluster.address]
            driver = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while len(list(out.glob("*.json"))) < 3 and driver.poll() is None:
                time.sleep(LOOK)
            driver.kill()
            driver.wait()
            before = len(list(out.glob("*.json")))
            return {**self._ray(name, "auto", 2), "complete_when_killed": before, "log": len(titles(log))}

    def _log(self, name: str) -> Path:
        log = self.folder / f"log of {name}"
        log.mkdir(exist_ok=True)
        return log

    def _ray(self, name: str, address: str, actors: int) -> dict[str, Any]:
        from aveyb_retrieval import RayCluster, encode_corpus

        first: list[float] = []
        started = time.perf_counter()

        def progress(stage: str, done: int, total: int | None, tokens: int) -> None:
            if done and not first:
                first.append(time.perf_counter() - started)

        log = self._log(name)
        cluster = RayCluster(address, actors=actors)
        report = encode_corpus(
            self.corpus,
            self.folder / name,
            of=OF,
            model=CountedModel(log),
            ray=cluster,
            progress=progress,  # type: ignore[arg-type]
        )
        counts = Counter(titles(log))
        assert len(counts) == report.documents == self.count
        return {
            "documents": report.documents,
            "encoded_twice": sum(count - 1 for count in counts.values()),
            "processes_that_encoded": len(list(log.iterdir())),
            "seconds_to_first_document": first[0],
            "seconds": time.perf_counter() - started,
            **self._compare(name),
        }

    def _compare(self, name: str) -> dict[str, Any]:
        """The shards beside those of one process: bytes, and every vector."""
        from aveyb_retrieval.indexes.shards.encoded_shards import EncodedShards
        from aveyb_retrieval.indexes.shards.parts import encoded_of

        ours, theirs = self.folder / "one process", self.folder / name
        files = [path.relative_to(ours) for path in sorted(ours.rglob("*")) if path.is_file()]
        same = sum((ours / file).read_bytes() == (theirs / file).read_bytes() for file in files)
        shards = [EncodedShards(folder) for folder in (ours, theirs)]
        largest, ids = 0.0, set[str]()
        for one, other in zip(*(s.documents() for s in shards), strict=True):
            assert one.id == other.id
            ids.add(one.id)
            rows = [encoded_of(record) for record in (one, other)]
            largest = max(largest, float(np.abs(rows[0].vector - rows[1].vector).max()))
            largest = max(largest, float(np.abs(rows[0].passages - rows[1].passages).max(initial=0)))
        assert len(ids) == len(shards[1]) == self.count
        return {"files": len(files), "files_equal": same, "largest_difference": largest}

    def comparison(self) -> dict[str, Any]:
        """What each step with Ray spends on comparing its shards, to be left out of what Ray costs."""
        started = time.process_time()
        found = self._compare("one process")
        return {"comparing_cpu_seconds": time.process_time() - started, **found}

    def searches(self) -> dict[str, Any]:
        """Indexes of the three kinds of shards beside the local build: hits of the same queries."""
        from aveyb_retrieval import Retriever, build_index

        rng = random.Random(1)
        with self.corpus.open(encoding="utf-8") as lines:
            texts = [json.loads(line)["text"] for line in lines]
        queries = [" ".join(rng.choice(texts).split()[10:22]) for _ in range(QUERIES)]
        found: dict[str, Any] = {}
        bytes_of: dict[str, int] = {}
        for name in ("local.index", "four processes", "ray, two nodes"):
            root = self.folder / name
            if name != "local.index":
                root = self.folder / f"{name}.index"
                build_index(None, root, vectors=self.folder / name, overwrite=True)
            with Retriever.load(root) as retriever:
                assert len(retriever) == self.count
                found[name] = [
                    {mode: retriever.search(query, k=10, mode=mode) for mode in ("dense", "hybrid")}
                    for query in queries
                ]
            bytes_of[name] = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        result: dict[str, Any] = {"queries": QUERIES, "index_bytes": bytes_of["local.index"]}
        for name in ("four processes", "ray, two nodes"):
            result[name] = {}
            for mode in ("dense", "hybrid"):
                pairs = [(one[mode], other[mode]) for one, other in zip(found["local.index"], found[name], strict=True)]
                result[name][mode] = {
                    "same_ids": sum([h.id for h in a] == [h.id for h in b] for a, b in pairs) / len(pairs),
                    "largest_difference_of_scores": max(
                        abs(x.score - y.score) for a, b in pairs for x, y in zip(a, b, strict=True)
                    ),
                }
        return result


class two_nodes:
    """A Ray cluster of two nodes with a CPU each, in processes of this machine, and this process connected to it."""

    def __enter__(self) -> Any:
        import ray
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        small = {"num_cpus": 1, "object_store_memory": 100 << 20}
        self.cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
        second = self.cluster.add_node(**small)
        ray.init(address=self.cluster.address, logging_level="warning", log_to_driver=False)
        return self.cluster, second

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()


OUTPUTS = {
    "local_build": "local.index",
    "four_processes": "four processes",
    "one_process": "one process",
    "ray_one_actor": "ray, one actor",
    "ray_two_actors": "ray, two nodes",
    "actor_killed": "actor killed",
    "node_removed": "node removed",
    "driver_killed": "driver killed",
}
FAULTS = ("actor_killed", "node_removed", "driver_killed")
ORDER = (
    "local_build", "four_processes", "one_process", "parts", "comparison", "ray_one_actor", "ray_two_actors",
    "searches", *FAULTS,
)  # fmt: skip


def run_step(name: str, folder: Path, documents: int, fault_documents: int) -> dict[str, Any]:
    """Run a step in a process of its own."""
    load = os.getloadavg()[0]
    command = [sys.executable, __file__, "--step", name, "--folder", str(folder), "--documents", str(documents)]
    command += ["--fault-documents", str(fault_documents)]
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE, text=True, check=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "load_before": round(load, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--fault-documents", type=int, default=2000)
    parser.add_argument("--json", type=Path, help="write the figures here, and continue from there")
    parser.add_argument("--folder", type=Path, help="keep shards and indexes here")
    parser.add_argument("--steps", nargs="+", choices=ORDER, help="run these, and again where they are there already")
    for hidden in ("--step", "--name", "--address"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step == "drive":
        Steps(args.folder, args.documents)._ray(args.name, args.address, 2)
        return
    if args.step:
        usage, started = Usage(), time.perf_counter()
        found = getattr(Steps.of(args.step, args.folder, args.documents, args.fault_documents), args.step)()
        figures = {"wall_seconds": time.perf_counter() - started, "cpu_seconds": usage.seconds()}
        print(json.dumps({**figures, **found}))
        return
    folder = args.folder or Path(tempfile.mkdtemp(prefix="aveyb-ray-"))
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder / "corpus.jsonl", args.documents)
    result: dict[str, Any] = {"steps": {}}
    if args.json and args.json.is_file():
        result = json.loads(args.json.read_text(encoding="utf-8"))
    import ray
    import torch

    result["machine"] = {
        "cpu": platform.machine(), "cores": len(os.sched_getaffinity(0)), "torch": torch.__version__,
        "ray": ray.__version__, "documents": args.documents, "shards": OF,
    }  # fmt: skip
    for name in ORDER:
        if name in args.steps if args.steps else name not in result["steps"]:
            result["steps"][name] = run_step(name, folder, args.documents, args.fault_documents)
            print(name, json.dumps(result["steps"][name]), flush=True)
            if args.json:
                args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
