"""How well a model knows a text, seen in its tokens.

A vocabulary spells what its model has seen little of: letter by letter, or as nothing at all. A
text's spelled share is the share of its letters that belong to

- an unknown token,
- no token (marks of vowels that a normalizer drops),
- a piece of one letter inside a longer word, or of a part of a letter's bytes.

In scripts without spaces a letter may be a word. There a piece of one letter counts as known where
the vocabulary also has longer pieces with this letter: it has learned from texts of this script.

A word of which more than half the letters are spelled is not read: the model passes over it, and
reads the rest. So an English passage with a name in other letters, or with its sounds, keeps its
vector, and a text of another script does not. With s the spelled share of the words that are read,
and u the share of all letters in words that are not,

    weight = f(s; KNOWN_SHARE, UNKNOWN_SHARE) f(u; MENTIONED_SHARE, UNREAD_SHARE)

where f(x; a, b) is 1 up to a, 0 from b on, and a line between.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import regex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenizers import Tokenizer

# Over 300 paragraphs of each of 29 languages the embedded model spells .007 of English, and .03 to
# .14 of other Latin letters. Words that it does not read hold .00 to .03 of these texts, .72 and
# more of other scripts, and up to .25 of English passages that say how names are written and said.
KNOWN_SHARE, UNKNOWN_SHARE = 0.05, 0.3
MENTIONED_SHARE, UNREAD_SHARE = 0.25, 0.5
_TOKENS_AT_ONCE = 1 << 18  # whose characters are counted together
_TOKENS_PER_WORD = 1 << 12  # a longer word may be cut, and each half judged alone
_TOKENS_PER_LETTER = (
    20  # tokens for each single letter: a text with fewer letters alone weighs in full
)

_LETTERS = regex.compile(r"[\p{L}\p{M}]")
_WORDS_OF_A_LETTER = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
_UNKNOWN_TOKENS = ("[UNK]", "<unk>")
_BYTE = regex.compile(r"<0x[0-9A-F]{2}>")  # a part of a letter, where a vocabulary lacks it
_KNOWN, _LETTER, _SPELLED = 0, 1, 2  # kinds of pieces: read, read if it is a word, never read


class Knowledge:
    """The pieces of one vocabulary, by what they say of a text."""

    def __init__(self, pieces: Iterable[str | None]) -> None:
        """Take all pieces by their ids, without marks of a word's beginning or inside.

        None stands for an unknown token, and for a part of a letter.
        """
        self._pieces = list(pieces)

    @cached_property
    def _kinds(self) -> np.ndarray:
        """The kind of each piece, uint8 `[V]`."""
        joined = set[str]()
        for piece in self._pieces:
            if (
                piece
                and not piece.isascii()
                and len(piece) > 1
                and _WORDS_OF_A_LETTER.search(piece)
            ):
                joined.update(piece)
        return np.array([_kind(piece, joined) for piece in self._pieces], np.uint8)

    def weights(
        self, text: str, ids: np.ndarray, offsets: np.ndarray, spans: np.ndarray
    ) -> np.ndarray:
        """Return what the vectors of parts of a text weigh, float32 `[n]`, 0 to 1.

        Args:
            text: what was tokenized.
            ids: int `[T]`, its tokens; offsets: int `[T, 2]`, their characters `[start, end)`.
            spans: int `[n, 2]`, characters of the parts.
        """
        kinds = self._kinds[ids]
        if not (kinds == _SPELLED).any() and np.count_nonzero(kinds) * _TOKENS_PER_LETTER <= len(
            ids
        ):
            return np.ones(len(spans), np.float32)
        edges = np.unique(np.append(spans.clip(0, len(text)), 0))
        counts = np.zeros((3, len(edges)), np.int64)  # of letters by kind, before each edge
        before = np.zeros(3, np.int64)
        firsts = _find_groups(text, offsets)
        starts = [0, *(max(0, int(offsets[first, 0])) for first in firsts[1:]), len(text)]
        lasts = [*firsts[1:], len(ids)]
        for first, last, begin, end in zip(firsts, lasts, starts, starts[1:], strict=False):
            tokens = slice(first, last)
            letters = _count_letters(text, kinds[tokens], offsets[tokens], begin, end)
            rows = slice(*np.searchsorted(edges, [begin, end], side="right"))
            counts[:, rows] = before[:, None] + letters[:, edges[rows] - begin - 1]
            before += letters[:, -1:].sum(axis=1)
        places = np.searchsorted(edges, spans.clip(0, len(text)))
        every, unread, spelled = counts[:, places[:, 1]] - counts[:, places[:, 0]]
        spelled_share = spelled / np.maximum(every - unread, 1)
        unread_share = unread / np.maximum(every, 1)
        weights = _weigh(spelled_share, KNOWN_SHARE, UNKNOWN_SHARE)
        weights *= _weigh(unread_share, MENTIONED_SHARE, UNREAD_SHARE)
        return weights.astype(np.float32)

    def weight(self, text: str, ids: np.ndarray, offsets: np.ndarray) -> float:
        """Return what the vector of a whole text weighs."""
        return float(self.weights(text, ids, offsets, np.array([[0, len(text)]]))[0])


def _weigh(shares: np.ndarray, full: float, none: float) -> np.ndarray:
    """Return 1 for shares up to `full`, 0 from `none` on, and the line between."""
    return ((none - shares) / (none - full)).clip(0, 1)


def _find_groups(text: str, offsets: np.ndarray) -> list[int]:
    """Return where each group of tokens begins that are counted together: with a word."""
    firsts, first = [0], _TOKENS_AT_ONCE
    while first < len(offsets):
        starts = offsets[first : first + _TOKENS_PER_WORD, 0].tolist()
        of_word = next((n for n, start in enumerate(starts) if not _is_inside(text, start)), 0)
        firsts.append(first + of_word)
        first = firsts[-1] + _TOKENS_AT_ONCE
    return firsts


def _is_inside(text: str, start: int) -> bool:
    """Whether a word goes on at a character."""
    around = text[max(0, start - 1) : start + 1].encode("utf-32-le", "surrogatepass")
    return len(around) == 8 and bool(_is_letter(np.frombuffer(around, np.uint32)).all())


def _count_letters(
    text: str, kinds: np.ndarray, offsets: np.ndarray, begin: int, end: int
) -> np.ndarray:
    """Count the letters up to and with each character of `[begin, end)`: all, those in words that
    are not read, and those that are spelled in other words, int64 `[3, n]`, given the kinds `[T]`
    and characters `[T, 2]` of its tokens.
    """
    around = text[max(0, begin - 1) : end + 1]
    codes = np.frombuffer(around.encode("utf-32-le", "surrogatepass"), np.uint32)
    # with one character on each side, which is no letter where there is none
    is_letter = np.zeros(end - begin + 2, np.bool_)
    is_letter[int(begin == 0) :][: len(codes)] = _is_letter(codes)
    start, stop = offsets.clip(begin, end).T - begin + 1
    begins_word = ~(is_letter[start] & is_letter[start - 1])
    ends_word = ~is_letter[stop]
    read = (kinds == _KNOWN) | ((kinds == _LETTER) & begins_word & ends_word)
    edges = np.zeros(end - begin + 2, np.int64)
    np.add.at(edges, start[read], 1)
    np.subtract.at(edges, stop[read], 1)
    letters = is_letter[1:-1]
    spelled = letters & (np.cumsum(edges)[1:-1] <= 0)
    unread = _in_unread_words(letters, spelled)
    return np.cumsum([letters, unread, spelled & ~unread], axis=1)


def _in_unread_words(letters: np.ndarray, spelled: np.ndarray) -> np.ndarray:
    """Which letters are in words that are spelled for more than half, bool `[n]`; words are runs of
    letters.
    """
    unread = np.zeros(len(letters), np.bool_)
    changes = np.diff(letters.astype(np.int8), prepend=0, append=0)
    starts, stops = np.flatnonzero(changes > 0), np.flatnonzero(changes < 0)
    if len(starts):
        lengths = stops - starts
        of_word = np.add.reduceat(spelled[letters], np.cumsum(lengths) - lengths, dtype=np.int64)
        unread[letters] = np.repeat(2 * of_word > lengths, lengths)
    return unread


def _kind(piece: str | None, joined: set[str]) -> int:
    if piece is None:
        return _SPELLED
    if len(piece) != 1 or piece in joined or not _LETTERS.match(piece):
        return _KNOWN
    return _LETTER


def _is_letter(codes: np.ndarray) -> np.ndarray:
    """Whether characters are letters or marks, by the ranges of code points: bool `[n]`."""
    small = codes | 0x20
    ascii_letter = (small >= ord("a")) & (small <= ord("z")) & (codes < 0x80)
    above = (codes >= 0xC0) & (codes != 0xD7) & (codes != 0xF7)
    signs = ((codes >= 0x2000) & (codes < 0x2C00)) | ((codes >= 0x3000) & (codes < 0x3041))
    wide_signs = (codes >= 0xFF00) & (codes < 0xFF21)
    pictures = (codes >= 0x1F000) & (codes < 0x20000)
    return ascii_letter | (above & ~(signs | wide_signs | pictures))


def pieces_of(tokenizer: Tokenizer) -> list[str | None]:
    """Return all pieces of a vocabulary of the package tokenizers, as `Knowledge` takes them."""
    from tokenizers import decoders

    pieces: list[str | None] = [""] * tokenizer.get_vocab_size()
    bytewise = isinstance(tokenizer.decoder, decoders.ByteLevel)
    for piece, number in tokenizer.get_vocab().items():
        if piece in _UNKNOWN_TOKENS:
            pieces[number] = None
        elif bytewise:
            text = tokenizer.decoder.decode([piece])
            pieces[number] = None if "\ufffd" in text else text.strip(" ")
        elif piece.isalpha():  # nearly all: without a mark
            pieces[number] = piece
        elif _BYTE.fullmatch(piece):
            pieces[number] = None
        else:
            pieces[number] = piece.removeprefix("##").removeprefix("▁")
    return pieces
