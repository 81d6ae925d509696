"""Document and passage vectors on disk, and exact search over them.

Exact search, because an evaluation should measure the vectors and not an index's approximation of them (an index is
measured end to end by `systems.IndexSystem`). Vectors are appended to flat float32 files as they are computed and read
back memory-mapped, so memory does not grow with the corpus; `meta.json` is written last and marks a complete set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aveyb_retrieval.errors import ConfigError

UNITS = ("document", "passage", "max")
_SCORES_IN_MEMORY = 2**24  # scores of one block of documents for all queries, float32: 64 MiB


class DocumentVectors(NamedTuple):
    """Vectors of one document, unit rows (zeros for a text without tokens).

    document: `[d]` float32, or None where only chunks are encoded; passages: `[p, d]` float32; spans: `[p, 2]` int64,
    character offsets [start, end) of each passage in the text.
    """

    document: np.ndarray | None
    passages: np.ndarray
    spans: np.ndarray


class EncodedCorpus:
    """Vectors of a whole corpus in the corpus's order.

    documents: `[n, d]` or None; passages: `[m, d]`; spans: `[m, 2]`; offsets: `[n + 1]`, document i owns passage rows
    offsets[i] to offsets[i + 1].
    """

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / "meta.json").read_text())
        self.dim: int = meta["dim"]
        n, m = meta["documents"], meta["passages"]
        self.documents = _map(folder / "documents.f32", np.float32, (n, self.dim)) if meta["document_vectors"] else None
        self.passages = _map(folder / "passages.f32", np.float32, (m, self.dim))
        self.spans = _map(folder / "spans.i64", np.int64, (m, 2))
        self.offsets = _map(folder / "offsets.i64", np.int64, (n + 1,))
        self.seconds: float = meta["seconds"]
        self.cut_texts: int = meta["cut_texts"]

    def __len__(self) -> int:
        return len(self.offsets) - 1


def _map(path: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    if 0 in shape:  # an empty file cannot be mapped
        return np.zeros(shape, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", shape=shape)


def is_complete(folder: Path) -> bool:
    """Whether `write_corpus` finished in this folder."""
    return (folder / "meta.json").is_file()


def write_corpus(
    folder: Path, vectors: Iterable[DocumentVectors], dim: int, costs: Callable[[], tuple[float, int]]
) -> None:
    """Write the vectors of all documents, in order; replaces what an interrupted run left behind.

    `costs` is asked at the end for the seconds that encoding took and the number of texts that were not read whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").unlink(missing_ok=True)
    offsets = [0]
    whole = 0
    with (
        (folder / "documents.f32").open("wb") as documents,
        (folder / "passages.f32").open("wb") as passages,
        (folder / "spans.i64").open("wb") as spans,
    ):
        for item in vectors:
            if item.document is not None:
                documents.write(np.ascontiguousarray(item.document, dtype=np.float32).tobytes())
                whole += 1
            passages.write(np.ascontiguousarray(item.passages, dtype=np.float32).tobytes())
            spans.write(np.ascontiguousarray(item.spans, dtype=np.int64).tobytes())
            offsets.append(offsets[-1] + len(item.passages))
    np.array(offsets, dtype=np.int64).tofile(folder / "offsets.i64")
    seconds, cut_texts = costs()
    meta = {
        "dim": dim,
        "documents": len(offsets) - 1,
        "passages": offsets[-1],
        "document_vectors": whole == len(offsets) - 1,
        "seconds": seconds,
        "cut_texts": cut_texts,
    }
    partial = folder / "meta.json.partial"
    partial.write_text(json.dumps(meta))
    partial.replace(folder / "meta.json")


def search(corpus: EncodedCorpus, queries: np.ndarray, k: int, unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Exact top k by inner product.

    Args:
        queries: `[q, d]` float32 unit rows.
        unit: `document` (the document's vector), `passage` (its best passage) or `max` (the better of both).

    Returns:
        positions `[q, k']` int64 into the corpus and scores `[q, k']` float32, best first; k' = min(k, documents).

    Raises:
        ConfigError: an unknown unit, or one that was not encoded.
    """
    if unit not in UNITS:
        raise ConfigError(f"Unknown unit {unit!r}: use one of {', '.join(UNITS)}.")
    if unit != "passage" and corpus.documents is None:
        raise ConfigError(f"unit={unit!r} needs document vectors, and only chunks were encoded: use unit='passage'.")
    if unit != "document" and not len(corpus.passages):
        raise ConfigError(f"unit={unit!r} needs passage vectors, and only whole documents were encoded: encode chunks.")
    n, k = len(corpus), min(k, len(corpus))
    best_scores = np.empty((len(queries), 0), dtype=np.float32)
    best_positions = np.empty((len(queries), 0), dtype=np.int64)
    for start, end in _blocks(corpus, unit, max(1, _SCORES_IN_MEMORY // max(1, len(queries)))):
        scores = _block_scores(corpus, queries, start, end, unit)
        positions = np.broadcast_to(np.arange(start, end), scores.shape)
        best_scores, best_positions = _top(
            np.concatenate([best_scores, scores], axis=1), np.concatenate([best_positions, positions], axis=1), k
        )
    assert best_positions.shape == (len(queries), min(k, n))
    order = np.argsort(-best_scores, axis=1, kind="stable")
    return np.take_along_axis(best_positions, order, axis=1), np.take_along_axis(best_scores, order, axis=1)


def score_documents(corpus: EncodedCorpus, query: np.ndarray, positions: np.ndarray, unit: str) -> np.ndarray:
    """Scores `[p]` float32 of some documents for one query `[d]`, as `search` scores them."""
    scores = np.full(len(positions), -np.inf, dtype=np.float32)
    if unit != "document":
        for row, (start, end) in enumerate(zip(corpus.offsets[positions], corpus.offsets[positions + 1], strict=True)):
            scores[row] = (corpus.passages[start:end] @ query).max(initial=-np.inf if unit == "max" else 0.0)
    if unit != "passage":
        assert corpus.documents is not None
        scores = np.maximum(scores, corpus.documents[positions] @ query)
    return scores


def mean_vector(corpus: EncodedCorpus) -> np.ndarray:
    """The mean `[d]` of the document (else passage) vectors: times a query, what a document scores at random."""
    vectors = corpus.passages if corpus.documents is None else corpus.documents
    return np.asarray(vectors.mean(axis=0, dtype=np.float64), dtype=np.float32)


def search_passages(
    corpus: EncodedCorpus, query: np.ndarray, k: int, position: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Exact top k passages for one query `[d]`, in one document (`position`) or in all of them.

    Returns:
        passage rows `[k']` int64 and scores `[k']` float32, best first.
    """
    start, end = (
        (0, len(corpus.passages)) if position is None else (corpus.offsets[position], corpus.offsets[position + 1])
    )
    scores = np.asarray(corpus.passages[start:end]) @ query
    order = np.argsort(-scores, kind="stable")[:k]
    return order + start, scores[order]


def _blocks(corpus: EncodedCorpus, unit: str, rows: int) -> Iterable[tuple[int, int]]:
    """Ranges of documents whose vectors number about `rows`."""
    n = len(corpus)
    if unit == "document":
        yield from ((start, min(start + rows, n)) for start in range(0, n, rows))
        return
    start = 0
    while start < n:
        end = int(np.searchsorted(corpus.offsets, corpus.offsets[start] + rows, side="right")) - 1
        end = min(max(end, start + 1), n, start + rows)
        yield start, end
        start = end


def _block_scores(corpus: EncodedCorpus, queries: np.ndarray, start: int, end: int, unit: str) -> np.ndarray:
    if unit == "document":
        assert corpus.documents is not None
        return queries @ np.asarray(corpus.documents[start:end]).T
    offsets = corpus.offsets[start : end + 1]
    scores = np.full((len(queries), end - start), -np.inf, dtype=np.float32)
    filled = np.diff(offsets) > 0
    if filled.any():
        rows = queries @ np.asarray(corpus.passages[offsets[0] : offsets[-1]]).T
        scores[:, filled] = np.maximum.reduceat(rows, (offsets[:-1] - offsets[0])[filled], axis=1)
    if unit == "max":
        assert corpus.documents is not None
        return np.maximum(scores, queries @ np.asarray(corpus.documents[start:end]).T)
    scores[:, ~filled] = 0.0  # a document without passages has no direction: the score of a zero vector
    return scores


def _top(scores: np.ndarray, positions: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    if scores.shape[1] <= k:
        return scores, positions
    keep = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    return np.take_along_axis(scores, keep, axis=1), np.take_along_axis(positions, keep, axis=1)
