"""The paired test finds a real difference, and under the null its p-values are uniform."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.eval.metrics import compare, evaluate, randomization_test
from tests.refusals import Refusal, refusals


def _shuffled_system(rng, n_queries, shuffle):
    """A run over 30 documents per query whose good order is disturbed by noise; `shuffle` scales
    the noise.
    """
    judgements = {f"q{i}": {f"d{j}": int(j < 3) for j in range(30)} for i in range(n_queries)}
    run = {
        q: {d: -float(d[1:]) + shuffle * rng.standard_normal() for d in docs}
        for q, docs in judgements.items()
    }
    return evaluate(judgements, run, ["ndcg@10"]).per_query["ndcg@10"]


def test_p_is_uniform_for_two_shuffles_of_one_system():
    """300 comparisons of a system with itself: Kolmogorov-Smirnov against the uniform
    distribution.
    """
    rng = np.random.default_rng(1)
    p = np.sort(
        [
            compare(
                _shuffled_system(rng, 40, 8.0),
                _shuffled_system(rng, 40, 8.0),
                resamples=500,
                seed=i,
            ).p_value
            for i in range(300)
        ]
    )
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
    assert randomization_test(difference, np.random.default_rng(0), 100_000, 0.95)[
        0
    ] == pytest.approx(exact, abs=0.004)


def test_interval_covers_the_true_mean():
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        _, low, high = randomization_test(rng.normal(0.1, 0.3, size=80), rng, 500, 0.95)
        inside += low <= 0.1 <= high
    assert 0.89 <= inside / 200 <= 0.99


def test_interval_and_p_value_never_disagree():
    """The interval holds exactly the shifts that the test of the shifted differences would not
    reject.
    """
    rng = np.random.default_rng(5)
    for seed in range(120):
        n, confidence = int(rng.integers(1, 40)), float(rng.choice([0.5, 0.9, 0.95, 0.99]))
        difference = np.clip(
            rng.choice([0.0, 0.1, 0.5, -0.3, 1.0], n) + rng.normal(0, 0.1, n), -1, 1
        )
        p, low, high = randomization_test(difference, np.random.default_rng(seed), 300, confidence)
        assert (p < 1 - confidence) == (low > 0 or high < 0)
        signs = np.random.default_rng(seed).integers(0, 2, size=(300, n), dtype=np.int8) * 2 - 1
        for shift in (low - 1e-6, low + 1e-6, high - 1e-6, high + 1e-6):
            shifted = difference - shift
            reached = (np.abs(signs @ shifted) >= np.abs(shifted.sum()) - 1e-12).sum()
            if -1 < shift < 1:
                assert (low <= shift <= high) == ((reached + 1) / 301 >= 1 - confidence)


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


@refusals(
    {
        InputError: {
            "different queries: 1": lambda: compare({"q1": 1.0, "q2": 0.0}, {"q1": 1.0}),
            "no queries": lambda: compare({}, {}),
        },
    }
)
def test_runs_that_cannot_be_compared_are_refused(refused: Refusal):
    refused()
