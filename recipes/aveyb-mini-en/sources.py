"""Where the training text comes from, and what is kept out of it.

Held-out rule: a document that is relevant to a dev or test query is never used, nor is any passage that shares
thirteen consecutive words with one. Sets without a training split (cranfield, nq-gold, chunking-eval) are not used.
One training query in six is kept aside too: settings are chosen on those (`development_queries`).
The openstax files of the pre-training text hold the evaluation corpus, so only documents linked to a training
question are taken, from the set itself.
"""

from __future__ import annotations

import csv
import random
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PRETRAIN = [
    "100_english_novels",
    "dc_code",
    "eltec_eng",
    "ethereum_eips",
    "kubernetes_keps",
    "ms_cpp_docs",
    "ms_powershell_docs",
    "ms_win32",
    "ms_windows_driver_docs",
    "php_manual",
    "python_peps",
    "rust_rfcs",
]
TRAIN_SETS = ["medquad", "scifact", "qmsum-long", "openstax-ccby-long"]
EVAL_ONLY = ["cranfield", "nq-gold"]
PROMPT = " "  # of queries and documents: the first word of a text becomes the same token as inside one
DEVELOPMENT_SHARE = 6  # one training query in so many is kept aside
WORD = re.compile(r"[a-z0-9]+")


@dataclass
class RetrievalSet:
    """One BEIR-format folder."""

    documents: dict[str, tuple[str, str]]  # id -> (title, text)
    queries: dict[str, str]
    qrels: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # split -> query id -> relevant ids

    def held_out_documents(self) -> set[str]:
        return {d for split, rels in self.qrels.items() if split != "train" for ids in rels.values() for d in ids}

    def held_out_queries(self) -> set[str]:
        return {q for split, rels in self.qrels.items() if split != "train" for q in rels}

    def development_queries(self) -> set[str]:
        """Training queries that are kept aside to choose settings on."""
        return {
            q
            for q in self.qrels.get("train", {})
            if q not in self.held_out_queries() and zlib.crc32(self.queries[q].encode()) % DEVELOPMENT_SHARE == 0
        }

    def train_pairs(self) -> list[tuple[str, str]]:
        """(query id, document id) of the training split, without any document that dev or test needs."""
        held_out, blocked = self.held_out_documents(), self.held_out_queries() | self.development_queries()
        rels = self.qrels.get("train", {})
        return [(q, d) for q, ids in rels.items() if q not in blocked for d in ids if d not in held_out]


def load_set(folder: Path) -> RetrievalSet:
    documents = {r["_id"]: (r.get("title", ""), r["text"]) for _, r in read_records(folder / "corpus.jsonl")}
    queries = {r["_id"]: r["text"] for _, r in read_records(folder / "queries.jsonl")}
    result = RetrievalSet(documents, queries)
    for path in sorted((folder / "qrels").glob("*.tsv")):
        rels: dict[str, list[str]] = defaultdict(list)
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                if int(row["score"]) > 0:
                    rels[row["query-id"]].append(row["corpus-id"])
        result.qrels[path.stem] = dict(rels)
    return result


def pretrain_documents(data: Path, name: str, limit: int, seed: int = 0) -> list[str]:
    """Up to `limit` documents of one source, drawn evenly."""
    texts = [record["text"] for _, record in read_records(data / "pretrain" / f"{name}.jsonl.zst")]
    random.Random(seed).shuffle(texts)
    return texts[:limit]


def teacher_words(vocabulary: Path) -> list[str]:
    """The whole words of the teacher's vocabulary, frequent ones first."""
    return [w for w in vocabulary.read_text(encoding="utf-8").split() if w.isascii() and w.isalpha() and len(w) > 2]


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def shingles(text: str, size: int = 13) -> Iterator[int]:
    """A hash of every run of `size` words."""
    tokens = words(text)
    for start in range(len(tokens) - size + 1):
        yield hash(tuple(tokens[start : start + size]))
