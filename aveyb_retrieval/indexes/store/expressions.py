"""Regular expressions that users write: `grep` and the filter `$regex`.

An expression has a bounded length and a bounded processor time: one that takes exponential time is
stopped.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import regex

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.types import BoolArray

EXPRESSION_SECONDS = 1.0  # of processor time that an expression may take over all texts
# more of it for each short text: a million of them, such as paths, take about a second
SHORT_TEXT_SECONDS = 5e-6
MAX_PATTERN_CHARACTERS = 1000
_SHOWN_CHARACTERS = 100


def compile_expression(
    pattern: str, *, ignore_case: bool = False, what: str = "pattern"
) -> regex.Pattern[str]:
    """Compile an expression of the package `regex`, whose `^` and `$` match at lines.

    Raises ConfigError if it is none, empty or too long; `what` is its name in the message.
    """
    if not pattern or len(pattern) > MAX_PATTERN_CHARACTERS:
        raise ConfigError(
            f"{what} of {len(pattern):,} characters: must have 1 to {MAX_PATTERN_CHARACTERS:,}"
        )
    flags = regex.MULTILINE | (regex.IGNORECASE if ignore_case else 0)
    try:
        return regex.compile(pattern, flags)
    except (regex.error, RecursionError, OverflowError) as error:
        shown = pattern[:_SHOWN_CHARACTERS]
        raise ConfigError(f"{what} {shown!r}: not a regular expression ({error})") from error


class TimedExpression:
    """An expression with a limit of processor time for all texts that it is matched with.

    `advice` ends the message of the error that tells of the limit.
    """

    def __init__(self, expression: regex.Pattern[str], what: str, advice: str) -> None:
        self._expression = expression
        self._what, self._advice = what, advice
        self._left = EXPRESSION_SECONDS

    def spans(self, text: str, most: int) -> list[tuple[int, int]]:
        """Return up to `most` matches, characters `[start, end)`; ConfigError without time."""
        start = time.thread_time()
        try:
            if self._left <= 0:
                raise TimeoutError
            matches = self._expression.finditer(text, timeout=self._left)
            return [match.span() for match in islice(matches, most)]
        except TimeoutError:
            raise self._refusal(EXPRESSION_SECONDS) from None
        finally:
            self._left -= time.thread_time() - start

    def matches(self, texts: Sequence[str]) -> BoolArray:
        """Return which of many short texts `[n]` it matches, `[n]`; ConfigError without time."""
        limit = EXPRESSION_SECONDS + SHORT_TEXT_SECONDS * len(texts)
        search, clock, end = self._expression.search, time.thread_time, time.thread_time() + limit
        try:
            return np.array(
                [search(text, timeout=max(0.0, end - clock())) is not None for text in texts],
                np.bool_,
            )
        except TimeoutError:
            raise self._refusal(limit) from None

    def _refusal(self, limit: float) -> ConfigError:
        shown = self._expression.pattern[:_SHOWN_CHARACTERS]
        return ConfigError(
            f"{self._what} {shown!r}: took longer than {limit:.3g} s; simplify it (no repeats"
            f" inside repeats), or {self._advice}"
        )
