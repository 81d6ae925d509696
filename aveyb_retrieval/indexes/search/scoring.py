"""From candidates to a ranking: fusion of vectors and words, boosts, and the confidence of a hit.

How well passages answer a query: vectors and words together, on a scale that is the same for every query.

    r(p) = COSINE * (cos(p) - background) + coverage(p)      background: the mean cosine of all documents with the query
    s(p) = r(p) + NEIGHBOR * max(r(p - 1), r(p + 1))         neighbors in the same document
    confidence(p) = 1 / (1 + exp(-(SLOPE * s(p) + OFFSET)))

    with rerank="maxsim":  s(p) + MAXSIM_CONFIDENCE * maxsim(p)
                           maxsim: the mean over the query's tokens of the highest cosine

    best(d) = max over p in d of  2 * (weight * COSINE * (cos(p) - background) + (1 - weight) * coverage(p))

`coverage` is the share of the query's words, weighed by their inverse frequency, that the passage holds. Neither part
is divided by the best one of the query, so that equal numbers mean the same for every query.

Boosts: what metadata say moves the candidates, after all that scores them and before the best are taken.

    {"stars": 0.1, "published": {"weight": 0.3, "half_life": 90}}       weights, and half-lives in days

    score'(d) = score(d) + best * sum over fields of weight * part(d)       best: the largest |score| of a candidate
    part(d)   = value(d) / the largest |value| of a candidate               of a field of numbers
    part(d)   = 0.5 ** (age(d) / half_life), at most 1                      of a field of dates (ISO 8601; UTC)

A document without a value gets nothing; a value of another type is an error, as is a field that no document has.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.store.filters import field_keys, is_number
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS
from aveyb_retrieval.indexes.store.words import K1, B
from aveyb_retrieval.indexes.types import unit_rows

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.engines.base import EngineView, Selection
    from aveyb_retrieval.indexes.store.tables import StoredDocument, StoredPassage
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

ALL_AT_ONCE = 16  # passages for each document wanted: so few are fetched in one step


class Match(NamedTuple):
    """A document with its score and, where a passage decided it, that passage's number (else -1)."""

    doc: int
    score: float
    passage: int = -1


class Cosines(NamedTuple):
    """The cosines `[n]` of passages with a query, by number `[n]`, ascending."""

    ids: IntArray
    values: FloatArray

    def of(self, view: EngineView, ids: IntArray, query: FloatArray) -> FloatArray:
        """Those of other passages, `[m]` ascending; only what is not among these is computed with the query `[d]`."""
        values, known = np.empty(len(ids), np.float32), np.isin(ids, self.ids)
        values[known] = self.values[np.isin(self.ids, ids)]
        if not known.all():
            values[~known] = view.vectors("passage", ids[~known]) @ query
        return values


NO_COSINES = Cosines(np.empty(0, np.int64), np.empty(0, np.float32))


def unit_queries(vectors: npt.NDArray[np.floating], dim: int) -> FloatArray:
    """Scale query vectors `[n, d]` to unit length.

    Raises:
        InputError: they are of another dimension, or not finite.
    """
    try:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"query vectors are not an array of numbers ({error}); this index needs [n, {dim}]") from error
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise InputError(f"query vectors of shape {rows.shape}; this index needs [n, {dim}]")
    if not np.isfinite(rows).all():
        raise InputError("a query vector holds NaN or infinity")
    return unit_rows(rows)


def nearest_documents(
    view: EngineView,
    kinds: tuple[Kind, ...],
    queries: FloatArray,
    k: int,
    selection: Selection | None = None,
    *,
    exact: bool = False,
) -> list[list[Match]]:
    """The `k` best documents for each query `[n, d]`: by their vector, their best passage, or the better one.

    With both kinds the `k` best of each are enough: a document among the `k` best by the larger of its two scores
    is among the `k` best by that score.
    """
    results: list[dict[int, Match]] = [{} for _ in queries]
    for kind in kinds:
        nearest = nearest_vectors if kind == "document" else _by_passage
        for result, matches in zip(results, nearest(view, kind, queries, k, selection, exact), strict=True):
            for match in matches:
                if match.doc not in result or match.score > result[match.doc].score:
                    result[match.doc] = match
    return [sorted(result.values(), key=lambda m: (-m.score, m.doc))[:k] for result in results]


def nearest_vectors(
    view: EngineView, kind: Kind, queries: FloatArray, k: int, selection: Selection | None, exact: bool
) -> list[list[Match]]:
    """The `k` best documents, or passages, for each query `[n, d]`, by the vectors of their kind."""
    scores, numbers = view.nearest(kind, queries, k, selection, exact=exact)
    found = zip(numbers.tolist(), scores.tolist(), strict=True)
    if kind == "document":
        return [list(map(Match, docs, row)) for docs, row in found]
    return [[Match(i >> PASSAGE_BITS, score, i) for i, score in zip(ids, row, strict=True)] for ids, row in found]


def score_documents(
    view: EngineView, kinds: tuple[Kind, ...], docs: list[int], query: FloatArray
) -> tuple[dict[int, float], Cosines]:
    """Score documents against one query `[d]` as `nearest_documents` does; leave out those without a vector.

    Also give the cosines of their passages, if these count.
    """
    found: dict[int, float] = {}
    if "document" in kinds and docs:
        scores = view.vectors("document", np.array(docs, dtype=np.int64)) @ query
        found = dict(zip(docs, scores.tolist(), strict=True))
    if "passage" not in kinds or not docs:
        return found, NO_COSINES
    ids = view.passage_numbers(docs)
    cosines = Cosines(ids, NO_COSINES.of(view, ids, query))
    for doc, score in zip((ids >> PASSAGE_BITS).tolist(), cosines.values.tolist(), strict=True):
        found[doc] = max(score, found.get(doc, score))
    return found, cosines


def background(view: EngineView, query: FloatArray) -> float:
    """The mean cosine of all vectors with a query `[d]`, of a sample of them: what a document scores at random."""
    return float(view.mean_vector @ query)


def _by_passage(
    view: EngineView, kind: Kind, queries: FloatArray, k: int, selection: Selection | None, exact: bool
) -> list[list[Match]]:
    """Documents by their best passage: fetches passages until they are of `k` documents or there are no more."""
    results: list[list[Match]] = [[] for _ in queries]
    available = view.count(kind, selection)
    open_rows, wanted = np.arange(len(queries)), 4 * k if available > ALL_AT_ONCE * k else available
    while len(open_rows):
        found = view.nearest(kind, queries[open_rows], wanted, selection, exact=exact)
        for row, scores, ids in zip(open_rows.tolist(), *found, strict=True):
            docs = ids >> PASSAGE_BITS
            first = np.sort(np.unique(docs, return_index=True)[1])[:k]  # the best passage of each document
            results[row] = list(map(Match, docs[first].tolist(), scores[first].tolist(), ids[first].tolist()))
        if wanted >= available:
            break
        open_rows = np.array([row for row in open_rows if len(results[row]) < k], dtype=np.int64)
        wanted *= 4
    return results


Document = TypeVar("Document", bound=Hashable)

RRF_K = 60  # Cormack, Clarke and Buettcher, SIGIR 2009
MAXSIM_WEIGHT = 3.0  # weight of late interaction, where it is added to a weighted fusion

Ranking = Sequence[tuple[int, float]]
"""(document, score), best first."""


def reciprocal_rank(rankings: Sequence[Ranking]) -> dict[int, float]:
    """Reciprocal rank fusion: the sum of 1 / (60 + rank) over the rankings a document is in, rank from 1."""
    fused: dict[int, float] = {}
    for ranking in rankings:
        for rank, (doc, _) in enumerate(ranking, start=1):
            fused[doc] = fused.get(doc, 0.0) + 1.0 / (RRF_K + rank)
    return fused


def weighted(
    dense: Mapping[Document, float], lexical: Mapping[Document, float], *, background: float, weight: float
) -> dict[Document, float]:
    """Weighted sum of the two scores, each as a share of the way from a document at random to the best one.

    A document at random has none of the query's words, so BM25's way begins at 0; cosines begin at `background`.

    Args:
        dense: cosine of each candidate.
        lexical: BM25 of those that have words of the query; 0 for the others.
        background: the mean cosine of all documents with the query.
        weight: of the dense share, 0 to 1; the lexical one gets the rest.
    """
    nearest = max(dense.values(), default=background) - background
    highest = max(lexical.values(), default=0.0)
    fused = {}
    for doc in dense.keys() | lexical.keys():
        near = (dense.get(doc, background) - background) / nearest if nearest > 0 else 0.0
        words = lexical.get(doc, 0.0) / highest if highest > 0 else 0.0
        fused[doc] = weight * near + (1 - weight) * words
    return fused


def ranked(scores: Mapping[int, float]) -> list[tuple[int, float]]:
    """Documents by score, best first; ties by the lower number, so that the order never depends on anything else."""
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


@dataclass(frozen=True)
class WordScores:
    """What passages hold of a query's words.

    Attributes:
        found: Summed weights of the words that each passage holds, `[n]`.
        total: Summed weights of all words of the query.
        lengths: Of the passages, in characters, `[n]`.
        mean_length: Of all passages of the index, in characters.
    """

    found: FloatArray
    total: float
    lengths: IntArray
    mean_length: float

    @classmethod
    def of(cls, view: EngineView, words: Sequence[str], passages: Sequence[StoredPassage]) -> WordScores:
        """Weigh the words that each of some passages `[n]` holds."""
        weights = word_weights(view, words)
        held = np.array([passage.held for passage in passages], np.float32).reshape(len(passages), len(words))
        spans = np.array([passage.span for passage in passages], np.int64).reshape(len(passages), 2)
        return cls(held @ weights, float(weights.sum()), spans[:, 1] - spans[:, 0], view.mean_passage_length)

    @property
    def coverage(self) -> FloatArray:
        """The share of the query's words, by weight, that each passage holds, `[n]`, 0 to 1."""
        return self.found / self.total if self.total else self.found

    @property
    def bm25(self) -> FloatArray:
        """BM25 of the passages, `[n]`.

        A word counts once in a passage however often it is there: passages are short and of one size, and so they
        need not be counted.
        """
        penalty = K1 * (1 - B + B * self.lengths / max(self.mean_length, 1.0))
        return (self.found * (K1 + 1) / (1 + penalty)).astype(np.float32)


def word_weights(view: EngineView, words: Sequence[str]) -> FloatArray:
    """Weigh words `[t]` by how few passages hold them, as BM25 does (in Lucene's form, never below 0)."""
    holding = np.array(view.holding(words), dtype=np.int64)
    return np.log(1 + (view.info.passages - holding + 0.5) / (holding + 0.5)).astype(np.float32)


COSINE = 1.5
NEIGHBOR = 0.3
MAXSIM_CONFIDENCE = 1.5
WEIGHTS = {"cosine": COSINE, "neighbor": NEIGHBOR, "maxsim": MAXSIM_CONFIDENCE}
SLOPE, OFFSET = 1.85, -2.95  # fitted by benchmarks/cpu/confidence.py


@dataclass(frozen=True)
class PassageScores:
    """Passages and their scores for one query, all `[n]`, ascending by number; None where a part was not computed.

    `score` orders them, and `shown` is what hits show: its calibrated form, the confidence, of a hybrid search, which
    orders them alike, else the same. `near` is the part of the vectors in r(p).
    """

    ids: IntArray
    score: FloatArray
    shown: FloatArray
    cosine: FloatArray | None = None
    words: WordScores | None = None
    near: FloatArray | None = None

    def best_rows(self, count: int) -> dict[int, IntArray]:
        """The rows of the `count` best passages of each document, best first, by its number; ties by the lower one."""
        docs = self.ids >> PASSAGE_BITS
        order = np.lexsort((self.ids, -self.score, docs))
        found = zip(*np.unique(docs, return_index=True, return_counts=True), strict=True)
        return {int(doc): order[first : first + min(count, size)] for doc, first, size in found}

    def best(self, weight: float) -> dict[int, float]:
        """The score of each document's best passage, by its number, with `weight` (0 to 1) for the vectors."""
        assert self.near is not None  # of a hybrid score it is
        assert self.words is not None
        return best_by_document(self.ids, _together(self.near, self.words, weight))

    def parts(self, rows: IntArray) -> list[dict[str, float]]:
        """The scores of some passages, `[m]`, that were put together, by name."""
        found = {"dense": self.cosine, "lexical": None if self.words is None else self.words.bm25}
        parts = {name: values[rows].tolist() for name, values in found.items() if values is not None}
        return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]


def score_hybrid(ids: IntArray, cosine: FloatArray, words: WordScores, background: float) -> PassageScores:
    """Score passages, numbers `[n]` ascending, by their cosines `[n]` with a query and by its words.

    Neighbors only count if they are among the passages.
    """
    near = COSINE * (cosine - background)
    own = _together(near, words, 0.5)
    score = own + NEIGHBOR * better_neighbor(ids, own)
    confidence = (1 / (1 + np.exp(-(SLOPE * score + OFFSET)))).astype(np.float32)
    return PassageScores(ids, score, confidence, cosine, words, near)


def best_by_document(ids: IntArray, values: FloatArray) -> dict[int, float]:
    """The highest value `[n]` of the passages of each document, by its number; passages `[n]`, ascending."""
    docs, first = np.unique(ids >> PASSAGE_BITS, return_index=True)
    return dict(zip(docs.tolist(), np.maximum.reduceat(values, first).tolist() if len(ids) else (), strict=True))


def with_maxsim(confidence: FloatArray, maxsim: FloatArray) -> FloatArray:
    """Add late interaction `[n]` to the hybrid scores s of passages, which come as their confidence `[n]`."""
    clipped = np.clip(confidence, 1e-6, 1 - 1e-6)
    return (np.log(clipped / (1 - clipped)) - OFFSET) / SLOPE + MAXSIM_CONFIDENCE * maxsim


def better_neighbor(ids: IntArray, values: FloatArray) -> FloatArray:
    """The better value of the two passages beside each one in its document, `[n]`; 0 where there is none."""
    beside = (np.diff(ids) == 1) & (ids[1:] >> PASSAGE_BITS == ids[:-1] >> PASSAGE_BITS)
    best = np.full(len(values), -np.inf, dtype=values.dtype)
    best[:-1][beside] = values[1:][beside]
    best[1:][beside] = np.maximum(best[1:], values[:-1])[beside]
    best[np.isneginf(best)] = 0
    return best


def _together(near: FloatArray, words: WordScores, weight: float) -> FloatArray:
    """What passages `[n]` score without their neighbors: r(p), with another share for the vectors than a half."""
    return 2 * (weight * near + (1 - weight) * words.coverage)


_RANGES = {"weight": (-100.0, 100.0), "half_life": (0.001, 1e6)}


def read_boost(boost: Any) -> dict[str, dict[str, Any]]:
    """Return the weight of each field, and its half-life if any; raises ConfigError where the boost means nothing."""
    if not isinstance(boost, Mapping):
        raise ConfigError(f"boost={boost!r}: must map fields to weights, as {{'stars': 0.2}}")
    found = {field: dict(how) if isinstance(how, Mapping) else {"weight": how} for field, how in boost.items()}
    for field, how in found.items():
        if not isinstance(field, str) or not field or not {"weight"} <= how.keys() <= _RANGES.keys():
            raise ConfigError(f"boost: {field!r}: {boost[field]!r}: must be a weight, or a weight and a half_life")
        for name, (least, most) in _RANGES.items():
            value = how.get(name, most)
            if not (is_number(value) and least <= value <= most):
                raise ConfigError(f"boost: {name}={value!r} of {field!r}: must be a number from {least:g} to {most:g}")
    return found


def gains(boost: Any, documents: Mapping[int, StoredDocument], view: EngineView) -> dict[int, float]:
    """What each candidate gains, as a share of the best score; raises ConfigError where a value is of another type."""
    total = dict.fromkeys(documents, 0.0)
    for field, how in read_boost(boost).items():
        parts = {doc: part for doc, each in documents.items() if (part := _part(each, field, how)) is not None}
        if not parts and not len(view.matching(view.select({field: {"$exists": True}}))):
            raise ConfigError(f"{view.info.name}: boost: no document has the field {field!r}")
        largest = 1.0 if "half_life" in how else max(map(abs, parts.values()), default=0.0) or 1.0
        for doc, part in parts.items():
            total[doc] += how["weight"] * part / largest
    return total


def _part(document: StoredDocument, field: str, how: dict[str, Any]) -> float | None:
    value: Any = document.metadata
    for key in field_keys(field):
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None or (is_number(value) and "half_life" not in how):
        return value
    try:
        then = datetime.fromisoformat(value.replace("Z", "+00:00"))  # Python 3.10 knows no Z
        age = datetime.now(timezone.utc) - (then if then.tzinfo else then.replace(tzinfo=timezone.utc))
        return float(0.5 ** (max(age / timedelta(days=1), 0.0) / how["half_life"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        what = "a date such as 2024-05-06" if "half_life" in how else "a number"
        raise ConfigError(f"boost: {field!r} of document {document.id!r} is {value!r}; {what} is needed") from None
