"""A long text in pieces that a tokenizer can read one by one.

A tokenizer of the package `tokenizers` keeps several hundred bytes for each token of the text that
it is given: a text of 6 MB took 900 MB at once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_CHARACTERS = 1 << 18
# WordPiece and byte-level BPE begin a new word at the last blank of a run, so that the tokens on
# both sides are those of the whole text.
_BLANK = re.compile(r"[ \t\n](?=\S)")


def cut_pieces(text: str, characters: int = PIECE_CHARACTERS) -> Iterator[tuple[int, str]]:
    """Yield the pieces of a text and where they begin; together they are the text.

    A piece has `characters` characters, and more up to the next blank; a text without blanks is
    one piece.
    """
    start = 0
    while start < len(text):
        blank = _BLANK.search(text, start + characters)
        stop = blank.start() if blank else len(text)
        yield start, text[start:stop]
        start = stop
