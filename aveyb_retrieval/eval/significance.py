"""Test whether system A is better than system B, or only luckier with the queries.

A paired randomisation test (Fisher; Smucker, Allan and Carterette, CIKM 2007): under the null hypothesis the two
systems are exchangeable on every query, so flipping the sign of any per-query difference is as likely as not. The
p-value is the share of random sign patterns whose mean difference is at least as large as the observed one. The
interval is that test turned round: the differences d that it would not reject if every query's were shifted by d. So
the interval and the p-value always agree: 0 lies outside of it exactly where p is below 1 minus the confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

_BLOCK = 2**22  # sign patterns x queries held in memory at once


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
    """Compare per-query values of two systems (query id -> metric, from 0 to 1), two-sided.

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
    p_value, low, high = randomization_test(difference, np.random.default_rng(seed), resamples, confidence)
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
    """Return the two-sided p-value of per-query differences `[n]`, and the interval of means that are not rejected.

    With x the differences, m their mean and e a distance from it, a sign pattern s is as extreme as what was observed
    where `|s.(x - m) - e s.1| >= n |e|`. For e > 0 that is so up to `max(a / (n + b), -a / (n - b))` with
    `a = s.(x - m)`, `b = s.1`; for e < 0 with -a. The share of patterns that reach |e| falls with |e|, so the ends of
    the interval are order statistics of these bounds. The observed pattern counts as one of the samples, so p is never
    0; the ends lie within -1 and 1, as differences do.
    """
    n, mean = len(difference), float(difference.mean())
    bounds: list[np.ndarray] = []  # [2, patterns], of means above and below
    for size in _blocks(resamples, n):
        signs = rng.integers(0, 2, size=(size, n), dtype=np.int8) * 2 - 1
        a, b = signs @ (difference - mean), signs.sum(axis=1, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            sides = np.array([[a / (n + b), -a / (n - b)], [-a / (n + b), a / (n - b)]]).max(axis=1)
        bounds.append(np.where(np.abs(b) == n, np.inf, sides))  # all signs alike: never less extreme
    above, below = (np.sort(side)[::-1] for side in np.concatenate(bounds, axis=1))
    reached = below if mean > 0 else above  # 0 lies on this side of the mean
    tolerance = 1e-12 * max(1.0, float(np.abs(difference).sum()))
    p_value = (int((reached >= abs(mean) - tolerance).sum()) + 1) / (resamples + 1)
    needed = math.ceil((1.0 - confidence) * (resamples + 1) - 1 - 1e-9)  # patterns that keep p at 1 - confidence
    high, low = (float(side[needed - 1]) + tolerance if needed > 0 else math.inf for side in (above, below))
    return p_value, max(-1.0, mean - low), min(1.0, mean + high)


def _blocks(total: int, width: int) -> list[int]:
    size = max(1, _BLOCK // max(1, width))
    return [min(size, total - start) for start in range(0, total, size)]
