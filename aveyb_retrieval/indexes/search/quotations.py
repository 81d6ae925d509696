"""The quotations in an answer: between quotation marks of any script, and those of Markdown and
HTML.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

# characters between two quotation marks; a mark further away belongs to another quotation
MAX_QUOTATION_CHARACTERS = 20_000
UNSPACED = (  # scripts written without spaces
    "\u0e00-\u0eff\u1780-\u17ff\u1000-\u109f\u2e80-\u9fff\uac00-\ud7a3"
)
OF_UNSPACED = re.compile(f"[{UNSPACED}]")
# What closes a quotation, by what opens it; of those alike on both sides, the place decides.
_STRAIGHT = "\"'\uff02\uff07\u05f4"
_CLOSING: dict[str, Collection[str]] = {
    "\u201c": "\u201d\u201c",
    "\u201d": "\u201d",
    "\u201e": "\u201c\u201d\u201f",
    "\u201a": "\u2018\u2019",
    "\u2018": "\u2019",
    "\u00ab": "\u00bb",
    "\u00bb": "\u00ab\u00bb",
    "\u2039": "\u203a",
    "\u203a": "\u2039\u203a",
    "\u3008": "\u3009",
    "\u300a": "\u300b",
    "\u300c": "\u300d",
    "\u300e": "\u300f",
    "\u301d": "\u301e\u301f",
    "\ue000": "\ue001",
    "\ufe41": "\ufe42",
    "\ufe43": "\ufe44",
    "\uff62": "\uff63",
    "``": ("''",),
    **{sign: sign for sign in _STRAIGHT},
}
# What a mark of another kind closes, too, where it can begin nothing: one of the two was typed, the
# other one set.
_CROSSED = {
    '"': "\u201c\u201d\u201e",
    "'": "\u2018\u201a",
    "\u201c": '"',
    "\u201d": '"',
    "\u2019": "'",
}
# from the sign before it
_ENDS = re.compile(r"[^\s(\[{].(?![\w({\u3008\u300a\u300c\u300e\u3010\uff08])", re.DOTALL)
_ALL = "".join(
    {*"".join(_CLOSING), *"".join(sign for signs in _CLOSING.values() for sign in signs)}
)
_SIGNS = re.compile(f"``|''|[{re.escape(_ALL)}]")
# behind an apostrophe
_NO_OPENING = re.compile(r"(?:\d\ds?|tis|twas|em|til|cause|n|s|t)\b", re.IGNORECASE)
_MAX_QUOTATION_DEPTH = 8  # quotations in one another
_LONGEST_RANGE = 100  # numbers that one range cites at most
_CODE = re.compile(
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|(?<!`)(``?)(?!`)[^\n]*?[^`\n]\1(?!`)", re.DOTALL
)
_BLOCK = re.compile(r"(?:^[ \t]{0,3}>.*(?:\n|\Z))+", re.MULTILINE)
_CITED = r"\[\d{1,4}(?:\s?[,;\u2013-]\s?\d{1,4})*\]"
_CITATION = re.compile(f"({_CITED})")
_MARKS = rf"((?:{_CITED}(?!:\s*[\"\u201c\u201e\u00ab\u300c])\s?)+)"
_MARK = re.compile(rf"[\s.,;:!?)\u201d\u00bb\"'*_]{{0,4}}{_MARKS}")
# a mark just before a quotation, or at the beginning of its sentence: `[2] says that "`, `According
# to [2], it is "`
_MARK_BEFORE = re.compile(
    r"(\[\d{1,4}\])(?:[:,]?[ \t]*|,?(?! (?:and|but|or|while|whereas)\b)(?P<words>(?:"
    r" [^\W\d_]+){1,5})[,:]?[ \t]*)"
)
_JUST_BEFORE = re.compile(r"(?<=[^\W\d]\s)|(?<![^\n])")
_BEGINNING = re.compile(r"(?:\A|[\n.!?:;*-][ \t]*)(?:[^\W\d_]+ ){0,2}\Z")
_NUMBERS = re.compile(r"(\d{1,4})(?:\s?[\u2013-]\s?(\d{1,4}))?")
_MARK_AT_END = re.compile(_MARK.pattern + r"\s*\Z")
_HTML = re.compile(
    r"&(?:quot|apos|[lrb]dquo|[lr]squo|sbquo|[lr]s?aquo|#0{0,4}3[49]|#x0{0,4}2[27]);|<(/?)(?:q|blockquote)(?:\s[^<>]*)?>",
    re.IGNORECASE,
)
_TAG = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
_SOURCE = re.compile(r"\n[ \t]*(?:\u2014|--)[^\n]{1,200}\Z")  # below a block quote


class Quotation(NamedTuple):
    """A quotation in an answer: its characters, where it begins, and the numbers in `[n]` beside
    it.
    """

    text: str
    position: int
    marks: tuple[int, ...]


def quotations(answer: str) -> Iterator[Quotation]:
    """Yield the quotations of an answer: between quotation marks of any script, block quotes of
    Markdown, `q` of HTML.

    Code is left out. Marks that do not match quote nothing; of quotations in one another the outer
    one counts.
    """
    without_code = _blank_code(answer)
    answer = _HTML.sub(_as_sign, without_code)
    blocks = [(match.start(), match.end()) for match in _BLOCK.finditer(answer)]
    place = 0
    for start, stop in [*blocks, (len(answer), len(answer))]:
        for first, end, after in _Pairs(answer, place, start).outer():
            if text := answer[first:end].strip():
                if without_code[first - 1] in ";>":  # of HTML
                    text = html.unescape(_TAG.sub(" ", text)).strip()
                inside = None
                if answer[first - 1] == "\ue000":
                    text, inside = _of_block(text)
                mark = inside or _MARK.match(answer, after)
                yield Quotation(
                    text, first, _numbers(mark or _mark_before(answer, place, first - 1))
                )
                place = after if mark is None or mark is inside else mark.end(1)
        if start < stop:
            text, mark = _of_block(
                re.sub(r"^[ \t]{0,3}(?:>[ \t]?)+", "", answer[start:stop], flags=re.MULTILINE)
            )
            yield Quotation(text, start, _numbers(mark or _MARK.match(answer, stop)))
        place = stop


def cited_numbers(answer: str) -> set[int]:
    """Return the numbers that an answer cites: `[1]`, `[1, 2]`, `[1-3]`; those in code are none."""
    marks = _CITATION.finditer(_blank_code(answer))
    return {number for mark in marks for number in _numbers(mark)}


def _blank_code(answer: str) -> str:
    return _CODE.sub(lambda match: " " * len(match[0]), answer)


def _as_sign(match: re.Match[str]) -> str:
    """A quotation mark in the place of the last character of a tag or entity that
    stands for one.
    """
    if match[1] is None:
        sign = html.unescape(match[0].lower())
    else:
        sign = "\ue001" if match[1] else "\ue000"
    return sign.rjust(len(match[0]))


def _mark_before(answer: str, start: int, stop: int) -> re.Match[str] | None:
    at = answer.rfind("[", max(start, stop - 120), stop)
    mark = _MARK_BEFORE.fullmatch(answer, at, stop) if at >= 0 else None
    if mark is None or mark["words"] is None:
        return mark if _JUST_BEFORE.match(answer, max(at, 0)) else None
    return mark if _BEGINNING.search(answer, max(start, at - 40), at) else None


def _of_block(text: str) -> tuple[str, re.Match[str] | None]:
    """The words of a block quote, without the source below them and the mark behind
    them, and this.
    """
    text = _SOURCE.sub("", text.rstrip())
    mark = _MARK_AT_END.search(text)
    return text[: mark.start()].strip() if mark else text.strip(), mark


class _Opened(NamedTuple):
    """A sign that may begin a quotation, and where that may end with an apostrophe behind an s, or
    inches.
    """

    sign: str
    at: int
    maybe: int = -1


class _Pairs:
    """The quotations in a part of an answer: the signs that open one are kept until others close
    them, or nothing.
    """

    def __init__(self, answer: str, start: int, stop: int) -> None:
        self._answer, self._start, self._stop = answer, start, stop
        self._opened: list[_Opened] = []
        self._pairs: list[tuple[int, int, int]] = []
        for match in _SIGNS.finditer(answer, start, stop):
            self._take(match[0], match.start(), match.end())
        while self._opened:
            self._end_with_apostrophe()

    def outer(self) -> Iterator[tuple[int, int, int]]:
        """Yield where words of quotations begin and end, and where the closing sign ends: those in
        no other one.
        """
        last = -1
        for pair in sorted(self._pairs):
            if pair[0] > last:
                yield pair
                last = pair[2]

    def _take(self, sign: str, at: int, after: int) -> None:
        behind_word = at > self._start and _is_spaced(self._answer[at - 1])
        before_word = after < self._stop and _is_spaced(self._answer[after])
        opens_only = before_word and (
            sign in _STRAIGHT or sign == "\u2019" or self._answer[max(0, at - 1) : at].isspace()
        )
        fitting = [n for n, opened in enumerate(self._opened) if sign in _CLOSING[opened.sign]]
        # no mark of its own kind does
        if not fitting and _ENDS.match(self._answer, max(0, at - 1)):
            closed = _CROSSED.get(sign, "")
            fitting = [
                n
                for n, opened in enumerate(self._opened)
                if opened.sign in closed and opened.at + 1 < at
            ]
        number = -1 if opens_only or not fitting else fitting[-1]
        if number >= 0:
            self._close_or_wait(number, sign, at, after)
        elif sign in _CLOSING and not (behind_word and sign in _CLOSING[sign]):
            if sign == "'" and (not before_word or _NO_OPENING.match(self._answer, after)):
                return
            waiting = any(opened.sign == sign and opened.maybe >= 0 for opened in self._opened[-1:])
            if waiting and self._answer[at - 2 : at] != "\n\n":
                self._end_with_apostrophe()
            self._opened = [*self._opened[1 - _MAX_QUOTATION_DEPTH :], _Opened(sign, at)]

    def _close_or_wait(self, number: int, sign: str, at: int, after: int) -> None:
        opened, text = self._opened, self._answer
        doubtful = sign not in _CLOSING[opened[number].sign] and (
            sign in "'\u2019" or text[at - 1].isnumeric()
        )
        if doubtful or (
            sign in "'\u2019" and text[at - 1] in "sS" and re.match(r" \w", text[after : after + 2])
        ):
            # "the tenants' notice", \u201ca 5" pipe\u201d: it ends here if nowhere else
            if opened[number].maybe < 0 and not (doubtful and opened[number + 1 :]):
                opened[number] = opened[number]._replace(maybe=at)
            return
        while (
            number
            and opened[number].sign not in _STRAIGHT
            and opened[number - 1].sign == opened[number].sign
        ):
            if text[opened[number].at - 2 : opened[number].at] != "\n\n":
                break
            # each paragraph of a quotation begins with a sign, only the last one ends with one
            number -= 1
        self._close(number, at, after)

    def _end_with_apostrophe(self) -> None:
        self._close(len(self._opened) - 1, self._opened[-1].maybe, self._opened[-1].maybe + 1)

    def _close(self, number: int, end: int, after: int) -> None:
        first = self._opened[number].at + len(self._opened[number].sign)
        if 0 <= end - first <= MAX_QUOTATION_CHARACTERS:
            self._pairs.append((first, end, after))
        del self._opened[number:]


def _is_spaced(sign: str) -> bool:
    """Whether this is a letter or digit of a script that is written with spaces."""
    return sign.isalnum() and OF_UNSPACED.match(sign) is None


def _numbers(marks: re.Match[str] | None) -> tuple[int, ...]:
    """The numbers in `[1]`, `[1, 2]`, `[1-3]` and `[1][2]`."""
    ranges = [
        sorted((int(first), int(last or first)))
        for first, last in _NUMBERS.findall(marks[1] if marks else "")
    ]
    return tuple(
        number
        for first, last in ranges
        for number in range(first, min(last + 1, first + _LONGEST_RANGE))
    )
