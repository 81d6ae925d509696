"""Capital letters as marks, so that "Paris", "paris" and "PARIS" share their tokens.

A small vocabulary with different rows for "Paris" and "paris" pays twice for each name, and a question typed in lower
case has no tokens in common with a text in capitals. Here an ASCII capital becomes its lower-case letter after a mark,
which is placed before the space that belongs to the word:

    "See Paris"  -> "<up>see<up> paris"        <up>: the next letter
    "NASA"       -> "<lock>nasa"               <lock>: all letters that follow
    "APIs"       -> "<lock>api<end>s"          <end>: <lock> ends here
    "HTTPServer" -> "<lock>http<up>server"

The marks are the control characters U+000E, U+000F and U+0010; where a text holds one itself, it is doubled. Every
rule looks at four neighbouring characters at most, so the cost is linear, and `restore` gives back every text exactly.
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import tokenizers

UP, LOCK, END = MARKS = "\x0e\x0f\x10"

_C, _L = "[A-Z]", "[a-z]"
# Capitals in a row that are not a lone capital before a lower-case word, with the blank in front if there is one.
_LOCK_HERE = rf"(?= {_C}{_C}(?!{_L}{_L}))|(?<![A-Z ])(?={_C}{_C}(?!{_L}{_L}))"
_UP_HERE = (
    rf"(?= {_C}(?!{_C}))|(?= {_C}{_C}{_L}{_L})"
    rf"|(?<![A-Z ])(?={_C}(?!{_C}))|(?<![A-Z ])(?={_C}{_C}{_L}{_L})|(?<={_C})(?={_C}{_L}{_L})"
)
_END_HERE = rf"(?<={_C}{_C})(?={_L}(?!{_L}))"
_RULES = ((LOCK, _LOCK_HERE), (UP, _UP_HERE), (END, _END_HERE))

_HERE = re.compile("|".join(f"({rule})" for _, rule in _RULES) + f"|(?=([{MARKS}]))")
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_MARKED = re.compile(rb"([\x0e-\x10])\1|\x0e( ?[a-z])|\x0f( ?[a-z]+)|\x10")


def mark(text: str) -> tuple[str, np.ndarray]:
    """Replace capitals by marks.

    Returns:
        The marked text, and positions int64 `[n]` in `text`, ascending: the i-th mark was put before character
        `positions[i]`, so it is character `positions[i] + i` of the marked text.
    """
    positions: list[int] = []
    pieces: list[str] = []
    done = 0
    for found in _HERE.finditer(text):
        start = found.start()
        sign = found[4] if found.lastindex == 4 else _RULES[(found.lastindex or 1) - 1][0]
        pieces += (text[done:start], sign)
        positions.append(start)
        done = start
    pieces.append(text[done:])
    return "".join(pieces).translate(_LOWER), np.asarray(positions, dtype=np.int64)


def restore(data: bytes) -> bytes:
    """Return the UTF-8 bytes of the original text, given those of the marked text."""
    return _MARKED.sub(lambda found: found[1] or (found[2] or found[3] or b"").upper(), data)


def original_offsets(offsets: np.ndarray, positions: np.ndarray, length: int) -> np.ndarray:
    """Convert offsets in a marked text to offsets in the original text.

    A mark is empty there: it begins and ends where the character after it begins.

    Args:
        offsets: int64 `[T, 2]`, in the marked text.
        positions: int64 `[n]`, from `mark`.
        length: characters of the marked text.

    Returns:
        int64 `[T, 2]`.
    """
    is_mark = np.zeros(length, dtype=bool)
    is_mark[positions + np.arange(len(positions))] = True
    before = np.concatenate([[0], np.cumsum(~is_mark)])  # [length + 1], original characters before each position
    return before[offsets]


def huggingface_normalizer() -> tokenizers.normalizers.Normalizer:
    """Return `mark` as the normalizer of a `tokenizer.json`."""
    from tokenizers import Regex
    from tokenizers.normalizers import Replace, Sequence

    doubled = [Replace(sign, sign * 2) for sign in MARKS]
    marked = [Replace(Regex(rule), sign) for sign, rule in _RULES]
    return Sequence([*doubled, *marked, *(Replace(letter, letter.lower()) for letter in string.ascii_uppercase)])
