"""Raised and lowered characters (powers, notes, indices of formulas) written within a line."""

from __future__ import annotations

import re
from itertools import takewhile

MAX_WORD_CHARACTERS = 40  # characters of a word that are looked at
_UNITS = {"mm", "cm", "dm", "km", "ft", "in", "yd", "mi", "nm", "µm", "μm", "sec", "kg", "mc", "hm"}
_ENDINGS = {  # that stand raised behind a number or a letter and belong to it
    "st",
    "nd",
    "rd",
    "th",
    "er",
    "re",
    "e",
    "è",
    "ème",
    "eme",
    "nde",
    "o",
    "a",
    "os",
    "as",
    "º",
    "ª",
    "me",
    "mes",
    "lle",
    "lles",
    "gr",
    "r",
    "rs",
    "ra",
    "d",
    "ne",
    "to",
}
_TITLES = re.compile(r"(?:M|D|S|N|n|Dr|Mr|Mrs|Sr|Sra|Bd|Av|Ste|St|C|V)\Z")
_FORMULA = re.compile(r"(?:[A-Z][a-z]?\d*){1,12}(?<!\d)")  # of a chemical, as far as it is written
_AMOUNT = re.compile(r"[-+\u2212\u2013]?\d+(?:[.,/]\d+)*")
_SIGNS = re.compile(r"[\W_]+")


def raised(before: str, text: str) -> str:
    """Write raised text behind what stands before it on its line, of which the last
    word is enough.
    """
    stripped = text.strip()
    if not stripped or (stripped[0] in "[(" and stripped[-1] in "])"):
        return text
    word = last_word(before)
    # behind a stop or a blank, or at the start: no word to spoil
    if not word and not before.endswith((")", "]", "}")):
        apart = stripped[:1].isalnum() and before and not before[-1].isspace()
        return f"[{stripped}]" if apart else text
    short = len(word) == 1 or word.lower() in _UNITS
    if word[-1:].isdigit():
        return (
            text if stripped.lower() in _ENDINGS or stripped in "°%" else f"^{_bracketed(stripped)}"
        )
    if _AMOUNT.fullmatch(stripped):
        return f"^{stripped}" if short or not word else f"[{stripped}]"
    if _SIGNS.fullmatch(stripped):  # "*", a dagger, "[3]", a sign of trade
        return text
    if stripped.lower() in _ENDINGS and _TITLES.search(word):
        return text
    if short:
        return f"^{_bracketed(stripped)}"
    return f"[{stripped}]" if len(stripped) <= 3 else f" {stripped}"


def lowered(before: str, text: str) -> str:
    """Write lowered text behind what stands before it on its line: numbers of a formula join,
    others are an index.
    """
    stripped = text.strip()
    word = last_word(before)
    if not stripped or not stripped[0].isalnum() or not (word or before.endswith((")", "]"))):
        return text
    if stripped.isdigit() and (not word or len(word) == 1 or _FORMULA.fullmatch(word)):
        return text
    return f"_{_bracketed(stripped)}"


def shifted(before: str, text: str, shift: int) -> str:
    """Write text that is raised (1), lowered (-1) or neither behind what stands before it."""
    if shift > 0:
        return raised(before, text)
    return lowered(before, text) if shift < 0 else text


def last_word(before: str) -> str:
    """Return the letters and digits that a text ends with, as far as they are looked at."""
    return "".join(takewhile(str.isalnum, reversed(before[-MAX_WORD_CHARACTERS:])))[::-1]


def _bracketed(text: str) -> str:
    return text if text.isalnum() or _AMOUNT.fullmatch(text) else f"({text})"
