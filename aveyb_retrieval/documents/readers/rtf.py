"""RTF by striprtf, with its notes, raised characters and hidden text."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Unreadable,
    clean,
    hidden_text,
)
from aveyb_retrieval.documents.readers.superscripts import shifted
from aveyb_retrieval.documents.readers.symbol_fonts import is_symbol_font, sign_of

# private characters, in place of RTF's words for it
_RAISED, _LOWERED, _END = ("\ue000", "\ue001", "\ue002")
_RTF_MARKS = {"super": _RAISED, "sub": _LOWERED, "nosupersub": _END, "up": _RAISED, "dn": _LOWERED}
_RTF_RAISED = re.compile(r"\\(super|sub|nosupersub|up|dn)(\d{0,3})(?![a-z0-9-]) ?")
_RTF_GROUP_END = re.compile(f"([{_RAISED}{_LOWERED}][^{{}}{_END}]*)\\}}")
_RTF_SIGNS = re.compile(f"[{_RAISED}-{_END}]")
_RAISED_TEXT = re.compile(
    f"([{_RAISED}{_LOWERED}])(?:([^{_RAISED}-{_END}\n]*){_END}|([-+]?\\d+|\\S))"
)
_RTF_ASIDE = re.compile(
    r"\{(?:\\\*)?\\(?:footnote|annotation|header[lrf]?|footer[lrf]?|shptxt|result)(?![a-z])"
)
_RTF_HIDING = re.compile(r"\\(?:v|deleted)(?![a-z0-9-])")
_RTF_STATES = re.compile(
    r"\\(?P<name>v|deleted|plain)(?P<off>0?)(?![a-z0-9-]) ?|\\.|[{}]", re.DOTALL
)
_RTF_CELL = re.compile(r"\\(?:nest)?cell(?![a-z]) ?")
_RTF_FONTS = re.compile(r"\{\\fonttbl")
_RTF_CODEPAGE = re.compile(r"\\ansicpg\d+")
_RTF_FONT = re.compile(r"\\f(\d+)(?:\\[a-z]+-?\d* ?|\{[^{}]*\})*\s*([^;{}\\]+)")
_RTF_SYMBOL_FIELD = re.compile(
    r"\{\\\*\\fldinst[^{}\\]*(?:\{[^{}]*)?SYMBOL\s+(\d+)(?:[^{}]*?\\\\f\s+\"([^\"{}]*)\")?[^{}]*\}?\s*\}"
)
_RTF_TOKEN = re.compile(
    r"\\f(?P<font>\d+)(?![a-z]) ?|\\u(?P<number>-?\d+) ?\??|\\'(?P<byte>[0-9A-Fa-f]{2})"
    r"|\\[a-z]+-?\d* ?|\\.|[{}]|.",
    re.DOTALL,
)
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_RTF_CHARACTER = re.compile(r"\\(?P<name>uc?)(?P<number>-?\d+)?(?![a-z\d])")
_NO_CHARACTER = 0xFFFD
_LONGEST_NUMBER = 10  # digits

if TYPE_CHECKING:
    from aveyb_retrieval.documents.readers.file_limits import Limits


def read_rtf(data: bytes, limits: Limits) -> FileText:
    """Read RTF, in the encoding of `limits` or cp1252; notes, comments, page headers and footers
    follow the text.
    """
    if not data.startswith(b"{\\rtf"):
        raise Unreadable("not an RTF file")
    source, hidden = _without_hidden(
        _with_signs(data.decode("latin-1").replace("{\\pntext", "{\\listtext"))
    )
    source = _RTF_CELL.sub(" | ", _RTF_RAISED.sub(_marked, source))
    source = _RTF_GROUP_END.sub(rf"\1{_END}}}", source)
    fonts = _RTF_FONTS.search(source)
    codepage = _RTF_CODEPAGE.search(source[:1000])
    of_fonts = source[fonts.start() : _group_end(source, fonts.start())] if fonts else ""
    start = f"{{\\rtf1\\ansi{codepage[0] if codepage else ''}{of_fonts} "
    body, asides, position = [], [], 0
    for match in _RTF_ASIDE.finditer(source):
        if match.start() >= position:
            end = _group_end(source, match.start())
            body.append(source[position : match.start()])
            asides.append(f"{start}{source[match.end() : end]}}}")
            position = end
    texts = [
        _rtf_text(part, limits.encoding) for part in ("".join([*body, source[position:]]), *asides)
    ]
    text = "\n\n".join(dict.fromkeys(filter(None, texts)))
    return FileText("", text, None, hidden_text(hidden))


def _with_signs(source: str) -> str:
    """RTF in which text of a symbol font is written as the signs that the font draws."""
    source = _RTF_SYMBOL_FIELD.sub(
        lambda field: (
            _escaped(sign_of(field[2] or "Symbol", int(field[1])))
            if is_symbol_font(field[2] or "Symbol")
            else field[0]
        ),
        source,
    )
    table = _RTF_FONTS.search(source)
    if table is None:
        return source
    end = _group_end(source, table.start())
    entries = _RTF_FONT.findall(source[table.start() : end])
    fonts = {number: name for number, name in entries if is_symbol_font(name)}
    if not fonts:
        return source
    parts, fonts_of_groups, font = [source[:end]], [""], ""
    for token in _RTF_TOKEN.finditer(source, end):
        if token["font"] is not None:
            font = fonts.get(token["font"], "")
        elif token[0] == "{":
            fonts_of_groups.append(font)
        elif token[0] == "}":
            font = fonts_of_groups.pop() if fonts_of_groups else ""
        elif token[0].startswith("\\plain"):
            font = ""
        elif font and (code := _code_of(token)) is not None:
            parts.append(_escaped(sign_of(font, code)))
            continue
        parts.append(token[0])
    return "".join(parts)


def _code_of(token: re.Match[str]) -> int | None:
    """The character that a token writes: as a byte, as a number, or as it stands."""
    if token["byte"] is not None:
        return int(token["byte"], 16)
    if token["number"] is not None:
        return int(token["number"]) % (1 << 16)
    return ord(token[0]) if len(token[0]) == 1 and token[0] not in "\r\n\\" else None


def _escaped(sign: str) -> str:
    code = ord(sign)
    if code >= 1 << 16:
        high, low = divmod(code - (1 << 16), 1 << 10)
        return f"\\u{0xD800 + high}?\\u{0xDC00 + low}?"
    return f"\\u{code}?"


def _without_hidden(source: str) -> tuple[str, int]:
    """RTF without what is hidden or was deleted with changes tracked, and how many places are
    hidden.
    """
    if not _RTF_HIDING.search(source):
        return source, 0
    parts, states, hidden_states, count, position = [], [frozenset[str]()], frozenset[str](), 0, 0
    for match in _RTF_STATES.finditer(source):
        parts.append("" if hidden_states else source[position : match.start()])
        position, name = match.end(), match["name"]
        if name:
            before = hidden_states
            if name == "plain":
                hidden_states = frozenset()
            else:
                hidden_states = hidden_states - {name} if match["off"] else hidden_states | {name}
            count += "v" in hidden_states and "v" not in before
        elif match[0] == "{":
            states.append(hidden_states)
        elif match[0] == "}" and len(states) > 1:
            hidden_states = states.pop()
        parts.append("" if hidden_states and match[0] not in "{}" else match[0])
    return "".join([*parts, source[position:]]), count


def _marked(match: re.Match[str]) -> str:
    return f"{match[0].rstrip()} {_END if match[2] == '0' else _RTF_MARKS[match[1]]}"


def _group_end(source: str, start: int) -> int:
    """The place behind the group of RTF that begins at `start`."""
    depth = 0
    for brace in _BRACES.finditer(source, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.end()
    return len(source)


def _in_range(match: re.Match[str]) -> str:
    """A character that RTF writes as a number, or how many stand in for one, as striprtf takes it:
    other numbers end it.
    """
    name, number = match["name"], match["number"]
    if name == "uc":
        return f"\\uc{number or 1}"
    if number is None or -0x10000 <= int(number[:_LONGEST_NUMBER]) <= sys.maxunicode:
        return match[0]
    return f"\\u{_NO_CHARACTER}"


def _rtf_text(source: str, encoding: str | None) -> str:
    from striprtf.striprtf import rtf_to_text

    source = _RTF_CHARACTER.sub(_in_range, source)
    text = rtf_to_text(source, encoding=encoding or "cp1252", errors="replace")
    parts, position = [""], 0
    for match in _RAISED_TEXT.finditer(text):
        parts.append(text[position : match.start()])
        inside = match[2] if match[2] is not None else match[3]
        parts.append(
            shifted(parts[-1] or "".join(parts[-3:]), inside, 1 if match[1] == _RAISED else -1)
        )
        position = match.end()
    text = "".join([*parts, text[position:]])
    return "\n".join(
        line.removesuffix(" | ") for line in clean(_RTF_SIGNS.sub("", text)).split("\n")
    ).strip()
