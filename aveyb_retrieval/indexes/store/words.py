"""How words are found in a text: the same way where it is stored and where it is searched for, in
every engine.

A text becomes a list of words, stemmed by Snowball's rules for the language, then without accents.
Runs of a script that writes no spaces become all pairs of neighbors. Engines store the words with
spaces between them and look for words as they are, so all of them find the same.

Behind the words in their order stands what they are found by besides, so that phrases stay phrases:
the letters of unspaced runs, the parts of camelCase, and of a word with accents the stems with them
and of the word without them.

Letters are compared by one form of each, whatever form they are written in:

    cleaned(text)    Unicode's compatibility form (NFKC), without what nobody sees (soft hyphens,
                     joiners, marks of direction), without the points of Arabic, Hebrew and Syriac
    spelled(word)    of a cleaned word: the case folded (NFC), in Turkish with dotted and dotless i
    folded(word)     of a spelled word: without the accents of Latin and Greek letters; those of
                     other scripts are other letters, but for the Russian yo

Runs of letters, digits and the marks on them are words, as between the boundaries of UAX 29, which
however joins some of them by signs: `3.14`, `foo_bar` and `don't` are two words each here, so that
each part is found by itself.

One small text file says which words of a collection are synonyms, and which are protected:

    # a comment
    car, automobile, motor car     a query for one of them also looks for the others
    k8s => kubernetes              a query for the left one looks for those on the right instead
    wings                          a word by itself is protected: no stemmer changes it
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import regex

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.files import read_bounded
from aveyb_retrieval.indexes.encoding import ENGLISH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator


# what is not visible by itself, the long line of Arabic, and points
_UNSEEN = regex.compile(
    r"[\p{Default_Ignorable_Code_Point}\u0640"
    r"\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0898-\u089f\u08ca-\u08ff"
    r"\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0711\u0730-\u074a]+"
)
# letters of Europe, and signs: none of them is a mark, or unseen, and a faster engine knows enough
# of them
_PLAIN = re.compile(
    "[\x00-\xac\xae-\u02ff\u0370-\u0482\u048a-\u0588\u1e00-\u1fff\u2010-\u2029\u2030-\u205e\u20a0-\u20cf\u2100-\u2bff]*"
)
_PLAIN_WORD = re.compile(r"[^\W_]+")
# of the bytes of a text: all but letters, digits and what is not ASCII is a blank
BLANKS = bytes(code if code >= 128 or chr(code).isalnum() else ord(" ") for code in range(256))
WORD = regex.compile(r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*+")
# Scripts that write no spaces between their words: Hiragana, Katakana, Chinese characters, Thai,
# Lao, Burmese, Khmer; and Korean syllables, whose endings spaces do not part. Marks belong to the
# letter before them.
UNSPACED = regex.compile(
    r"(?:[\u3041-\u30ff\u31f0-\u31ff\p{Han}\uac00-\ud7af"
    r"\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}--[\p{N}\p{P}]]\p{M}*+)++",
    regex.VERSION1,
)
LETTER = regex.compile(r"\P{M}\p{M}*+|\p{M}++")  # with its marks; marks without one at a beginning
# what begins a part of a text that is normalized by itself: no mark, no later part of a Korean
# syllable, nothing unseen
_BEGINS = regex.compile(
    r"[^\p{M}\p{Default_Ignorable_Code_Point}\u1160-\u11ff\u3099\u309a\uff9e\uff9f]"
)
_TURKISH = {ord("I"): "\u0131", ord("\u0130"): "i"}
_NO_DECOMPOSITION = dict(zip("øđłħŧıðəɨ\u0451", "odlhtidei\u0435", strict=True)) | {
    "æ": "ae",
    "œ": "oe",
    "þ": "th",
}


# Signs behind a word are no part of it; NFKC would make letters and digits of them. One character
# takes the place of one, so that places in the text stay.
_BEHIND_WORDS = "\u2122\u2120\u00ae\u00a9"  # of trademarks and copyright
_APOSTROPHES = "\u02bc\u02bb\u02bd\u02b9\u02ee\u055a\ua78c"  # that Unicode calls letters
# Persian kaf and yeh, as an Arabic keyboard has them
_PERSIAN = {"\u06a9": "\u0643", "\u06cc": "\u064a"}
_ALIKE = str.maketrans(
    {sign: " " for sign in _BEHIND_WORDS} | {sign: "'" for sign in _APOSTROPHES} | _PERSIAN
)
_HAS_ALIKE = re.compile(f"[{_BEHIND_WORDS}{_APOSTROPHES}{''.join(_PERSIAN)}]")
_RAISED = "[\u00b9\u00b2\u00b3\u2070\u2074-\u2079]"
_HAS_RAISED = re.compile(_RAISED)
# The raised number of a note behind a word; a unit with a power has one or two letters (m, km)
_NOTE_MARK = re.compile(rf"(?<=[^\W\d_]{{3}}){_RAISED}+")


def _without_signs(text: str) -> str:
    """A text in which signs that are written alike are one, each in its place."""
    if _HAS_ALIKE.search(text):
        text = text.translate(_ALIKE)
    if _HAS_RAISED.search(text):
        text = _NOTE_MARK.sub(lambda mark: " " * len(mark[0]), text)
    return text


def runs_of(text: str) -> list[str]:
    """The runs of letters, digits and marks of a text, in order, as `WORD` finds them in the
    cleaned text.
    """
    if text.isascii():
        return text.encode().translate(BLANKS).decode().split()
    text = unicodedata.normalize("NFKC", _without_signs(text))
    if _PLAIN.fullmatch(text):
        return _PLAIN_WORD.findall(text)
    return WORD.findall(_UNSEEN.sub("", text))


def cleaned(text: str) -> str:
    """The text in one form, without what is not seen."""
    if text.isascii():
        return text
    return _UNSEEN.sub("", unicodedata.normalize("NFKC", _without_signs(text)))


def spelled(word: str, *, turkish: bool = False) -> str:
    """A cleaned word without a difference of case."""
    word = (word.translate(_TURKISH) if turkish else word).casefold()
    return word if word.isascii() else unicodedata.normalize("NFC", word)


def folded(word: str) -> str:
    """A spelled word without accents."""
    return word if word.isascii() else word.translate(_ACCENTS)


class _Accents(dict[int, str]):
    """Letters without accents by code points, remembered."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        self[code] = _NO_DECOMPOSITION.get(letter, _base(letter))
        return self[code]


def _base(letter: str) -> str:
    if "\u0300" <= letter < "\u0370":  # an accent that is not put together with its letter
        return ""
    base, *marks = list(unicodedata.normalize("NFD", letter))
    return base if marks and base < "\u0400" else letter


_ACCENTS = _Accents()


def letters_written(text: str) -> tuple[list[int], list[int]] | None:
    """Where what each character of `cleaned(text)` was made of begins and ends; None: at its own
    place.
    """
    text = _without_signs(text)
    if text.isascii() or (unicodedata.is_normalized("NFKC", text) and _UNSEEN.search(text) is None):
        return None
    starts = [match.start() for match in _BEGINS.finditer(text)]
    if not starts or starts[0]:
        starts.insert(0, 0)
    begins, ends = list[int](), list[int]()
    for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
        count = len(cleaned(text[start:stop]))
        begins += [start] * count
        ends += [stop] * count
    return begins, ends


MOST_BYTES = 1 << 20
MOST_LINES = 10_000
_COMMENT = re.compile(r"(?:^|\s)#")


class Synonym(NamedTuple):
    """What a query for some words also looks for, or `instead` of them."""

    words: str
    replacements: tuple[str, ...]
    instead: bool


def read_synonyms(source: str | Path | list[str] | tuple[str, ...]) -> str:
    """Read a file, or its lines, and check them: lines as they are kept, without comments."""
    if isinstance(source, (str, Path)):
        try:
            lines = (
                read_bounded(Path(source), MOST_BYTES + 1).decode()[: MOST_BYTES + 1].splitlines()
            )
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"synonyms: {source}: cannot be read as UTF-8 text ({error})"
            ) from error
        where = str(source)
    elif isinstance(source, (list, tuple)) and all(isinstance(line, str) for line in source):
        lines, where = [part for line in source for part in line.splitlines()], "synonyms"
    else:
        raise ConfigError(
            f"synonyms={source!r}: must be the path of a file, or a list of its lines"
        )
    return _checked_lines(tuple(lines), where)


@lru_cache(maxsize=8)  # a search may name the same file as the one before
def _checked_lines(lines: tuple[str, ...], where: str) -> str:
    checked = []
    for number, line in enumerate(lines, start=1):
        rule = _COMMENT.split(line, maxsplit=1)[0].strip()
        if rule:
            _read_line(rule, f"{where}, line {number}")
            checked.append(rule)
    if len(checked) > MOST_LINES or sum(map(len, checked)) > MOST_BYTES:
        raise InputError(
            f"{where}: {len(checked):,} lines; at most {MOST_LINES:,} in {MOST_BYTES:,} bytes"
        )
    return "\n".join(checked)


def synonyms_of(lines: str) -> tuple[Synonym, ...]:
    """The synonyms among lines that were read."""
    return tuple(synonym for line in lines.splitlines() for synonym in _read_line(line, "synonyms"))


def protected_words(lines: str) -> list[str]:
    """The protected words among lines that were read."""
    return [line for line in lines.splitlines() if "," not in line and "=>" not in line]


def _read_line(line: str, where: str) -> list[Synonym]:
    left, arrow, right = line.partition("=>")
    if arrow:
        replacements = tuple(word.strip() for word in right.split(",") if word.strip())
        if not left.strip() or not replacements or "=>" in right or "," in left:
            raise InputError(
                f"{where}: {line!r}: write it as `k8s => kubernetes`, with one word or phrase on"
                " the left"
            )
        return [Synonym(left.strip(), replacements, instead=True)]
    group = [word.strip() for word in line.split(",")]
    if len(group) == 1:
        if len(line.split()) > 1:
            raise InputError(
                f"{where}: {line!r}: a protected word is one word; separate synonyms by commas"
            )
        return []
    if not all(group):
        raise InputError(f"{where}: {line!r}: a word is missing before or after a comma")
    return [
        Synonym(word, tuple(other for other in group if other != word), instead=False)
        for word in group
    ]


V = TypeVar("V")

PLAIN = "none"
K1, B = 1.2, 0.75  # of BM25, as Lance has them
RUNS_KEPT = (
    250_000  # words whose stems and forms are remembered while an index is made, in about 80 MB
)
RUNS_WITH_PLACES_KEPT = 50_000  # that were found in texts, in about 16 MB
LONGEST_NAME = (
    1_000  # characters of camelCase: longer runs are no names, and would have millions of parts
)
MAX_KEPT_CHARACTERS = 64  # characters of them: longer ones are made up, and would fill the memory
LANGUAGES = (
    ENGLISH,
    "arabic",
    "danish",
    "dutch",
    "finnish",
    "french",
    "german",
    "greek",
    "hungarian",
    "italian",
    "norwegian",
    "portuguese",
    "romanian",
    "russian",
    "spanish",
    "swedish",
    "turkish",
    PLAIN,
)

# Words that English sentences need and no topic has: determiners, pronouns, auxiliaries,
# conjunctions, prepositions of place and time, question words, what is left of contractions. A list
# of 1,298 words loses .027 NDCG@10 on nq-gold beside this one.
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
"""  # noqa: E501

_HUMP = re.compile(r"(?<=[^\W\d_])(?=[A-Z][a-z]{2})|(?<=[a-z])(?=[A-Z])")


class WordPlace(NamedTuple):
    """A word in a text: its characters `[start, stop)`, how it is stored, and its form; "" where
    another one has it.
    """

    start: int
    stop: int
    word: str
    form: str = ""
    in_order: bool = True
    is_sought: bool = True


Finder: TypeAlias = "Callable[[str], list[WordPlace]]"


@dataclass(frozen=True)
class Language:
    """The rules of one language, as an index keeps to them."""

    name: str  # one of `LANGUAGES`
    stop: frozenset[str]  # words of a query that are not looked up, unless there are no others
    stem: Callable[[str], str] | None = None  # None leaves words as they are written
    accents: bool = True  # whether a word is found without its accents, too
    protected: frozenset[str] = frozenset()  # words without accents that are not stemmed
    synonyms: tuple[Synonym, ...] = ()  # what a query for some words also looks for

    def stored(self, text: str) -> str:
        """Return the words of a text as they are stored: with one space before and after each, ""
        where it has none.
        """
        lines = self._lines(text)
        return spaced(" ".join(filter(None, chain(lines[0::3], lines[1::3]))))

    def words(self, query: str) -> list[str]:
        """Return the words to look up for a query, each once, synonyms last; stop words if there
        are no others.
        """
        words = self._sought_words(query)
        if not self.synonyms:
            return words
        order = f" {' '.join(self.in_order(query))} "
        present_synonyms = [
            synonym for synonym in self._stored_synonyms if f" {synonym[0]} " in order
        ]
        replaced = {
            word for left, _, instead in present_synonyms if instead for word in left.split()
        }
        more = (word for _, replacements, _ in present_synonyms for word in replacements)
        return list(dict.fromkeys([*(word for word in words if word not in replaced), *more]))

    def _sought_words(self, query: str) -> list[str]:
        runs = runs_of(query)
        runs = [run for run in runs if spelled(run, turkish=self._turkish) not in self.stop] or runs
        return list(
            dict.fromkeys(
                piece.word for run in runs for piece in self._pieces(run) if piece.is_sought
            )
        )

    @cached_property
    def _stored_synonyms(self) -> list[tuple[str, list[str], bool]]:
        """What each looks for, as it is stored: words in order, other words, and whether these come
        instead.
        """
        return [
            (
                " ".join(self.in_order(synonym.words)),
                [word for other in synonym.replacements for word in self._sought_words(other)],
                synonym.instead,
            )
            for synonym in self.synonyms
        ]

    def second_words(self, query: str) -> list[str]:
        """Return what words of a query are found by besides, in order, each once: with their
        accents, and without.
        """
        second_words = (
            word
            for run in runs_of(query)
            if not run.isascii()
            for word in self.split_runs[run].split("\n")[1].split()
        )
        return list(dict.fromkeys(word for word in second_words if not UNSPACED.fullmatch(word)))

    def in_order(self, text: str) -> list[str]:
        """Return the words of a text in order, stop words too, without what is found besides."""
        return self.split(text)[0].split()

    def form(self, word: str) -> str:
        """Return a word as `forms` has it."""
        return "".join(map(self._written, runs_of(word)))

    def finder(self, words: Collection[str], forms: Collection[str] = ()) -> Finder:
        """Make what finds words, as `words` or `forms` give them, in texts: wherever `stored` has
        them, in order.
        """
        sought = {*words, *forms}

        def find(text: str) -> list[WordPlace]:
            letters = cleaned(text)
            pattern = _PLAIN_WORD if _PLAIN.fullmatch(letters) else WORD
            runs = {
                run
                for run in pattern.findall(letters)
                if not sought.isdisjoint(self._places_in_run[run][0])
            }
            starts, stops = letters_written(text) or (range(len(text)), range(1, len(text) + 1))
            return [
                WordPlace(starts[run.start() + start], stops[run.start() + stop - 1], word, form)
                for run in pattern.finditer(letters)
                if run[0] in runs
                for start, stop, word, form, *_ in self._places_in_run[run[0]][1]
                if word in words or form in forms
            ]

        return find

    # --- one run of letters ----------------------------------------------------------------------

    @property
    def _turkish(self) -> bool:
        return self.name == "turkish"

    def split(self, text: str) -> tuple[str, str, str]:
        """Return the words of a text in order, what it is found by besides, and its different words
        as written.
        """
        lines = self._lines(text)
        words, second_words, forms = (" ".join(filter(None, lines[part::3])) for part in range(3))
        return words, second_words, " ".join(dict.fromkeys(forms.split()))

    def _lines(self, text: str) -> list[str]:
        """Return the three lines of each run of a text, as `split_runs` makes them."""
        return "\n".join(map(self.split_runs.__getitem__, runs_of(text))).split("\n")

    @cached_property
    def split_runs(self) -> RememberedWords[str]:
        """What `split` makes of runs of letters: three lines of words, with a space between two."""

        def split_run(run: str) -> str:
            if (word := self._plain(run)) is not None:
                return f"{self._stem(word)}\n\n{word}"
            pieces = self._pieces(run)
            words, second_words = (
                [piece.word for piece in pieces if piece.in_order is is_ordered]
                for is_ordered in (True, False)
            )
            forms = dict.fromkeys(piece.form for piece in pieces if piece.form)
            return "\n".join(map(" ".join, (words, second_words, forms)))

        return RememberedWords(split_run, RUNS_KEPT)

    @cached_property
    def _places_in_run(self) -> RememberedWords[tuple[tuple[str, ...], list[WordPlace]]]:
        """What is found in runs of letters, and all words and forms of it: most runs are told by
        these.
        """

        def find_places(run: str) -> tuple[tuple[str, ...], list[WordPlace]]:
            pieces = self._pieces(run)
            return tuple(
                spelling for piece in pieces for spelling in (piece.word, piece.form)
            ), pieces

        return RememberedWords(find_places, RUNS_WITH_PLACES_KEPT)

    def _pieces(self, run: str) -> list[WordPlace]:
        """The words that a run of letters is stored and looked up as."""
        if (word := self._plain(run)) is not None:
            return [WordPlace(0, len(run), self._stem(word), word)]
        pieces, end = list[WordPlace](), 0
        for unspaced in () if run.isascii() else UNSPACED.finditer(run):
            pieces += self._spaced(run, end, unspaced.start())
            pieces += _pairs(run, *unspaced.span())
            end = unspaced.end()
        return [*pieces, *self._spaced(run, end, len(run))]

    def _plain(self, run: str) -> str | None:
        """A run that is one word, as most are, without case; None where there may be more in it."""
        is_one_case = run.islower() or run.istitle() or run.isupper() or run.isdigit()
        if not (run.isascii() and is_one_case):
            return None
        word = run.lower() if not self._turkish else spelled(run, turkish=True)
        return word if word.isascii() else None

    def _spaced(self, run: str, start: int, stop: int) -> Iterator[WordPlace]:
        """A word of a script with spaces, its stems with accents and of the word without them, its
        parts.
        """
        if start == stop:
            return
        written = run[start:stop]
        for place, word in enumerate(self._stems(written)):
            yield WordPlace(
                start, stop, word, "" if place else self._written(written), not place, not place
            )
        if (
            not written.islower()
            and len(written) <= LONGEST_NAME
            and len(cuts := _humps(written)) > 1
        ):
            for first, last in cuts:
                part = written[first:last]
                yield WordPlace(
                    start + first,
                    start + last,
                    self._stems(part)[0],
                    self._written(part),
                    in_order=False,
                    is_sought=False,
                )

    def _stems(self, written: str) -> list[str]:
        """What a word is found by: without accents, then with them, then as it would be stemmed
        without them.
        """
        word = spelled(written, turkish=self._turkish)
        if word.isascii() or not self.accents:
            return [self._stem(word)]
        stem, plain = self._stem(word), folded(word)
        accented = stem if folded(stem) != stem else word  # some stemmers take accents away
        return list(dict.fromkeys([folded(stem), accented, folded(self._stem(plain))]))

    def _stem(self, word: str) -> str:
        protected = self.protected and folded(word) in self.protected
        return word if self.stem is None or protected else self.stem(word)

    def _written(self, run: str) -> str:
        word = spelled(run, turkish=self._turkish)
        return folded(word) if self.accents else word


@cache
def language(name: str, *, keep_accents: bool = False, synonyms: str = "") -> Language:
    """Load the rules of a language, with what a file of synonyms and protected words
    says besides.
    """
    if name not in LANGUAGES:
        raise ConfigError(f"language={name!r}: must be one of {', '.join(LANGUAGES)}")
    stop, stem = frozenset[str](), None
    if name != PLAIN:
        import Stemmer

        stop, stem = frozenset(_ENGLISH_STOP.split()), Stemmer.Stemmer(name, 0).stemWord
        if name != ENGLISH:
            from stop_words import get_stop_words

            stop = frozenset(get_stop_words(name))
    protected = frozenset(folded(spelled(cleaned(word))) for word in protected_words(synonyms))
    return Language(name, stop, stem, not keep_accents, protected, synonyms_of(synonyms))


class RememberedWords(dict[str, V]):
    """What is made of words, remembered: most words of a text have been seen before."""

    def __init__(self, make: Callable[[str], V], most: int) -> None:
        self._make = make
        self._most = most

    def __missing__(self, word: str) -> V:
        made = self._make(word)
        if len(word) <= MAX_KEPT_CHARACTERS:
            if len(self) >= self._most:
                self.clear()
            self[word] = made
        return made


def spaced(words: str) -> str:
    """Words as they are stored, with one space before and after each; "" where there are none."""
    return f" {words} " if words else ""


def _pairs(run: str, start: int, stop: int) -> Iterator[WordPlace]:
    """Pairs of neighboring letters, and each letter by itself."""
    edges = [start, *(letter.end() for letter in LETTER.finditer(run, start, stop))]
    alone = len(edges) == 2
    for first, last in pairwise(edges):
        yield WordPlace(first, last, run[first:last], "", in_order=alone, is_sought=alone)
    for first, last in zip(edges, edges[2:], strict=False):
        yield WordPlace(first, last, run[first:last], "")


def _humps(word: str) -> list[tuple[int, int]]:
    """The parts of camelCase, of two letters at least."""
    edges = [0, *(hump.start() for hump in _HUMP.finditer(word)), len(word)]
    return [
        (first, last)
        for first, last in pairwise(edges)
        if last - first > 1 and last - first < len(word)
    ]
