"""Which data the recipe reads, and what is kept out of them.

Held-out rule: a document that is relevant to a dev or test query is never used, nor is any passage
that shares thirteen consecutive words with one. Sets without a training split (cranfield, nq-gold,
chunking-eval) are not used. One training query in six is kept aside too: settings are chosen on
those (`development_queries`). The openstax files of the pre-training text hold the evaluation
corpus, so only documents linked to a training question are taken, from the set.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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
DEVELOPMENT_SHARE = 6  # one training query in so many is kept aside
WORD = re.compile(r"[a-z0-9]+")
HEADING = re.compile(r"^#+ +(.{3,80})$", re.MULTILINE)


@dataclass
class RetrievalSet:
    """One BEIR-format folder."""

    documents: dict[str, tuple[str, str]]  # id -> (title, text)
    queries: dict[str, str]
    # split -> query id -> relevant ids
    qrels: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def held_out_documents(self) -> set[str]:
        return {
            d
            for split, rels in self.qrels.items()
            if split != "train"
            for ids in rels.values()
            for d in ids
        }

    def held_out_queries(self) -> set[str]:
        return {q for split, rels in self.qrels.items() if split != "train" for q in rels}

    def development_queries(self) -> set[str]:
        """Training queries that are kept aside to choose settings on."""
        return {
            q
            for q in self.qrels.get("train", {})
            if q not in self.held_out_queries()
            and zlib.crc32(self.queries[q].encode()) % DEVELOPMENT_SHARE == 0
        }

    def train_pairs(self) -> list[tuple[str, str]]:
        """(query id, document id) of the training split, without any document that dev or test
        needs.
        """
        held_out, blocked = (
            self.held_out_documents(),
            self.held_out_queries() | self.development_queries(),
        )
        rels = self.qrels.get("train", {})
        return [
            (q, d) for q, ids in rels.items() if q not in blocked for d in ids if d not in held_out
        ]


def load_set(folder: Path) -> RetrievalSet:
    documents = {
        r["_id"]: (r.get("title", ""), r["text"]) for _, r in read_records(folder / "corpus.jsonl")
    }
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


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def shingles(text: str, size: int = 13) -> Iterator[int]:
    """A hash of every run of `size` words."""
    tokens = words(text)
    for start in range(len(tokens) - size + 1):
        yield hash(tuple(tokens[start : start + size]))


def kept_out(data: Path) -> tuple[set[int], set[str]]:
    """Hashed runs of 13 words of every held-out document, and the held-out queries of four words
    and more.
    """
    blocked: set[int] = set()
    blocked_queries: set[str] = set()
    for name in [*TRAIN_SETS, *EVAL_ONLY]:
        collection = load_set(data / name)
        for document in collection.held_out_documents():
            blocked.update(shingles("\n".join(collection.documents[document])))
        blocked_queries.update(
            " ".join(words(collection.queries[q])) for q in collection.held_out_queries()
        )
    return blocked, {q for q in blocked_queries if q.count(" ") >= 3}


def is_kept_out(text: str, blocked: tuple[set[int], set[str]]) -> bool:
    """Whether a text is a query kept out, or shares 13 words with a text kept out
    (`blocked_texts`).
    """
    runs, queries = blocked
    return " ".join(words(text)) in queries or any(run in runs for run in shingles(text))


def records(data: Path, pattern: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each record of the matching files with a name of its own."""
    paths = sorted(data.glob(f"{pattern}.jsonl.zst"))
    if not paths:
        raise SystemExit(f"{data} holds no {pattern}.jsonl.zst")
    for path in paths:
        for number, record in read_records(path):
            yield f"{path.name}:{number}", record
