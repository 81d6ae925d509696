"""Extreme sizes: long documents, many documents, large metadata, strange ids; right answers and
flat memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.documents.records import MAX_DEPTH
from aveyb_retrieval.indexes.changes.verify import verify_index
from tests.indexes.fake import FakeEmbedder

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

IDS = [
    "",
    " ",
    "a/b\\c",
    "\u0000",
    "\u202e",
    "\ufeff",
    "é",
    "e\u0301",
    "🦆" * 50,
    "'",
    '"',
    "NULL",
    "-1",
    "x" * 100_000,
]


@pytest.mark.parametrize("words", [400_000, pytest.param(1_700_000, marks=pytest.mark.slow)])
def test_a_document_of_megabytes(tmp_path: Path, words: int) -> None:
    text = " ".join(f"w{i % 5000}" for i in range(words)) + " needle in the haystack"
    assert len(text) > 5.5 * words
    embedder = FakeEmbedder(split_size=256)
    report = build_index(
        [{"_id": "long", "text": text}, {"_id": "b", "text": "b"}], tmp_path / "ix", model=embedder
    )
    assert report.passages == (words + 4) // 256 + 2
    with Retriever.load(tmp_path / "ix", model=embedder) as retriever:
        (hit,) = retriever.search(
            "needle in the haystack", k=1, filter={}, granularity="passage", context=2
        )
        assert hit.id == "long"
        assert hit.text == text
        assert hit.span is not None
        assert hit.passage == text[slice(*hit.span)]
        (hit,) = retriever.search("haystacks", k=1, mode="lexical")
        assert hit.passage is not None
        assert hit.passage.endswith("needle in the haystack")


LONG = """
import resource, sys
from pathlib import Path
from aveyb_retrieval import build_index
from tests.indexes.fake import FakeEmbedder
count = int(sys.argv[2])
text = "\\n".join(f"Line {i} says that w{i % 977} and w{i % 613} are parts." for i in range(count))
model = FakeEmbedder(dim=8, split_size=256)
build_index([{"_id": "long", "text": text}], Path(sys.argv[1]), model=model)
print(len(text), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_memory_of_one_long_document_is_bounded_by_its_text(tmp_path: Path) -> None:
    """A hundred bytes for each character, beyond what a build takes anyway."""
    measured = []
    for lines in (1_000, 40_000):
        command = [sys.executable, "-c", LONG, str(tmp_path / str(lines)), str(lines)]
        done = subprocess.run(
            command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, check=True
        )
        measured.append([int(number) for number in done.stdout.split()])
    (short, base), (long, peak) = measured
    assert peak - base < 100 * (long - short), measured


def test_large_and_nested_metadata(tmp_path: Path) -> None:
    deep: object = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    rows: list[dict[str, Any]] = [
        {"_id": "large", "text": "x", "blob": "m" * (1 << 20), "list": list(range(50_000))},
        {"_id": "deep", "text": "x", "deep": deep, "object": {"a": {"b": [{"c": 1}]}}},
    ]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        found = {hit.id: hit.metadata for hit in retriever.search("x", k=5, fold=False)}
        assert found == {
            row["_id"]: {k: v for k, v in row.items() if k not in ("_id", "text")} for row in rows
        }
        assert [h.id for h in retriever.search("x", filter={"list": 49_999})] == ["large"]
        assert [h.id for h in retriever.search("x", filter={"deep": {"$exists": True}})] == ["deep"]


def test_ids_of_any_unicode(tmp_path: Path) -> None:
    ids = [i for i in IDS if i]
    rows = [{"_id": document_id, "text": f"word{n}"} for n, document_id in enumerate(ids)]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder())
    assert verify_index(tmp_path / "ix").problems == []
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        for n, document_id in enumerate(ids):
            assert retriever.search(f"word{n}", k=1)[0].id == document_id


GROWTH = """
import resource, sys
from pathlib import Path
from aveyb_retrieval import build_index
from aveyb_retrieval.indexes.changes import ingest
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder
ingest.BATCH_DOCUMENTS = 200
rows = make_documents(300, longest=120)
count = int(sys.argv[2])
corpus = ({**rows[i % 300], "_id": str(i)} for i in range(count))
build_index(corpus, Path(sys.argv[1]), model=FakeEmbedder(dim=8), granularity="document")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Ten times the documents, less than a fifth more memory (their FAISS vectors are too short to
    count).
    """
    peaks = []
    for count in (600, 6000):
        command = [sys.executable, "-c", GROWTH, str(tmp_path / str(count)), str(count)]
        done = subprocess.run(
            command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.2 * peaks[0], peaks
    print(
        f"\npeak memory, MiB: {peaks[0] / 1024:.0f} for 600 documents, {peaks[1] / 1024:.0f} for"
        " 6,000"
    )


@pytest.mark.slow
def test_a_million_documents_of_one_word(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    with path.open("w") as out:
        for i in range(1_000_000):
            out.write(json.dumps({"_id": i, "text": f"w{i % 1000}"}) + "\n")
    report = build_index(
        path, tmp_path / "ix", model=FakeEmbedder(dim=8), granularity="document", index="Flat"
    )
    assert report.documents == 1_000_000
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder(dim=8)) as retriever:
        hits = retriever.search("w77", k=1000)
        assert {int(h.id) % 1000 for h in hits} == {77}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\na million documents in {report.seconds:.0f} s, peak {peak:.0f} MiB")
