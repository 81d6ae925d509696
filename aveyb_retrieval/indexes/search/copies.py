"""Which texts say the same: those whose words are equal, whatever their case, spaces and punctuation.

All else may carry the meaning and makes texts different: the order of words, a negation, a number as it is written
(`1.5`, `1,500`, `-5`, `(5)`, `3/4`), a sign (`%`, `€`, `<`, `?`).
"""

from __future__ import annotations

import unicodedata
from itertools import islice
from typing import TYPE_CHECKING

import regex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COMPARED_FIRST = 50  # words: most texts differ in them
_DASHES = dict.fromkeys([*range(0x2010, 0x2015), 0x2212], "-")
_SAID = regex.compile(
    r"""(?:(?<!\w)[.,])?\d+(?:[.,:/'-]\d+)*   # a number, date or time
      | (?<!\w)-(?=[\w.\p{Sc}])               # a minus, but no dash of a list or between words
      | \((?=\p{Sc}?[.,]?\d)                  # the minus of accounts
      | !(?=\S)                               # "not" in code
      | (?<=\w)\#                             # C#
      | [^\W\d_]+
      | [^\w\s.,;:!"'(){}\[\]*_`\#~\p{Pi}\p{Pf}\p{Ps}\p{Pe}…。、，；：！-]""",  # noqa: RUF001  # other scripts' points
    regex.VERBOSE,
)


class Copies:
    """Texts seen so far, to find those that say the same as one of them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], list[tuple[int, Callable[[], str]]]] = {}

    def find_or_remember(self, number: int, beginning: str, whole: Callable[[], str] | None = None) -> int | None:
        """Return the number of the text that this one says the same as; where it is new, remember it and return None.

        Texts whose beginning has no words are always new. `whole` reads the rest where beginnings are alike; None where
        there is none.
        """
        words = tuple(islice(_words(beginning), _COMPARED_FIRST))
        if not words:
            return None
        read = whole or (lambda: beginning)
        alike = self._seen.setdefault(words, [])
        for first, other in alike:
            if same_words(read(), other()):
                return first
        alike.append((number, read))
        return None


def same_words(first: str, second: str) -> bool:
    """Whether two texts say the same."""
    return first == second or list(_words(first)) == list(_words(second))


def _words(text: str) -> Iterator[str]:
    normal = unicodedata.normalize("NFC", text).translate(_DASHES).lower()
    return (found.group() for found in _SAID.finditer(normal))
