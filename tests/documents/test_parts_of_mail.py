"""Mails: parts by their type and content, wrong boundaries, calendars, forwarded mails; nothing
vanishes.
"""

from __future__ import annotations

import base64
import random
from email.message import EmailMessage
from typing import TYPE_CHECKING

import pytest

from tests.indexes.files import make_docx

if TYPE_CHECKING:
    from tests.documents.conftest import Read

pytest.importorskip("selectolax")

HEAD = "From: a@example.org\nTo: b@example.org\nSubject: S\nMIME-Version: 1.0\n"


def mail(kind: str, *parts: str) -> bytes:
    body = "".join(f"--b\n{part}\n" for part in parts)
    return f"{HEAD}Content-Type: multipart/{kind}; boundary=b\n\n{body}--b--\n".encode()


def test_the_part_that_says_more_wins_over_a_stub(read: Read) -> None:
    long = "The invoice about palladium is due on Friday and the sample goes back."
    plain, page = "Content-Type: text/plain\n\n{}", "Content-Type: text/html\n\n<p>{}</p>"
    stub = read("a.eml", mail("alternative", plain.format("No HTML here."), page.format(long))).text
    assert 0 < stub.index("palladium") < stub.index("No HTML")
    same = read(
        "b.eml", mail("alternative", plain.format(long), page.format(f"<b>{long}</b>"))
    ).text
    assert same.count("palladium") == 1
    other = read("c.eml", mail("alternative", plain.format(long), page.format("click"))).text
    assert other.index("palladium") < other.index("click")


ICS = (
    "BEGIN:VCALENDAR\nBEGIN:VTIMEZONE\nTZID:X\nEND:VTIMEZONE\nBEGIN:VEVENT\nSUMMARY:Budget"
    ' meeting\nDTSTART:20260131T1200\nATTENDEE;CN="Ines'
    ' Moreau":mailto:ines@example.org\nDESCRIPTION:Bring the yttrium\\, all of\n '
    " it\nEND:VEVENT\nEND:VCALENDAR"
)


@pytest.mark.parametrize(
    ("head", "body", "words"),
    [
        (
            'text/plain; name="ATT1"\nContent-Disposition: attachment; filename="ATT1"',
            "europium",
            "europium",
        ),
        ('text/html; name="report"\nContent-Disposition: attachment', "<p>yttrium</p>", "yttrium"),
        ('text/plain; name="notes.md"', "a body with a name", "a body with a name"),
        ("text/calendar; method=REQUEST", ICS, "Bring the yttrium, all of it"),
        ("text/x-log", "unknown kind of text", "unknown kind of text"),
        ('application/octet-stream; name="x.dat"', "plain words", "plain words"),
        ("message/delivery-status", "Reporting-MTA: dns; x\n\nFinal-Recipient: rfc822; z@y", "z@y"),
        ("message/rfc822", "From: x@y\nSubject: inner\n\nforwarded thulium", "forwarded thulium"),
        (
            "message/rfc822\nContent-Transfer-Encoding: base64",
            base64.encodebytes(b"From: x@y\nSubject: inner\n\nforwarded thulium").decode(),
            "forwarded thulium",
        ),
        (
            "application/octet-stream\nContent-Transfer-Encoding: base64",
            base64.encodebytes(make_docx([("", "words of Word")])).decode(),
            "words of Word",
        ),
    ],
)
def test_parts_are_read_by_type_and_content(read: Read, head: str, body: str, words: str) -> None:
    found = read(
        "a.eml",
        mail("mixed", "Content-Type: text/plain\n\nsee below", f"Content-Type: {head}\n\n{body}"),
    )
    assert words in found.text
    assert not found.warning


def test_an_event_stands_below_its_title_wherever_that_is_written(read: Read) -> None:
    event = (
        "BEGIN:VEVENT\nDTSTART:2026051{0}\nBEGIN:VALARM\nSUMMARY:Bell\nEND:VALARM\nSUMMARY:Drill"
        " {0}\nEND:VEVENT\n"
    )
    found = read(
        "a.ics", f"BEGIN:VCALENDAR\n{event.format(1)}{event.format(2)}END:VCALENDAR".encode()
    )
    lines = [line for line in found.text.split("\n") if line]
    assert lines == ["# Drill 1", "Start: 2026-05-11", "# Drill 2", "Start: 2026-05-12"]
    assert found.title == "Drill 1"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("DTSTART:20240506T120000Z", "Start: 2024-05-06 12:00 UTC"),
        (
            "DTSTART;TZID=Europe/Berlin:20240506T093015",
            "Start: 2024-05-06 09:30:15 (Europe/Berlin)",
        ),
        (
            'DTEND;TZID="W. Europe Standard Time":20240506T0930',
            "End: 2024-05-06 09:30 (W. Europe Standard Time)",
        ),
        ("DTEND;VALUE=DATE:20240301", "End: 2024-02-29"),
        ("DTEND;VALUE=DATE:00010101", "End: 0001-01-01"),
        (
            "RRULE:FREQ=WEEKLY;UNTIL=20241231T225959Z",
            "Repeats: FREQ=WEEKLY;UNTIL=2024-12-31 22:59:59 UTC",
        ),
        ("DUE:soon", "Due: soon"),
    ],
)
def test_times_of_calendars_can_be_read(read: Read, line: str, shown: str) -> None:
    event = f"BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Drill\n{line}\nEND:VEVENT\nEND:VCALENDAR"
    assert read("a.ics", event.encode()).text == f"# Drill\n{shown}"


def test_damaged_frames_of_mails(read: Read) -> None:
    wrong = mail("mixed", "Content-Type: text/plain\n\nthulium").replace(
        b"boundary=b", b"boundary=other"
    )
    assert (
        "thulium" in read("a.eml", wrong).text and "Content-Type" not in read("a.eml", wrong).text
    )
    none = f"{HEAD}Content-Type: multipart/mixed\n\nonly erbium here".encode()
    assert "erbium" in read("b.eml", none).text
    assert "erbium" in read("c.eml", b"\r\n\n" + none).text
    assert "erbium" in read("d.eml", none[: none.index(b"Subject")] + b"\nerbium").text
    assert (
        "thulium"
        in read(
            "e.eml", mail("mixed", "Content-Type: text/plain\n\nthulium").removesuffix(b"--b--\n")
        ).text
    )


def test_no_part_of_a_mail_vanishes(read: Read) -> None:
    draw = random.Random(7)
    words: list[str] = []

    def word() -> str:
        words.append("".join(draw.choices("abcdefghij", k=9)))
        return words[-1]

    for _ in range(25):
        words.clear()
        message = EmailMessage()
        message["From"], message["Subject"] = "a@example.org", "S"
        message.set_content(" ".join(word() for _ in range(draw.randint(1, 12))))
        if draw.random() < 0.6:
            message.add_alternative(
                f"<p>{' '.join(word() for _ in range(draw.randint(1, 12)))}</p>", subtype="html"
            )
        for number in range(draw.randint(0, 4)):
            kind, name = draw.choice(
                [("plain", f"f{number}"), ("html", f"{number}.htm"), ("csv", "t.csv"), ("x-y", "z")]
            )
            text = f"<p>{word()}</p>" if kind == "html" else f"{word()},{word()}"
            message.add_attachment(
                text, subtype=kind, filename=name, disposition=draw.choice(["inline", "attachment"])
            )
        if draw.random() < 0.3:
            inner = EmailMessage()
            inner["From"], inner["Subject"] = "c@example.org", "forwarded"
            inner.set_content(word(), cte=draw.choice(["base64", "quoted-printable"]))
            message.add_attachment(inner)
        found = read("a.eml", message.as_bytes())
        lost = [one for one in words if one not in found.text]
        assert not lost, (lost, message.as_string())
