"""Numbers of lists as office programs and HTML write them (ECMA-376, part 1, 17.18.59)."""

from __future__ import annotations

_SHORT = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
_ROMAN = (
    (1000, "m"),
    (900, "cm"),
    (500, "d"),
    (400, "cd"),
    (100, "c"),
    (90, "xc"),
    (50, "l"),
    (40, "xl"),
    (10, "x"),
    (9, "ix"),
    (5, "v"),
    (4, "iv"),
    (1, "i"),
)
_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_HAN = "〇一二三四五六七八九"
_HAN_LEGAL = "零壹贰叁肆伍陆柒捌玖"
_HAN_KINDS = {
    "chineseCounting",
    "chineseCountingThousand",
    "japaneseCounting",
    "taiwaneseCounting",
    "taiwaneseCountingThousand",
    "koreanCounting",
}
_HAN_LEGAL_KINDS = {"chineseLegalSimplified", "ideographLegalTraditional"}
_HAN_DIGITS = {"ideographDigital", "japaneseDigitalTenThousand", "taiwaneseDigital"}
_KANA = (
    "アイウエオカキクケコサシスセソタチツテトナニヌネノハヒフヘホマミムメモヤユヨラリルレロワヲン"
)
_IROHA = (
    "イロハニホヘトチリヌルヲワカヨタレソツネナラムウヰノオクヤマケフコエテアサキユメミシヱヒモセス"
)
_IDEOGRAPHS = {
    "ideographTraditional": "甲乙丙丁戊己庚辛壬癸",
    "ideographZodiac": "子丑寅卯辰巳午未申酉戌亥",
    "aiueo": _KANA,
    "aiueoFullWidth": _KANA,
    "iroha": _IROHA,
    "ganada": "가나다라마바사아자차카타파하",
    "chosung": "ㄱㄴㄷㄹㅁㅂㅅㅇㅈㅊㅋㅌㅍㅎ",
    "russianLower": "абвгдежзиклмнопрстуфхцчшщыэюя",
    "russianUpper": "АБВГДЕЖЗИКЛМНОПРСТУФХЦЧШЩЫЭЮЯ",
    "hebrew2": "אבגדהוזחטיכלמנסעפצקרשת",
    "arabicAlpha": "أبتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "arabicAbjad": "أبجدهوزحطيكلمنسعفصقرشتثخذضظغ",
}
_DIGITS = {"hindiNumbers": 0x0966, "thaiNumbers": 0x0E50, "decimalFullWidth": 0xFF10}


def number_as(kind: str, number: int) -> str:
    """Write the number of a list's item: "decimal", "lowerLetter" and the like, as Word has it, or
    "1", "a", "I" of HTML. A kind that is not known is written in digits.
    """
    kind = _SHORT.get(kind, kind)
    if number <= 0:
        return str(number)
    text = _in_letters(kind, number) or _in_words(kind, number) or _in_signs(kind, number)
    return text or str(number)


def _in_letters(kind: str, number: int) -> str:
    if kind in ("lowerLetter", "upperLetter") and number < 1000:
        text = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
    elif kind in ("lowerRoman", "upperRoman") and number < 4000:
        text = _roman(number)
    else:
        return ""
    return text.upper() if kind.startswith("upper") else text


def _in_words(kind: str, number: int) -> str:
    if kind == "ordinal":
        return f"{number}{_ending(number)}"
    if kind == "cardinalText" and number < 1000:
        return _words(number)
    return _ordinal(_words(number)) if kind == "ordinalText" and number < 1000 else ""


def _in_signs(kind: str, number: int) -> str:
    if kind == "decimalZero":
        return f"{number:02}"
    if kind in _HAN_KINDS and number < 10_000:
        return _han(number, _HAN, "十百千")
    if kind in _HAN_LEGAL_KINDS and number < 10_000:
        return _han(number, _HAN_LEGAL, "拾佰仟", spell_ten=True)
    if kind in _HAN_DIGITS:
        return "".join(_HAN[int(digit)] for digit in str(number))
    if kind.startswith("decimalEnclosedCircle") and number <= 20:
        return chr(ord("①") + number - 1)
    if signs := _IDEOGRAPHS.get(kind):
        return signs[(number - 1) % len(signs)] * ((number - 1) // len(signs) + 1)
    zero = _DIGITS.get(kind)
    return "" if zero is None else "".join(chr(zero + int(digit)) for digit in str(number))


def _roman(number: int) -> str:
    text = ""
    for value, letters in _ROMAN:
        text += letters * (number // value)
        number %= value
    return text


def _words(number: int) -> str:
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")
    hundreds, below = divmod(number, 100)
    return f"{_ONES[hundreds]} hundred" + (f" {_words(below)}" if below else "")


def _ordinal(words: str) -> str:
    last = words.replace("-", " ").rpartition(" ")[2]
    start = words.removesuffix(last)
    if last in _ORDINALS:
        return start + _ORDINALS[last]
    return f"{start}{last[:-1]}ieth" if last.endswith("y") else f"{start}{last}th"


def _ending(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _han(number: int, digits: str, units: str, *, spell_ten: bool = False) -> str:
    """Write a number below 10,000 by Chinese characters; 12 begins with the sign of ten."""
    text, zero = "", False
    places = len(str(number))
    for place, digit in enumerate(str(number)):
        power = places - place - 1
        if digit == "0":
            zero = bool(text)
            continue
        text += (digits[0] if zero else "") + digits[int(digit)]
        text += units[power - 1] if power else ""
        zero = False
    if not spell_ten and text.startswith(digits[1] + units[0]):
        return text[1:]
    return text
