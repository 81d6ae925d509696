"""Threads that search one `Index` under filters that nobody used before, while another thread
writes: each list must be the one that a search alone gives.

    python -m rigs.faults.alone [--seconds 600] [--threads 16]

The threads share an open index, which follows its versions, and groups of them ask the same new
filter at the same moment, so that they fill what is remembered of it together. For each version the
writer keeps a retriever of its own. While the threads pause, it asks there what they had asked of
that version, and compares ids, passages, scores and counts.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aveyb_retrieval import Index, Retriever, build_index
from tests.indexes.conftest import WORDS, make_documents
from tests.indexes.fake import FakeEmbedder

DOCUMENTS = 400
CHANGED = 10  # documents of a change
GROUP = 4  # threads that ask the same filter
SWITCH_SECONDS = 1e-4  # after which Python lets another thread go on: 50 times as often as usual
WRITE_SECONDS = 0.2  # between two changes

Answer = list[Any]


@dataclass(frozen=True)
class Question:
    """What one thread asks: a search or a count, of all documents or of a part."""

    query: str
    filter: dict[str, Any]
    part: dict[str, Any] | None
    options: dict[str, Any]

    @classmethod
    def draw(cls, rng: random.Random, filter: dict[str, Any]) -> Question:
        """Draw a question under a filter."""
        part = {"tags": {"$any": [rng.choice("abc")]}} if rng.random() < 0.3 else None
        options = {
            "k": rng.choice((3, 10, 40)),
            "mode": rng.choice(("dense", "lexical", "hybrid")),
            "granularity": rng.choice((None, "document", "passage")),
            "fold": rng.random() < 0.5,
        }
        return cls(" ".join(rng.choices(WORDS, k=3)), filter, part, options)

    def ask(self, retriever: Retriever) -> Answer:
        """Return what a retriever answers, to the last bit."""
        if self.part is not None:
            retriever = retriever.visible(self.part)
        hits = retriever.search(self.query, filter=self.filter, **self.options)
        found = [(hit.id, hit.span, hit.score, hit.confidence) for hit in hits]
        return [found, retriever.count(self.filter), retriever.values("year", self.filter)]


@dataclass
class Comparison:
    """How many lists were compared, of how many versions, and those that differ."""

    lists: int = 0
    versions: int = 0
    moved: int = 0  # searches during which the index moved on: of which version is not known
    different: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        shown = "".join(f"\n{line}" for line in self.different[:5])
        return (
            f"{self.lists:,} lists of {self.versions} versions compared, {len(self.different)}"
            f" differ; {self.moved:,} more while the version changed{shown}"
        )


def new_filter(rng: random.Random, number: int) -> dict[str, Any]:
    """A filter that no search used before, over some of the years."""
    first = 2000 + rng.randrange(15)
    return {
        "$and": [
            {"year": {"$gte": first, "$lt": first + rng.randint(1, 9)}},
            {"year": {"$ne": 10_000 + number}},
        ]
    }


class Crowd:
    """Threads that search an index, one that changes it, and what they found of each version."""

    def __init__(self, root: Path, threads: int) -> None:
        self.index = Index.open(root, model=FakeEmbedder())
        self.compared = Comparison()
        self.failures: list[BaseException] = []
        self._root = root
        self._asked: dict[str, list[tuple[Question, Answer]]] = defaultdict(list)
        self._alone: dict[str, Retriever] = {}
        self._lock = threading.Lock()
        self._going, self._ended = threading.Event(), threading.Event()
        self._barriers = [
            threading.Barrier(min(GROUP, threads - first)) for first in range(0, threads, GROUP)
        ]

    def search(self, thread: int) -> None:
        """Ask new questions until the end."""
        group = thread // GROUP
        filters, own = random.Random(group), random.Random(1000 + thread)
        number = group
        try:
            while not self._ended.is_set():
                number += len(self._barriers)
                question = Question.draw(own, new_filter(filters, number))
                self._going.wait()
                self._barriers[group].wait()
                self._ask(question)
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            self._barriers[group].abort()

    def _ask(self, question: Question) -> None:
        before = self.index.version
        answer = question.ask(self.index)
        with self._lock:
            if self.index.version == before:
                self._asked[before].append((question, answer))
            else:
                self.compared.moved += 1

    def write(self, seconds: float) -> None:
        """Change the index, and compare what was found before, until the time is over."""
        rng = random.Random(7)
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until and not self.failures:
                self._alone[self.index.version] = Retriever.load(self._root, model=FakeEmbedder())
                self._going.set()
                time.sleep(WRITE_SECONDS)
                change(self.index, rng)
                self._going.clear()
                self._compare()
        except BaseException as error:
            self.failures.append(error)
        finally:
            self._ended.set()
            self._going.set()
            for barrier in self._barriers:
                barrier.abort()

    def _compare(self) -> None:
        """Ask alone what was asked of versions that are over."""
        compared = self.compared
        for version in [name for name in self._alone if name != self.index.version]:
            with self._lock:
                questions = self._asked.pop(version, [])
            with self._alone.pop(version) as retriever:
                for question, answer in questions:
                    expected = question.ask(retriever)
                    if answer != expected:
                        compared.different.append(f"{question}: {answer} for {expected}")
            compared.lists += len(questions)
            compared.versions += bool(questions)

    def close(self) -> None:
        """Close what is open."""
        for retriever in (*self._alone.values(), self.index):
            retriever.close()


def compare(root: Path, seconds: float, threads: int = 16) -> Comparison:
    """Search, write and compare for some seconds."""
    build_index(make_documents(DOCUMENTS), root, model=FakeEmbedder())
    crowd = Crowd(root, threads)
    running = [threading.Thread(target=crowd.search, args=(thread,)) for thread in range(threads)]
    running.append(threading.Thread(target=crowd.write, args=(seconds,)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
        crowd.close()
    if crowd.failures:
        raise crowd.failures[0]
    return crowd.compared


def change(index: Index, rng: random.Random) -> None:
    """Replace some documents, change the metadata of others, or delete some and add them again."""
    first, seed = rng.randrange(DOCUMENTS - CHANGED), rng.randrange(1 << 30)
    rows = make_documents(CHANGED, seed=seed, first=first)
    match rng.randrange(3):
        case 0:
            index.upsert(rows)
        case 1:
            index.update_metadata({"year": 2000 + rng.randrange(20)}, [row["_id"] for row in rows])
        case _:
            with index.batch() as batch:
                batch.delete([row["_id"] for row in rows])
                batch.add(make_documents(CHANGED, seed=seed + 1, first=first))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rigs.faults.alone")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--threads", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compared = compare(Path(folder) / "ix", arguments.seconds, arguments.threads)
    print(compared)
    sys.exit(bool(compared.different) or not compared.lists)


if __name__ == "__main__":
    main()
