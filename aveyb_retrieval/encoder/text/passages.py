"""Where passages begin and end: runs of whole sentences, cut from a text whose tokens are given by their offsets.

A cut is chosen from left to right. From where a passage begins, the next one begins at the best place within reach:

    a heading                        at least a quarter of `tokens` away
    a paragraph                      at least half
    a sentence, list item, table row at least a quarter
    a line, a clause, a word         at least half (of a sentence that is too long)
    a character                      only inside a word that is too long

and of the best kind the farthest one. So a passage has at most `tokens` tokens, and all but rare ones have a quarter of
that or more; the last cut leaves as much behind it. A choice depends on the text up to a passage's length ahead, so a
text that grows keeps its passages up to the one before last. White space and prompts are not counted.

The places come from `outline.py`; words and characters are those of Unicode's annex 29, from the package regex. What
each rule looks at is bounded, so the time grows linearly with the text.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import regex

from aveyb_retrieval.encoder.text.outline import HEADING, PARAGRAPH, SENTENCE, outline
from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_TOKENS = 256
SMALLEST, LARGEST = 16, 8192
_LARGEST_SHARE = 4  # a title takes at most a quarter of a split

# Each begins where a run of blanks does, or where the search does: one that may begin anywhere in it takes n^2.
_LINE = regex.compile(r"(?:\G|(?<!\s))[^\S\n\r\v\f\x85\u2028\u2029]*+[\n\r\v\f\x85\u2028\u2029]\s*+(?=\S)")
_CLAUSE = regex.compile(r"(?:[,;:—–][)\]\"'”’»]*\s+|[，、；：]\s*)(?=\S)")  # noqa: RUF001  # other scripts
_WORD = regex.compile(r"(?:\G|(?<!\s))\s++(?=\S)")
_BETWEEN_WORDS = regex.compile(r"(?w)\b(?=\w)")
_CHARACTER = regex.compile(r"\X")
_LONGEST_CHARACTER = 4096  # code points

_BLANK = np.array([chr(code).isspace() for code in range(0x3002)])


@dataclass(frozen=True)
class PassageSize:
    """How long passages are.

    Attributes:
        tokens: At most so many tokens in a passage (16 to 8,192), most have between half and all of it.
        overlap: A passage begins with the last whole sentences of the one before, up to so many tokens (with its last
            lines or words where a sentence is longer); at most half of `tokens`. `passage_overlap` of `build_index`.
        late: Encode passages within their document (True), or one by one (False); None: as the model usually does.
        titled: Read the title again at the head of every split (`repeat_title`); None: where the model has splits.

    Raises:
        ConfigError: `tokens` or `overlap` is out of range.
    """

    tokens: int = DEFAULT_TOKENS
    overlap: int = 0
    late: bool | None = None
    titled: bool | None = None

    def __post_init__(self) -> None:
        for name, value in (("passage_tokens", self.tokens), ("passage_overlap", self.overlap)):
            if not isinstance(value, int):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number of tokens")
        if not SMALLEST <= self.tokens <= LARGEST:
            raise ConfigError(f"passage_tokens is {self.tokens}; it must be from {SMALLEST} to {LARGEST:,}")
        if not 0 <= self.overlap <= self.tokens // 2:
            raise ConfigError(
                f"passage_overlap is {self.overlap}; it must be from 0 to {self.tokens // 2}, half of passage_tokens"
            )


DEFAULT_SIZE = PassageSize()


@dataclass(frozen=True)
class Cuts:
    """The passages of one text, in order.

    ranges: int64 `[n, 2]`, tokens `[first, end)`; without overlap each token is in exactly one passage.
    spans: int64 `[n, 2]`, characters `[start, end)` of the text, without white space at either end.
    headings: the nearest heading above each passage or at its start; "" where there is none.
    """

    ranges: np.ndarray
    spans: np.ndarray
    headings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ranges)


def cut_passages(text: str, offsets: np.ndarray, size: PassageSize) -> Cuts:
    """Cut a text into passages.

    Args:
        text: any text; time grows linearly with it.
        offsets: int64 `[T, 2]`, the characters `[start, end)` of `text` that each token stands for, ascending. Tokens
            of a prompt or title before the text have offsets below 1 and belong to the first passage.
        size: how long passages are.
    """
    if not len(offsets):
        return Cuts(np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64), ())
    return _Cutter(text, offsets, size).cut()


class _Cutter:
    """One text while it is cut. A place is a character at which a passage can begin.

    The blanks before a place belong, as tokens, to the passage that begins there: `_solid` tells where they begin.
    """

    def __init__(self, text: str, offsets: np.ndarray, size: PassageSize) -> None:
        self._size = size
        self._stop = max(int(offsets[-1, 1]), 0)  # behind it the text was not read
        while self._stop < len(text) and unicodedata.combining(text[self._stop]):  # WordPiece forgets accents
            self._stop += 1
        self._text = text[: self._stop]
        self._starts = offsets[:, 0].clip(0)
        full = ~_BLANK[_codes(self._text).clip(max=len(_BLANK) - 1)]
        content = np.concatenate([[0], np.cumsum(full, dtype=np.int32)])
        counted = content[offsets[:, 1].clip(0)] > content[self._starts]
        self._count = np.concatenate([[0], np.cumsum(counted)])  # [T + 1], counted tokens before each token
        behind = np.where(full, np.arange(1, len(full) + 1, dtype=np.int32), 0)
        self._solid = np.concatenate([[0], np.maximum.accumulate(behind)])  # [characters + 1]
        self._outline = outline(self._text)
        self._solid_places = self._solid[self._outline.places]

    def cut(self) -> Cuts:
        begins = list(self._begins())
        firsts = [self._token(begin) for begin in begins]
        ends, stops = [*firsts[1:], len(self._starts)], [*begins[1:], self._stop]
        if self._size.overlap:
            begins = [0, *(self._overlapping(*pair) for pair in pairwise(begins))]
            firsts = [self._token(begin) for begin in begins]
        spans = [self._trimmed(*pair) for pair in zip(begins, stops, strict=True)]
        marks = [heading.start for heading in self._outline.headings]
        above = [bisect_right(marks, start) - 1 for start, _ in spans]
        headings = tuple(self._outline.headings[i].words if i >= 0 else "" for i in above)
        return Cuts(np.array([firsts, ends], dtype=np.int64).T, np.array(spans, dtype=np.int64), headings)

    def _begins(self) -> Iterator[int]:
        begin: int | None = 0
        size, total = self._size.tokens, int(self._count[-1])
        while begin is not None:
            yield begin
            done = self._counted(begin)
            if total - done <= size:
                return
            # what is left for the last passage is no scrap
            begin = self._next(begin, done, min(done + size, total - size // 4))

    def _next(self, begin: int, done: int, reach: int) -> int | None:
        """The best place behind `begin`, which has `done` counted tokens before it, with at most `reach` before it."""
        quarter, half = (self._character(done + self._size.tokens // part) for part in (4, 2))
        last = self._last_character(reach)
        low, high = np.searchsorted(self._solid_places, [quarter, last + 1])
        places, kinds = self._outline.places[low:high], self._outline.kinds[low:high]
        for kind, nearest in ((HEADING, quarter), (PARAGRAPH, half), (SENTENCE, quarter)):
            fitting = places[(kinds >= kind) & (places >= nearest)]
            if len(fitting):
                return int(fitting[-1])
        return self._inside_sentence(begin, half, last)

    def _inside_sentence(self, begin: int, half: int, last: int) -> int | None:
        window = self._text[begin : last + 64]  # what follows decides whether a word ends here
        for pattern, nearest in (
            *((pattern, half) for pattern in (_LINE, _CLAUSE, _WORD, _BETWEEN_WORDS)),
            *((pattern, begin + 1) for pattern in (_WORD, _BETWEEN_WORDS, _CHARACTER)),
        ):
            for end in reversed([begin + found.end() for found in pattern.finditer(window)]):
                if end < nearest:
                    break
                if self._solid[end] <= last and self._separates(begin, end):
                    return end
        rest = _CHARACTER.finditer(self._text, begin, begin + _LONGEST_CHARACTER)
        return next((found.end() for found in rest if self._separates(begin, found.end())), None)

    def _separates(self, begin: int, place: int) -> bool:
        """Whether there are counted tokens between two places, and a token begins at the second or at its blanks."""
        token = self._token(place)
        return token < len(self._starts) and self._starts[token] <= place and self._count[token] > self._counted(begin)

    def _overlapping(self, previous: int, begin: int) -> int:
        """Where the passage at `begin` begins when it repeats the last sentences of the one at `previous`."""
        nearest = self._character(self._counted(begin) - self._size.overlap)
        first = max(nearest, previous + 1)
        places = self._outline.places
        low, high = np.searchsorted(places, [first, begin])
        if low < high:
            return int(places[low])
        found = _LINE.search(self._text, first, begin) or _WORD.search(self._text, first, begin)
        return found.end() if found and found.end() < begin else begin

    def _token(self, place: int) -> int:
        return int(np.searchsorted(self._starts, self._solid[place])) if place else 0

    def _counted(self, place: int) -> int:
        return int(self._count[self._token(place)])

    def _character(self, counted: int) -> int:
        """Where the first token begins that has at least `counted` tokens before it."""
        token = int(np.searchsorted(self._count, counted))
        return int(self._starts[token]) if token < len(self._starts) else self._stop

    def _last_character(self, counted: int) -> int:
        """Where the last token begins that has at most `counted` tokens before it."""
        token = int(np.searchsorted(self._count, counted, side="right")) - 1
        return int(self._starts[token]) if token < len(self._starts) else self._stop

    def _trimmed(self, start: int, stop: int) -> tuple[int, int]:
        stop = max(int(self._solid[stop]), start)
        following = self._text[start:stop]
        return stop - len(following.lstrip()), stop


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def cut_splits(text: str, offsets: np.ndarray, split_size: int) -> Cuts:
    """Let each split of `split_size` tokens be a passage, wherever in a word or sentence it ends."""
    firsts = np.arange(0, len(offsets), split_size)
    ends = np.minimum(firsts + split_size, len(offsets))
    spans = np.stack([offsets[firsts, 0], offsets[ends - 1, 1]], axis=1).clip(0, len(text))
    return Cuts(np.stack([firsts, ends], axis=1), spans, ("",) * len(firsts))


def repeat_title(ids: np.ndarray, cuts: Cuts, n_title: int, split_size: int) -> tuple[np.ndarray, Cuts]:
    """Put the first tokens of a text again before every run of tokens that begins a split after the first.

    A split is contextualized alone, beside what it retrieves: behind the first 256 tokens of a document its title is
    known only where a split retrieves the first one. Read again, it names what every passage is about.

    Args:
        ids: int `[T]`, the tokens of prompt, title and text.
        cuts: its passages.
        n_title: how many tokens prompt and title take; of more than a quarter of a split the first are repeated.
        split_size: S.

    Returns:
        The tokens that are read, int `[T + r n]` where r splits follow the first and n tokens are repeated, and the
        same passages in them. Repeated tokens belong to the passage that goes on behind them.
    """
    n_title = min(n_title, split_size // _LARGEST_SHARE)
    begins = np.arange(split_size, len(ids), split_size - n_title)
    if not n_title or not len(begins):
        return ids, cuts
    repeated = np.insert(ids, np.repeat(begins, n_title), np.tile(ids[:n_title], len(begins)))
    return repeated, replace(cuts, ranges=cuts.ranges + n_title * np.searchsorted(begins, cuts.ranges))
