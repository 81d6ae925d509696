"""What passages cost: size, build time, milliseconds of a search, before and after; two builds at once; token vectors.

    python benchmarks/cpu/passage_cost.py --data ../shared/data [--before COMMIT] [--parts PART ...]

Builds and searches are those of the command line and of `Retriever`, in processes of their own, on the first documents
of openstax-ccby-long and its first questions. "before" is a worktree of this repository at another commit. The ideal of
two builds at once on two cores is one build alone on one thread. Searches run on `--threads` threads, one after the
other, in processes that take turns; a figure is the median over the turns. Those with token vectors score 100
candidates. Run it on an otherwise idle machine: about a quarter of an hour. Writes passage_cost.json into
benchmarks/results/; with `--parts` the other part of it stays.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SET = "openstax-ccby-long"
BEFORE = "0001ee7"  # the last one with passages of 256 tokens each
STORAGES = ("int8", "1bit")
PARTS = ("passages", "tokens")
RESULTS = Path(__file__).parents[1] / "results"
CANDIDATES = 100
ROUNDS = 5

# Runs in either version of the package, so it uses only what both have.
SEARCH = """
import json, sys, time
import numpy as np
from aveyb_retrieval import Retriever

root, queries, options = sys.argv[1], json.loads(open(sys.argv[2]).read()), json.loads(sys.argv[3])
retriever = Retriever.load(root)
for query in queries[:30]:
    retriever.search(query, k=10, **options)
times = []
for query in queries:
    started = time.perf_counter()
    retriever.search(query, k=10, **options)
    times.append(1e3 * (time.perf_counter() - started))
print(json.dumps({"p50": float(np.percentile(times, 50)), "p95": float(np.percentile(times, 95))}))
"""


def environment(tree: Path, threads: int) -> dict[str, str]:
    """Return the variables of a process that runs the package of a source tree on some threads."""
    return {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}


def start_build(tree: Path, corpus: Path, out: Path, threads: int, *options: str) -> subprocess.Popen[bytes]:
    """Start the command line's build of an index."""
    command = [sys.executable, "-m", "aveyb_retrieval.cli.index", "build", corpus, "-o", out, "--quiet", *options]
    return subprocess.Popen(
        [str(part) for part in command], cwd=tree, env=environment(tree, threads), stdout=subprocess.DEVNULL
    )


def build_seconds(tree: Path, corpus: Path, outs: list[Path], threads: int, *options: str) -> float:
    """Build indexes at the same time, one in each of `outs`; return the seconds until the last one is there."""
    started = time.perf_counter()
    builds = [start_build(tree, corpus, out, threads, *options) for out in outs]
    if any(build.wait() for build in builds):
        sys.exit("a build failed; its message is above")
    return time.perf_counter() - started


Search = tuple[Path, Path, dict[str, Any]]
"""A source tree, an index made by it, and options of its searches."""


def search_times(searches: dict[str, Search], queries: Path, threads: int) -> dict[str, dict[str, float]]:
    """Return p50 and p95 of each kind of search in milliseconds: medians of `ROUNDS` rounds in which all take turns."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in searches}
    for turn in range(ROUNDS):
        for name in list(searches)[:: 1 if turn % 2 else -1]:
            tree, index, options = searches[name]
            command = [sys.executable, "-c", SEARCH, str(index), str(queries), json.dumps(options)]
            done = subprocess.run(
                command, cwd=tree, env=environment(tree, threads), check=True, capture_output=True, text=True
            )
            rounds[name].append(json.loads(done.stdout.splitlines()[-1]))
    return {
        name: {key: statistics.median(each[key] for each in found) for key in found[0]}
        for name, found in rounds.items()
    }


def describe(tree: Path, index: Path) -> dict[str, Any]:
    """Return what `aveyb-index info` says of an index."""
    command = [sys.executable, "-m", "aveyb_retrieval.cli.index", "info", str(index), "--json"]
    done = subprocess.run(command, cwd=tree, env=environment(tree, 1), check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def measure_tree(tree: Path, corpus: Path, index: Path) -> dict[str, float]:
    """Build with one thread: seconds, size."""
    seconds = build_seconds(tree, corpus, [index], 1)
    facts = describe(tree, index)
    return {"build_seconds": seconds, "mib": facts["bytes"] / 2**20, "passages": facts["passages"]}


def measure_passages(before: str, corpus: Path, queries: Path, folder: Path, threads: int) -> dict[str, Any]:
    """Build and search with the package as it was at a commit and as it is; two builds at once."""
    tree = folder / "before"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "-q", "--detach", str(tree), before], check=True)
    try:
        old = measure_tree(tree, corpus, folder / "old")
        new = measure_tree(ROOT, corpus, folder / "new")
        searches: dict[str, Search] = {
            "before": (tree, folder / "old", {}),
            "after": (ROOT, folder / "new", {}),
            "after, passages": (ROOT, folder / "new", {"unit": "passage"}),
        }
        times = search_times(searches, queries, threads)
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    both = build_seconds(ROOT, corpus, [folder / "one", folder / "two"], 2)
    return {
        "before": {"commit": before, **old},
        "after": new,
        "searches": times,
        "two_builds": {"seconds": both, "times_the_ideal": both / new["build_seconds"]},
    }


def measure_tokens(corpus: Path, queries: Path, folder: Path, threads: int) -> dict[str, Any]:
    """Build with token vectors and rerank by them: bytes of a token on disk, seconds, milliseconds."""
    plain = measure_tree(ROOT, corpus, folder / "plain")
    found: dict[str, Any] = {}
    for storage in STORAGES:
        index = folder / storage
        seconds = build_seconds(ROOT, corpus, [index], 1, "--token-vectors", storage)
        facts = describe(ROOT, index)
        searches: dict[str, Search] = {}
        for unit in ("document", "passage"):
            options = {"unit": unit, "candidates": CANDIDATES}
            searches[f"{unit}, plain"] = (ROOT, index, options)
            searches[f"{unit}, reranked"] = (ROOT, index, {**options, "rerank": "token-vectors"})
        found[storage] = {
            "build_seconds": seconds,
            "bytes_of_a_token": (facts["bytes"] - plain["mib"] * 2**20) / facts["tokens"],
            "searches": search_times(searches, queries, threads),
        }
    return {"token_vectors": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the BEIR-layout sets")
    parser.add_argument("--before", default=BEFORE, help="commit to compare with")
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where passage_cost.json goes")
    args = parser.parse_args()
    source, path = args.data / SET, args.out / "passage_cost.json"
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corpus, queries = folder / "corpus.jsonl", folder / "queries.json"
        lines = (source / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[: args.documents]
        corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
        rows = (source / "queries.jsonl").read_text(encoding="utf-8").splitlines()[: args.queries]
        queries.write_text(json.dumps([json.loads(row)["text"] for row in rows]), encoding="utf-8")
        result |= {
            "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "threads": args.threads},
            "documents": len(lines),
            "queries": len(rows),
        }
        if "passages" in args.parts:
            result |= measure_passages(args.before, corpus, queries, folder, args.threads)
        if "tokens" in args.parts:
            result |= measure_tokens(corpus, queries, folder, args.threads)
    print(json.dumps(result, indent=1))
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
