"""Cards of people and firms (vCard 2.1, RFC 2426 and RFC 6350)."""

from __future__ import annotations

import quopri
import re
from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.encodings import decode, python_encoding
from aveyb_retrieval.documents.readers.filetext import FileText, Unreadable, clean, one_line

if TYPE_CHECKING:
    from aveyb_retrieval.documents.readers.file_limits import Limits

_FOLD = re.compile(r"\n[ \t]")
_SOFT_BREAK = re.compile(r"(?im)^([^\n]*quoted-printable[^\n]*)=\n")
_PROPERTY_LINE = re.compile(
    r"(?:[\w-]+\.)?(?P<name>[\w-]+)(?P<options>(?:;(?:\"[^\"]*\"|[^\":])*)?):(?P<value>.*)"
)
_ESCAPE = re.compile(r"\\([\\;,:nN])")
_CHARSET = re.compile(r"charset=\"?([\w.:-]+)", re.IGNORECASE)
_NAMES = {
    "ORG": "Organization",
    "TITLE": "Title",
    "ROLE": "Role",
    "TEL": "Telephone",
    "EMAIL": "Mail",
    "ADR": "Address",
    "URL": "Page",
    "BDAY": "Born",
    "ANNIVERSARY": "Anniversary",
    "NICKNAME": "Nickname",
    "CATEGORIES": "Categories",
    "IMPP": "Messages",
    "RELATED": "Related",
    "GENDER": "Gender",
    "LANG": "Language",
    "MEMBER": "Member",
    "NOTE": "",
}
_DATA = re.compile(  # for programs, and pictures
    "BEGIN|END|VERSION|PRODID|REV|UID|SOURCE|KIND|XML|PHOTO|LOGO|SOUND|KEY|SORT-STRING|TZ|GEO|CLASS|"
    "CLIENTPIDMAP|LABEL|AGENT|MAILER|PROFILE|CALURI|CALADRURI|FBURL|X-.*"
)


def read_vcard(data: bytes, limits: Limits) -> FileText:
    """Read the cards of a file: of each the name as a heading, and what it says."""
    text = clean(decode(data, limits.encoding))
    if not re.search(r"^[ \t]*BEGIN:VCARD[ \t]*$", text, re.IGNORECASE | re.MULTILINE):
        raise Unreadable("not a vCard")
    joined = _FOLD.sub("", text)
    while (unbroken := _SOFT_BREAK.sub(r"\1", joined)) != joined:
        joined = unbroken
    cards = [
        card for card in map(_card, re.split(r"(?im)^[ \t]*BEGIN:VCARD[ \t]*$", joined)) if card
    ]
    titles = [card[0] for card in cards if card[0]]
    body = "\n\n".join(
        "\n".join([f"# {name}", "", *lines] if name else lines) for name, lines in cards
    )
    return FileText(titles[0] if len(cards) == 1 and titles else "", body)


def _card(source: str) -> tuple[str, list[str]] | None:
    """The name on a card and its lines; None where there is nothing on it."""
    formatted = structured = ""
    lines: list[str] = []
    for line in source.split("\n"):
        match = _PROPERTY_LINE.match(line.strip())
        if match is None:
            continue
        name = match["name"].upper()
        value = _value(match["value"], match["options"])
        if name == "FN":
            formatted = one_line(value)
        elif name == "N":
            family, first_name, *further_names = [*_parts(value), "", ""]
            structured = one_line(" ".join([first_name, *further_names[:1], family]))
        elif _DATA.fullmatch(name) is None and value.strip():
            lines.append(_line(name, value))
    title = formatted or structured
    return (title, lines) if title or lines else None


def _line(name: str, value: str) -> str:
    if name in ("ADR", "ORG"):
        value = ", ".join(filter(None, map(one_line, _parts(value))))
    label = _NAMES.get(name, name.capitalize())
    plain = value if name == "NOTE" else one_line(value)
    plain = plain.removeprefix("tel:").removeprefix("mailto:")
    return f"{label}: {plain}" if label else plain


def _value(written: str, options: str) -> str:
    if "QUOTED-PRINTABLE" in options.upper():
        charset = _CHARSET.search(options)
        codec = python_encoding(charset[1]) if charset else None
        data = quopri.decodestring(written.encode("utf-8", "replace"))
        written = clean(data.decode(codec or "utf-8", "replace"))
    return _ESCAPE.sub(lambda sign: _escaped(sign[1]), written)


def _escaped(sign: str) -> str:
    if sign in "nN":
        return "\n"
    return "\ue000" if sign == ";" else sign  # no end of a part


def _parts(value: str) -> list[str]:
    return [part.replace("\ue000", ";") for part in value.split(";")]
