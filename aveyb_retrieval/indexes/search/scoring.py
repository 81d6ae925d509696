"""From candidates to a ranking: fusion of vectors and words, boosts, and the confidence of a hit.

docs/ranking.md has the formulas of r(p), s(p), best(d), confidences and boosts, and what the
constants were fitted on. With rerank="maxsim", s(p) + MAXSIM_CONFIDENCE * maxsim, the mean over the
query's tokens of the highest cosine.

No part of r(p) is divided by the best one of the query, so that equal numbers mean the same for
every query. `CHANCE` is there as the best of more passages comes nearer by chance. Boosts move the
candidates after all that scores them and before the best are taken; a document without a value gets
nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.engine import passage_numbers
from aveyb_retrieval.indexes.store.filters import OWN, field_keys, is_number
from aveyb_retrieval.indexes.store.words import K1, B
from aveyb_retrieval.indexes.types import (
    PASSAGE_BITS,
    ascending,
    find_in,
    inner_products,
    unit_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from aveyb_retrieval.indexes.engine import EngineView, Selection
    from aveyb_retrieval.indexes.store.tables import StoredDocument, StoredPassages
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

Key = TypeVar("Key", int, str)  # documents by number, or by id in an evaluation
Found = TypeVar("Found")
ALL_AT_ONCE = 16  # passages for each document wanted: so few are fetched in one step
BESIDE = 10_000  # documents: among so many, the nearest are found sooner than another thread begins
_beside = ThreadPoolExecutor(
    max(1, (os.cpu_count() or 2) // 2), "aveyb-beside"
)  # the threads that search


class Scored(NamedTuple):
    """A document with its score and, where a passage decided it, that passage's number
    (else -1).
    """

    doc: int
    score: float
    passage: int = -1


class Cosines(NamedTuple):
    """The cosines `[n]` of passages with a query, by number `[n]`, ascending."""

    ids: IntArray
    values: FloatArray

    def joined(self, ids: IntArray, values: FloatArray) -> Cosines:
        together = np.concatenate([self.ids, ids])
        order = np.argsort(together)
        return Cosines(together[order], np.concatenate([self.values, values])[order])

    def of(self, ids: IntArray) -> FloatArray:
        """Those of some of the passages, `[m]`."""
        return self.values[np.searchsorted(self.ids, ids)]

    def best_first(self) -> IntArray:
        """The numbers `[n]`, those of the highest cosines first."""
        return self.ids[np.lexsort((self.ids, -self.values))]


NO_COSINES = Cosines(np.empty(0, np.int64), np.empty(0, np.float32))


class Near(NamedTuple):
    """What vectors find for a query: documents, or passages, best first, and the cosines of all
    passages found.
    """

    matches: list[Scored]
    passages: Cosines = NO_COSINES


def first_of_each(numbers: IntArray, most: int) -> IntArray:
    """Of numbers of passages, best first, the first of each document, in no order."""
    by_document = numbers[np.argsort(numbers >> PASSAGE_BITS, kind="stable")]
    docs, kept = by_document >> PASSAGE_BITS, np.ones(len(numbers), np.bool_)
    np.not_equal(docs[most:], docs[:-most], out=kept[most:])
    return by_document[kept]


def begin(work: Callable[[], Found]) -> Callable[[], Found]:
    """Begin some work beside this thread; what is returned ends it, or does it where the others had
    more to do.
    """
    try:
        begun = _beside.submit(work)
    except RuntimeError:  # no thread is begun once the process is about to end
        return work
    return lambda: work() if begun.cancel() else begun.result()


def unit_queries(vectors: npt.NDArray[np.floating], dim: int) -> FloatArray:
    """Scale query vectors `[n, d]` to unit length; raises InputError where they are of another
    size, or not finite.
    """
    try:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"query vectors are not an array of numbers ({error}); this index needs [n, {dim}]"
        ) from error
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
) -> list[Near]:
    """The `k` best documents for each query `[n, d]`: by their vector, their best passage, or the
    better one.
    """
    # of both kinds the `k` best are enough: a document among the best by the larger of two scores
    # is so by that score
    results: list[dict[int, Scored]] = [{} for _ in queries]
    of_documents = partial(nearest_vectors, view, "document", queries, k, selection, exact)
    found = (
        begin(of_documents)
        if len(kinds) > 1 and view.lasting and view.info.documents > BESIDE
        else of_documents
    )
    by_passage = _by_passage(view, queries, k, selection, exact) if "passage" in kinds else []
    for every in (found() if "document" in kinds else [], by_passage):
        for result, near in zip(results, every, strict=False):
            for match in near.matches:
                if match.doc not in result or match.score > result[match.doc].score:
                    result[match.doc] = match
    passages = [near.passages for near in by_passage] or [NO_COSINES for _ in queries]
    best = (sorted(result.values(), key=lambda m: (-m.score, m.doc))[:k] for result in results)
    return list(map(Near, best, passages))


def nearest_vectors(
    view: EngineView,
    kind: Kind,
    queries: FloatArray,
    k: int,
    selection: Selection | None,
    exact: bool,
) -> list[Near]:
    """The `k` best documents, or passages, for each query `[n, d]`, by the vectors of
    their kind.
    """
    found = zip(*view.nearest(kind, queries, k, selection, exact=exact), strict=True)
    if kind == "document":
        return [Near(list(map(Scored, docs.tolist(), scores.tolist()))) for scores, docs in found]
    return [Near(_matches(ids, scores), NO_COSINES.joined(ids, scores)) for scores, ids in found]


def _matches(ids: IntArray, scores: FloatArray) -> list[Scored]:
    return list(map(Scored, (ids >> PASSAGE_BITS).tolist(), scores.tolist(), ids.tolist()))


def background(view: EngineView, query: FloatArray) -> float:
    """The mean cosine of all vectors with a query `[d]`, of a sample of them: what a document
    scores at random.
    """
    return float(view.mean_vector @ query)


def _by_passage(
    view: EngineView, queries: FloatArray, k: int, selection: Selection | None, exact: bool
) -> list[Near]:
    """Documents by their best passage."""
    available = view.count("passage", selection)
    wanted = 4 * k if available > ALL_AT_ONCE * k else available
    found = zip(
        queries, *view.nearest("passage", queries, wanted, selection, exact=exact), strict=True
    )
    every = [
        _of_documents(view, query, k, selection, exact, Cosines(ids, scores))
        for query, scores, ids in found
    ]
    return [Near(_matches(*_best_of_each(near))[:k], near) for near in every]


def _of_documents(
    view: EngineView,
    query: FloatArray,
    k: int,
    selection: Selection | None,
    exact: bool,
    near: Cosines,
) -> Cosines:
    """The nearest passages, by number, and more of them until they are of `k` documents or there
    are no more.
    """
    available, there = view.count("passage", selection), view.count("document", selection)
    while (known := len(docs := ascending(near.ids >> PASSAGE_BITS))) < k and len(
        near.ids
    ) < available:
        if there - known <= k:  # the best of those few documents are looked for among their own
            every = view.matching(view.select({}) if selection is None else selection)
            others = every[~find_in(docs, every)[1]]
            more = (
                passage_numbers(view, others) if exact else view.best_passages(others, query, (), 1)
            )
            return NO_COSINES.joined(*near).joined(
                more, inner_products(view.vectors("passage", more), query)
            )
        scores, ids = view.nearest(
            "passage", query[None], 4 * len(near.ids), selection, exact=exact
        )
        if ids.shape[1] <= len(near.ids):
            break
        near = Cosines(ids[0], scores[0])
    return NO_COSINES.joined(*near)


def _best_of_each(found: Cosines) -> tuple[IntArray, FloatArray]:
    """The best passage of each document and its cosine, best first; ties by the number."""
    ids = found.best_first()
    _, first = np.unique(ids >> PASSAGE_BITS, return_index=True)
    best = ids[np.sort(first)]
    return best, found.of(best)


RRF_K = 60  # Cormack, Clarke and Buettcher, SIGIR 2009
MAXSIM_WEIGHT = 2.0  # weight of late interaction, where it is added to a weighted fusion


def reciprocal_rank(rankings: Sequence[Sequence[tuple[int, float]]]) -> dict[int, float]:
    """Reciprocal rank fusion: the sum of 1 / (60 + rank) over a document's rankings; equal scores
    share one.
    """
    fused: dict[int, float] = {}
    for ranking in rankings:
        rank, last = 0, math.nan
        for place, (doc, score) in enumerate(ranking, start=1):
            rank, last = (rank, last) if score == last else (place, score)
            fused[doc] = fused.get(doc, 0.0) + 1.0 / (RRF_K + rank)
    return fused


def weighted(
    dense: Mapping[Key, float], lexical: Mapping[Key, float], *, background: float, weight: float
) -> dict[Key, float]:
    """Weighted sum of cosines and BM25, each as a share of the way from a document at random to the
    best one.

    A document at random has none of the query's words, so BM25's way begins at 0; cosines begin at
    `background`.
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
    """Documents by score, best first; ties by the lower number, so that the order never depends on
    anything else.
    """
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


@dataclass(frozen=True)
class WordScores:
    """What passages hold of a query's words: summed weights of the words of each, `[n]`, and of
    all; lengths `[n]`.
    """

    found: FloatArray
    total: float
    lengths: IntArray
    mean_length: float

    @classmethod
    def of(cls, passages: StoredPassages, weights: FloatArray, mean_length: float) -> WordScores:
        """Weigh the words that each of some passages `[n]` holds, by weights `[t]`."""
        lengths = passages.spans[:, 1] - passages.spans[:, 0]
        return cls(
            passages.held.astype(np.float32) @ weights, float(weights.sum()), lengths, mean_length
        )

    def take(self, rows: IntArray) -> WordScores:
        return replace(self, found=self.found[rows], lengths=self.lengths[rows])

    @property
    def coverage(self) -> FloatArray:
        """The share of the query's words, by weight, that each passage holds, `[n]`, 0 to 1."""
        return self.found / (self.total or 1.0)

    @property
    def bm25(self) -> FloatArray:
        """BM25 of the passages, `[n]`, where a word counts once: they are short and of one size."""
        penalty = K1 * (1 - B + B * self.lengths / max(self.mean_length, 1.0))
        return (self.found * (K1 + 1) / (1 + penalty)).astype(np.float32)


def word_weights(view: EngineView, words: Sequence[str]) -> FloatArray:
    """Weigh words `[t]` by how few passages (documents, where there are none) hold them, as BM25
    does: in Lucene's form, never below 0.
    """
    info = view.info
    total = info.passages if "passage" in info.kinds else info.documents  # as `holding` counts
    holding = np.minimum(np.array(view.holding(words), dtype=np.int64), total)
    return np.log(1 + (total - holding + 0.5) / (holding + 0.5)).astype(np.float32)


COSINE = 2.0
NEIGHBOR = 0.3
MAXSIM_CONFIDENCE = 0.75
WEIGHTS = {"cosine": COSINE, "neighbor": NEIGHBOR, "maxsim": MAXSIM_CONFIDENCE}
NEAR, MARGIN, CHANCE, OFFSET = 6.35, 6.56, -0.13, -3.69  # fitted by benchmarks/cpu/confidence.py
SAME = 1e-5  # by which the cosines of a passage and its copy may differ
FEWEST = (
    3  # documents from which on a confidence is given: among one or two, any may be the nearest
)


@dataclass(frozen=True)
class PassageScores:
    """Passages and their scores for one query, all `[n]`, ascending by number; None where a part
    was not computed.

    `score` orders them, `shown` is the confidence if known, else the same; `near` is the vectors'
    part of r(p).
    """

    ids: IntArray
    score: FloatArray
    shown: FloatArray
    cosine: FloatArray | None = None
    words: WordScores | None = None
    near: FloatArray | None = None

    def take(self, rows: IntArray) -> PassageScores:
        near, cosine = (None if each is None else each[rows] for each in (self.near, self.cosine))
        words = None if self.words is None else self.words.take(rows)
        return PassageScores(
            self.ids[rows], self.score[rows], self.shown[rows], cosine, words, near
        )

    def best(self, weight: float) -> dict[int, float]:
        """The score of each document's best passage, by its number, with `weight` (0 to 1) for the
        vectors.
        """
        assert self.near is not None  # of a hybrid score it is
        assert self.words is not None
        return best_by_document(self.ids, _together(self.near, self.words, weight))

    def parts(self) -> dict[str, FloatArray]:
        """The scores that were put together, `[n]`, by name."""
        found = {"dense": self.cosine, "lexical": None if self.words is None else self.words.bm25}
        return {name: values for name, values in found.items() if values is not None}


def score_hybrid(
    ids: IntArray, cosine: FloatArray, words: WordScores, background: float
) -> PassageScores:
    """Score passages, numbers `[n]` ascending, by cosines `[n]`, words, and those neighbors that
    are among them.
    """
    near = COSINE * (cosine - background)
    own = _together(near, words, 0.5)
    score = own + NEIGHBOR * better_neighbor(ids, own)
    return PassageScores(ids, score, score, cosine, words, near)


class Foremost(NamedTuple):
    """The best passage for a query: itself and its copies, its s, the next one's, its cosine."""

    alike: IntArray
    score: float
    following: float
    cosine: float


def foremost(scored: PassageScores) -> Foremost | None:
    """Find the best of some passages, and how good the next one is that is no copy and no neighbor;
    None of none.

    Copies are told by their cosine, and by their length and words where these are known: another
    version is a rival.
    """
    if scored.cosine is None or not len(scored.ids):
        return None
    best = int(np.argmax(scored.score))
    same = np.abs(scored.cosine - scored.cosine[best]) < SAME
    if (words := scored.words) is not None:
        same &= (words.lengths == words.lengths[best]) & (words.found == words.found[best])
    alike = scored.ids[same]
    following = scored.score[~find_in(with_neighbors(alike), scored.ids)[1]].max(initial=0.0)
    return Foremost(alike, float(scored.score[best]), float(following), float(scored.cosine[best]))


def confidence(ids: IntArray, score: FloatArray, best: Foremost, passages: int) -> FloatArray:
    """Estimate the probability that each passage answers, `[n]`: it orders them as their scores s
    `[n]` do.
    """
    first = find_in(best.alike, ids)[1] & (score > best.following)
    margin = np.where(first, score - best.following, score - max(best.score, 0.0))
    common = NEAR * best.cosine + CHANCE * math.log(max(passages, 1)) + OFFSET
    found: FloatArray = (1 / (1 + np.exp(-(common + MARGIN * margin)))).astype(np.float32)
    return found


def best_by_document(ids: IntArray, values: FloatArray) -> dict[int, float]:
    """The highest value `[n]` of the passages of each document, by its number; passages `[n]`,
    ascending.
    """
    docs = ids >> PASSAGE_BITS
    first = np.flatnonzero(np.diff(docs, prepend=-1))
    return dict(
        zip(
            docs[first].tolist(),
            np.maximum.reduceat(values, first).tolist() if len(ids) else (),
            strict=True,
        )
    )


def better_neighbor(ids: IntArray, values: FloatArray) -> FloatArray:
    """The better value of the two passages beside each one in its document, `[n]`; 0 where there is
    none.
    """
    beside = (np.diff(ids) == 1) & (ids[1:] >> PASSAGE_BITS == ids[:-1] >> PASSAGE_BITS)
    best = np.full(len(values), -np.inf, dtype=values.dtype)
    best[:-1][beside] = values[1:][beside]
    best[1:][beside] = np.maximum(best[1:], values[:-1])[beside]
    best[np.isneginf(best)] = 0
    return best


def with_neighbors(ids: IntArray) -> IntArray:
    """Numbers of passages, ascending, and of those beside them, whether these exist or not."""
    return ascending(np.concatenate([ids - 1, ids, ids + 1]))


def _together(near: FloatArray, words: WordScores, weight: float) -> FloatArray:
    """What passages `[n]` score without their neighbors: r(p), with another share for the vectors
    than a half.
    """
    return 2 * (weight * near + (1 - weight) * words.coverage)


_RANGES = {"weight": (-100.0, 100.0), "half_life": (0.001, 1e6)}


def read_boost(boost: Any) -> dict[str, dict[str, Any]]:
    """Return the weight of each field, and its half-life if any; raises ConfigError where the boost
    means nothing.
    """
    if not isinstance(boost, Mapping):
        raise ConfigError(f"boost={boost!r}: must map fields to weights, as {{'stars': 0.2}}")
    found = {
        field: dict(how) if isinstance(how, Mapping) else {"weight": how}
        for field, how in boost.items()
    }
    for field, how in found.items():
        if field in OWN:
            raise ConfigError(
                f"boost: {field!r} is a text of each document; give a field of numbers or dates"
            )
        if (
            not isinstance(field, str)
            or not field
            or not {"weight"} <= how.keys() <= _RANGES.keys()
        ):
            raise ConfigError(
                f"boost: {field!r}: {boost[field]!r}: must be a weight, or a weight and a half_life"
            )
        for name, (least, most) in _RANGES.items():
            value = how.get(name, most)
            if not (is_number(value) and least <= value <= most):
                raise ConfigError(
                    f"boost: {name}={value!r} of {field!r}: must be a number from {least:g} to"
                    f" {most:g}"
                )
    return found


def gains(
    boost: Any, documents: Mapping[int, StoredDocument], view: EngineView
) -> dict[int, float]:
    """What each candidate gains, as a share of the best score; raises ConfigError where a value is
    of another type.
    """
    total = dict.fromkeys(documents, 0.0)
    for field, how in read_boost(boost).items():
        parts = {
            doc: part
            for doc, each in documents.items()
            if (part := _part(each, field, how)) is not None
        }
        if not parts and not len(view.matching(view.select({field: {"$exists": True}}))):
            raise ConfigError(f"boost: no document has the field {field!r}")
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
        then = datetime.fromisoformat(value)
        age = datetime.now(UTC) - (then if then.tzinfo else then.replace(tzinfo=UTC))
        return float(0.5 ** (max(age / timedelta(days=1), 0.0) / how["half_life"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        what = "a date such as 2024-05-06" if "half_life" in how else "a number"
        raise ConfigError(
            f"boost: {field!r} of document {document.id!r} is {value!r}; {what} is needed"
        ) from None
