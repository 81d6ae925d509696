"""Leaks and load: memory and descriptors of a process that searches, opens and reopens for long; many readers at once.

    python -m tests.faults.load [--searches N] [--opens N] [--reopens N] [--minutes N]

Figures are printed as they come: resident memory in MiB and open descriptors. `--minutes` adds 16 threads and 4
processes that search for so long beside a writer that adds, replaces, deletes and compacts.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import Retriever, build_index, compact_index
from aveyb_retrieval.indexes.changes.update import add_documents, delete_documents, upsert_documents
from aveyb_retrieval.indexes.changes.verify import verify_index
from tests.faults.forks import Fork
from tests.indexes.conftest import WORDS, make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENTS = 200
THREADS, PROCESSES = 16, 4
SAMPLES = 10  # of memory and descriptors in each part
COMPACT_EVERY = 4  # changes
WARM_UP = 0.2  # share of a part after which memory must not grow any more


@dataclass
class Usage:
    """Memory and descriptors of this process over one part."""

    what: str
    memory: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def sample(self) -> None:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.append(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20))
        self.descriptors.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))

    @property
    def growth(self) -> float:
        """MiB from the end of the warm-up to the end."""
        return self.memory[-1] - self.memory[int(len(self.memory) * WARM_UP)]

    def __str__(self) -> str:
        sizes = " ".join(f"{size:.0f}" for size in self.memory)
        return f"{self.what}: MiB {sizes}; descriptors {' '.join(map(str, self.descriptors))}"


def repeated(what: str, count: int, step: Any) -> Usage:
    """Take a step many times, and samples on the way."""
    usage = Usage(f"{count:,} {what}")
    for number in range(count):
        if number % max(1, count // SAMPLES) == 0:
            usage.sample()
        step(number)
    usage.sample()
    print(usage, flush=True)
    return usage


def query(rng: random.Random) -> dict[str, Any]:
    """A search of any mode, with or without a filter."""
    return {
        "query": " ".join(rng.choices(WORDS, k=4)),
        "mode": rng.choice(("dense", "lexical", "hybrid")),
        "unit": rng.choice(("document", "passage")),
        "filter": rng.choice((None, {"year": {"$gte": 2000 + rng.randrange(20)}})),
    }


def leaks(root: Path, searches: int, opens: int, reopens: int) -> list[Usage]:
    """Searches, openings, and reopenings beside a writer."""
    embedder, rng = FakeEmbedder(), random.Random(0)
    build_index(make_documents(DOCUMENTS), root, model=embedder)
    with Retriever.load(root, model=embedder) as retriever:
        found = [repeated("searches", searches, lambda _: retriever.search(**query(rng)))]

    def open_and_close(number: int) -> None:
        with Retriever.load(root, model=embedder) as opened:
            opened.search(**query(rng))

    found.append(repeated("openings", opens, open_and_close))
    with Retriever.load(root, model=embedder) as moving:

        def write_and_reopen(number: int) -> None:
            upsert_documents(make_documents(5, seed=number), root, model=embedder)
            if number % COMPACT_EVERY == 0:  # each change adds a file of vectors, which readers keep open
                compact_index(root)
            moving.reopen()
            moving.search(**query(rng))

        found.append(repeated("reopenings beside a writer", reopens, write_and_reopen))
    return found


def check(hits: list[Any]) -> None:
    """A whole answer of one version: in order, nothing twice."""
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True), "hits are not in order"
    keys = [(hit.id, hit.span) for hit in hits]
    assert len(set(keys)) == len(keys), "a hit twice"


def search_for(root: Path, deadline: float, seed: int) -> Iterator[Any]:
    """Search until the deadline, reopening now and then; how many searches, then samples."""
    rng, usage, searches = random.Random(seed), Usage(""), 0
    begin = time.monotonic()
    usage.sample()
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        while (now := time.monotonic()) < deadline:
            if now - begin >= len(usage.memory) * (deadline - begin) / SAMPLES:
                usage.sample()
            check(retriever.search(**query(rng)))
            searches += 1
            if searches % 20 == 0:
                retriever.reopen()
    yield searches
    yield usage.memory
    yield usage.descriptors


def write_until(root: Path, deadline: float) -> int:
    """Change the index in every way until the deadline; how many changes."""
    embedder, rng, changes, first = FakeEmbedder(), random.Random(1), 0, DOCUMENTS
    while time.monotonic() < deadline:
        match rng.randrange(6):
            case 0 | 1 | 2:
                upsert_documents(make_documents(10, seed=changes, first=rng.randrange(100)), root, model=embedder)
            case 3:
                add_documents(make_documents(5, seed=changes, first=first), root, model=embedder)
                first += 5
            case 4:
                delete_documents(root, [f"doc-{i}" for i in range(first - 3, first)], missing_ok=True)
            case _:
                compact_index(root)
        changes += 1
    return changes


def crowd(root: Path, minutes: float) -> list[Usage]:
    """16 threads of this process and 4 other processes beside a writer, which is this process too."""
    build_index(make_documents(DOCUMENTS), root, model=FakeEmbedder(), overwrite=root.exists())
    deadline = time.monotonic() + 60 * minutes
    # processes first: a fork must not copy running threads
    others = [Fork(lambda seed=seed: search_for(root, deadline, seed)) for seed in range(PROCESSES)]
    results: list[list[Any]] = []
    failures: list[BaseException] = []

    def thread(seed: int) -> None:
        try:
            results.append(list(search_for(root, deadline, seed)))
        except BaseException as error:  # whatever a thread dies of fails the run
            failures.append(error)

    threads = [threading.Thread(target=thread, args=(100 + seed,)) for seed in range(THREADS)]
    for each in threads:
        each.start()
    changes = write_until(root, deadline)
    for each in threads:
        each.join()
    ended = [other.end()[0] for other in others]
    if failures:
        raise failures[0]
    own = Usage(f"{THREADS} threads, {sum(r[0] for r in results):,} searches", results[0][1], results[0][2])
    usages = [own, *(Usage(f"a process, {e[0]:,} searches", e[1], e[2]) for e in ended)]
    print(f"{minutes:g} minutes, {changes:,} changes by the writer", *usages, sep="\n", flush=True)
    assert verify_index(root, deep=True).problems == []
    versions = len(list(root.glob("v*")))
    print(f"at the end: {versions} versions on disk, verified", flush=True)
    return usages


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.load")
    parser.add_argument("--searches", type=int, default=20_000)
    parser.add_argument("--opens", type=int, default=2_000)
    parser.add_argument("--reopens", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=0.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        leaks(Path(folder) / "ix", arguments.searches, arguments.opens, arguments.reopens)
        if arguments.minutes:
            crowd(Path(folder) / "crowd", arguments.minutes)


if __name__ == "__main__":
    main()
