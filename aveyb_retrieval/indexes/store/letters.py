"""Letters as words are compared by: one form of each, whatever form they are written in.

    cleaned(text)    Unicode's compatibility form (NFKC), without what nobody sees (soft hyphens, joiners, marks of
                     direction), without the points of Arabic, Hebrew and Syriac
    spelled(word)    of a cleaned word: the case folded (NFC), in Turkish with dotted and dotless i
    folded(word)     of a spelled word: without the accents of Latin and Greek letters; those of other scripts are
                     other letters, but for the Russian yo

Runs of letters, digits and the marks on them are words, as between the boundaries of UAX 29, which however joins some
of them by signs: `3.14`, `foo_bar` and `don't` are two words each here, so that each part is found by itself.
"""

from __future__ import annotations

import re
import unicodedata

import regex

# what is not visible by itself, the long line of Arabic, and points
_UNSEEN = regex.compile(
    r"[\p{Default_Ignorable_Code_Point}\u0640"
    r"\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0898-\u089f\u08ca-\u08ff"
    r"\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0711\u0730-\u074a]+"
)
_BLANKS = {code: " " for code in range(128) if not chr(code).isalnum()}
# letters of Europe, and signs: none of them is a mark, or unseen, and a faster engine knows enough of them
_PLAIN = re.compile(
    "[\x00-\xac\xae-\u02ff\u0370-\u0482\u048a-\u0588\u1e00-\u1fff\u2010-\u2029\u2030-\u205e\u20a0-\u20cf\u2100-\u2bff]*"
)
_PLAIN_WORD = re.compile(r"[^\W_]+")
WORD = regex.compile(r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*+")
# Scripts that write no spaces between their words: Hiragana, Katakana, Chinese characters, Thai, Lao, Burmese, Khmer;
# and Korean syllables, whose endings spaces do not part. Marks belong to the letter before them.
UNSPACED = regex.compile(
    r"(?:[\u3041-\u30ff\u31f0-\u31ff\p{Han}\uac00-\ud7af"
    r"\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}--[\p{N}\p{P}]]\p{M}*+)++",
    regex.VERSION1,
)
LETTER = regex.compile(r"\P{M}\p{M}*+|\p{M}++")  # with its marks; marks without one at a beginning
# what begins a part of a text that is normalized by itself: no mark, no later part of a Korean syllable, nothing unseen
_BEGINS = regex.compile(r"[^\p{M}\p{Default_Ignorable_Code_Point}\u1160-\u11ff\u3099\u309a\uff9e\uff9f]")
_TURKISH = {ord("I"): "\u0131", ord("\u0130"): "i"}
_NO_DECOMPOSITION = dict(zip("øđłħŧıðəɨ\u0451", "odlhtidei\u0435", strict=True)) | {
    "æ": "ae",
    "œ": "oe",
    "þ": "th",
}


def runs_of(text: str) -> list[str]:
    """The runs of letters, digits and marks of a text, in order, as `WORD` finds them in the cleaned text."""
    if text.isascii():  # most texts are, and this is much of a build's work
        return text.translate(_BLANKS).split()
    text = unicodedata.normalize("NFKC", text)
    if _PLAIN.fullmatch(text):
        return _PLAIN_WORD.findall(text)
    return WORD.findall(_UNSEEN.sub("", text))


def cleaned(text: str) -> str:
    """The text in one form, without what is not seen."""
    if text.isascii():
        return text
    return _UNSEEN.sub("", unicodedata.normalize("NFKC", text))


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
        base, *marks = list(unicodedata.normalize("NFD", letter))
        alone = 0x300 <= code < 0x370  # an accent that is not put together with its letter
        plain = "" if alone else base if marks and base < "\u0400" else letter
        self[code] = _NO_DECOMPOSITION.get(letter, plain)
        return self[code]


_ACCENTS = _Accents()


def letters_written(text: str) -> tuple[list[int], list[int]] | None:
    """Where what each character of `cleaned(text)` was made of begins and ends; None: at its own place."""
    if text.isascii() or (unicodedata.is_normalized("NFKC", text) and _UNSEEN.search(text) is None):
        return None
    starts = [found.start() for found in _BEGINS.finditer(text)]
    if not starts or starts[0]:
        starts.insert(0, 0)
    begins, ends = list[int](), list[int]()
    for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
        count = len(cleaned(text[start:stop]))
        begins += [start] * count
        ends += [stop] * count
    return begins, ends
