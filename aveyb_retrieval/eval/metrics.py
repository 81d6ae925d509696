"""Retrieval metrics with trec_eval's definitions, computed by trec_eval's C code (pytrec_eval-terrier).

For a query with judgements g (grades below 1 count as not relevant) and returned documents d_1, d_2, ... ordered by
score descending, equal scores by id descending:

    DCG@k  = sum_{i<=k} max(g(d_i), 0) / log2(i + 1)                  (linear gain)
    nDCG@k = DCG@k / (DCG@k of all judged documents, best first)      (0 when nothing is relevant)

Two things differ from what trec_eval prints by default, both towards honesty. Every judged query counts: one that is
missing from the run scores 0, as with `trec_eval -c`. And scores are compared as the doubles they are: pytrec_eval
rounds them to float32 first, which turns close scores into ties, so the order is made here and the C code receives
ranks. It receives numbers for ids, too: C ends a text at its first NUL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import ConfigError, InputError, extra_for
from aveyb_retrieval.eval.base import DEFAULT_METRICS, LARGEST_GRADE, Judgements, Run, check_run, rank
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

DEEPEST = 2**24  # ranks of a run: integers that float32 tells apart
_TREC_NAMES = {"ndcg": "ndcg_cut", "recall": "recall", "success": "success"}


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
        return {metric: float(np.mean(list(values.values()))) for metric, values in self.per_query.items()}


def evaluate(judgements: Judgements, run: Run, metrics: Sequence[str] = DEFAULT_METRICS) -> Scores:
    """Score a run: `ndcg@k`, `recall@k`, `success@k`, `mrr@k`, `map` (over the run's full depth).

    Raises:
        ConfigError: an unknown metric name, or a cut-off beyond 16,777,216.
        InputError: no judgements, a grade above 100,000, or a score that is not finite.
        OptionalDependencyError: pytrec_eval is not installed.
    """
    pytrec_eval = load_trec_eval()
    if not judgements:
        raise InputError("there are no judgements to score the run against")
    parsed = {metric: parse_metric(metric) for metric in metrics}
    check_run(run)
    for query, documents in judgements.items():
        if (largest := max(documents.values(), default=0)) > LARGEST_GRADE:
            raise InputError(f"query {query!r} has the grade {largest}; a grade is at most {LARGEST_GRADE:,}")
    order = {query: rank(run[query]) for query in judgements if query in run}
    missing = tuple(query for query in judgements if not run.get(query))

    measures = {_trec_measure(name, k) for name, k in parsed.values() if name != "mrr"}
    results = _trec_eval(pytrec_eval, judgements, order, measures) if measures else {}
    per_query: dict[str, dict[str, float]] = {}
    for metric, (name, k) in parsed.items():
        if name == "mrr":  # trec_eval's recip_rank has no cut-off: cut the run instead
            cut = {query: documents[:k] for query, documents in order.items()}
            values, key = _trec_eval(pytrec_eval, judgements, cut, {"recip_rank"}), "recip_rank"
        else:
            values, key = results, _trec_measure(name, k).replace(".", "_")
        per_query[metric] = {query: values[query][key] if query in values else 0.0 for query in judgements}
    return Scores(per_query, missing, unjudged=sum(query not in judgements for query in run))


def load_trec_eval() -> ModuleType:
    """Return pytrec_eval, which only evaluations need.

    Raises:
        OptionalDependencyError: it is not installed.
    """
    with extra_for("computing metrics", "eval"):
        import pytrec_eval
    return pytrec_eval


def parse_metric(metric: str) -> tuple[str, int | None]:
    """Split `ndcg@10` into ("ndcg", 10); `map` has no cut-off.

    Raises:
        ConfigError: anything unknown, or a cut-off beyond every run.
    """
    match = re.fullmatch(r"(ndcg|recall|success|mrr)@([1-9][0-9]*)", metric.lower())
    if match and (len(match[2]) > 8 or int(match[2]) > DEEPEST):
        raise ConfigError(f"metric {metric!r}: K is at most {DEEPEST:,}, the depth of the deepest run")
    if match:
        return match[1], int(match[2])
    if metric.lower() == "map":
        return "map", None
    raise ConfigError(f"unknown metric {metric!r}: use ndcg@K, recall@K, success@K, mrr@K or map")


def notices(scores: Scores) -> list[str]:
    """Return what a reader of the means must know about queries that the run or the judgements lack."""
    found = []
    if scores.missing:
        found.append(f"{plural(len(scores.missing), 'judged query', 'judged queries')} without a hit: scored 0")
    if scores.unjudged:
        found.append(f"{plural(scores.unjudged, 'query', 'queries')} of the run without judgements: left out")
    return found


def _trec_measure(name: str, k: int | None) -> str:
    return "map" if k is None else f"{_TREC_NAMES[name]}.{k}"


def _trec_eval(
    module: object, judgements: Judgements, order: dict[str, list[str]], measures: set[str]
) -> dict[str, dict[str, float]]:
    """Run the C code on ranked lists; strictly falling integer scores stand for the ranks (exact in float32)."""
    if any(len(documents) > DEEPEST for documents in order.values()):
        raise InputError(f"a run deeper than {DEEPEST:,} documents per query cannot be scored: cut it first")
    queries = [query for query in judgements if query in order]
    grades, ranks = {}, {}
    for number, query in enumerate(queries):
        names: dict[str, str] = {}
        for doc in (*judgements[query], *order[query]):
            names.setdefault(doc, str(len(names)))
        grades[str(number)] = {names[doc]: grade for doc, grade in judgements[query].items()}
        ranks[str(number)] = {names[doc]: float(-i) for i, doc in enumerate(order[query])}
    found = module.RelevanceEvaluator(grades, measures).evaluate(ranks)  # type: ignore[attr-defined]
    return {query: found[str(number)] for number, query in enumerate(queries) if str(number) in found}


def retrieved_ndcg(judgements: Judgements, run: Run, k: int = 10) -> dict[str, float]:
    """Return nDCG over the k retrieved documents only, as the paper's evaluation code does. Not a metric to quote.

    A document with a grade of at least 1 gains 1. The ideal order is made from the retrieved documents, so relevant
    documents that were missed cost nothing: one relevant document at rank 1 gives 1.0 however many were not found.
    Equal scores share the average of their discounts (scikit-learn's `ndcg_score`). Queries without a relevant
    document are left out, as there.
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
        _, group, sizes = np.unique([scores[doc] for doc in top], return_inverse=True, return_counts=True)
        shared = np.bincount(group, weights=discounts, minlength=len(sizes)) / np.maximum(sizes, 1)
        values[query] = float(gains @ shared[group]) / ideal if ideal > 0 else 0.0
    return values
