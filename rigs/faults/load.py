"""Many at once, for long: readers beside a writer that merges; memory, descriptors and disk must
stay flat.

    python -m rigs.faults.load [--seconds 3600] [--readers 8] [--threads 4]

One process writes: it replaces, changes and deletes, so that the index keeps its size, and compacts
now and then. Readers, each a process, search and follow its versions; threads of one more process
share an `Index`. Each looks at its own memory and descriptors, the writer also at the bytes of the
folder.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import Index, Retriever, build_index
from rigs.faults import workload
from rigs.faults.processes import Child, quiet
from tests import one_change
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

DOCUMENTS = 200
CHANGED = 10  # documents of a change
COMPACT_EVERY = 50  # changes
REOPEN_EVERY = 10  # searches
SAMPLES = 20
WARM_UP = 0.3  # share of the time after which nothing may grow


@dataclass
class Usage:
    """What one process used over time, and how much it did."""

    what: str
    done: int = 0
    memory: list[float] = field(default_factory=list)  # MiB
    descriptors: list[int] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)  # MiB

    def sample(self, root: Path | None = None) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.append(round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1))
        self.descriptors.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
        if root is not None:
            self.disk.append(round(_bytes(root) / (1 << 20), 2))

    def growth(self, name: str) -> float:
        """The highest of the last third above the highest of the third before it."""
        values = getattr(self, name)[int(SAMPLES * WARM_UP) :]
        half = len(values) // 2
        return float(max(values[half:]) - max(values[:half])) if half else 0.0

    def __str__(self) -> str:
        disk = f"; disk MiB {self.disk}" if self.disk else ""
        return (
            f"{self.what}, {self.done:,} times: memory MiB {self.memory}; descriptors"
            f" {self.descriptors}{disk}"
        )


def _bytes(root: Path) -> int:
    total = 0
    for path in root.rglob("*"):
        with suppress(FileNotFoundError):  # deleted meanwhile
            total += path.lstat().st_size
    return total


def write(connection: Connection, root: Path, seconds: float) -> None:
    """Change the index without rest."""
    quiet()
    workload.small_steps()
    usage, rng, model = Usage("changes"), random.Random(0), FakeEmbedder()
    for number in _until(seconds, usage, root):
        some = [f"doc-{i}" for i in rng.sample(range(DOCUMENTS), CHANGED)]
        if number % COMPACT_EVERY == COMPACT_EVERY - 1:
            one_change.compact(root)
        elif number % 4 == 3:
            one_change.update_metadata(root, {"year": number}, some, missing_ok=True)
        elif number % 4 == 2:
            one_change.delete(root, some, missing_ok=True)
        else:
            rows = make_documents(CHANGED, seed=number, first=rng.randrange(DOCUMENTS - CHANGED))
            one_change.upsert(rows, root, model=model)
    connection.send(usage)


def read(connection: Connection, root: Path, seconds: float, seed: int) -> None:
    """Search, and follow the writer now and then."""
    quiet()
    workload.small_steps()
    usage, rng, last = Usage("searches"), random.Random(seed), ""
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        for number in _until(seconds, usage):
            search(retriever, rng)
            if number % REOPEN_EVERY == 0:
                retriever.reopen()
                assert retriever.version >= last, "an older version"
                last = retriever.version
    connection.send(usage)


def share(connection: Connection, root: Path, seconds: float, threads: int) -> None:
    """Search one `Index` in several threads; it follows the writer by itself."""
    quiet()
    workload.small_steps()
    usage, failures = Usage(f"searches of {threads} threads"), list[BaseException]()
    with Index.open(root, model=FakeEmbedder()) as index:

        def work(seed: int) -> None:
            rng = random.Random(seed)
            try:
                for _ in _until(seconds, Usage("")):
                    search(index, rng)
                    usage.done += 1
            except BaseException as error:  # whatever a thread dies of fails the run
                failures.append(error)

        running = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
        for each in running:
            each.start()
        for _ in range(SAMPLES):
            time.sleep(seconds / SAMPLES)
            usage.sample()
        for each in running:
            each.join()
    if failures:
        raise failures[0]
    connection.send(usage)


def search(retriever: Retriever, rng: random.Random) -> None:
    """Search in any way; the answer must be whole: in order, and nothing twice."""
    hits = retriever.search(
        " ".join(rng.choices(workload.WORDS, k=4)),
        k=10,
        mode=rng.choice(("dense", "lexical", "hybrid")),
        granularity=rng.choice((None, "document", "passage")),
        filter=rng.choice((None, {"year": {"$gte": 2000 + rng.randrange(20)}})),
    )
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True), "hits are not in order"
    keys = [(hit.id, hit.span) for hit in hits]
    assert len(set(keys)) == len(keys), "a hit twice"


def _until(seconds: float, usage: Usage, root: Path | None = None) -> Any:
    """Count until the time is over, and take samples."""
    begin, number = time.monotonic(), 0
    while (passed := time.monotonic() - begin) < seconds:
        if passed >= len(usage.memory) * seconds / SAMPLES:
            usage.sample(root)
        yield number
        number += 1
        usage.done = number


def crowd(root: Path, seconds: float, readers: int, threads: int) -> list[Usage]:
    """Run all of them; what each used, the writer first."""
    build_index(make_documents(DOCUMENTS), root, model=FakeEmbedder())
    children = [Child(write, root, seconds), Child(share, root, seconds, threads)]
    children += [Child(read, root, seconds, seed) for seed in range(readers)]
    found = [each.answer(seconds + 180.0) for each in children]
    for each in children:
        each.end()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rigs.faults.load")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        usages = crowd(Path(folder) / "ix", arguments.seconds, arguments.readers, arguments.threads)
    print(*usages, sep="\n")


if __name__ == "__main__":
    main()
