"""What an index costs as it grows, beside Lance, LanceDB, tantivy and FAISS alone, in one run.

    python benchmarks/cpu/growth.py TEXTS...                      # 10^4 to 10^6, about an hour
    python benchmarks/cpu/growth.py TEXTS... --columns 10000x8    # a quick look
    # 1,000 long documents, no peers
    python benchmarks/cpu/growth.py TEXTS... --columns 1000000x1000 --peers

TEXTS are `.jsonl.zst` files with a field `text`. Texts are cut into passages of 560 characters. A
column is a number of passages and how many make a document; peers hold passages, whose documents
make no difference to them. Vectors are given (a mixture of clusters, 256 dimensions), so that
encoding is not part of what is measured: a search costs what is printed and the encoding of its
query. Every search asks for ten, 100 questions each: eight words in a row of a passage, and its
vector with noise; with operators, its first words are a phrase, or its longest is a condition. Each
column runs in a process of its own; others keep their results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest.mock import patch

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DIM = 256
PASSAGES = 8  # of a document, where nothing else is said
LENGTH = 560  # characters of a passage
QUESTIONS = 100
ADDS = 1000
FEWEST = 100  # documents
K = 10
PEERS = ("FAISS", "Lance", "tantivy", "LanceDB")
COLUMNS = ("10000x8", "100000x8", "1000000x8", "1000000x1000")
RESULTS = Path(__file__).parents[1] / "results"
Part: TypeAlias = "tuple[str, Any, str]"  # its name, and the function that does it: owner, name


# --- what is indexed -----------------------------------------------------------------------------


def passages(paths: Iterable[Path], count: int) -> Iterator[str]:
    """The first `count` passages of some files, and again from the beginning (cut elsewhere) where
    there are fewer.
    """
    import zstandard

    made, round_ = 0, 0
    while made < count:
        before = made
        for path in paths:
            with zstandard.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    text = json.loads(line).get("text") or ""
                    for start in range(round_ * 97, len(text) - LENGTH // 2, LENGTH):
                        yield text[start : start + LENGTH]
                        made += 1
                        if made == count:
                            return
        round_ += 1
        if made == before:
            raise SystemExit("the files hold no texts")


def draw_vectors(count: int, seed: int) -> np.ndarray:
    """Unit vectors `[count, DIM]` float16 around 1,000 centers, which are the same for
    every seed.
    """
    rng = np.random.default_rng(0)
    centers, turn = rng.normal(size=(1000, 32)), rng.normal(size=(32, DIM))
    rng = np.random.default_rng(seed)
    out = np.empty((count, DIM), np.float16)
    for start in range(0, count, 65_536):
        n = min(65_536, count - start)
        points = centers[rng.integers(0, 1000, n)] + 0.7 * rng.normal(size=(n, 32))
        rows = points @ turn + 0.5 * rng.normal(size=(n, DIM))
        out[start : start + n] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return out


@dataclass(frozen=True)
class Given:
    """What a model would have made of a document."""

    vector: np.ndarray
    passages: np.ndarray
    spans: np.ndarray
    n_tokens: int = 0
    n_cut: int = 0


class GivenVectors:
    """A model that knows all vectors beforehand: the `each` passages of document i are the rows
    from `each` i on.
    """

    dim, model_name, fingerprint = DIM, "given", "given"

    def __init__(self, vectors: np.ndarray, each: int = PASSAGES) -> None:
        self.vectors = vectors
        self.each = each
        firsts = range(0, len(vectors), each)
        self.means = np.stack(
            [vectors[first : first + each].mean(axis=0, dtype=np.float32) for first in firsts]
        )
        self.means /= np.linalg.norm(self.means, axis=1, keepdims=True).clip(1e-9)
        self.next = 0
        self.queries: dict[str, np.ndarray] = {}
        self.otherwise = np.zeros(DIM, np.float32)  # for what is none of them

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[Given]:
        for _, text in documents:
            starts = np.arange(0, max(len(text), 1), LENGTH + 1)[: self.each]
            rows = self.vectors[self.next * self.each :][: len(starts)].astype(np.float32)
            spans = np.minimum(starts[:, None] + np.array([0, LENGTH]), len(text))
            yield Given(self.means[self.next], rows, spans)
            self.next = (self.next + 1) % len(self.means)

    def encode_queries(self, queries: Iterable[str]) -> np.ndarray:
        return np.stack([self.queries.get(query, self.otherwise) for query in queries])


def documents(paths: Iterable[Path], count: int, each: int = PASSAGES) -> Iterator[dict[str, Any]]:
    """Documents of `each` passages, `count` together."""
    some: list[str] = []
    rng = random.Random(0)
    for number, passage in enumerate(passages(paths, count)):
        some.append(passage.ljust(LENGTH))
        if len(some) == each or number == count - 1:
            doc = number // each
            tags = [rng.choice("abcdefgh"), rng.choice("ijkl")]
            yield {"_id": f"d{doc}", "text": "\n".join(some), "year": 1980 + doc % 45, "tags": tags}
            some = []


# --- measuring -----------------------------------------------------------------------------------


def milliseconds(
    work: Callable[[int], object], times: int = QUESTIONS, warm: int = 3
) -> dict[str, float]:
    """p50 and p99 of calls of `work(i)`; the first are not counted."""
    for i in range(warm):
        work(times + i)
    taken = []
    for i in range(times):
        started = time.perf_counter()
        work(i)
        taken.append((time.perf_counter() - started) * 1e3)
    return {
        "p50": round(float(np.percentile(taken, 50)), 3),
        "p99": round(float(np.percentile(taken, 99)), 3),
    }


def written() -> int:
    """Bytes that this process has written."""
    return int(
        dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["wchar"]
    )


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return round(time.perf_counter() - started, 3)


class Questions:
    """Eight words in a row of a passage, with its vector and noise."""

    def __init__(self, paths: Iterable[Path], count: int, vectors: np.ndarray) -> None:
        rng = random.Random(1)
        wanted = sorted(rng.sample(range(count), min(count, QUESTIONS + 10)))
        self.texts, rows, left = [], [], iter(wanted)
        following = next(left)
        for number, passage in enumerate(passages(paths, count)):
            if number == following:
                words = passage.split()
                start = rng.randrange(max(1, len(words) - 8))
                self.texts.append(" ".join(words[start : start + 8]))
                rows.append(number)
                following = next(left, -1)
        noise = np.random.default_rng(2).normal(size=(len(rows), DIM)) * 0.05
        near = vectors[rows].astype(np.float32) + noise
        self.vectors = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)


def with_operators(question: str) -> dict[str, str]:
    """A question with a condition of each kind: its first two words, or its longest,
    must be there.
    """
    words = [word for word in re.findall(r"[^\W_]+", question) if not word.isdigit()] or ["the"]
    longest, rest = max(words, key=len), " ".join(words[2:])
    return {
        "phrase": f'"{" ".join(words[:2])}" {rest}',
        "must": f"+{longest} {rest}",
        "prefix": f"{longest[: max(3, len(longest) - 2)]}* {rest}",
        "typo": f"{longest[:2]}{longest[3:]}~ {rest}",
    }


def ours(
    paths: list[Path],
    count: int,
    each: int,
    vectors: np.ndarray,
    questions: Questions,
    folder: Path,
) -> dict[str, Any]:
    """Our index: build, searches, changes."""
    from aveyb_retrieval import Index, Retriever, build_index

    model = GivenVectors(vectors, each)
    model.queries = dict(zip(questions.texts, questions.vectors, strict=True))
    path, out = folder / "ours", dict[str, Any]()
    given, started = documents(paths, count, each), time.perf_counter()
    for part, taken in parts(
        build_parts(), lambda: build_index(given, path, model=model, storage_dtype="float16")
    ):
        out[f"build s, {part}"] = round(taken, 2)
    out["build s"] = round(time.perf_counter() - started, 3)
    out["MB"] = round(size_of(path) / 1e6, 1)
    texts, shown = questions.texts, questions.vectors
    out["open ms"] = milliseconds(lambda i: Retriever.load(path, model=model).close(), 20)["p50"]
    out["reader MB"], out["reader MB, with mapped files"] = _reader_memory(path, questions, folder)
    with Retriever.load(path, model=model) as retriever:
        passage: Any = {"k": K, "unit": "passage"}
        out["words"] = milliseconds(lambda i: retriever.search(texts[i], mode="lexical", **passage))
        out["words, documents"] = milliseconds(
            lambda i: retriever.search(texts[i], k=K, mode="lexical")
        )
        out["vectors"] = milliseconds(lambda i: retriever.search(texts[i], mode="dense", **passage))
        out["hybrid"] = milliseconds(lambda i: retriever.search(texts[i], k=K))
        for part, taken in parts(
            search_parts(), lambda: [retriever.search(text, k=K) for text in texts]
        ):
            out[f"hybrid, mean of {part}"] = round(1e3 * taken / len(texts), 2)
        out["hybrid, passages"] = milliseconds(lambda i: retriever.search(texts[i], **passage))
        recent = {"year": {"$gte": 2015}}
        out["hybrid under a filter"] = milliseconds(
            lambda i: retriever.search(texts[i], k=K, filter=recent)
        )
        years = [{"year": 1980 + i % 45, "tags": "abcdefgh"[i % 8]} for i in range(QUESTIONS + 10)]
        out["hybrid under a new filter"] = milliseconds(
            lambda i: retriever.search(texts[i], k=K, filter=years[i])
        )
        signs = list(map(with_operators, texts))

        def ask(i: int, kind: str) -> None:
            model.otherwise = shown[i]
            retriever.search(signs[i][kind], k=K, operators=True)

        for kind in signs[0]:
            out[f"hybrid with a {kind}"] = milliseconds(partial(ask, kind=kind))
        found = retriever.search_vectors(shown, k=K, unit="passage")
        exact = retriever.search_vectors(shown, k=K, unit="passage", exact=True)
        pairs = zip(found, exact, strict=True)
        shares = [
            len({(h.id, h.span) for h in a} & {(h.id, h.span) for h in b}) / K for a, b in pairs
        ]
        out["recall"] = round(float(np.mean(shares)), 4)
    with Index.open(path, model=model) as index:
        index.search(texts[0], k=K)
        row = next(documents(paths, PASSAGES))
        out["changes"] = {
            "add": _change(lambda i: index.add([{**row, "_id": f"new{i}"}])),
            "upsert": _change(
                lambda i: index.upsert([{**row, "_id": f"new{i}", "text": row["text"] + str(i)}])
            ),
            "metadata": _change(lambda i: index.update_metadata({"seen": i}, [f"d{i}"])),
            "delete": _change(lambda i: index.delete([f"d{i}"])),
        }

        def add_and_search(i: int) -> None:
            index.add([{**row, "_id": f"more{i}"}])
            index.search(texts[i % QUESTIONS], k=K)

        adds = min(ADDS, count)
        out[f"{adds} adds, each with a search"] = milliseconds(add_and_search, adds, warm=0)
        out["hybrid afterwards"] = milliseconds(lambda i: index.search(texts[i], k=K))
    return out


def search_parts() -> list[Part]:
    """What a warm search does."""
    from aveyb_retrieval.indexes.nearest.tiers import VectorSearcher
    from aveyb_retrieval.indexes.store.dataset import LanceTable
    from aveyb_retrieval.indexes.store.rows import RowTable
    from aveyb_retrieval.indexes.store.tables import Tables

    found: list[Part] = [
        ("FAISS", VectorSearcher, "search"),
        ("stored vectors", Tables, "live_vectors"),
    ]
    found += [("words", RowTable, name) for name in ("by_words", "scored", "holding")]
    found += [("rows", RowTable, name) for name in ("take", "spans")]
    return found + [("Lance's rows", LanceTable, name) for name in ("take", "scan")]


def build_parts() -> list[Part]:
    """What a build does, but for reading, checking and the model."""
    from aveyb_retrieval.indexes.changes import ingest, transaction
    from aveyb_retrieval.indexes.nearest import due_files
    from aveyb_retrieval.indexes.store.dataset import LanceTable
    from aveyb_retrieval.indexes.store.rows import RowTable, WordIndex

    found: list[Part] = [
        ("words and columns", ingest, "find_words"),
        ("words and columns", ingest, "make_rows"),
        *(("writing rows", owner, "append") for owner in (LanceTable, RowTable)),
        *(("merging pieces", owner, "settle") for owner in (LanceTable, RowTable)),
    ]
    found += [("index of ids", LanceTable, "index"), ("lists of words", WordIndex, "make")]
    found += [("FAISS", due_files, "make_tier"), ("ids and hashes", ingest, "chain_digest")]
    return found + [
        ("flushing, hashing files", transaction.Transaction, name) for name in ("_flush", "publish")
    ]


def parts(watch: list[Part], whole: Callable[[], object]) -> Iterator[tuple[str, float]]:
    """Seconds that each part of some work takes, without the parts inside it; in threads, parts go
    on side by side.
    """
    own, local = Counter[str](), threading.local()

    def watched(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            inside = local.__dict__.setdefault("inside", [0.0])
            inside.append(0.0)
            started = time.perf_counter()
            try:
                return work(*args, **options)
            finally:
                taken = time.perf_counter() - started
                own[part] += taken - inside.pop()
                inside[-1] += taken

        return call

    with ExitStack() as patched:
        for part, owner, name in watch:
            patched.enter_context(patch.object(owner, name, watched(part, getattr(owner, name))))
        watched("all else", whole)()
    yield from own.items()


def _change(work: Callable[[int], object], times: int = 30) -> dict[str, float]:
    """Milliseconds and kilobytes of one change."""
    before = written()
    taken = milliseconds(work, times, warm=2)
    return {**taken, "kB": round((written() - before) / (times + 2) / 1e3, 1)}


def _reader_memory(path: Path, questions: Questions, folder: Path) -> list[float]:
    """Megabytes of a process that has opened the index and answered all questions: its own, and
    with mapped files.
    """
    asked = folder / "questions.npz"
    np.savez(asked, texts=questions.texts, vectors=questions.vectors)
    done = subprocess.run(
        [sys.executable, __file__, "--reader", str(path), str(asked)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(number) for number in done.stdout.split()[-2:]]


def read(path: Path, asked: Path) -> None:
    """A reader in a process of its own; print how much memory it holds."""
    from aveyb_retrieval import Retriever

    given = np.load(asked)
    model = GivenVectors(np.zeros((1, DIM), np.float16))
    model.queries = dict(zip(given["texts"].tolist(), given["vectors"], strict=True))
    with Retriever.load(path, model=model) as retriever:
        for text in model.queries:
            retriever.search(text, k=K)
            retriever.search(text, k=K, unit="passage")
        status = dict(
            line.split(":") for line in Path("/proc/self/status").read_text().splitlines()
        )
        print(*(round(int(status[name].split()[0]) / 1e3) for name in ("RssAnon", "VmRSS")))


def lance_alone(
    paths: list[Path], count: int, vectors: np.ndarray, questions: Questions, folder: Path
) -> dict[str, Any]:
    """Passages in one Lance dataset, by words; with Lance's own English."""
    import lance
    import pyarrow as pa
    from lance.query import MatchQuery

    path, out = folder / "lance", dict[str, Any]()
    kind = pa.list_(pa.float16(), DIM)

    def batches() -> Iterator[pa.RecordBatch]:
        texts, first = [], 0
        for text in passages(paths, count):
            texts.append(text)
            if len(texts) == 8192 or first + len(texts) == count:
                flat = pa.array(vectors[first : first + len(texts)].reshape(-1))
                rows = pa.FixedSizeListArray.from_arrays(flat, type=kind)
                numbers = pa.array(range(first, first + len(texts)))
                yield pa.record_batch({"number": numbers, "text": texts, "vector": rows})
                first, texts = first + len(texts), []

    def build() -> None:
        schema = pa.schema([("number", pa.int64()), ("text", pa.string()), ("vector", kind)])
        made = lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), str(path))
        made.create_scalar_index("text", "INVERTED", base_tokenizer="simple", with_position=False)

    out["build s"] = timed(build)
    out["MB"] = round(size_of(path) / 1e6, 1)
    data = lance.dataset(str(path))
    out["words"] = milliseconds(
        lambda i: data.scanner(
            columns=["number", "_score"],
            full_text_query=MatchQuery(questions.texts[i], "text"),
            limit=K,
        ).to_table()
    )
    row = data.take([0]).to_pylist()[0]

    def add(i: int) -> None:
        nonlocal data
        more = pa.Table.from_pylist([{**row, "number": count + i}], schema=data.schema)
        data = lance.write_dataset(more, data, mode="append")

    out["changes"] = {
        "add": _change(add),
        "delete": _change(lambda i: data.delete(f"number = {i}")),
    }
    return out


def faiss_alone(
    count: int, vectors: np.ndarray, questions: Questions, folder: Path, factory: str
) -> dict[str, Any]:
    """The same type of index as ours, from an array: no texts, no changes on disk."""
    import faiss

    out: dict[str, Any] = {"factory": factory}

    def build() -> faiss.Index:
        made = faiss.index_factory(DIM, factory, faiss.METRIC_INNER_PRODUCT)
        if not made.is_trained:
            made.train(vectors[:: max(1, count // 100_000)].astype(np.float32))
        for start in range(0, count, 65_536):
            made.add(vectors[start : start + 65_536].astype(np.float32))
        faiss.write_index(made, str(folder / "bare.faiss"))
        return made

    started = time.perf_counter()
    index = build()
    out["build s"] = round(time.perf_counter() - started, 3)
    out["MB"] = round((folder / "bare.faiss").stat().st_size / 1e6, 1)
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        ivf.nprobe = 32
    out["vectors"] = milliseconds(lambda i: index.search(questions.vectors[i : i + 1], K))
    return out


def tantivy_alone(
    paths: list[Path], count: int, questions: Questions, folder: Path
) -> dict[str, Any]:
    """Passages by words in tantivy."""
    import tantivy

    path, out = folder / "tantivy", dict[str, Any]()
    path.mkdir()
    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("number", stored=True, indexed=True)
    builder.add_text_field("text", stored=True, tokenizer_name="en_stem")
    index = tantivy.Index(builder.build(), path=str(path))

    def build() -> None:
        writer = index.writer(heap_size=256 << 20, num_threads=1)
        for number, text in enumerate(passages(paths, count)):
            writer.add_document(tantivy.Document(number=number, text=text))
        writer.commit()
        writer.wait_merging_threads()

    out["build s"] = timed(build)
    out["MB"] = round(size_of(path) / 1e6, 1)
    index.reload()
    searcher = index.searcher()

    def ask(i: int) -> None:
        words = "".join(c if c.isalnum() else " " for c in questions.texts[i])
        for _, address in searcher.search(index.parse_query(words, ["text"]), K).hits:
            searcher.doc(address)

    out["words"] = milliseconds(ask)

    def add(i: int) -> None:
        writer = index.writer(heap_size=16 << 20, num_threads=1)
        writer.add_document(tantivy.Document(number=count + i, text=questions.texts[0]))
        writer.commit()

    out["changes"] = {"add": _change(add)}
    return out


def lancedb_alone(
    paths: list[Path], count: int, vectors: np.ndarray, questions: Questions, folder: Path
) -> dict[str, Any]:
    """LanceDB's own hybrid search: its vector index and words, fused by reciprocal ranks."""
    import lancedb
    import pyarrow as pa

    out: dict[str, Any] = {}
    db = lancedb.connect(str(folder / "lancedb"))
    kind = pa.list_(pa.float32(), DIM)
    schema = pa.schema([("number", pa.int64()), ("text", pa.string()), ("vector", kind)])

    def batches() -> Iterator[pa.RecordBatch]:
        texts, first = [], 0
        for text in passages(paths, count):
            texts.append(text)
            if len(texts) == 8192 or first + len(texts) == count:
                flat = vectors[first : first + len(texts)].astype(np.float32).reshape(-1)
                rows = pa.FixedSizeListArray.from_arrays(pa.array(flat), type=kind)
                numbers = pa.array(range(first, first + len(texts)))
                yield pa.record_batch({"number": numbers, "text": texts, "vector": rows})
                first, texts = first + len(texts), []

    def build() -> None:
        made = db.create_table(
            "passages", data=pa.RecordBatchReader.from_batches(schema, batches()), schema=schema
        )
        made.create_fts_index("text", with_position=False)
        made.create_index(metric="cosine", num_partitions=max(4, int(count**0.5) // 2))

    out["build s"] = timed(build)
    out["MB"] = round(size_of(folder / "lancedb") / 1e6, 1)
    table = db.open_table("passages")

    def words(i: int) -> Any:
        plain = "".join(c if c.isalnum() else " " for c in questions.texts[i])
        return table.search(plain, query_type="fts").limit(K).to_arrow()

    def near(i: int) -> Any:
        return (
            table.search(questions.vectors[i])
            .metric("cosine")
            .nprobes(32)
            .refine_factor(10)
            .limit(K)
            .to_arrow()
        )

    def hybrid(i: int) -> Any:
        plain = "".join(c if c.isalnum() else " " for c in questions.texts[i])
        query = table.search(query_type="hybrid").vector(questions.vectors[i]).text(plain)
        return query.limit(K).to_arrow()

    out["words"], out["vectors"], out["hybrid"] = (
        milliseconds(words),
        milliseconds(near),
        milliseconds(hybrid),
    )
    row = table.search().limit(1).to_list()[0]
    out["changes"] = {"add": _change(lambda i: table.add([{**row, "number": count + i}]))}
    return out


# --- a run ---------------------------------------------------------------------------------------


def run(paths: list[Path], column: str, peers: list[str]) -> dict[str, Any]:
    """All systems of one column."""
    count, each = map(int, column.split("x"))
    # tantivy may still be merging
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        vectors = draw_vectors(count, 1)
        questions = Questions(paths, count, vectors)
        found = {"ours": ours(paths, count, each, vectors, questions, folder)}
        shutil.rmtree(folder / "ours")
        if "FAISS" in peers:
            from aveyb_retrieval.indexes.nearest.faiss_file import chosen

            factory, _ = chosen("auto", count)
            found["FAISS"] = faiss_alone(count, vectors, questions, folder, factory)
        if "Lance" in peers:
            found["Lance"] = lance_alone(paths, count, vectors, questions, folder)
        if "tantivy" in peers:
            found["tantivy"] = tantivy_alone(paths, count, questions, folder)
        if "LanceDB" in peers:
            found["LanceDB"] = lancedb_alone(paths, count, vectors, questions, folder)
    return found


def table(results: dict[str, Any]) -> str:
    """The results as Markdown: a row for each measure and system, a column for each number of
    passages and shape.
    """
    rows: dict[tuple[str, str], dict[str, str]] = {}

    def fill(system: str, measures: dict[str, Any], column: str, prefix: str = "") -> None:
        for name, value in measures.items():
            if name == "changes":
                fill(system, value, column, "one ")
            elif isinstance(value, dict):
                kilobytes = f", {value['kB']:g} kB" if "kB" in value else ""
                rows.setdefault((prefix + name, system), {})[column] = (
                    f"{value['p50']:g} / {value['p99']:g}{kilobytes}"
                )
            else:
                rows.setdefault((prefix + name, system), {})[column] = f"{value}"

    for column, systems in results["columns"].items():
        for system, measures in systems.items():
            fill(system, measures, column)
    columns = list(results["columns"])
    heads = ["{:,} in documents of {:,}".format(*map(int, column.split("x"))) for column in columns]
    lines = [
        "Milliseconds are p50 / p99. " + results["machine"],
        "",
        f"| | | {' | '.join(heads)} |",
        f"|---|---|{'---|' * len(columns)}",
    ]
    for (name, system), values in sorted(
        rows.items(), key=lambda item: (item[0][0], item[0][1] != "ours")
    ):
        lines.append(
            f"| {name} | {system} | {' | '.join(values.get(column, '') for column in columns)} |"
        )
    return "\n".join(lines) + "\n"


def _each_and_count(column: str) -> list[int]:
    return [int(number) for number in reversed(column.split("x"))]


def plot(results: dict[str, Any], path: Path) -> None:
    """p50 of searches and changes over the number of passages in documents of eight, on logarithmic
    axes.
    """
    import matplotlib.pyplot as plt

    sizes = [
        int(column.split("x")[0])
        for column in results["columns"]
        if column.endswith(f"x{PASSAGES}")
    ]
    by_size = {size: results["columns"][f"{size}x{PASSAGES}"] for size in sizes}
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharex=True)
    shown = {"words": ("ours", "Lance", "tantivy", "LanceDB"), "hybrid": ("ours", "LanceDB")}
    for name, systems in shown.items():
        for system in systems:
            values = [
                found.get(system, {}).get(name, {}).get("p50", np.nan) for found in by_size.values()
            ]
            axes[0].plot(sizes, values, marker="o", label=f"{name}, {system}")
    for name in ("add", "upsert", "metadata", "delete"):
        values = [found["ours"]["changes"][name]["p50"] for found in by_size.values()]
        axes[1].plot(sizes, values, marker="o", label=f"one {name}, ours")
    for each, title in zip(axes, ("searches", "changes"), strict=True):
        each.set(xscale="log", yscale="log", xlabel="passages", ylabel="ms (p50)", title=title)
        each.grid(alpha=0.3)
        each.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run all columns and write `growth.json`, `growth.md` and `growth.png`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="*", type=Path)
    parser.add_argument("--columns", nargs="+", default=COLUMNS, metavar="PASSAGESxEACH")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--reader", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        read(*arguments.reader)
        return
    for column in arguments.columns:
        each, count = _each_and_count(column)
        if count < FEWEST * each:
            parser.error(
                f"{column}: {count // each} documents; at least {FEWEST}, some of which are changed"
                " and deleted"
            )
    if arguments.one:
        print(json.dumps(run(sorted(arguments.texts), arguments.one, arguments.peers)))
        return
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()},"
        f" {platform.system()}."
    )
    kept = arguments.out / "growth.json"
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {"columns": {}}
    results["machine"] = machine
    for column in arguments.columns:
        command = [sys.executable, __file__, *map(str, arguments.texts), "--one", column]
        command += ["--peers", *arguments.peers]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        arguments.out.mkdir(exist_ok=True, parents=True)
        found = results["columns"].get(column, {}) | json.loads(done.stdout.splitlines()[-1])
        columns = {**results["columns"], column: found}
        results["columns"] = {name: columns[name] for name in sorted(columns, key=_each_and_count)}
        kept.write_text(json.dumps(results, indent=1) + "\n")
        (arguments.out / "growth.md").write_text(table(results))
        plot(results, arguments.out / "growth.png")
    print(table(results))


if __name__ == "__main__":
    main()
