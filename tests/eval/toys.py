"""A toy collection and a toy model, written for these tests."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.encoder.embedders.embedder import EncodedDocument
from aveyb_retrieval.eval.runner import Result
from tests.indexes.fake import FakeEmbedder, unit
from tests.jsonl import write_jsonl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

DOCUMENTS = [
    (
        "d1",
        "Bees",
        "Honey bees dance to tell others where the flowers are. The dance points at the sun.",
    ),
    (
        "d2",
        "Bread",
        "Sourdough needs flour, water, salt and time. The starter makes the dough rise.",
    ),
    ("d3", "", "Tides follow the moon. Spring tides come when sun and moon pull together."),
    (
        "d4",
        "Glass",
        "Glass is sand melted with soda and lime. Slow cooling keeps the glass from breaking.",
    ),
    (
        "d5",
        "Clocks",
        "A pendulum clock keeps time by the swing of a weight. Longer pendulums swing slower.",
    ),
]
QUERIES = {
    "q1": "how do bees tell where flowers are",
    "q2": "what makes sourdough rise",
    "q3": "moon and tides",
    "q4": "glass from sand",
}
JUDGEMENTS = {
    "q1": {"d1": 2, "d3": 0},
    "q2": {"d2": 1},
    "q3": {"d3": 2, "d1": 1},
    "q4": {"d4": 1, "d5": 0},
}


def write_folder(folder: Path, *, spans: bool = False, dev: bool = True) -> Path:
    """The toy collection in BEIR layout: q1 to q3 in test, q4 in dev."""
    (folder / "qrels").mkdir(parents=True)
    write_jsonl(
        folder / "corpus.jsonl", [{"_id": d, "title": t, "text": x} for d, t, x in DOCUMENTS]
    )
    write_jsonl(folder / "queries.jsonl", [{"_id": q, "text": t} for q, t in QUERIES.items()])
    for split, queries in (("test", ["q1", "q2", "q3"]), ("dev", ["q4"])):
        if split == "dev" and not dev:
            continue
        lines = [f"{q}\t{d}\t{g}" for q in queries for d, g in JUDGEMENTS[q].items()]
        (folder / "qrels" / f"{split}.tsv").write_text(
            "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
        )
    if spans:
        rows = [("q1", "d1", [[0, 54]]), ("q2", "d2", [[45, 77]]), ("q3", "d3", [[0, 22]])]
        write_jsonl(
            folder / "spans.jsonl",
            [{"query-id": q, "corpus-id": d, "spans": s} for q, d, s in rows],
        )
    return folder


class ToyEmbedder(FakeEmbedder):
    """A model that puts its prompts in front of texts and notes what it has seen.

    A passage vector holds a quarter of its document, so that late chunking and lone chunks differ.
    """

    dim = 48

    def __init__(self, split_words: int = 6) -> None:
        super().__init__(self.dim, split_words)
        self.model_name = "toy"
        self.seen: list[str] = []

    def _vector(self, text: str) -> np.ndarray:
        return super().encode_queries([text])[0]

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedDocument]:
        for prefix, text in documents:
            whole = self.prompts["document"] + prefix + text
            self.seen.append(whole)
            document = self._vector(whole)
            words = list(re.finditer(r"\S+", text))
            groups = [words[i : i + self.split_size] for i in range(0, len(words), self.split_size)]
            spans = np.array([[g[0].start(), g[-1].end()] for g in groups], dtype=np.int64).reshape(
                -1, 2
            )
            rows = [unit(self._vector(text[a:b]) + 0.25 * document) for a, b in spans]
            passages = np.array(rows, dtype=np.float32).reshape(-1, self.dim)
            yield EncodedDocument(document, passages, spans, len(words), 0)

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        texts = [self.prompts["query"] + query for query in queries]
        self.seen.extend(texts)
        return np.array([self._vector(text) for text in texts], dtype=np.float32)


def read_report(path: Path) -> list[Result]:
    """The results of a report that `aveyb-eval` wrote."""
    return [Result.from_json(row, str(path)) for row in json.loads(path.read_text())["results"]]
