"""The paired test finds a real difference, and under the null its p-values are uniform."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.eval.metrics import evaluate
from aveyb_retrieval.eval.significance import bootstrap_interval, compare, randomization_p


def _shuffled_system(rng, n_queries, shuffle):
    """A run over 30 documents per query whose good order is disturbed by noise; `shuffle` scales the noise."""
    judgements = {f"q{i}": {f"d{j}": int(j < 3) for j in range(30)} for i in range(n_queries)}
    run = {q: {d: -float(d[1:]) + shuffle * rng.standard_normal() for d in docs} for q, docs in judgements.items()}
    return evaluate(judgements, run, ["ndcg@10"]).per_query["ndcg@10"]


def test_p_is_uniform_for_two_shuffles_of_one_system():
    """300 comparisons of a system with itself: Kolmogorov-Smirnov against the uniform distribution."""
    rng = np.random.default_rng(1)
    p = np.sort([
        compare(_shuffled_system(rng, 40, 8.0), _shuffled_system(rng, 40, 8.0), resamples=500, seed=i).p_value
        for i in range(300)
    ])  # fmt: skip
    grid = np.arange(1, len(p) + 1) / len(p)
    distance = max(np.abs(grid - p).max(), np.abs(grid - 1 / len(p) - p).max())
    assert distance < 1.63 / np.sqrt(len(p))  # the 1 % point of the Kolmogorov distribution
    assert 0.02 < (p < 0.05).mean() < 0.085


def test_a_real_difference_is_flagged():
    rng = np.random.default_rng(2)
    result = compare(_shuffled_system(rng, 100, 3.0), _shuffled_system(rng, 100, 12.0))
    assert result.significant
    assert result.p_value < 0.001
    assert 0 < result.low < result.difference < result.high
    assert result.wins > result.losses


def test_p_equals_full_enumeration_on_few_queries():
    difference = np.array([0.3, -0.1, 0.2, 0.25, 0.05, -0.02, 0.4, 0.11])
    patterns = np.array(list(itertools.product([-1, 1], repeat=len(difference))))
    exact = np.mean(np.abs(patterns @ difference) >= difference.sum() - 1e-12)
    assert randomization_p(difference, np.random.default_rng(0), 100_000) == pytest.approx(exact, abs=0.004)


def test_interval_covers_the_true_mean():
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        low, high = bootstrap_interval(rng.normal(0.1, 0.3, size=80), rng, 500, 0.95)
        inside += low <= 0.1 <= high
    assert 0.89 <= inside / 200 <= 0.99


def test_identical_systems_tie_everywhere():
    values = {f"q{i}": i / 10 for i in range(10)}
    result = compare(values, dict(values))
    assert (result.wins, result.ties, result.losses) == (0, 10, 0)
    assert result.p_value == 1.0
    assert not result.significant


def test_same_seed_same_answer():
    rng = np.random.default_rng(4)
    a, b = ({f"q{i}": float(x) for i, x in enumerate(rng.random(30))} for _ in range(2))
    assert compare(a, b, seed=7) == compare(a, b, seed=7)


def test_different_queries_are_refused():
    with pytest.raises(InputError, match="different queries: 1"):
        compare({"q1": 1.0, "q2": 0.0}, {"q1": 1.0})
    with pytest.raises(InputError, match="no queries"):
        compare({}, {})
