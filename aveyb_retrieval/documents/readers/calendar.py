"""Calendars (RFC 5545): events, tasks and notes with their times, places and people."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import FileText, Unreadable, clean, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.documents.readers.file_limits import Limits

_FOLD_OF_BYTES, _FOLD = re.compile(rb"\r?\n[ \t]"), re.compile(r"\n[ \t]")
_PROPERTY = re.compile(
    r"(?P<name>[A-Za-z-]+)(?:;(?P<options>(?:\"[^\"]*\"|[^\":])*))?:(?P<value>.*)"
)
_ESCAPE = re.compile(r"\\([\\;,nN])")
_LABELS = {
    "DTSTART": "Start: ",
    "DTEND": "End: ",
    "DURATION": "Duration: ",
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
_TIMES = ("DTSTART", "DTEND", "DUE", "RRULE")
_UNREAD = ("VTIMEZONE", "VALARM")  # rules of a time zone, and what rings
_TIME = re.compile(r"\b(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)?(Z?))?\b")
_ZONE = re.compile(r"TZID=\"?/?([^\";:]+)", re.IGNORECASE)
_COMMON_NAME = re.compile(r"(?:^|;)CN=(\"[^\"]*\"|[^;:]*)", re.IGNORECASE)
_ANSWER = re.compile(r"(?:^|;)PARTSTAT=\"?([A-Za-z-]+)", re.IGNORECASE)
_NO_ANSWER = "needs-action"
_DURATION = re.compile(
    r"[+-]?P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", re.IGNORECASE
)
_UNITS = ("week", "day", "hour", "minute", "second")


@dataclass
class _Entry:
    """An event, a task or a note: its title, and the lines below it."""

    title: str = ""
    lines: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the entry; its title is a heading."""
        return "\n".join([f"# {self.title}"] * bool(self.title) + self.lines)


def read_calendar(data: bytes, limits: Limits) -> FileText:
    """Read a calendar: of each entry the title as a heading, times, place, people, description."""
    # a line may be folded within a character of several bytes
    text = clean(decode(_FOLD_OF_BYTES.sub(b"", data), limits.encoding))
    if "BEGIN:VCALENDAR" not in text.upper():
        raise Unreadable("not a calendar of RFC 5545")
    entries = list(_entries(_FOLD.sub("", text).split("\n")))
    title = next((entry.title for entry in entries if entry.title), "")
    return FileText(title, "\n\n".join(filter(None, (entry.text() for entry in entries))).strip())


def _entries(lines: list[str]) -> Iterator[_Entry]:
    entry, unread = _Entry(), ""
    for line in lines:
        match = _PROPERTY.match(line)
        if match is None:
            continue
        name, value = match["name"].upper(), match["value"].strip()
        if name == "BEGIN" and not unread:
            if value.upper() in _UNREAD:
                unread = value.upper()
            else:
                yield entry
                entry = _Entry()
        elif name == "END":
            unread = "" if value.upper() == unread else unread
        elif unread or not value:
            continue
        elif name == "SUMMARY":
            entry.title = one_line(_unescaped(value))
        elif name in _LABELS:
            entry.lines.append(_LABELS[name] + _shown_value(name, value, match["options"] or ""))
    yield entry


def _shown_value(name: str, value: str, options: str) -> str:
    if name in _TIMES:
        return _shown_times(name, value, options)
    if name == "DURATION":
        return _shown_duration(value)
    person, answer = _COMMON_NAME.search(options), _ANSWER.search(options)
    text = _unescaped(value)
    if person and person[1].strip('"'):
        address = re.sub("^mailto:", "", text, flags=re.IGNORECASE)
        text = f"{person[1].strip(chr(34))} ({address})"
    if answer and answer[1].lower() != _NO_ANSWER:
        text += f", {answer[1].lower()}"
    return text


def _unescaped(value: str) -> str:
    return _ESCAPE.sub(lambda escaped: "\n" if escaped[1] in "nN" else escaped[1], value)


def _shown_duration(value: str) -> str:
    """A duration in words, `PT1H30M` as "1 hour 30 minutes"."""
    match = _DURATION.fullmatch(value)
    counts = [int(count or 0) for count in match.groups()] if match else []
    words = [
        f"{count} {unit}{'s' * (count != 1)}"
        for count, unit in zip(counts, _UNITS, strict=False)
        if count
    ]
    return " ".join(words) or value


def _shown_times(name: str, value: str, options: str) -> str:
    """Times to be read, with their zone; of a day on which an event ends the last one, where RFC
    5545 has the next.
    """
    if name == "DTEND" and "T" not in value:
        with suppress(ValueError, OverflowError):
            value = (date.fromisoformat(value) - timedelta(days=1)).strftime("%Y%m%d")
    zone = _ZONE.search(options)
    return _TIME.sub(_shown_time, value) + (f" ({zone[1]})" if zone else "")


def _shown_time(match: re.Match[str]) -> str:
    year, month, day, hour, minute, second, is_utc = match.groups(default="")
    clock = f" {hour}:{minute}" if hour else ""
    seconds = f":{second}" if int(second or 0) else ""
    return f"{year}-{month}-{day}{clock}{seconds}{' UTC' if is_utc else ''}"
