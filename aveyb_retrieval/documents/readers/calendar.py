"""Calendars (RFC 5545)."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date, timedelta
from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Unreadable,
    clean,
    one_line,
)

_ICS_FOLD = re.compile(r"\n[ \t]")
_ICS_FIELD = re.compile(r"(?P<name>[A-Z]+)(?:;(?P<options>(?:\"[^\"]*\"|[^\":])*))?:(?P<value>.*)")
_ICS_ESCAPE = re.compile(r"\\([\\;,nN])")
_ICS_SHOWN = {
    "SUMMARY": "",
    "DTSTART": "Start: ",
    "DTEND": "End: ",
    "DUE": "Due: ",
    "LOCATION": "Location: ",
    "ORGANIZER": "Organizer: ",
    "ATTENDEE": "Attendee: ",
    "STATUS": "Status: ",
    "CATEGORIES": "Categories: ",
    "URL": "Address: ",
    "RRULE": "Repeats: ",
    "DESCRIPTION": "",
    "COMMENT": "",
    "CONTACT": "Contact: ",
}
_ICS_TIMES = ("DTSTART", "DTEND", "DUE", "RRULE")
_ICS_TIME = re.compile(r"\b(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)?(Z?))?\b")
_ICS_ZONE = re.compile(r"TZID=\"?/?([^\";:]+)")

if TYPE_CHECKING:
    from aveyb_retrieval.documents.readers.limits import Limits


def read_calendar(data: bytes, limits: Limits) -> FileText:
    """Read a calendar (RFC 5545): of each event the title as a heading, times, place, people and
    description.
    """
    text = clean(decode(data, limits.encoding))
    if "BEGIN:VCALENDAR" not in text:
        raise Unreadable("not a calendar of RFC 5545")
    lines: list[str] = []
    first, skipped = (
        0,
        "",
    )  # line of an event, over which its title goes, wherever that stands; rules of a time zone
    for line in _ICS_FOLD.sub("", text).split("\n"):
        found = _ICS_FIELD.match(line)
        if found is None:
            continue
        name, value = found["name"], found["value"].strip()
        if name in ("BEGIN", "END"):
            skipped = value if name == "BEGIN" and value in ("VTIMEZONE", "VALARM") else skipped
            skipped = "" if name == "END" and value == skipped else skipped
            lines.append("")
            first = len(lines) if name == "BEGIN" and not skipped else first
        elif name in _ICS_SHOWN and not skipped and value:
            who = re.search(r"CN=(\"[^\"]*\"|[^;:]*)", found["options"] or "")
            value = _ICS_ESCAPE.sub(
                lambda escaped: {"n": "\n", "N": "\n"}.get(escaped[1], escaped[1]), value
            )
            named = (
                who[1].strip('"') + f" ({value.removeprefix('mailto:')})"
                if who and who[1]
                else value
            )
            if name in _ICS_TIMES:
                named = _ics_time(name, value, found["options"] or "")
            if name == "SUMMARY":
                lines.insert(first, f"# {one_line(named)}")
            else:
                lines.append(f"{_ICS_SHOWN[name]}{named}")
    title = next((line[2:] for line in lines if line.startswith("# ")), "")
    return FileText(title, re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip())


def _ics_time(name: str, value: str, options: str) -> str:
    """Times to be read, with their zone; of a day on which an event ends the last one, where RFC
    5545 has the next.
    """
    if name == "DTEND" and "T" not in value:
        with suppress(ValueError, OverflowError):
            value = (date.fromisoformat(value) - timedelta(days=1)).strftime("%Y%m%d")
    zone = _ICS_ZONE.search(options)
    return _ICS_TIME.sub(_shown_time, value) + (f" ({zone[1]})" if zone else "")


def _shown_time(found: re.Match[str]) -> str:
    year, month, day, hour, minute, second, is_utc = found.groups(default="")
    clock = f" {hour}:{minute}" + (f":{second}" if int(second or 0) else "") if hour else ""
    return f"{year}-{month}-{day}{clock}{' UTC' if is_utc else ''}"
