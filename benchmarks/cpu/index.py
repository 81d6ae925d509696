"""Our index beside bare FAISS with the same factory, on the same ready-made vectors, in one run.

    python benchmarks/cpu/index.py                          # 100,000 and 1,000,000 vectors, about half an hour
    python benchmarks/cpu/index.py --sizes 20000            # a quick look

Vectors are a random mixture of 1,000 clusters of 32 dimensions turned into `--dim`, which is nearer to embeddings than
white noise. Each build runs in a process of its own, so that its peak memory is its own. Bare FAISS is: read the
array, `index_factory`, train, `IndexIDMap`, add, `write_index`; ours also keeps vectors, documents and metadata,
hashes everything, and flushes it to the device: bare FAISS is timed without a flush, and with one of its file.
Filtered searches allow documents whose number is below a share of all: ours filters before the search, the usual
wrapper around FAISS asks for ten times as many results and filters those.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
from rich.console import Console
from rich.table import Table

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.indexes.nearest import faiss_file, faiss_index
from aveyb_retrieval.indexes.nearest.exact import search as exact_search
from aveyb_retrieval.indexes.nearest.faiss_searcher import FaissSearcher

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = (100_000, 1_000_000)
SHARES = (1.0, 0.5, 0.01, 0.001)
K = 10
BLOCK = 65_536


def write_vectors(path: Path, count: int, dim: int, queries: int) -> None:
    """Unit vectors `[count, dim]` and, beside them, queries from the same distribution."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(1000, 32)).astype(np.float32)
    turn = rng.normal(size=(32, dim)).astype(np.float32)

    def draw(n: int) -> np.ndarray:
        points = centers[rng.integers(0, 1000, n)] + 0.7 * rng.normal(size=(n, 32)).astype(np.float32)
        rows = points @ turn + 0.5 * rng.normal(size=(n, dim)).astype(np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, dim))
    for start in range(0, count, BLOCK):
        rows[start : start + BLOCK] = draw(min(BLOCK, count - start))
    rows.flush()
    np.save(path.with_name("queries.npy"), draw(queries))


def build_bare(path: Path, out: Path, factory: str) -> dict[str, float]:
    """Build with nothing but FAISS."""
    started = time.perf_counter()
    rows = np.load(path, mmap_mode="r")
    index = faiss_index.create(factory, rows.shape[1])
    size = faiss_index.training_size(index, len(rows))
    if size:
        index.train(
            np.ascontiguousarray(rows[np.sort(np.random.default_rng(0).choice(len(rows), size, replace=False))])
        )
    for start in range(0, len(rows), BLOCK):
        block = np.ascontiguousarray(rows[start : start + BLOCK])
        index.add_with_ids(block, np.arange(start, start + len(block)))
    faiss.write_index(index, str(out))
    seconds = time.perf_counter() - started
    with out.open("rb") as handle:
        os.fsync(handle.fileno())
    flushed = time.perf_counter() - started
    return {"seconds": seconds, "flushed": flushed, "peak_mib": peak(), "file_mib": out.stat().st_size / 2**20}


def build_ours(path: Path, out: Path, factory: str) -> dict[str, float]:
    """Build an index directory; `shards` is the time until all vectors and rows are on disk."""
    started = time.perf_counter()
    marks: dict[str, float] = {}

    def progress(stage: str, done: int, total: int | None, tokens: int) -> None:
        marks[stage] = time.perf_counter() - started

    count = len(np.load(path, mmap_mode="r"))
    corpus = ({"_id": str(i), "text": "", "n": i} for i in range(count))
    build_index(corpus, out, vectors=path, granularity="document", index=factory, index_fields=["n"], progress=progress)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "shards": marks["encoding"], "peak_mib": peak(), "file_mib": 0.0}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_a_process(part: str, *arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, "--part", part, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def milliseconds(search: Any, queries: np.ndarray) -> tuple[float, float]:
    """p50 and p99 of searches one by one, after a warm-up."""
    for query in queries[:20]:
        search(query[None])
    times = []
    for query in queries:
        started = time.perf_counter()
        search(query[None])
        times.append((time.perf_counter() - started) * 1e3)
    return float(np.percentile(times, 50)), float(np.percentile(times, 99))


def recall(truth: np.ndarray, found: list[list[int]]) -> float:
    shares = [len(set(t[t >= 0].tolist()) & set(f)) / (t >= 0).sum() for t, f in zip(truth, found, strict=True)]
    return float(np.mean(shares))


def measure(count: int, dim: int, factory: str, queries: int, folder: Path) -> dict[str, Any]:
    """All figures for one number of vectors."""
    path, bare_file, root = folder / "vectors.npy", folder / "bare.faiss", folder / "index"
    write_vectors(path, count, dim, queries)
    factory = faiss_index.choose_factory(factory, count, dim)
    result: dict[str, Any] = {"count": count, "dim": dim, "factory": factory}
    result["bare"] = in_a_process("bare", path, bare_file, factory)
    result["ours"] = in_a_process("ours", path, root, factory)
    asked = np.load(path.with_name("queries.npy"))
    rows = np.load(path, mmap_mode="r")

    bare = FaissSearcher(faiss_file.read(bare_file, mapped=False), {}, factory=factory)
    started = time.perf_counter()
    retriever = Retriever.load(root)
    result["load_seconds"] = time.perf_counter() - started
    result["bare"]["p50"], result["bare"]["p99"] = milliseconds(lambda q: bare.search(q, K), asked)
    result["ours"]["p50"], result["ours"]["p99"] = milliseconds(lambda q: retriever.search_vectors(q, K), asked)
    result["recall"] = {}
    for share in SHARES:
        limit = max(K, int(count * share))
        _, truth = exact_search(blocks_of(rows, limit), asked[:200], K)
        where = {"n": {"$lt": limit}} if share < 1 else None
        retriever.search_vectors(asked[:1], K, filter=where)  # the filter is answered once and remembered
        started = time.perf_counter()
        ours = [[int(h.id) for h in retriever.search_vectors(q[None], K, filter=where)[0]] for q in asked[:200]]
        each = (time.perf_counter() - started) / 200 * 1e3
        _, wide = bare.search(asked[:200], 10 * K if share < 1 else K)
        post = [[i for i in row.tolist() if 0 <= i < limit][:K] for row in wide]
        result["recall"][str(share)] = {"ours": recall(truth, ours), "post-filter": recall(truth, post), "ms": each}
    retriever.close()
    return result


def blocks_of(rows: np.ndarray, limit: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, limit, BLOCK):
        block = np.asarray(rows[start : min(start + BLOCK, limit)])
        yield np.arange(start, start + len(block)), block


def show(results: list[dict[str, Any]], console: Console) -> None:
    for r in results:
        bare, ours = r["bare"], r["ours"]
        table = Table(title=f"{r['count']:,} vectors of dimension {r['dim']}, {r['factory']}", title_justify="left")
        for name in ("", "bare FAISS", "ours", "difference"):
            table.add_column(name, justify="left" if not name else "right")
        index_only = ours["seconds"] - ours["shards"]
        more = ours["peak_mib"] - bare["peak_mib"]
        shards = f"shards and rows {ours['shards']:.1f}"
        table.add_row("build, s", f"{bare['seconds']:.1f}", f"{ours['seconds']:.1f}", shards)
        for name, seconds in (
            ("build without shards, s", bare["seconds"]),
            ("the same, both flushed, s", bare["flushed"]),
        ):
            table.add_row(name, f"{seconds:.2f}", f"{index_only:.2f}", f"{index_only / seconds:.2f}x")
        table.add_row("peak memory, MiB", f"{bare['peak_mib']:.0f}", f"{ours['peak_mib']:.0f}", f"{more:+.0f}")
        for name in ("p50", "p99"):
            table.add_row(
                f"query {name}, ms", f"{bare[name]:.2f}", f"{ours[name]:.2f}", f"{ours[name] - bare[name]:+.2f}"
            )
        table.add_row("load, mapped, s", "", f"{r['load_seconds']:.3f}", "")
        for share, found in r["recall"].items():
            label = "recall@10" if share == "1.0" else f"recall@10, {float(share):.1%} allowed"
            table.add_row(label, f"{found['post-filter']:.3f}", f"{found['ours']:.3f}", f"{found['ms']:.2f} ms each")
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--index", default="auto", help="a FAISS factory string for both, or auto")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--part", nargs=4, metavar=("WHICH", "VECTORS", "OUT", "FACTORY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        build = {"bare": build_bare, "ours": build_ours}[args.part[0]]
        print(json.dumps(build(Path(args.part[1]), Path(args.part[2]), args.part[3])))
        return
    results = []
    for count in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(count, args.dim, args.index, args.queries, Path(folder)))
    show(results, Console(width=120))
    if args.json:
        machine = {"cpu": platform.machine(), "faiss": faiss.__version__, "threads": faiss.omp_get_max_threads()}
        args.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
