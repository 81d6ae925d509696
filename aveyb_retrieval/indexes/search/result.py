"""What a search gives back: its hits, and what to say beside them."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.search.hits import Hit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Result(list[Hit]):
    """The hits of one query, best first.

    Attributes:
        words: The words of the query that were looked up, as the index has them.
        unmet: Conditions of the query, as they were written, that must be fulfilled and that nothing fulfills: the
            reason why there are no hits.
    """

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        words: Sequence[str] = (),
        unmet: Sequence[str] = (),
        suggest: Callable[[], dict[str, tuple[str, ...]]] = dict,
    ) -> None:
        """Keep hits, and what looks for suggestions when they are asked for."""
        super().__init__(hits)
        self.words, self.unmet = tuple(words), tuple(unmet)
        self._suggest = suggest

    @cached_property
    def suggestions(self) -> dict[str, tuple[str, ...]]:
        """Words that may be meant, the nearest first, by the words of the query that are in no document.

        They are words of the index, one or two edits away; nothing was searched by them. They are looked for when they
        are first asked for, which takes some milliseconds for each such word.
        """
        return self._suggest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the hits and what was said; no copy asks the index again."""
        return Result, (list(self), self.words, self.unmet, partial(dict, self.suggestions))
