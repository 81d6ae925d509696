"""What is attacked. A try makes one damaged input from a random generator and uses it as a user would.

It may end well, or with an error of ours. Anything else is a finding: another exception, a crash, a hang, a false
answer.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.eval.qrels import read_qrels
from aveyb_retrieval.eval.report import read_json
from aveyb_retrieval.eval.runs import read_run
from aveyb_retrieval.index.input.corpus import read_corpus
from aveyb_retrieval.index.input.documents import Record
from aveyb_retrieval.index.input.precomputed import PrecomputedVectors
from aveyb_retrieval.index.storage.shards import open_shard
from aveyb_retrieval.index.write.verify import verify_index
from tests.fuzz import mutate
from tests.index.conftest import make_documents
from tests.index.fake import FakeEmbedder

Attack = Callable[[random.Random, Path], None]

DOCUMENTS = 40


@cache
def sound(folder: Path, factory: str = "Flat") -> Path:
    """An index in order, made once in a folder of the process."""
    root = folder / f"sound-{factory.replace(',', '-')}"
    build_index(make_documents(DOCUMENTS), root, model=FakeEmbedder(), index=factory)
    return root


@contextlib.contextmanager
def damaged(folder: Path, factory: str = "Flat") -> Any:
    """A copy of the index to damage."""
    root = folder / "damaged"
    shutil.copytree(sound(folder, factory), root)
    try:
        yield root
    finally:
        shutil.rmtree(root)


def seal(version: Path, change: Callable[[dict[str, Any]], Any] = lambda body: body) -> None:
    """Change a manifest, give it the hashes that its files now have, and itself the checksum that fits."""
    path = version / "manifest.json"
    body = json.loads(path.read_bytes())
    body.pop("checksum")
    for name in body["files"]:
        data = (version / name).read_bytes()
        body["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    body = change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), **body}))


def use(root: Path) -> None:
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        for mode in ("dense", "lexical", "hybrid"):
            retriever.search("word1 word2", k=5, mode=mode, filter={"year": {"$gte": 2001}}, context=1)


def corpus(rng: random.Random, folder: Path) -> None:
    kind = rng.choice((".jsonl", ".csv", ".tsv", ".parquet"))
    rows: list[dict[str, Any]] = [{**row, "extra": mutate.value(rng)} for row in make_documents(5)]
    if kind == ".jsonl":
        data = "\n".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) for row in rows).encode(
            errors="surrogatepass"
        )
    elif kind == ".parquet":
        data = parquet()
    else:
        out = io.StringIO()
        writer = csv.DictWriter(
            out, ["_id", "title", "text"], delimiter="\t" if kind == ".tsv" else ",", extrasaction="ignore"
        )
        writer.writeheader()
        writer.writerows(rows)
        data = out.getvalue().encode()
    if rng.random() < 0.9:
        data = mutate.mutate_bytes(rng, data)
    suffix = rng.choice(("", "", ".gz", ".zst")) if kind != ".parquet" else ""
    data = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix](data)
    if suffix and rng.random() < 0.3:
        data = mutate.mutate_bytes(rng, data)
    path = folder / f"corpus{kind}{suffix}"
    path.write_bytes(data)
    for item in read_corpus(path, max_line=rng.choice((200, 1 << 20))):
        if isinstance(item, Record):
            json.loads(item.metadata_json)
            (item.id + item.title + item.text).encode()
        else:
            assert item.reason


@cache
def parquet() -> bytes:
    import pyarrow
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(make_documents(5)), out)
    return out.getvalue()


@cache
def retriever(folder: Path) -> Retriever:
    return Retriever.load(sound(folder), model=FakeEmbedder())


def query(rng: random.Random, folder: Path) -> None:
    text = " ".join(mutate.text(rng) for _ in range(rng.randrange(1, 5)))
    options: dict[str, Any] = {"mode": rng.choice(("dense", "lexical", "hybrid")), "k": rng.choice((1, 3, 1000))}
    if rng.random() < 0.3:
        name = rng.choice(
            ("k", "mode", "fusion", "weight", "passages", "context", "candidates", "granularity", "rerank")
        )
        options[name] = mutate.value(rng)
    hits = retriever(folder).search(text, **options)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True), "hits are not in order"
    assert len({hit.id for hit in hits}) == len(hits), "a document was found twice"


def where(rng: random.Random, depth: int = 0) -> Any:
    """A filter that is one more often than not."""
    if depth > 3 or rng.random() < 0.1:
        return mutate.value(rng)
    operators = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$not", mutate.text(rng))
    out: dict[str, Any] = {}
    for _ in range(rng.randrange(1, 4)):
        if rng.random() < 0.3:
            joined = [where(rng, depth + 1) for _ in range(rng.choice((1, 2, 3, 600 if depth == 0 else 2)))]
            out[rng.choice(("$and", "$or"))] = joined
        else:
            field = rng.choice(("year", "tags", "a.b", mutate.text(rng)))
            operator = rng.choice(operators)
            operand = [mutate.value(rng) for _ in range(3)] if operator in ("$in", "$nin") else mutate.value(rng)
            out[field] = {operator: operand} if rng.random() < 0.8 else operand
    return out


def filter_(rng: random.Random, folder: Path) -> None:
    condition = where(rng)
    found = {hit.id for hit in retriever(folder).search("word1", k=DOCUMENTS, mode="dense", filter=condition)}
    others = {
        hit.id for hit in retriever(folder).search("word1", k=DOCUMENTS, mode="dense", filter={"$not": condition})
    }
    assert not found & others, "a document satisfies a filter and its opposite"
    assert len(found | others) == DOCUMENTS, "a document satisfies neither a filter nor its opposite"


def manifest(rng: random.Random, folder: Path) -> None:
    with damaged(folder) as root:
        seal(root / "v000001", lambda body: mutate.mutate_json(rng, body))
        if rng.random() < 0.2:
            path = root / "v000001" / "manifest.json"
            path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))
        use(root)


def store(rng: random.Random, folder: Path) -> None:
    with damaged(folder) as root:
        path = root / "v000001" / "store.sqlite"
        path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))
        seal(root / "v000001")
        use(root)


def shard(rng: random.Random, folder: Path) -> None:
    data = next((sound(folder) / "v000001" / "vectors").iterdir()).read_bytes()
    path = folder / "shard.safetensors"
    path.write_bytes(mutate.mutate_bytes(rng, data))
    for view in open_shard(path, 16).values():
        np.array(view.rows).sum()


def vectors(rng: random.Random, folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows, path = (
        np.random.default_rng(0).normal(size=(6, 4)).astype("f4"),
        folder / f"v{rng.choice(('.npy', '.parquet'))}",
    )
    out = io.BytesIO()
    if path.suffix == ".npy":
        np.save(out, rows)
    else:
        pyarrow.parquet.write_table(pyarrow.table({"_id": list("abcdef"), "vector": rows.tolist()}), out)
    path.write_bytes(mutate.mutate_bytes(rng, out.getvalue()))
    opened = PrecomputedVectors.open(path)
    for position in range(min(len(opened), 20)):
        opened.document(position, "abcdef"[position % 6])


def faiss_file(rng: random.Random, folder: Path) -> None:
    """Only for `verify`, which reads it in another process: opening a hostile FAISS file is not promised to be safe."""
    with damaged(folder, rng.choice(("Flat", "SQ8", "HNSW8", "IVF4,Flat"))) as root:
        path = root / "v000001" / "document.faiss"
        path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))
        seal(root / "v000001")
        verify_index(root)


def judgments(rng: random.Random, folder: Path) -> None:
    qrels = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t0\n"
    run = "q1 Q0 d1 1 0.5 tag\nq1 Q0 d2 2 0.25 tag\n"
    results = json.dumps([{"metrics": {}, "dataset": "a"}])
    for name, content, read in (
        ("q.tsv", qrels, read_qrels),
        ("r.trec", run, read_run),
        ("r.json", results, read_json),
    ):
        path = folder / name
        path.write_bytes(mutate.mutate_bytes(rng, content.encode()))
        with contextlib.suppress(AveyBError):
            read(path)


KINDS: dict[str, Attack] = {
    "corpus": corpus,
    "query": query,
    "filter": filter_,
    "manifest": manifest,
    "store": store,
    "shard": shard,
    "vectors": vectors,
    "faiss": faiss_file,
    "judgments": judgments,
}
