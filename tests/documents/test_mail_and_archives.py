"""Mails and archives: one document with the files in it, each a page, read by the readers of their
kinds.
"""

from __future__ import annotations

import gzip
from email.message import EmailMessage
from email.mime.application import MIMEApplication
from email.mime.image import MIMEImage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.readers.filetext import Unreadable
from tests.documents.conftest import label
from tests.indexes.files import make_pdf, make_zip

if TYPE_CHECKING:
    from email.mime.base import MIMEBase

    from tests.documents.conftest import Read

for package in ("pypdfium2", "selectolax", "oxmsg"):
    pytest.importorskip(package)


def test_a_mail_has_its_attachments(read: Read) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "a@example.org", "b@example.org", "The pump"
    mail.set_content("See the page.")
    mail.add_alternative("<p>not this one</p>", subtype="html")
    mail.add_attachment(
        make_pdf([["close the valve"]]), maintype="application", subtype="pdf", filename="m.pdf"
    )
    mail.add_attachment(b"<svg/>", maintype="image", subtype="svg+xml", filename="logo.svg")
    mail.add_attachment(b"AC1032", maintype="image", subtype="vnd.dwg", filename="plan.dwg")
    found = read("a.eml", mail.as_bytes())
    assert found.title == "The pump"
    assert found.text.startswith("From: a@example.org\nTo: b@example.org\n\nSee the page.")
    # what only one of them says follows
    assert found.text.index("valve") > found.text.index("not this one") > 0
    assert label(found, "valve") == "file m.pdf"
    assert found.warning == "1 file in it left out: plan.dwg: unknown kind .dwg"
    assert found.is_incomplete
    forwarded = EmailMessage()
    forwarded["From"], forwarded["Subject"] = "c@example.org", "Fwd"
    forwarded.add_attachment(mail)
    assert "close the valve" in read("b.eml", forwarded.as_bytes()).text
    with pytest.raises(Unreadable, match="not a mail"):
        read("c.eml", b"words")
    with pytest.raises(Unreadable, match="not a mail of Outlook"):
        read("d.msg", b"words")


HEAD = b"From: a@b\nSubject: s\n"


def parts_of(kind: str, *parts: EmailMessage | MIMEBase, **headers: str) -> MIMEMultipart:
    made = MIMEMultipart(kind)
    for name, value in headers.items():
        made[name] = value
    for part in parts:
        made.attach(part)
    return made


def attached(name: str, text: str) -> MIMEText:
    part = MIMEText(text)
    part.add_header("Content-Disposition", "attachment", filename=name)
    return part


def test_all_parts_of_a_mail_are_read(read: Read) -> None:
    between = parts_of(
        "mixed", MIMEText("before"), MIMEImage(b"x", "png"), MIMEText("after"), From="a@b"
    )
    assert read("a.eml", between.as_bytes()).text == "From: a@b\n\nbefore\n\nafter\n\n"
    inside = parts_of("mixed", MIMEText("body"), attached("c.txt", "words of the file"))
    signed = parts_of("signed", inside, MIMEApplication(b"x", "pkcs7-signature"), From="a@b")
    found = read("b.eml", signed.as_bytes())
    assert found.text.startswith("From: a@b\n\nbody\n\n# c.txt\n\nwords of the file")
    assert (
        found.warning
        == "1 file in it left out: without a name (application/pkcs7-signature): unknown kind"
    )
    rich = parts_of(
        "mixed", MIMEText("<p>plain</p>", "html"), attached("d.txt", "words of the file")
    )
    either = read("c.eml", parts_of("alternative", MIMEText("plain"), rich, From="a@b").as_bytes())
    assert either.text.startswith("From: a@b\n\nplain\n\n# d.txt\n\nwords of the file")


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"\nK\xc3\xbcndigung",
        HEAD + b"\nK\xfcndigung",
        HEAD + b"Content-Type: text/plain; charset=us-ascii\n\nK\xc3\xbcndigung",
        HEAD + b"Content-Type: text/plain; charset=nothing-like-it\n\nK\xc3\xbcndigung",
        HEAD + b"Content-Type: text/plain; charset=iso-8859-1\n\nK\xfcndigung",
        HEAD + b"Content-Type: text/html\n\n<meta charset='iso-8859-2'><p>K\xfcndigung</p>",
    ],
)
def test_the_text_of_a_mail_is_decoded_whatever_it_says_of_it(read: Read, data: bytes) -> None:
    assert read("a.eml", data).text.strip() == "From: a@b\n\nKündigung"


def test_one_damaged_file_does_not_cost_an_archive(read: Read) -> None:
    word = bytearray(
        make_zip({"[Content_Types].xml": b"<Types/>" * 200, "word/document.xml": b"<a/>" * 200})
    )
    for at in range(60, 90):
        word[at] ^= 0xFF
    found = read("a.zip", make_zip({"a.txt": b"good words", "b.docx": bytes(word)}))
    assert found.text.startswith("# a.txt\n\ngood words")
    assert found.warning.startswith("1 file in it left out: b.docx: ")


def test_an_archive_is_one_document_whose_pages_are_its_files(read: Read) -> None:
    inside = make_zip({"deep.txt": b"deep words"})
    for _ in range(4):
        inside = make_zip({"in.zip": inside})
    data = {
        "b/m.pdf": make_pdf([["close the valve"]]),
        "a.md": b"# T\n\nmarkdown",
        "bad.pdf": b"x",
        "n.zip": inside,
        "__MACOSX/x.txt": b"no",
        ".h.txt": b"no",
        "c.txt.gz": gzip.compress(b"packed"),
    }
    found = read("a.zip", make_zip(data))
    assert label(found, "valve") == "file b/m.pdf"
    assert label(found, "packed") == "file c.txt.gz"
    assert found.text.startswith("# a.md\n\n# T\n\nmarkdown\n\n# b/m.pdf\n\nclose")
    assert (
        found.warning
        == "1 file in it left out: bad.pdf: not a PDF file, or damaged beyond repair; "
        "n.zip: in.zip: in.zip: 1 file in it left out: in.zip: 3 files deep"
    )
    assert "no\n" not in found.text
    assert "deep words" not in found.text
