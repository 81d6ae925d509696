"""Time builds, openings and queries before and after a change: two commits, in turns, in one run.

    python benchmarks/cpu/before_after.py [--before COMMIT] [--rounds N]

COMMIT is checked out into a temporary git worktree. Each round measures both in a process of its own, the order
alternating, and the table shows the medians with their smallest and largest values: a difference inside these is noise.
The documents are made up (words drawn from a Zipf distribution); the default takes a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "8c8e181"  # the commit before files, stores and FAISS were read with suspicion

# Only what both commits have: the public API.
MEASURE = """
import json, random, sys, tempfile, time
from pathlib import Path
import numpy as np
from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.indexes.changes.verify import verify_index

rng = random.Random(0)
words = [f"w{i}" for i in range(5000)]
weights = [1 / (i + 1) for i in range(5000)]
def text(count):
    return " ".join(rng.choices(words, weights, k=count))
times = {}
def timed(name, work, per=1):
    started = time.perf_counter()
    result = work()
    times[name] = (time.perf_counter() - started) / per
    return result
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    rows = [{"_id": str(i), "text": text(150), "year": 2000 + i % 20} for i in range(120)]
    timed("build, 120 documents of 150 words, embedded model (s)", lambda: build_index(rows, folder / "encoded"))
    many = [{"_id": str(i), "text": text(40), "year": 2000 + i % 20} for i in range(12000)]
    vectors = np.random.default_rng(0).normal(size=(len(many), 128)).astype(np.float32)
    for index in ("Flat", "HNSW16"):
        root = folder / index
        timed(f"build, 12,000 ready vectors, {index} (s)", lambda: build_index(
            many, root, vectors=vectors, granularity="document", index=index))
        timed(f"verify, {index} (s)", lambda: verify_index(root))
        def open_close():
            for _ in range(20):
                Retriever.load(root).close()
        timed(f"open and close, {index} (ms)", open_close, per=20 / 1e3)
        with Retriever.load(root) as retriever:
            queries = [text(3) for _ in range(300)]
            retriever.search_vectors(vectors[:5])
            retriever.search(queries[0], mode="lexical")
            timed(f"dense query, {index} (ms)", lambda: [
                retriever.search_vectors(vectors[i:i + 1]) for i in range(300)], per=300 / 1e3)
            timed(f"lexical query, {index} (ms)", lambda: [
                retriever.search(q, mode="lexical") for q in queries], per=300 / 1e3)
            timed(f"filtered query, {index} (ms)", lambda: [
                retriever.search_vectors(vectors[i:i + 1], filter={"year": {"$gte": 2010}}) for i in range(300)],
                per=300 / 1e3)
    with Retriever.load(folder / "encoded") as retriever:
        retriever.search("w1 w2")
        timed("hybrid query, embedded model (ms)", lambda: [
            retriever.search(text(5)) for _ in range(100)], per=100 / 1e3)
print(json.dumps(times))
"""


def measure(tree: Path) -> dict[str, float]:
    """Run the measurements with the package of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-W", "ignore", "-c", MEASURE]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{tree}: {done.stderr}")
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        old = Path(name) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(old), arguments.before], check=True)
        try:
            found: dict[Path, list[dict[str, float]]] = {old: [], ROOT: []}
            for number in range(arguments.rounds):
                for tree in (old, ROOT) if number % 2 == 0 else (ROOT, old):
                    found[tree].append(measure(tree))
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    print(f"medians of {arguments.rounds} rounds (smallest to largest); before is {arguments.before}\n")
    print("| | before | after | after / before |\n|---|---|---|---|")
    for what in found[ROOT][0]:
        before, after = ([round_[what] for round_ in found[tree]] for tree in (old, ROOT))
        cells = [f"{statistics.median(v):.3g} ({min(v):.3g} to {max(v):.3g})" for v in (before, after)]
        print(f"| {what} | {cells[0]} | {cells[1]} | {statistics.median(after) / statistics.median(before):.2f} |")


if __name__ == "__main__":
    main()
