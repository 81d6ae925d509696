"""Small corpora and a fake model for index tests."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aveyb_retrieval import Hit
    from aveyb_retrieval.encoder.embedders.embedder import EncodedDocument

WORDS = [f"word{i}" for i in range(300)]


def make_documents(
    count: int, *, seed: int = 0, first: int = 0, longest: int = 60
) -> list[dict[str, Any]]:
    """Documents of random words; every tenth is empty."""
    rng = random.Random(seed)
    return [
        {
            "_id": f"doc-{i}",
            "title": f"Title {i}" if i % 3 else "",
            "text": "" if i % 10 == 9 else " ".join(rng.choices(WORDS, k=rng.randint(1, longest))),
            "year": 2000 + i % 20,
            "tags": [rng.choice("abc"), rng.choice("def")],
        }
        for i in range(first, first + count)
    ]


def encode_rows(rows: list[dict[str, Any]], embedder: FakeEmbedder) -> list[EncodedDocument]:
    return list(
        embedder.encode_documents(
            (f"{r['title']}\n" if r.get("title") else "", r["text"]) for r in rows
        )
    )


def true_scores(
    rows: list[dict[str, Any]],
    embedder: FakeEmbedder,
    query: str,
    granularity: str = "both",
    encoded_rows: list[EncodedDocument] | None = None,
) -> dict[str, float]:
    """Cosine of every document that can be found, straight from the model."""
    (vector,) = embedder.encode_queries([query])
    scores = {}
    for row, encoded in zip(rows, encoded_rows or encode_rows(rows, embedder), strict=True):
        found = [] if granularity == "passage" else [float(encoded.vector @ vector)]
        if granularity != "document":
            found += (encoded.passages @ vector).tolist()
        if found:
            scores[row["_id"]] = max(found)
    return scores


def assert_best(
    hits: list[Hit], truth: dict[str, float], k: int, *, tolerance: float = 1e-5
) -> None:
    """The hits are the k best by true score, in order; equals may stand in any order."""
    expected = sorted(truth.values(), reverse=True)[:k]
    assert [h.score for h in hits] == pytest.approx(expected, abs=tolerance)
    assert [truth[h.id] for h in hits] == pytest.approx(expected, abs=tolerance)
    assert len({h.id for h in hits}) == len(hits)


@pytest.fixture(autouse=True)
def few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of contents searches for 25 words of each dataset, not 200: the vocabulary is small,
    and checks are many.
    """
    monkeypatch.setattr("tests.contents.SAMPLED_WORDS", 25)


@pytest.fixture
def embedder() -> FakeEmbedder:
    return FakeEmbedder()


@pytest.fixture
def documents() -> list[dict[str, Any]]:
    return make_documents(120)


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows (mappings, or raw lines) as a JSONL file."""

    def write(rows: list[Any], name: str = "corpus.jsonl") -> Path:
        path = tmp_path / name
        lines = [
            r if isinstance(r, bytes) else (r if isinstance(r, str) else json.dumps(r)).encode()
            for r in rows
        ]
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write
