"""How words are found in a text: the same way where it is stored and where it is searched for, in every engine.

A text becomes a list of words: runs of letters and digits in lower case (accents put together with their letters
first), stemmed by Snowball's rules for the language; runs of Chinese, Japanese and Korean characters, which have no
spaces between their words, become their characters and all pairs of neighbors. Engines store the words with spaces
between them and look for words as they are, so all of them find the same.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.encoding import ENGLISH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

V = TypeVar("V")

PLAIN = "none"
K1, B = 1.2, 0.75  # of BM25, as Lance has them
STEMS_KEPT = 50_000  # words whose stems are remembered, in about 8 MB; those that were found in texts in 12 more
LONGEST_KEPT = 64  # characters of them: longer ones are made up, and would fill the memory
LANGUAGES = (
    ENGLISH, "arabic", "danish", "dutch", "finnish", "french", "german", "greek", "hungarian", "italian", "norwegian",
    "portuguese", "romanian", "russian", "spanish", "swedish", "turkish", PLAIN,
)  # fmt: skip

# Words that English sentences need and no topic has: determiners, pronouns, auxiliaries, conjunctions, prepositions of
# place and time, question words, what is left of contractions. A list of 1,298 words
# loses .027 NDCG@10 on nq-gold beside this one.
_ENGLISH_STOP = """
a an the this that these those such some any each every either neither both all most more other another same own
i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself
it its itself they them their theirs themselves
am is are was were be been being have has had having do does did doing done
can cannot could will would shall should may might must ought
and or but nor so if then than because as until while though although unless since whether
of at by for from to in into on onto off out up down over under above below with about against between through
during before after upon again further once here there
what which who whom whose when where why how not no only just very too also ever never now
t s d ll m re ve don doesn didn isn aren wasn weren haven hasn hadn won wouldn shouldn couldn
"""

_WORD = re.compile(r"[^\W_]+")
_BLANKS = {code: " " for code in range(128) if not chr(code).isalnum()}
# Hiragana, Katakana, Chinese characters (with their rarer blocks) and Korean syllables.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")


class Found(NamedTuple):
    """A word in a text: its characters `[start, stop)`, and how it is stored."""

    start: int
    stop: int
    word: str


Finder: TypeAlias = "Callable[[str], list[Found]]"


@dataclass(frozen=True)
class Language:
    """The rules of one language, as an index keeps to them.

    Attributes:
        name: One of `LANGUAGES`.
        stop: Words of a query that are not looked up, unless there are no others.
        stem: Makes one form of each of some words' forms; None leaves words as they are written.
    """

    name: str
    stop: frozenset[str]
    stem: Callable[[list[str]], list[str]] | None = None

    def stored(self, text: str) -> str:
        """Return the words of a text as they are stored: with one space before and after each, "" where it has none."""
        normal = _normal(text)
        if normal.isascii():  # most texts are, and this is much of a build's work
            words = normal.translate(_BLANKS).split()
        else:
            words = list(_split(_WORD.findall(normal), stored=True))
        if self.stem is not None:
            words = self.stem(words)
        return f" {' '.join(words)} " if words else ""

    def stored_in_parts(self, text: str, spans: Sequence[Sequence[int]]) -> tuple[str, list[str]]:
        """Return what `stored` gives for a text and for the characters of each span `[start, stop)` in it.

        No character is looked at twice where every span begins and ends beside a blank.
        """
        cuts = sorted({0, len(text), *chain.from_iterable(spans)})
        if not all(text[cut - 1].isspace() or text[cut].isspace() for cut in cuts[1:-1]):
            return self.stored(text), [self.stored(text[slice(*span)]) for span in spans]
        pieces = [self.stored(text[slice(*piece)]) for piece in pairwise(cuts)]
        number = {cut: place for place, cut in enumerate(cuts)}
        return joined(pieces), [joined(pieces[number[start] : number[stop]]) for start, stop in spans]

    def words(self, query: str) -> list[str]:
        """Return the words to look up for a query, in order, each once; stop words only if there are no others."""
        found = _WORD.findall(_normal(query))
        found = [word for word in found if word not in self.stop] or found
        words = list(_split(found, stored=False))
        if self.stem is not None:
            words = self.stem(words)
        return list(dict.fromkeys(words))

    def finder(self, words: Collection[str]) -> Finder:
        """Make what finds words, as `words` gives them, in texts: wherever `stored` has them, in order."""

        def find(text: str) -> list[Found]:
            normal = _normal(text)
            starts, stops = _written(text)
            return [
                Found(starts[run.start() + start], stops[run.start() + stop - 1], word)
                for run in _WORD.finditer(normal)
                for start, stop, word in self._parts[run.group()]
                if word in words
            ]

        return find

    @cached_property
    def _parts(self) -> RememberedWords[list[Found]]:
        """The words that letters between blanks are made of, as `stored` has them."""

        def parts(letters: str) -> list[Found]:
            places = list(_pieces(letters, stored=True))
            pieces = [letters[start:stop] for start, stop in places]
            stems = pieces if self.stem is None else self.stem(pieces)
            return [Found(*place, stem) for place, stem in zip(places, stems, strict=True)]

        return RememberedWords(parts, STEMS_KEPT)


@cache
def language(name: str) -> Language:
    """Load the rules of a language.

    Raises:
        ConfigError: the language is not one of `LANGUAGES`.
    """
    if name == PLAIN:
        return Language(name, frozenset())
    if name not in LANGUAGES:
        raise ConfigError(f"language={name!r}: must be one of {', '.join(LANGUAGES)}")
    import Stemmer

    stems = RememberedWords(Stemmer.Stemmer(name, 0).stemWord, STEMS_KEPT)
    return Language(name, _stop_words(name), lambda words: list(map(stems.__getitem__, words)))


class RememberedWords(dict[str, V]):
    """What is made of words, remembered: most words of a text have been seen before."""

    def __init__(self, make: Callable[[str], V], most: int) -> None:
        """Remember what `make` gives for up to `most` words."""
        self._make = make
        self._most = most

    def __missing__(self, word: str) -> V:
        made = self._make(word)
        if len(word) <= LONGEST_KEPT:
            if len(self) >= self._most:
                self.clear()
            self[word] = made
        return made


def joined(stored: Iterable[str]) -> str:
    """The words of several texts, one after the other, as they are stored."""
    words = "".join(each[:-1] for each in stored)
    return f"{words} " if words else ""


def _stop_words(name: str) -> frozenset[str]:
    if name == ENGLISH:
        return frozenset(_ENGLISH_STOP.split())
    from stop_words import get_stop_words

    return frozenset(get_stop_words(name))


def _normal(text: str) -> str:
    return (text if text.isascii() else unicodedata.normalize("NFC", text)).lower()


def _written(text: str) -> tuple[Sequence[int], Sequence[int]]:
    """Where the characters of a text that each of its normal form was made of begin and end."""
    if text.isascii() or (len(text.lower()) == len(text) and unicodedata.is_normalized("NFC", text)):
        return range(len(text)), range(1, len(text) + 1)
    # nothing is put together across the beginning of a letter; a mark, and a part of a Korean syllable, begins none
    letters = [at for at, c in enumerate(text) if unicodedata.category(c)[0] != "M" and not "\u1160" <= c <= "\u11ff"]
    starts, stops = [0, *letters[1:]], [*letters[1:], len(text)]
    counts = [len(_normal(text[start:stop])) for start, stop in zip(starts, stops, strict=True)]
    return np.repeat(starts, counts).tolist(), np.repeat(stops, counts).tolist()


def _split(words: Iterable[str], *, stored: bool) -> Iterator[str]:
    """Split words at unspaced characters."""
    for word in words:
        if word.isascii() or _UNSPACED.search(word) is None:
            yield word
        else:
            yield from (word[start:stop] for start, stop in _pieces(word, stored=stored))


def _pieces(word: str, *, stored: bool) -> Iterator[tuple[int, int]]:
    """Where the parts of a word are: unspaced characters, if alone or stored, and their pairs, and what is between."""
    end = 0
    for run in () if word.isascii() else _UNSPACED.finditer(word):
        first, stop = run.span()
        if end < first:
            yield end, first
        if stored or stop - first == 1:
            yield from ((at, at + 1) for at in range(first, stop))
        yield from ((at, at + 2) for at in range(first, stop - 1))
        end = stop
    if end < len(word):
        yield end, len(word)
