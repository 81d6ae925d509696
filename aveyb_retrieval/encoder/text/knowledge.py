"""How well a model knows a text, seen in its tokens.

A vocabulary spells what its model has seen little of: letter by letter, or as nothing at all. A
text's spelled share is the share of its letters that belong to

- an unknown token,
- no token (marks of vowels that a normalizer drops),
- a piece of one letter inside a longer word, or of a part of a letter's bytes.

In scripts without spaces a letter may be a word. There a piece of one letter counts as known where
the vocabulary also has longer pieces with this letter: it has learned from texts of this script.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import regex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenizers import Tokenizer

# The share up to which vectors weigh in full, and from which on nothing. Over paragraphs and
# sentences of 29 languages the embedded model spells .004 of English, .03 to .15 of other Latin
# letters, .52 and more of all other scripts.
KNOWN_SHARE, UNKNOWN_SHARE = 0.05, 0.3
_TOKENS_AT_ONCE = 1 << 18  # whose characters are counted together
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
        counts = np.zeros((2, len(edges)), np.int64)  # of letters, and of spelled ones, before each
        before = np.zeros(2, np.int64)
        firsts = range(0, len(ids), _TOKENS_AT_ONCE)
        starts = [0, *(max(0, int(offsets[first, 0])) for first in firsts[1:]), len(text)]
        for first, begin, end in zip(firsts, starts, starts[1:], strict=False):
            tokens = slice(first, first + _TOKENS_AT_ONCE)
            both = _count_letters(text, kinds[tokens], offsets[tokens], begin, end)
            rows = slice(*np.searchsorted(edges, [begin, end], side="right"))
            counts[:, rows] = before[:, None] + both[:, edges[rows] - begin - 1]
            before += both[:, -1:].sum(axis=1)
        places = np.searchsorted(edges, spans.clip(0, len(text)))
        letters, spelled = counts[:, places[:, 1]] - counts[:, places[:, 0]]
        share = spelled / np.maximum(letters, 1)
        weights = (UNKNOWN_SHARE - share) / (UNKNOWN_SHARE - KNOWN_SHARE)
        return weights.clip(0, 1).astype(np.float32)

    def weight(self, text: str, ids: np.ndarray, offsets: np.ndarray) -> float:
        """Return what the vector of a whole text weighs."""
        return float(self.weights(text, ids, offsets, np.array([[0, len(text)]]))[0])


def _count_letters(
    text: str, kinds: np.ndarray, offsets: np.ndarray, begin: int, end: int
) -> np.ndarray:
    """Count the letters, and those that are spelled, up to and with each character of `[begin,
    end)`, int64 `[2, n]`, given the kinds `[T]` and characters `[T, 2]` of its tokens.
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
    return np.cumsum([letters, letters & (np.cumsum(edges)[1:-1] <= 0)], axis=1)


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
        elif _BYTE.fullmatch(piece):
            pieces[number] = None
        else:
            pieces[number] = piece.removeprefix("##").removeprefix("▁")
    return pieces
