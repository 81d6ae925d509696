"""Document and passage vectors on disk, and exact search over them.

Exact search, because an evaluation should measure the vectors and not an index's approximation of them (an index is
measured end to end by `systems.IndexSystem`). Vectors are appended to flat float32 files as they are computed and read
back memory-mapped, so memory does not grow with the corpus; `meta.json` is written last and marks a complete set.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.files import write_atomic
from aveyb_retrieval.indexes.nearest.tiers import best

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

GRANULARITIES = ("document", "passage", "both")
_ROWS = 2**14  # vectors that are scored at once ...
_QUERIES = 2**8  # ... for this many queries: 16 MiB of scores


class DocumentVectors(NamedTuple):
    """Vectors of one document, unit rows (zeros for a text without tokens).

    Attributes:
        document: `[d]` float32, or None where only chunks are encoded.
        passages: `[p, d]` float32.
        spans: `[p, 2]` int64, character offsets [start, end) of each passage in the text.
    """

    document: np.ndarray | None
    passages: np.ndarray
    spans: np.ndarray


class EncodedCorpus:
    """Vectors of a whole corpus in the corpus's order, mapped from disk.

    Attributes:
        documents: `[n, d]` float32, or None where only chunks were encoded.
        passages: `[m, d]` float32.
        spans: `[m, 2]` int64, character offsets [start, end).
        offsets: `[n + 1]` int64, document i owns passage rows offsets[i] to offsets[i + 1].
        cut_texts: Texts that were longer than the model's limit.
    """

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / "meta.json").read_text())
        self.dim: int = meta["dim"]
        n, m = meta["documents"], meta["passages"]
        self.documents = _map(folder / "documents.f32", np.float32, (n, self.dim)) if meta["document_vectors"] else None
        self.passages = _map(folder / "passages.f32", np.float32, (m, self.dim))
        self.spans = _map(folder / "spans.i64", np.int64, (m, 2))
        self.offsets = _map(folder / "offsets.i64", np.int64, (n + 1,))
        self.cut_texts: int = meta["cut_texts"]

    def __len__(self) -> int:
        return len(self.offsets) - 1


def _map(path: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    if 0 in shape:  # an empty file cannot be mapped
        return np.zeros(shape, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", shape=shape)


def is_complete(folder: Path) -> bool:
    """Return whether `write_corpus` finished in this folder."""
    return (folder / "meta.json").is_file()


def write_corpus(folder: Path, vectors: Iterable[DocumentVectors], dim: int, cut_texts: Callable[[], int]) -> None:
    """Write the vectors of all documents, in order; replaces what an interrupted run left behind.

    `cut_texts` is asked at the end for the number of texts that were not read whole.
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
    meta = {
        "dim": dim,
        "documents": len(offsets) - 1,
        "passages": offsets[-1],
        "document_vectors": whole == len(offsets) - 1,
        "cut_texts": cut_texts(),
    }
    write_atomic(folder / "meta.json", json.dumps(meta).encode())


def search(corpus: EncodedCorpus, queries: np.ndarray, k: int, granularity: str) -> tuple[np.ndarray, np.ndarray]:
    """Find the exact top k by inner product, with the index's own exact search.

    Args:
        corpus: The vectors to search.
        queries: `[q, d]` float32 unit rows.
        k: How many documents.
        granularity: "document" (the document's vector), "passage" (its best passage) or "both" (the better of the two).

    Returns:
        positions `[q, k']` int64 into the corpus and scores `[q, k']` float32, best first, ties by the lower position;
        k' = min(k, documents).

    Raises:
        ConfigError: an unknown granularity, or one that was not encoded.
    """
    _check_granularity(corpus, granularity)
    k = min(k, len(corpus))
    found = []
    for row in range(0, len(queries), _QUERIES):
        some = queries[row : row + _QUERIES]
        blocks = (
            (np.arange(start, end), _block_scores(corpus, some, start, end, granularity))
            for start, end in _blocks(corpus, granularity)
        )
        found.append(best(blocks, len(some), k))
    if not found:
        return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
    scores, positions = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return positions, scores


def score_documents(corpus: EncodedCorpus, query: np.ndarray, positions: np.ndarray, granularity: str) -> np.ndarray:
    """Return the scores `[p]` float32 of some documents for one query `[d]`, as `search` scores them."""
    blocks = [_block_scores(corpus, query[None], p, p + 1, granularity)[0] for p in positions.tolist()]
    return np.concatenate(blocks) if blocks else np.empty(0, np.float32)


def mean_vector(corpus: EncodedCorpus) -> np.ndarray:
    """Return the mean `[d]` of the document (else passage) vectors: times a query, what a document scores at random."""
    vectors = corpus.passages if corpus.documents is None else corpus.documents
    return np.asarray(vectors.mean(axis=0, dtype=np.float64), dtype=np.float32)


def _check_granularity(corpus: EncodedCorpus, granularity: str) -> None:
    if granularity not in GRANULARITIES:
        raise ConfigError(f"unknown granularity {granularity!r}: use one of {', '.join(GRANULARITIES)}")
    if granularity != "passage" and corpus.documents is None:
        raise ConfigError(
            f"granularity {granularity!r} needs document vectors, and only chunks were encoded: use 'passage'"
        )
    if granularity != "document" and not len(corpus.passages):
        raise ConfigError(
            f"granularity {granularity!r} needs passage vectors, and only whole documents were encoded: encode chunks"
        )


def _blocks(corpus: EncodedCorpus, granularity: str) -> Iterator[tuple[int, int]]:
    """Yield ranges of documents of about `_ROWS` vectors; they do not depend on what is searched for."""
    n = len(corpus)
    if granularity == "document":
        yield from ((start, min(start + _ROWS, n)) for start in range(0, n, _ROWS))
        return
    start = 0
    while start < n:
        end = int(np.searchsorted(corpus.offsets, corpus.offsets[start] + _ROWS, side="right")) - 1
        end = min(max(end, start + 1), n, start + _ROWS)
        yield start, end
        start = end


def _block_scores(corpus: EncodedCorpus, queries: np.ndarray, start: int, end: int, granularity: str) -> np.ndarray:
    """Score documents start to end for queries `[q, d]`: `[q, end - start]`."""
    if granularity == "document":
        assert corpus.documents is not None
        return queries @ np.asarray(corpus.documents[start:end]).T
    offsets = corpus.offsets[start : end + 1]
    scores = np.full((len(queries), end - start), -np.inf, dtype=np.float32)
    filled = np.diff(offsets) > 0
    if filled.any():
        rows = queries @ np.asarray(corpus.passages[offsets[0] : offsets[-1]]).T
        scores[:, filled] = np.maximum.reduceat(rows, (offsets[:-1] - offsets[0])[filled], axis=1)
    if granularity == "both":
        assert corpus.documents is not None
        return np.maximum(scores, queries @ np.asarray(corpus.documents[start:end]).T)
    scores[:, ~filled] = 0.0  # a document without passages has no direction: the score of a zero vector
    return scores
