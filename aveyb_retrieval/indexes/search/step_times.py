"""How long the steps of a search take, for who asks with `on_search`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from inspect import iscoroutinefunction
from time import perf_counter
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar, get_args

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
Step = Literal["filter", "encode", "nearest", "words", "rank", "rerank", "hits"]
STEPS: tuple[Step, ...] = get_args(Step)


@dataclass(frozen=True)
class SearchEvent:
    """One call of `search`, `search_vectors` or `rank`, reported to `on_search` when it ends.

    Attributes:
        index: Where the index is, or the names of several.
        version: The version that was searched.
        queries: How many queries the call had.
        k: How many hits each query asked for.
        mode: "hybrid", "dense" or "lexical".
        unit: "document" or "passage".
        hits: How many hits there are, of all queries.
        seconds: From the beginning to the end of the call.
        steps: Seconds of each step, 0 for what the search does not do. A step that is part of
            another one is not counted twice. "filter" finds the documents that may be searched;
            "encode" makes vectors of the queries, and loads the model at its first use; "nearest"
            searches vectors; "words" waits for the rankings by words, which other threads begin
            during the encoding; "rank" fuses, scores passages, folds copies; "rerank" runs a
            reranker; "hits" reads what is shown.
    """

    index: str
    version: str
    queries: int
    k: int
    mode: str
    unit: str
    hits: int
    seconds: float
    steps: Mapping[str, float] = field(hash=False)


OnSearch = Callable[[SearchEvent], object]


def check_on_search(on_search: object) -> None:
    """Raise ConfigError for what cannot take events: a search does not await a coroutine."""
    if on_search is None or (callable(on_search) and not iscoroutinefunction(on_search)):
        return
    raise ConfigError(
        f"on_search={on_search!r}: must be a function that takes a SearchEvent, not a coroutine"
    )


class Stopwatch:
    """Adds up the seconds of steps; while an inner step runs, the outer one stands still."""

    def __init__(self) -> None:
        self.steps: dict[str, float] = dict.fromkeys(STEPS, 0.0)
        self._running: list[Step] = []
        self._since = self._start = perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since it was made."""
        return perf_counter() - self._start

    @contextmanager
    def time(self, step: Step) -> Iterator[None]:
        """Count the time of a block as that of a step."""
        self._credit()
        self._running.append(step)
        try:
            yield
        finally:
            self._credit()
            self._running.pop()

    def _credit(self) -> None:
        now = perf_counter()
        if self._running:
            self.steps[self._running[-1]] += now - self._since
        self._since = now


# of the search that this thread runs; None if nobody asks
_stopwatch: ContextVar[Stopwatch | None] = ContextVar("_stopwatch", default=None)


@contextmanager
def measured() -> Iterator[Stopwatch]:
    """Measure the steps that run in a block."""
    stopwatch = Stopwatch()
    token = _stopwatch.set(stopwatch)
    try:
        yield stopwatch
    finally:
        _stopwatch.reset(token)


def in_step(
    step: Step,
) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """Make the time of a function that of a step, in a search that is measured."""

    def decorate(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
        @wraps(function)
        def timed(*arguments: Parameters.args, **options: Parameters.kwargs) -> Returned:
            stopwatch = _stopwatch.get()
            if stopwatch is None:
                return function(*arguments, **options)
            with stopwatch.time(step):
                return function(*arguments, **options)

        return timed

    return decorate
