"""Files changed together with their hashes: does `verify --deep` see it, wherever answers change?

    python -m tests.faults.consistent [--tries N] [--seed S]

A try changes one file of a small index (bytes at random, or its content with care: two vectors swapped, ids, links of a
graph, a text, a span), and gives the manifest the hashes that fit. The index may be refused, may verify with problems,
or may answer as before. Anything else is missed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import faiss
import numpy as np
from safetensors.numpy import load_file, save_file

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.nearest.faiss_index import innermost
from aveyb_retrieval.indexes.changes.verify import verify_index
from tests.faults.commands import forked_checks
from tests.fuzz import mutate
from tests.fuzz.indexes import seal
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable

FACTORIES = ("Flat", "SQ8", "HNSW8", "IVF4,Flat", "IVF4,SQ8", "PQ4x4", "PCA8,IVF4_HNSW4,SQ8")
DOCUMENTS = 60


def _bytes(rng: random.Random, path: Path) -> None:
    """Change a few bytes, sizes unchanged; mostly of what lies behind the header."""
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 4, 32))):
        data[rng.randrange(len(data) // 20, len(data))] = rng.randrange(256)
    path.write_bytes(data)


def faiss_bytes(rng: random.Random, version: Path) -> None:
    _bytes(rng, version / rng.choice(("document.faiss", "passage.faiss")))


def faiss_ids(rng: random.Random, version: Path) -> None:
    """Exchange the ids of two vectors (of an index that keeps ids beside them)."""
    path = version / rng.choice(("document.faiss", "passage.faiss"))
    index = faiss.read_index(str(path))
    if isinstance(index, faiss.IndexIDMap):
        ids = faiss.vector_to_array(index.id_map)
        a, b = rng.sample(range(len(ids)), 2)
        ids[[a, b]] = ids[[b, a]]
        faiss.copy_array_to_vector(ids, index.id_map)
    else:
        lists = faiss.extract_index_ivf(index).invlists
        cell = max(range(lists.nlist), key=lists.list_size)
        ids = faiss.rev_swig_ptr(lists.get_ids(cell), lists.list_size(cell))
        a, b = rng.sample(range(len(ids)), 2)
        ids[[a, b]] = ids[[b, a]]
    faiss.write_index(index, str(path))


def faiss_graph(rng: random.Random, version: Path) -> None:
    """Have most links of a graph lead to one vector."""
    path = version / "document.faiss"
    index = faiss.read_index(str(path))
    graph = innermost(index)
    if not isinstance(graph, faiss.IndexHNSW):
        return faiss_ids(rng, version)
    links = faiss.vector_to_array(graph.hnsw.neighbors)
    links[links >= 0] = rng.randrange(graph.ntotal)
    faiss.copy_array_to_vector(links, graph.hnsw.neighbors)
    faiss.write_index(index, str(path))
    return None


def shard_bytes(rng: random.Random, version: Path) -> None:
    _bytes(rng, next((version / "vectors").iterdir()))


def shard_rows(rng: random.Random, version: Path) -> None:
    """Exchange two stored vectors, or put another of unit length in place of one."""
    path = next((version / "vectors").iterdir())
    tensors = load_file(path)
    rows = tensors[rng.choice(("document", "passage"))]
    a, b = rng.sample(range(len(rows)), 2)
    if rng.random() < 0.5:
        rows[[a, b]] = rows[[b, a]]
    else:
        other = np.random.default_rng(rng.randrange(1 << 30)).normal(size=rows.shape[1]).astype(rows.dtype)
        rows[a] = other / np.linalg.norm(other)
    save_file(tensors, path)


STATEMENTS = (
    "UPDATE texts SET text = text || ' word1' WHERE doc = {doc}",
    "UPDATE texts SET title = 'word2' WHERE doc = {doc}",
    "UPDATE passages SET stop = stop - 2 WHERE passage >> 20 = {doc}",
    "UPDATE documents SET n_passages = n_passages + 1 WHERE doc = {doc}",
    "UPDATE documents SET id = 'elsewhere', doc = 99999 WHERE doc = {doc}",
    "DELETE FROM passages WHERE passage >> 20 = {doc}",
    "DELETE FROM fulltext_idx",
    "UPDATE fulltext_docsize SET sz = x'0101'",
)


def store_rows(rng: random.Random, version: Path) -> None:
    with sqlite3.connect(version / "store.sqlite") as db:
        db.execute(rng.choice(STATEMENTS).format(doc=rng.randint(1, DOCUMENTS)))
    db.close()


def store_bytes(rng: random.Random, version: Path) -> None:
    path = version / "store.sqlite"
    path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))


CHANGES: tuple[Callable[[random.Random, Path], None], ...] = (
    faiss_bytes,
    faiss_bytes,
    faiss_ids,
    faiss_graph,
    shard_bytes,
    shard_rows,
    store_rows,
    store_bytes,
)


@cache
def sound(folder: Path, factory: str) -> Path:
    root = folder / factory.replace(",", "-")
    build_index(make_documents(DOCUMENTS), root, model=FakeEmbedder(), index=factory)
    return root


@cache
def right(folder: Path, factory: str) -> list[list[tuple[str, float, str | None]]]:
    return answers(sound(folder, factory))


def answers(root: Path) -> list[list[tuple[str, float, str | None]]]:
    vectors = np.random.default_rng(0).normal(size=(20, 16))
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        found = retriever.search_vectors(vectors, granularity="document")
        found += retriever.search_vectors(vectors, granularity="passage")
        found += [retriever.search(f"word{i}", mode="lexical") for i in range(20)]
        found += [retriever.search(f"word{i} word{2 * i}", k=5) for i in range(20)]
        return [[(hit.id, round(hit.score, 4), hit.passage) for hit in hits] for hits in found]


def attempt(change: Callable[[random.Random, Path], None], factory: str, rng: random.Random, folder: Path) -> str:
    """One change; what became of it."""
    root = folder / "changed"
    shutil.copytree(sound(folder, factory), root)
    try:
        change(rng, root / "v000001")
        seal(root / "v000001")
        with forked_checks():
            problems = verify_index(root, deep=True).problems
        if problems:
            return "found"
        return "harmless" if answers(root) == right(folder, factory) else "missed"
    except AveyBError:
        return "refused"
    finally:
        shutil.rmtree(root)


def run(tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """All outcomes, and which tries were missed."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(tries):
            change, factory = CHANGES[number % len(CHANGES)], rng.choice(FACTORIES)
            outcome = attempt(change, factory, random.Random(f"{seed} {number}"), Path(folder))
            outcomes[outcome] += 1
            if outcome == "missed":
                missed.append(f"{number}: {change.__name__} of {factory}")
    return outcomes, missed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.consistent")
    parser.add_argument("--tries", type=int, default=389)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    outcomes, missed = run(arguments.tries, arguments.seed)
    print(f"{arguments.tries} changes with their hashes: {dict(outcomes)}", *missed, sep="\n")


if __name__ == "__main__":
    main()
