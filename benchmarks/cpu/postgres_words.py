"""What words cost in PostgreSQL: processor time of server and client for sentences and questions.

    PYTHONPATH=. python benchmarks/cpu/postgres_words.py CORPUS.jsonl... --passages 100000

Texts are cut into documents of up to 400 words and passages of up to 80. Vectors are random and of
four numbers, and no graph is built: nothing but words is searched. Queries are sentences of one
document in fifty, and their first six words. Processor time is that of the server's process and of
this one, so that other programs on the machine matter little.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.documents.records import Record, SourceLocation
from aveyb_retrieval.engines import postgres
from aveyb_retrieval.engines.collection import CollectionSettings
from aveyb_retrieval.indexes.encoding import Encoding
from aveyb_retrieval.indexes.engine import open_writer
from aveyb_retrieval.indexes.types import EncodedRow
from tests.engines.postgres_server import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DIM, QUERIES = 4, 100


def rows(corpora: Sequence[Path], most: int) -> Iterator[tuple[Record, EncodedRow]]:
    """Documents with passages, up to `most` of these."""
    rng, number, passages = np.random.default_rng(0), 0, 0
    for corpus in corpora:
        for line in corpus.open(encoding="utf-8"):
            whole = json.loads(line)["text"]
            words = [match.span() for match in re.finditer(r"\S+", whole)]
            for start in range(0, len(words), 400):
                some = words[start : start + 400]
                begin = some[0][0]
                cuts = [some[i : i + 80] for i in range(0, len(some), 80)]
                spans = np.array([(cut[0][0] - begin, cut[-1][1] - begin) for cut in cuts])
                vectors = rng.normal(size=(len(spans) + 1, DIM)).astype(np.float32)
                record = Record(
                    str(number),
                    "",
                    whole[begin : some[-1][1]],
                    {"year": number % 20},
                    SourceLocation("x", 1, "line"),
                )
                yield (
                    record,
                    EncodedRow(vectors[0], vectors[1:], spans, ("",) * len(spans), 1, 0),
                )
                number, passages = number + 1, passages + len(spans)
                if passages >= most:
                    return


def processor_seconds(pid: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sentences(texts: Sequence[str]) -> list[str]:
    """Sentences of some documents."""
    rng, found = random.Random(0), list[str]()
    while len(found) < QUERIES:
        some = [s for s in re.split(r"(?<=[.!?])\s+", rng.choice(texts)) if 40 < len(s) < 300]
        found += rng.sample(some, min(1, len(some)))
    return found


def measure(view: Any, kind: str, queries: Sequence[str], where: Any) -> dict[str, float]:
    """Milliseconds for a query."""
    selection, pid = view.select(where), view._db.info.backend_pid
    view.by_words(kind, view.language.words(queries[0]), 10, selection)
    server, client, walls = processor_seconds(pid), time.process_time(), []
    for query in queries:
        started = time.perf_counter()
        view.by_words(kind, view.language.words(query), 10, selection)
        walls.append(time.perf_counter() - started)
    return {
        "server_ms": 1000 * (processor_seconds(pid) - server) / len(queries),
        "client_ms": 1000 * (time.process_time() - client) / len(queries),
        "wall_p50_ms": 1000 * float(np.median(walls)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpora", nargs="+", type=Path)
    parser.add_argument("--passages", type=int, default=100_000)
    arguments = parser.parse_args()
    # no vectors are searched
    postgres._FINISH = ";".join(s for s in postgres._FINISH.split(";") if "hnsw" not in s)
    server = PostgresServer()
    try:
        writer = open_writer(server.url("words"))
        writer.begin(CollectionSettings(Encoding(None, None, DIM, "both"), "words"), restart=False)
        batch, kept, passages = list[tuple[Record, EncodedRow]](), list[str](), 0
        for number, row in enumerate(rows(arguments.corpora, arguments.passages)):
            batch.append(row)
            passages += len(row[1].spans)
            if number % 50 == 0:
                kept.append(row[0].text)
            if len(batch) == 256:
                writer.add(batch)
                batch = []
        if batch:
            writer.add(batch)
        writer.finish()
        writer.switch()
        writer.close()
        whole = sentences(kept)
        engine = postgres.PostgresCollection.open_engine(server.url("words"))
        with engine.view() as view:
            print(json.dumps({"passages": passages, "documents": view.info.documents}))
            for kind in ("document", "passage"):
                for name, queries in (
                    ("sentence", whole),
                    ("question", [" ".join(q.split()[:6]) for q in whole]),
                ):
                    for where in (None, {"year": {"$lt": 10}}):
                        found = measure(view, kind, queries, where)
                        print(
                            json.dumps({"kind": kind, "query": name, "filter": where, **found}),
                            flush=True,
                        )
        engine.close()
    finally:
        server.close()


if __name__ == "__main__":
    main()
