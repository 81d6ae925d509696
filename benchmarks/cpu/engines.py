"""An index directory beside the same documents on one PostgreSQL server with pgvector, and on several, in one run.

    python benchmarks/cpu/engines.py INDEX... --to postgresql://USER@HOST:PORT/DATABASE [--to ...] --json FILE

The documents of all INDEX directories (of one model) become one collection, so that it is as large as what is at hand.
Queries are sentences of documents, drawn at random and encoded as queries. Recall is the share of the ten best passages
by exact scores that a search finds; times are of one search after the other, the model's work left out. Publishing
builds the HNSW graph; building an index directory trains and tunes FAISS. Bytes of a server are those of the
collection's tables and indexes. Words: the share of the ten best documents that both give for the sentence.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg

from aveyb_retrieval import Retriever, build_index, publish_index
from aveyb_retrieval.index.exchange.encoded_shards import EncodedShards
from aveyb_retrieval.index.exchange.parts import Reach
from aveyb_retrieval.index.exchange.place import Place
from aveyb_retrieval.index.exchange.shard_writer import ShardWriter
from aveyb_retrieval.index.search.export import export_index, stored_documents
from aveyb_retrieval.index.search.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

K = 10
NAME = "benchmark"


def combine(indexes: Sequence[Path], out: Path) -> None:
    """Write the documents of some indexes as one shard, each id with the number of its index in front."""
    export_index(indexes[0], out / "settings")
    first = EncodedShards.open(out / "settings")
    writer = ShardWriter(Place(out / "all"), first.settings, 1, 1)
    reach = Reach(first.settings.digest, 0, "", 0)
    for number, index in enumerate(indexes):
        snapshot = Snapshot.open(index)
        for record, row in stored_documents(snapshot):
            reach = replace(reach, consumed=reach.consumed + 1)
            writer.add(replace(record, id=f"{number}/{record.id}", origin=None), row, reach)
        snapshot.close()
    writer.finish(reach, first.model_source)


def sentences(retriever: Retriever, count: int) -> list[str]:
    """Sentences of documents, each from another one as far as there are so many."""
    rng = random.Random(0)
    documents = [document.text for document in retriever.documents() if len(document.text) > 200]
    found: list[str] = []
    while len(found) < count:
        some = [s for s in re.split(r"(?<=[.!?])\s+", rng.choice(documents)) if 40 < len(s) < 300]
        found += rng.sample(some, min(1, len(some)))
    return found


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
    return sum(len(set(a) & set(b)) for a, b in zip(found, wanted, strict=True)) / sum(map(len, wanted))


def server_bytes(server: str) -> int:
    """Bytes of the visible version's tables and indexes."""
    with psycopg.connect(server) as connection:
        (size,) = connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = (SELECT version FROM aveyb.collections WHERE name = %s) AND c.relkind = 'r'",
            (NAME,),
        ).fetchone()
    return int(size)


def measure(retriever: Retriever, queries: list[str], vectors: np.ndarray, truth: Any) -> dict[str, Any]:
    """Recall and times of one engine, by vectors and by words."""

    def passages(number: int, **options: Any) -> list[Any]:
        (hits,) = retriever.search_vectors(vectors[number][None], K, unit="passage", fold=False, **options)
        return [(hit.id, hit.span) for hit in hits]

    exact, _ = timed(lambda n: passages(n, exact=True), len(queries))
    wanted = exact if truth is None else truth["passages"]
    passages(0)
    found, dense = timed(passages, len(queries))
    filtered, limited = timed(lambda n: passages(n, filter={"$not": {"nothing": 1}}), len(queries))
    words, lexical = timed(lambda n: [h.id for h in retriever.search(queries[n], K, mode="lexical")], len(queries))
    return {
        "documents": len(retriever),
        "recall_exact": share(exact, wanted),
        "recall": share(found, wanted),
        "recall_filtered": share(filtered, wanted),
        "same_by_words": 1.0 if truth is None else share(words, truth["words"]),
        "dense": dense,
        "filtered": limited,
        "lexical": lexical,
        "truth": {"passages": wanted, "words": words},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("indexes", nargs="+", type=Path)
    parser.add_argument("--to", action="append", required=True, help="a server: postgresql://USER@HOST:PORT/DATABASE")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        combine(arguments.indexes, Path(folder))
        shards, ours = Path(folder) / "all", Path(folder) / "index"
        started = time.perf_counter()
        build_index(None, ours, vectors=shards)
        built = time.perf_counter() - started
        with Retriever.load(ours) as retriever:
            queries = sentences(retriever, arguments.queries)
            vectors = retriever.model.encode_queries(queries)
            results["passages"] = retriever._engine.snapshot.info.passages  # type: ignore[attr-defined]
            results["index directory"] = measure(retriever, queries, vectors, None)
            truth = results["index directory"].pop("truth")
            size = sum(path.stat().st_size for path in ours.rglob("*") if path.is_file())
            results["index directory"] |= {"seconds": built, "bytes": size}
            model = retriever.model
        for count in range(1, len(arguments.to) + 1):
            servers = arguments.to[:count]
            addresses = [f"{server}/{NAME}" for server in servers]
            report = publish_index(shards, addresses, restart=True)
            with Retriever.load(",".join(addresses), model=model) as retriever:
                measured = measure(retriever, queries, vectors, truth)
            measured.pop("truth")
            results[f"{count} x pgvector"] = measured | {
                "seconds": report.seconds,
                "bytes": sum(server_bytes(server) for server in servers),
            }
    text = json.dumps(results, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
