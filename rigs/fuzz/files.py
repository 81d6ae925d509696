"""Attacks on readers of files: a file of any kind, of which bytes are damaged, or those of a part
that is packed in it.

It is read, or refused by one line. Whatever else a reader raises costs its file, too, but with a
reason that no user understands.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from functools import cache
from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.filetext import FileText, Unreadable
from aveyb_retrieval.documents.readers.kinds import CHAT, kind_of, read_file
from aveyb_retrieval.documents.records import Pages
from rigs.fuzz import mutate
from tests.documents.test_mailboxes import mail, mbox
from tests.documents.test_tnef import packed as tnef
from tests.documents.test_tnef import samples as tnef_samples
from tests.documents.written import WRITERS, Block

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

MOST_CHARACTERS = 1 << 24
_NUMBER = re.compile(rb"\d+")
_BLOCKS = (
    Block("heading", (("Harbour",),)),
    Block("text", (("The rent is due in May. " * 20,),)),
    Block("list", (("pumps",), ("valves",))),
    Block("table", (("metal", "price"), ("tin", "40"), ("lead", "12"))),
    Block("text", (("Größe, Камень, 石",),)),
)
_CALENDAR = b"""BEGIN:VCALENDAR\r
VERSION:2.0\r
BEGIN:VEVENT\r
UID:1\r
DTSTART;TZID=Europe/Berlin:20260105T100000\r
RRULE:FREQ=WEEKLY;COUNT=3\r
SUMMARY:Pumps\r
DESCRIPTION:They leak\\, all of\r
  them\r
ATTENDEE;CN="Ada":mailto:ada@example.org\r
END:VEVENT\r
END:VCALENDAR\r
"""
_CARD = b"""BEGIN:VCARD\r
VERSION:3.0\r
N:Lovelace;Ada;;;\r
FN:Ada Lovelace\r
NOTE;ENCODING=QUOTED-PRINTABLE;CHARSET=utf-8:Gr=C3=B6=\r
=C3=9Fe\r
item1.TEL;TYPE=work:+44 20\r
END:VCARD\r
"""
_NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# Pumps\n", "They leak."]},
        {"cell_type": "code", "source": "x = 1", "outputs": [{"text": ["1"]}]},
    ],
    "metadata": {"kernelspec": {"language": "python"}},
    "nbformat": 4,
}
_CHAT = [
    {"type": "message", "user": "U1", "text": "It leaks <@U2>", "ts": "1767600000.000100"},
    {"type": "message", "user": "U2", "text": "Closed", "ts": "1767600001.000200"},
]
_CODE = b'"""Pumps."""\n\nclass Pump:\n    def leak(self) -> int:\n        return 1\n'
_XML = "<?xml version='1.0' encoding='utf-8'?><pumps><pump n='1'>Größe</pump></pumps>"
_VTT = b"WEBVTT\n\n1\n00:00:01.000 --> 00:00:02.000 align:start\n<v Ada>It leaks\n"


def _apple_mail() -> bytes:
    message = mail("One", "pears\n")
    return b"%d\n" % len(message) + message + b"<plist></plist>"


def _mailbox_in_archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("box.mbox", mbox(mail("One", "pears\n"), mail("Two", "plums\n")))
    return out.getvalue()


def _letter_with_picture() -> bytes:
    import docx
    from PIL import Image

    picture, out = io.BytesIO(), io.BytesIO()
    Image.new("L", (500, 250), 250).save(picture, "PNG")  # without words, which would take seconds
    document = docx.Document()
    document.add_picture(picture)
    document.add_paragraph("The rent is due in May.")
    document.save(out)
    return out.getvalue()


_OTHERS: dict[str, Callable[[], bytes]] = {
    "ics": lambda: _CALENDAR,
    "vcf": lambda: _CARD,
    "ipynb": lambda: json.dumps(_NOTEBOOK).encode(),
    "json": lambda: json.dumps(_CHAT).encode(),
    "py": lambda: _CODE,
    "xml": _XML.encode,
    "vtt": lambda: _VTT,
    "emlx": _apple_mail,
    "picture.docx": _letter_with_picture,
    "mbox.zip": _mailbox_in_archive,
    "tnef": lambda: tnef(*tnef_samples()),
    "xhtml": lambda: (
        b"<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><body><h1>Pumps</h1>"
        b"<table><tr><td rowspan='2'>1</td><td colspan='3'>2</td></tr></table></body></html>"
    ),
}
KINDS = [*WRITERS, *_OTHERS]


@cache
def _sound(kind: str) -> bytes:
    return WRITERS[kind](_BLOCKS) if kind in WRITERS else _OTHERS[kind]()


def damaged_file(rng: random.Random, folder: Path) -> None:
    kind = rng.choice(KINDS)
    path = folder / f"a.{kind}"
    path.write_bytes(_damaged(rng, _sound(kind)))
    file_kind = CHAT if kind == "json" else kind_of(path, in_folder=True)
    assert file_kind is not None, kind
    try:
        text, _ = read_file(path, file_kind, Limits(MOST_CHARACTERS))
    except Unreadable as reason:
        assert str(reason) and "\n" not in str(reason), (kind, str(reason))
        return
    except (MemoryError, RecursionError):  # which the process that reads files reports
        return
    _check(kind, text)


def _check(kind: str, text: FileText) -> None:
    assert "\n" not in text.warning, (kind, text.warning)
    (text.title + text.text + json.dumps(text.metadata, ensure_ascii=False)).encode()
    if text.pages is not None:
        Pages.from_json(text.pages.to_dict())


def _damaged(rng: random.Random, data: bytes) -> bytes:
    if data.startswith(b"PK") and rng.random() < 0.8:
        return _with_damaged_member(rng, data)
    return _mutated(rng, data)


def _with_damaged_member(rng: random.Random, data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w") as copy:
        names = archive.namelist()
        chosen = rng.choice(names)
        for name in names:
            member = archive.read(name)
            copy.writestr(name, _mutated(rng, member) if name == chosen else member)
    return out.getvalue()


def _mutated(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, or, as often, one number that is written in digits."""
    numbers = list(_NUMBER.finditer(data))
    if not numbers or rng.random() < 0.5:
        return mutate.mutate_bytes(rng, data)
    number = rng.choice(numbers)
    other = str(rng.choice(mutate.INTERESTING)).encode()
    return data[: number.start()] + other + data[number.end() :]
