"""Mails and archives: one document with the files in it, each a page, read by the readers of their kinds."""

from __future__ import annotations

import gzip
from email.message import EmailMessage
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.indexes.input.readers.base import Unreadable
from tests.indexes.files import make_pdf, make_zip
from tests.indexes.readers.conftest import label

if TYPE_CHECKING:
    from tests.indexes.readers.conftest import Read

for package in ("pypdfium2", "selectolax", "oxmsg"):
    pytest.importorskip(package)


def test_a_mail_has_its_attachments(read: Read) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "a@example.org", "b@example.org", "The pump"
    mail.set_content("See the page.")
    mail.add_alternative("<p>not this one</p>", subtype="html")
    mail.add_attachment(make_pdf([["close the valve"]]), maintype="application", subtype="pdf", filename="m.pdf")
    mail.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="logo.png")
    found = read("a.eml", mail.as_bytes())
    assert found.title == "The pump"
    assert found.text.startswith("From: a@example.org\nTo: b@example.org\n\nSee the page.")
    assert "not this one" not in found.text
    assert label(found, "valve") == "file m.pdf"
    assert found.warning == "1 file in it left out: logo.png: unknown kind .png"
    forwarded = EmailMessage()
    forwarded["From"], forwarded["Subject"] = "c@example.org", "Fwd"
    forwarded.add_attachment(mail)
    assert "close the valve" in read("b.eml", forwarded.as_bytes()).text
    with pytest.raises(Unreadable, match="not a mail"):
        read("c.eml", b"words")
    with pytest.raises(Unreadable, match="not a mail of Outlook"):
        read("d.msg", b"words")


def test_an_archive_is_one_document_whose_pages_are_its_files(read: Read) -> None:
    inside = make_zip({"deep.txt": b"deep words"})
    for _ in range(4):
        inside = make_zip({"in.zip": inside})
    data = {"b/m.pdf": make_pdf([["close the valve"]]), "a.md": b"# T\n\nmarkdown", "bad.pdf": b"x", "n.zip": inside,
            "__MACOSX/x.txt": b"no", ".h.txt": b"no", "c.txt.gz": gzip.compress(b"packed")}  # fmt: skip
    found = read("a.zip", make_zip(data))
    assert label(found, "valve") == "file b/m.pdf"
    assert label(found, "packed") == "file c.txt.gz"
    assert found.text.startswith("# a.md\n\n# T\n\nmarkdown\n\n# b/m.pdf\n\nclose")
    assert found.warning == "1 file in it left out: bad.pdf: not a PDF file, or damaged beyond repair"
    assert "no\n" not in found.text
    assert "deep words" not in found.text
