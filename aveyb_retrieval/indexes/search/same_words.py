"""Texts that say the same.

Copies are texts whose words are equal, whatever their case, spaces and punctuation. All else may
carry the meaning and makes texts different: the order of words, a negation, a number as it is
written (`1.5`, `1,500`, `-5`, `(5)`, `3/4`), a sign (`%`, `€`, `<`, `?`).
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

import regex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TOLD_APART, _COMPARED_FIRST = (
    8,
    50,
)  # words: most texts differ in the first of them, most others in these
_PLAIN = dict.fromkeys([*range(0x2010, 0x2015), 0x2212], "-") | dict.fromkeys(
    map(ord, "\u2018\u2019\u02bc"), "'"
)
_PLAIN |= dict.fromkeys(map(ord, "\u201c\u201d\u201e\u00ab\u00bb"), '"')
_UNSEEN = regex.compile(r"[\p{Default_Ignorable_Code_Point}\u0640]+")
_FORMS = re.compile(
    "[\xb5\ufb00-\ufdff\ufe70-\ufefc\uff01-\uffef]+"
)  # ligatures, full and half width, not powers
_BROKEN = re.compile(r"-\n(?<=[^\W\d_]-\n)(?=[^\W\d_])")  # a word at the end of a line
_UNITS = re.compile(
    r"\d[\s-]?(?:M(?:Wh?|VA?|g|A|Hz|Ω|J|Pa|eV|L|bit|bps)|[kKMGTP]i?B(?:ps)?)(?![^\W\d_])"
)
_SAID = regex.compile(
    r"""[^\W\d_]+
      | (?:(?<!\w)[.,])?\d+(?:[.,:/'-]\d+)*(?:e[+-]\d+)?  # a number, date or time
      | (?<!\w)-(?=[\w.\p{Sc}])               # a minus, but no dash of a list or between words
      | (?<=\S[ ])-(?=[ ]\p{Sc}?[.,]?\d)      # the same, or "to", with a space
      | \((?=\s?\p{Sc}?[.,]?\d)               # the minus of accounts
      | (?<=\d)['"]                           # feet, inches, minutes
      | (?<=\d[ ]?)\*+(?=[ ]?\d)              # times
      | !(?=\S)                               # "not" in code
      | (?<=\w)\#                             # C#
      | [^\w\s.,;:!"'(){}\[\]*_`\#¡¿•▪◦‣\p{Pi}\p{Pf}\p{Ps}\p{Pe}…。、，；：！-]""",  # other scripts' points  # noqa: E501, RUF001
    regex.VERBOSE,
)


class Copies:
    """Texts seen so far, to find those that say the same as one of them."""

    def __init__(self) -> None:
        self._seen: dict[
            tuple[str, ...], list[tuple[int, Callable[[], list[str]], Callable[[], str]]]
        ] = {}

    def find_or_remember(
        self, number: int, beginning: str, whole: Callable[[], str] | None = None
    ) -> int | None:
        """Return the number of the text that this one says the same as; where it is new, remember
        it and return None.

        Texts whose beginning has no words are always new. `whole` reads all of a text whose
        beginning is alike.
        """
        words = tuple(islice(_words(beginning), _TOLD_APART))
        if not words:
            return None
        begun = cache(lambda: list(islice(_words(beginning), _COMPARED_FIRST)))
        read = whole or (lambda: beginning)
        alike = self._seen.setdefault(words, [])
        for first, other_begun, other in alike:
            if begun() == other_begun() and same_words(read(), other()):
                return first
        alike.append((number, begun, read))
        return None


def same_words(first: str, second: str) -> bool:
    """Whether two texts say the same."""
    return first == second or list(_words(first)) == list(_words(second))


def _words(text: str) -> Iterator[str]:
    if not text.isascii():
        text = _FORMS.sub(
            lambda found: unicodedata.normalize("NFKC", found[0]), _UNSEEN.sub("", text)
        )
        text = unicodedata.normalize("NFC", text).translate(_PLAIN)
    # a case that matters: of mega and milli, of byte and bit
    text = _UNITS.sub(
        lambda found: found[0].replace("M", "mega ").replace("B", "byte"), _BROKEN.sub("", text)
    )
    return (found[0] for found in _SAID.finditer(text.lower()))
