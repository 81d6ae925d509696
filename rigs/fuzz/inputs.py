"""Attacks on files that a command reads: corpora, vectors, judgments, runs, and the page of
results.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.reading import Reading
from aveyb_retrieval.documents.records import Record
from aveyb_retrieval.eval.base import read_run, write_run
from aveyb_retrieval.eval.data import read_qrels
from aveyb_retrieval.indexes.vectors import PrecomputedVectors
from rigs.fuzz import mutate
from tests.indexes.conftest import make_documents

if TYPE_CHECKING:
    import random
    from pathlib import Path


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
            out,
            ["_id", "title", "text"],
            delimiter="\t" if kind == ".tsv" else ",",
            extrasaction="ignore",
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
    for item in read_corpus(path, Reading(max_line=rng.choice((200, 1 << 20)))):
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
        pyarrow.parquet.write_table(
            pyarrow.table({"_id": list("abcdef"), "vector": rows.tolist()}), out
        )
    path.write_bytes(mutate.mutate_bytes(rng, out.getvalue()))
    opened = PrecomputedVectors.open(path)
    for position in range(min(len(opened), 20)):
        opened.document(position, "abcdef"[position % 6])


def qrels(rng: random.Random, folder: Path) -> None:
    path = folder / "q.tsv"
    header, separator = rng.choice(("query-id\tcorpus-id\tscore\n", "")), rng.choice("\t ")
    rows = [(f"q{i}", f"d{i}", str(rng.choice((0, 1, -1, 2, "1.0", "x")))) for i in range(3)]
    text = header + "".join(separator.join(row) + "\n" for row in rows)
    path.write_bytes(mutate.mutate_bytes(rng, text.encode()))
    found = read_qrels(path)
    assert all(grade >= 0 for grades in found.judgements.values() for grade in grades.values())


def run(rng: random.Random, folder: Path) -> None:
    path = folder / "r.trec"
    path.write_bytes(
        mutate.mutate_bytes(rng, b"q1 Q0 d1 1 0.5 tag\nq1 Q0 d2 2 0.25 tag\nq2 Q0 d1 1 3 tag\n")
    )
    found = read_run(path)
    write_run(path, found)
    assert read_run(path) == found, "a run changes when it is written and read back"
