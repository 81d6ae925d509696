"""Retrieval metrics with trec_eval's definitions, computed by trec_eval's C code
(pytrec_eval-terrier).

For a query with judgements g (grades below 1 count as not relevant) and returned documents d_1,
d_2, ... ordered by score descending, equal scores by id descending:

    DCG@k  = sum_{i<=k} max(g(d_i), 0) / log2(i + 1)                  (linear gain)
    nDCG@k = DCG@k / (DCG@k of all judged documents, best first)      (0 when nothing is relevant)

Two things differ from what trec_eval prints by default, both towards honesty. Every judged query
counts: one that is missing from the run scores 0, as with `trec_eval -c`. And scores are compared
as the doubles they are: pytrec_eval rounds them to float32 first, which turns close scores into
ties, so the order is made here and the C code receives ranks. It receives numbers for ids, too: C
ends a text at its first NUL.

Whether system A is better than system B, or only luckier with the queries, says a paired
randomisation test (Fisher; Smucker, Allan and Carterette, CIKM 2007): under the null hypothesis the
two systems are exchangeable on every query, so flipping the sign of any per-query difference is as
likely as not. The p-value is the share of random sign patterns whose mean difference is at least as
large as the observed one. The interval is that test turned round: the differences d that it would
not reject if every query's were shifted by d. So the interval and the p-value always agree: 0 lies
outside of it exactly where p is below 1 minus the confidence.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError, InputError, extra_for, plural
from aveyb_retrieval.eval.base import (
    DEFAULT_METRICS,
    LARGEST_GRADE,
    Judgements,
    Run,
    check_run,
    rank,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

MAX_RANKS = 2**24  # ranks of a run: integers that float32 tells apart
_TREC_NAMES = {"ndcg": "ndcg_cut", "recall": "recall", "success": "success"}
_BLOCK_PATTERNS = 2**22  # sign patterns x queries held in memory at once


@dataclass(frozen=True)
class Scores:
    """Per-query values and means over all judged queries.

    Attributes:
        per_query: metric -> query id -> value in [0, 1].
        missing: Judged queries that the run does not hold; they score 0.
        unjudged: How many of the run's queries have no judgements; they are left out.
    """

    per_query: dict[str, dict[str, float]]
    missing: tuple[str, ...]
    unjudged: int

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each metric."""
        return {
            metric: float(np.mean(list(values.values())))
            for metric, values in self.per_query.items()
        }


def evaluate(judgements: Judgements, run: Run, metrics: Sequence[str] = DEFAULT_METRICS) -> Scores:
    """Score a run: `ndcg@k`, `recall@k`, `success@k`, `mrr@k`, `map` (over the run's
    full depth).
    """
    pytrec_eval = load_trec_eval()
    if not judgements:
        raise InputError("there are no judgements to score the run against")
    parsed = {metric: parse_metric(metric) for metric in metrics}
    check_run(run)
    for query, documents in judgements.items():
        if (largest := max(documents.values(), default=0)) > LARGEST_GRADE:
            raise InputError(
                f"query {query!r} has the grade {largest}; a grade is at most {LARGEST_GRADE:,}"
            )
    order = {query: rank(run[query]) for query in judgements if query in run}
    missing = tuple(query for query in judgements if not run.get(query))

    named = {
        m: f"{_TREC_NAMES[name]}.{k}" if k else name
        for m, (name, k) in parsed.items()
        if name != "mrr"
    }
    results = _trec_eval(pytrec_eval, judgements, order, set(named.values())) if named else {}
    per_query: dict[str, dict[str, float]] = {}
    for metric, (name, k) in parsed.items():
        if name == "mrr":  # trec_eval's recip_rank has no cut-off: cut the run instead
            cut = {query: documents[:k] for query, documents in order.items()}
            values, key = _trec_eval(pytrec_eval, judgements, cut, {"recip_rank"}), "recip_rank"
        else:
            values, key = results, named[metric].replace(".", "_")
        per_query[metric] = {
            query: values[query][key] if query in values else 0.0 for query in judgements
        }
    return Scores(per_query, missing, unjudged=sum(query not in judgements for query in run))


def load_trec_eval() -> ModuleType:
    """Return pytrec_eval, which only evaluations need; OptionalDependencyError: it is not
    installed.
    """
    with extra_for("computing metrics", "eval"):
        import pytrec_eval
    return pytrec_eval


def parse_metric(metric: str) -> tuple[str, int | None]:
    """Split `ndcg@10` into ("ndcg", 10); `map` has no cut-off. What is unknown is a ConfigError."""
    match = re.fullmatch(r"(ndcg|recall|success|mrr)@([1-9][0-9]*)", metric.lower())
    if match and (len(match[2]) > 8 or int(match[2]) > MAX_RANKS):
        raise ConfigError(
            f"metric {metric!r}: K is at most {MAX_RANKS:,}, the depth of the deepest run"
        )
    if match:
        return match[1], int(match[2])
    if metric.lower() == "map":
        return "map", None
    raise ConfigError(f"unknown metric {metric!r}: use ndcg@K, recall@K, success@K, mrr@K or map")


def notices(scores: Scores) -> list[str]:
    """Return what a reader of the means must know about queries that the run or the judgements
    lack.
    """
    notes = []
    if scores.missing:
        notes.append(
            f"{plural(len(scores.missing), 'judged query', 'judged queries')} without a hit:"
            " scored 0"
        )
    if scores.unjudged:
        notes.append(
            f"{plural(scores.unjudged, 'query', 'queries')} of the run without judgements: left out"
        )
    return notes


def _trec_eval(
    module: Any, judgements: Judgements, order: dict[str, list[str]], measures: set[str]
) -> dict[str, dict[str, float]]:
    """Run the C code on ranked lists; strictly falling integer scores stand for the ranks (exact in
    float32).
    """
    if any(len(documents) > MAX_RANKS for documents in order.values()):
        raise InputError(
            f"a run deeper than {MAX_RANKS:,} documents per query cannot be scored: cut it first"
        )
    queries = [query for query in judgements if query in order]
    grades, ranks = {}, {}
    for number, query in enumerate(queries):
        names: dict[str, str] = {}
        for doc in (*judgements[query], *order[query]):
            names.setdefault(doc, str(len(names)))
        grades[str(number)] = {names[doc]: grade for doc, grade in judgements[query].items()}
        ranks[str(number)] = {names[doc]: float(-i) for i, doc in enumerate(order[query])}
    measured = module.RelevanceEvaluator(grades, measures).evaluate(ranks)
    return {
        query: measured[str(number)]
        for number, query in enumerate(queries)
        if str(number) in measured
    }


def retrieved_ndcg(judgements: Judgements, run: Run, k: int = 10) -> dict[str, float]:
    """Return nDCG over the k retrieved documents only, as the paper's evaluation code does. Not a
    metric to quote.

    A document with a grade of at least 1 gains 1. The ideal order is made from the retrieved
    documents, so relevant documents that were missed cost nothing: one relevant document at rank 1
    gives 1.0 however many were not found. Equal scores share the average of their discounts
    (scikit-learn's `ndcg_score`). Queries without a relevant document are left out, as there.
    """
    values = {}
    for query, documents in judgements.items():
        relevant = {doc for doc, grade in documents.items() if grade >= 1}
        if not relevant:
            continue
        scores = run.get(query, {})
        top = rank(scores)[:k]
        gains = np.array([doc in relevant for doc in top], dtype=float)
        discounts = 1.0 / np.log2(np.arange(2, len(top) + 2))
        ideal = float(np.sort(gains)[::-1] @ discounts)
        _, group, sizes = np.unique(
            [scores[doc] for doc in top], return_inverse=True, return_counts=True
        )
        shared = np.bincount(group, weights=discounts, minlength=len(sizes)) / np.maximum(sizes, 1)
        values[query] = float(gains @ shared[group]) / ideal if ideal > 0 else 0.0
    return values


@dataclass(frozen=True)
class Comparison:
    """Paired comparison of two systems over the same queries; differences are a - b."""

    queries: int
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    confidence: float
    p_value: float
    wins: int
    ties: int
    losses: int
    resamples: int
    seed: int
    per_query: dict[str, float]

    @property
    def significant(self) -> bool:
        """Whether p is below 1 - confidence."""
        return self.p_value < 1.0 - self.confidence


def compare(
    a: Mapping[str, float],
    b: Mapping[str, float],
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare per-query values of two systems (query id -> metric, from 0 to 1), two-sided."""
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        raise InputError(
            f"the systems were scored on different queries: {plural(len(odd), 'query', 'queries')}"
            f" of one only, e.g. {odd[0]!r}"
        )
    if not a:
        raise InputError("there are no queries to compare the systems on")
    queries = list(a)
    first, second = (np.array([values[q] for q in queries], dtype=float) for values in (a, b))
    difference = first - second
    difference[np.abs(difference) < 1e-12] = 0.0  # rounding of equal sums is not a win
    p_value, low, high = randomization_test(
        difference, np.random.default_rng(seed), resamples, confidence
    )
    return Comparison(
        queries=len(queries),
        mean_a=float(first.mean()),
        mean_b=float(second.mean()),
        difference=float(difference.mean()),
        low=low,
        high=high,
        confidence=confidence,
        p_value=p_value,
        wins=int((difference > 0).sum()),
        ties=int((difference == 0).sum()),
        losses=int((difference < 0).sum()),
        resamples=resamples,
        seed=seed,
        per_query=dict(zip(queries, difference.tolist(), strict=True)),
    )


def randomization_test(
    difference: np.ndarray, rng: np.random.Generator, resamples: int, confidence: float
) -> tuple[float, float, float]:
    """Return the two-sided p-value of per-query differences `[n]`, and the interval of means that
    are not rejected.

    With x the differences, m their mean and e a distance from it, a sign pattern s is as extreme as
    what was observed where `|s.(x - m) - e s.1| >= n |e|`. For e > 0 that is so up to `max(a / (n +
    b), -a / (n - b))` with `a = s.(x - m)`, `b = s.1`; for e < 0 with -a. The share of patterns
    that reach |e| falls with |e|, so the ends of the interval are order statistics of these bounds.
    The observed pattern counts as one of the samples, so p is never 0; the ends lie within -1 and
    1, as differences do.
    """
    n, mean = len(difference), float(difference.mean())
    bounds: list[np.ndarray] = []  # [2, patterns], of means above and below
    block = max(1, _BLOCK_PATTERNS // n)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        signs = rng.integers(0, 2, size=(size, n), dtype=np.int8) * 2 - 1
        a, b = signs @ (difference - mean), signs.sum(axis=1, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            sides = np.array([[a / (n + b), -a / (n - b)], [-a / (n + b), a / (n - b)]]).max(axis=1)
        # all signs alike: never less extreme
        bounds.append(np.where(np.abs(b) == n, np.inf, sides))
    above, below = (np.sort(side)[::-1] for side in np.concatenate(bounds, axis=1))
    reached = below if mean > 0 else above  # 0 lies on this side of the mean
    tolerance = 1e-12 * max(1.0, float(np.abs(difference).sum()))
    p_value = (int((reached >= abs(mean) - tolerance).sum()) + 1) / (resamples + 1)
    # patterns that keep p at 1 - confidence
    needed = math.ceil((1.0 - confidence) * (resamples + 1) - 1 - 1e-9)
    high, low = (
        float(side[needed - 1]) + tolerance if needed > 0 else math.inf for side in (above, below)
    )
    return p_value, max(-1.0, mean - low), min(1.0, mean + high)
