"""Test whether system A is better than system B, or only luckier with the queries.

A paired randomisation test (Fisher; Smucker, Allan and Carterette, CIKM 2007): under the null hypothesis the two
systems are exchangeable on every query, so flipping the sign of any per-query difference is as likely as not. The
p-value is the share of random sign patterns whose mean difference is at least as large as the observed one. The
interval around the mean difference is a percentile bootstrap over queries (Efron).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

_BLOCK = 2**22  # sign patterns or resamples x queries held in memory at once


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
    """Compare per-query values of two systems (query id -> metric), two-sided.

    Raises:
        InputError: the two systems were scored on different queries, or on none.
    """
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        raise InputError(
            f"the systems were scored on different queries: {plural(len(odd), 'query', 'queries')} of one only, e.g. "
            f"{odd[0]!r}"
        )
    if not a:
        raise InputError("there are no queries to compare the systems on")
    queries = list(a)
    first, second = (np.array([values[q] for q in queries], dtype=float) for values in (a, b))
    difference = first - second
    difference[np.abs(difference) < 1e-12] = 0.0  # rounding of equal sums is not a win
    rng = np.random.default_rng(seed)
    low, high = bootstrap_interval(difference, rng, resamples, confidence)
    return Comparison(
        queries=len(queries),
        mean_a=float(first.mean()),
        mean_b=float(second.mean()),
        difference=float(difference.mean()),
        low=low,
        high=high,
        confidence=confidence,
        p_value=randomization_p(difference, rng, resamples),
        wins=int((difference > 0).sum()),
        ties=int((difference == 0).sum()),
        losses=int((difference < 0).sum()),
        resamples=resamples,
        seed=seed,
        per_query=dict(zip(queries, difference.tolist(), strict=True)),
    )


def randomization_p(difference: np.ndarray, rng: np.random.Generator, resamples: int) -> float:
    """Return the two-sided p-value of per-query differences `[n]`.

    The observed pattern counts as one of the samples, so p is never 0.
    """
    observed = abs(difference.sum())
    tolerance = 1e-12 * max(1.0, np.abs(difference).sum())
    extreme = 0
    for size in _blocks(resamples, len(difference)):
        signs = rng.integers(0, 2, size=(size, len(difference)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ difference) >= observed - tolerance).sum())
    return (extreme + 1) / (resamples + 1)


def bootstrap_interval(
    difference: np.ndarray, rng: np.random.Generator, resamples: int, confidence: float
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean of `difference` `[n]`."""
    n = len(difference)
    means = [difference[rng.integers(0, n, size=(size, n))].mean(axis=1) for size in _blocks(resamples, n)]
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1.0 - tail])
    return float(low), float(high)


def _blocks(total: int, width: int) -> list[int]:
    size = max(1, _BLOCK // max(1, width))
    return [min(size, total - start) for start in range(0, total, size)]
