"""Characters of symbol fonts as the signs that a reader sees.

Such a font draws its own signs at the places of letters, or at U+F000 to U+F0FF. Symbol is mapped
as Adobe's encoding has it; of Wingdings and the like the signs are mapped that texts use.
"""

from __future__ import annotations

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_SYMBOL_LETTERS = (
    " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ"  # noqa: RUF001
    "[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼"  # noqa: RUF001
)
_SYMBOL_SIGNS = (
    "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪"  # noqa: RUF001
    "\uf8ff〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭"
)
_SYMBOL = {0x20 + place: sign for place, sign in enumerate(_SYMBOL_LETTERS)} | {
    0xA0 + place: sign for place, sign in enumerate(_SYMBOL_SIGNS)
}
_WINGDINGS = {
    0x20: " ",
    0x22: "✂",
    0x28: "☎",
    0x29: "✆",
    0x2A: "✉",
    0x36: "⌛",
    0x3A: "💻",
    0x41: "✌",
    0x43: "👍",
    0x44: "👎",
    0x46: "☞",
    0x4A: "☺",
    0x4C: "☹",
    0x4E: "☠",
    0x52: "☼",
    0x54: "❄",
    0x6C: "●",
    0x6E: "■",
    0x6F: "☐",
    0x70: "☐",
    0x71: "☐",
    0x72: "☐",
    0x73: "⬧",
    0x74: "⧫",
    0x75: "◆",
    0x76: "❖",
    0x9E: "·",
    0x9F: "•",
    0xA0: "▪",
    0xA1: "○",
    0xA4: "◉",
    0xA7: "▪",
    0xA8: "☐",
    0xAB: "★",
    0xD8: "➢",
    0xDF: "←",
    0xE0: "→",
    0xE1: "↑",
    0xE2: "↓",
    0xE7: "←",
    0xE8: "→",
    0xE9: "↑",
    0xEA: "↓",
    0xEF: "⇦",
    0xF0: "⇨",
    0xF1: "⇧",
    0xF2: "⇩",
    0xF3: "⬄",
    0xFB: "✗",
    0xFC: "✓",
    0xFD: "☒",
    0xFE: "☑",
} | {0x80 + digit: chr(0x2460 + digit - 1) if digit else "⓪" for digit in range(11)}
_WINGDINGS_2 = {
    0x20: " ",
    0x4F: "✗",
    0x50: "✓",
    0x51: "☒",
    0x52: "☑",
    0x53: "☒",
    0x54: "☒",
    0x55: "⊗",
    0x56: "⊗",
    0x97: "●",
    0xA2: "■",
    0xA3: "☐",
    0xAE: "◆",
}
_WINGDINGS_3 = {
    0x20: " ",
    0x66: "←",
    0x67: "→",
    0x68: "↑",
    0x69: "↓",
    0x7B: "◀",
    0x7D: "▶",
    0x70: "▲",
    0x71: "▼",
}
_WEBDINGS = {
    0x20: " ",
    0x61: "✓",
    0x63: "☐",
    0x67: "■",
    0x6E: "●",
    0x72: "✗",
    0x59: "♥",
    0xCA: "📧",
}
_FONTS = {
    "symbol": _SYMBOL,
    "wingdings": _WINGDINGS,
    "wingdings 2": _WINGDINGS_2,
    "wingdings 3": _WINGDINGS_3,
    "webdings": _WEBDINGS,
}


def is_symbol_font(font: str) -> bool:
    """Return whether a font draws signs at the places of letters."""
    return font.strip().lower() in _FONTS


def sign_of(font: str, code: int) -> str:
    """Return the sign at a place of a symbol font; U+FFFD where none is known for it.

    `code` is a character of the text, or its place in the private area U+F000 to U+F0FF.
    """
    place = code - 0xF000 if 0xF000 <= code <= 0xF0FF else code
    if place in (0x09, 0x0A, 0x0D):
        return chr(place)
    return _FONTS[font.strip().lower()].get(place, UNKNOWN)


def in_symbol_font(font: str, text: str) -> str:
    """Return a text as a symbol font draws it; characters beyond its places stay."""
    return "".join(
        sign_of(font, ord(character))
        if ord(character) <= 0xFF or 0xF000 <= ord(character) <= 0xF0FF
        else character
        for character in text
    )
