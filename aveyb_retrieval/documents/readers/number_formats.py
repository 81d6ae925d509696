"""Numbers as a sheet shows them: percent, leading zeros, rounding, dates (ECMA-376, part 1, 18.8.30 and 18.8.31)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import lru_cache

BUILT_IN = {
    1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00", 12: "# ?/?", 13: "# ??/??",
    14: "yyyy-mm-dd", 15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy", 18: "h:mm AM/PM", 19: "h:mm:ss AM/PM", 20: "h:mm",
    21: "h:mm:ss", 22: "yyyy-mm-dd h:mm", 37: "#,##0;-#,##0", 38: "#,##0;-#,##0", 39: "#,##0.00;-#,##0.00",
    40: "#,##0.00;-#,##0.00", 45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss.0", 48: "0.0E+0", 49: "@",
}  # fmt: skip
_PIECE = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|_.|\*.|\[(?P<bracket>[^\]]*)\]|(?P<general>General)|'
    r"(?P<noon>AM/PM|A/P)|(?P<exponent>E[+-])|(?P<date>y+|m+|d+|h+|s+|\.0+(?=[^0#?]|$))|(?P<digits>[0#?.,]+)|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
_ELAPSED = re.compile(r"h+|m+|s+", re.IGNORECASE)
_CURRENCY = re.compile(r"\$([^-\]]*)")
_CONDITION = re.compile(r"(<=|>=|<>|<|>|=)(-?[\d.]+)$")
_TESTS = {
    "<": lambda a, b: a < b, ">": lambda a, b: a > b, "=": lambda a, b: a == b,
    "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, "<>": lambda a, b: a != b,
}  # fmt: skip
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_LONGEST = 255  # characters of a format, as Excel has it
_MOST_DIGITS = 30


@dataclass(frozen=True)
class _Section:
    """One part of a format: its pieces as (kind, text), and what numbers it is for."""

    pieces: tuple[tuple[str, str], ...]
    condition: tuple[str, float] | None
    is_date: bool
    is_text: bool


def shown_number(value: float, shape: str, *, from_1904: bool = False) -> str:
    """Write a number as a format shows it; a date is one of serial days.

    A format that cannot be followed shows the number as it is, never a part of it.
    """
    sections = _sections(shape[:_LONGEST])
    if not sections:
        return general(value)
    section, number = _section_for(value, sections)
    if section.is_text or any(kind == "general" for kind, _ in section.pieces):
        return _literal(section, general(number))
    if section.is_date:
        return _date(value, section, from_1904)
    try:
        return _number(number, section)
    except (InvalidOperation, ValueError, OverflowError):
        return general(value)


def general(value: float) -> str:
    """Write a number without a format: up to 11 digits, as a cell has room for."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    text = f"{value:.10g}"
    return text if "e" not in text else f"{value:.6g}"


@lru_cache(maxsize=1024)
def _sections(shape: str) -> tuple[_Section, ...]:
    found: list[_Section] = []
    pieces: list[tuple[str, str]] = []
    condition: tuple[str, float] | None = None
    for piece in _PIECE.finditer(shape):
        kind = piece.lastgroup or "space"
        text = piece[kind] if piece.lastgroup else " "
        if kind == "other" and text == ";":
            found.append(_section(pieces, condition))
            pieces, condition = [], None
        elif kind == "bracket":
            if _ELAPSED.fullmatch(text):
                pieces.append(("elapsed", text.lower()))
            elif currency := _CURRENCY.match(text):
                pieces.append(("text", currency[1]))
            elif test := _CONDITION.match(text):
                condition = (test[1], float(test[2])) if test[2].count(".") < 2 and test[2] not in ("-", ".") else None
        elif kind in ("quoted", "escaped"):
            pieces.append(("text", text))
        elif kind != "space":
            pieces.append((kind, text))
    found.append(_section(pieces, condition))
    return tuple(found[:4])


def _section(pieces: list[tuple[str, str]], condition: tuple[str, float] | None) -> _Section:
    kinds = {kind for kind, _ in pieces}
    letters = any(kind == "date" and text[0] != "." for kind, text in pieces)
    is_date = letters or "elapsed" in kinds or "noon" in kinds
    if not is_date:  # ".00" is a part of a number
        joined: list[tuple[str, str]] = []
        for kind, text in pieces:
            kind = "digits" if kind == "date" else kind
            if kind == "digits" and joined and joined[-1][0] == "digits":
                joined[-1] = ("digits", joined[-1][1] + text)
            else:
                joined.append((kind, text))
        pieces = joined
    return _Section(tuple(pieces), condition, is_date, ("other", "@") in pieces)


def _section_for(value: float, sections: tuple[_Section, ...]) -> tuple[_Section, float]:
    """The section for a number, and the number as it shows it: of the second one the sign is written in the format."""
    for section in sections:
        if section.condition and _TESTS[section.condition[0]](value, section.condition[1]):
            return section, abs(value) if value < 0 and section is not sections[0] else value
    numeric = [section for section in sections if not section.condition][:3] or [sections[-1]]
    if value < 0 and len(numeric) > 1:
        return numeric[1], -value
    if value == 0 and len(numeric) > 2:
        return numeric[2], value
    return numeric[0], value


def _literal(section: _Section, inside: str) -> str:
    return "".join(
        inside if kind == "general" or text == "@" else "" if kind in ("digits", "date") else text
        for kind, text in section.pieces
    ).strip()


def _number(value: float, section: _Section) -> str:
    pieces = section.pieces
    digits = [text for kind, text in pieces if kind == "digits"]
    if not digits:  # a format of words only
        return "".join(text for _, text in pieces).strip()
    if any(kind == "other" and text == "/" for kind, text in pieces):
        return general(value)  # a fraction
    amount = Decimal(repr(value))
    amount *= Decimal(100) ** sum(text.count("%") for kind, text in pieces if kind == "other")
    exponent = next((number for number, (kind, _) in enumerate(pieces) if kind == "exponent"), None)
    if exponent is not None:
        places = len(digits[0].partition(".")[2])
        return f"{amount:.{min(places, _MOST_DIGITS)}E}"
    first = next(number for number, (kind, _) in enumerate(pieces) if kind == "digits")
    shape = digits[0]
    thousands = len(shape) - len(shape.rstrip(","))
    amount /= Decimal(1000) ** thousands
    sign = "-" if amount < 0 else ""
    whole, _, fraction = shape.rstrip(",").partition(".")
    written = _rounded(abs(amount), whole, fraction)
    if sign and not any(character in "123456789" for character in written):
        sign = ""
    parts = [
        (sign + written if number == first else text if kind not in ("digits", "general") else "")
        for number, (kind, text) in enumerate(pieces)
    ]
    if len(digits) > 1:  # digits with text between, as of a telephone number
        return _interleaved(abs(amount), pieces, sign)
    return "".join(parts).strip()


def _rounded(amount: Decimal, whole: str, fraction: str) -> str:
    places = min(sum(character in "0#?" for character in fraction), _MOST_DIGITS)
    rounded = amount.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP)
    before, _, behind = f"{rounded:f}".partition(".")
    least = whole.count("0")
    before = before.lstrip("0").rjust(min(least, _MOST_DIGITS), "0")
    if "," in whole:
        first = len(before) % 3
        before = ",".join(filter(None, (before[:first], *(before[at : at + 3] for at in range(first, len(before), 3)))))
    optional = len(fraction) - len(fraction.rstrip("#?"))
    if optional:
        kept = len(behind) - optional
        behind = behind[:kept] + behind[kept:].rstrip("0")
    return f"{before or ('0' if not behind else '')}.{behind}" if behind else before or "0"


def _interleaved(amount: Decimal, pieces: tuple[tuple[str, str], ...], sign: str) -> str:
    places = sum(sum(character in "0#?" for character in text) for kind, text in pieces if kind == "digits")
    digits = f"{amount.quantize(Decimal(1), rounding=ROUND_HALF_UP):f}".rjust(min(places, 100), "0")
    extra, position, out = len(digits) - places, 0, []
    for kind, text in pieces:
        if kind == "digits":
            count = sum(character in "0#?" for character in text) + (extra if position == 0 else 0)
            out.append(digits[position : position + count])
            position += count
        elif kind != "general":
            out.append(text)
    return sign + "".join(out).strip()


def _date(value: float, section: _Section, from_1904: bool) -> str:
    """Write serial days as date and time; one that is none (negative, beyond the year 9999) as a number."""
    try:
        days = value + (1462 if from_1904 else 0)
        # day 60 of the calendar from 1900 is a 29th of February that there was not
        moment = datetime(1899, 12, 31 if days < 60 else 30) + timedelta(seconds=round(days * 86400))
    except (OverflowError, ValueError):
        return general(value)
    pieces = section.pieces
    of_time = [number for number, (kind, _) in enumerate(pieces) if kind in ("date", "elapsed")]
    has_noon = any(kind == "noon" for kind, _ in pieces)
    out = []
    for number, (kind, text) in enumerate(pieces):
        if kind == "elapsed":
            out.append(_elapsed(round(value * 86400), text))
        elif kind == "noon":
            out.append("AM" if moment.hour < 12 else "PM")
        elif kind == "date":
            place = of_time.index(number)
            before = pieces[of_time[place - 1]][1][0].lower() if place else ""
            behind = pieces[of_time[place + 1]][1][0].lower() if place + 1 < len(of_time) else ""
            out.append(_date_piece(moment, text.lower(), has_noon, before == "h" or behind == "s"))
        elif kind not in ("digits", "general") and text != "@":
            out.append(text)
    return "".join(out).strip()


def _elapsed(seconds: int, text: str) -> str:
    unit = {"h": 3600, "m": 60, "s": 1}[text[0]]
    return str(seconds // unit).rjust(min(len(text), _MOST_DIGITS), "0")


def _date_piece(moment: datetime, text: str, has_noon: bool, is_minute: bool) -> str:
    length = len(text)
    if text[0] == ".":
        return ""
    if text[0] == "y":
        return f"{moment.year:04}" if length > 2 else f"{moment.year % 100:02}"
    if text[0] == "d":
        day = _DAYS[moment.weekday()]
        return (str(moment.day), f"{moment.day:02}", day[:3], day)[min(length, 4) - 1]
    if text[0] == "m" and not is_minute:
        month = _MONTHS[moment.month - 1]
        return (str(moment.month), f"{moment.month:02}", month[:3], month)[min(length, 4) - 1]
    hour = (moment.hour + 11) % 12 + 1 if has_noon else moment.hour
    number = {"h": hour, "m": moment.minute, "s": moment.second}[text[0]]
    return str(number) if length == 1 else f"{number:02}"
