"""Mailboxes: each message of an MBOX file or a Maildir is a document, and stays the same one."""

from __future__ import annotations

from email.message import EmailMessage
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval import Retriever, build_index, sync_index
from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.folders import list_folder
from aveyb_retrieval.documents.readers.mailbox import (
    looks_like_mailbox,
    message_bytes,
    message_parts,
)
from aveyb_retrieval.documents.reading import Reading
from aveyb_retrieval.documents.records import Record, Rejected
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("selectolax")

LINE = b"From ada@example.org Mon Jan  5 10:00:00 2026\n"


def mail(subject: str, body: str, **headers: str) -> bytes:
    """A mail with these headers; `_` in a name is "-"."""
    message = EmailMessage()
    message["From"], message["To"] = "Ada <ADA@example.org>", "bob@example.org"
    message["Subject"], message["Date"] = subject, "Mon, 05 Jan 2026 10:00:00 +0100"
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    message.set_content(body)
    return message.as_bytes()


def mbox(*messages: bytes) -> bytes:
    return b"".join(LINE + message + b"\n" for message in messages)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mails").mkdir()
    return tmp_path / "mails"


def test_messages_are_found_by_their_first_lines() -> None:
    first, second = mail("One", "pears\n\nFrom the tree they fall.\n"), mail("Two", "plums\n")
    data = mbox(first, second)
    parts = list(message_parts(data))
    assert [message_bytes(data[part.start : part.stop]) for part in parts] == [first, second]
    assert looks_like_mailbox(data)
    assert not looks_like_mailbox(b"From the tree they fall.\nPears do.")
    windows = data.replace(b"\n", b"\r\n")
    assert len(list(message_parts(windows))) == 2
    quoted = mbox(b"Subject: x\n\n>From the tree\n>>From below\n")
    assert message_bytes(quoted).endswith(b"From the tree\n>From below\n")


def test_names_of_messages_do_not_hang_on_their_order() -> None:
    known = [mail(str(n), "same words", Message_ID=f"<{n}@a/b>") for n in range(3)]
    twice = mail("other", "other words", Message_ID="<1@a/b>")
    nameless = mail("nameless", "words")
    names = [part.name for part in message_parts(mbox(*known, twice, nameless, known[2]))]
    assert names[:3] == ["0@a%2Fb", "1@a%2Fb", "2@a%2Fb"]
    assert names[3].startswith("1@a%2Fb#")
    assert len(names) == 5
    turned = [part.name for part in message_parts(mbox(nameless, *reversed(known)))]
    assert set(turned) == {*names[:3], names[4]}


def test_each_message_is_a_document_with_its_fields(folder: Path, tmp_path: Path) -> None:
    start = mail("Pump", "It leaks.", Message_ID="<1@a>", X_Gmail_Labels="Inbox,Plant")
    answer = mail(
        "Re: Pump",
        "Closed.",
        Message_ID="<2@a>",
        In_Reply_To="<1@a>",
        References="<0@a> <1@a>",
        Cc="Eve@example.org",
    )
    (folder / "box.mbox").write_bytes(mbox(start, answer))
    (folder / "one.emlx").write_bytes(f"{len(start)}\n".encode() + start + b"<plist/>")
    build_index(folder, tmp_path / "i", model=FakeEmbedder())
    with Retriever.load(tmp_path / "i", model=FakeEmbedder()) as retriever:
        found = {document.id: document.metadata for document in retriever.documents()}
    assert set(found) == {"box.mbox/1@a", "box.mbox/2@a", "one.emlx"}
    assert found["box.mbox/1@a"]["labels"] == ["Inbox", "Plant"]
    assert found["box.mbox/1@a"]["thread"] == "<1@a>"
    assert found["box.mbox/1@a"]["date_written"] == "2026-01-05T10:00:00+01:00"
    assert found["box.mbox/1@a"]["date"] == "2026-01-05T09:00:00+00:00"
    second = found["box.mbox/2@a"]
    assert (second["thread"], second["in_reply_to"]) == ("<0@a>", "<1@a>")
    assert second["addresses"] == ["ada@example.org", "bob@example.org", "eve@example.org"]


def test_a_sync_takes_what_was_added_to_a_mailbox(folder: Path, tmp_path: Path) -> None:
    mails = [mail(str(n), f"about {n}", Message_ID=f"<{n}@a>") for n in range(4)]
    box = folder / "box.mbox"
    box.write_bytes(mbox(*mails[:3]))
    build_index(folder, tmp_path / "i", model=FakeEmbedder())
    box.write_bytes(mbox(mails[3], mails[2], mails[0]))
    report = sync_index(folder, tmp_path / "i", model=FakeEmbedder())
    assert (report.added, report.replaced, report.deleted, report.unchanged) == (1, 0, 1, 2)


def test_a_maildir_has_its_folders_and_no_flags(folder: Path, tmp_path: Path) -> None:
    names = {"new/1.host": "Fresh", "cur/2.host:2,RS": "Read", ".Sent.2025/cur/3.host:2,S": "Sent"}
    for place in ("cur", "new", "tmp", ".Sent.2025/cur"):
        (folder / place).mkdir(parents=True)
    for name, subject in names.items():
        (folder / name).write_bytes(mail(subject, subject))
    (folder / "tmp" / "4.host").write_bytes(mail("Half", "half"))
    build_index(folder, tmp_path / "i", model=FakeEmbedder())
    (folder / "new/1.host").rename(folder / "cur/1.host:2,S")
    report = sync_index(folder, tmp_path / "i", model=FakeEmbedder())
    assert report.unchanged == 3
    with Retriever.load(tmp_path / "i", model=FakeEmbedder()) as retriever:
        assert {document.id for document in retriever.documents()} == {
            "1.host",
            "2.host",
            "Sent.2025/3.host",
        }


def test_files_without_a_suffix_are_told_by_their_beginning(folder: Path, tmp_path: Path) -> None:
    (folder / "Inbox").write_bytes(mbox(mail("One", "pears", Message_ID="<1@a>")))
    (folder / "Inbox.msf").write_text("// <!-- mork -->")
    (folder / "notes").write_text("From the tree they fall.\nPears do.\n")
    assert all(notice.harmless for notice in list_folder(folder).notices)
    build_index(folder, tmp_path / "i", model=FakeEmbedder())
    with Retriever.load(tmp_path / "i", model=FakeEmbedder()) as retriever:
        texts = {document.id: document.text for document in retriever.documents()}
    assert texts["notes"].startswith("From the tree") and len(texts) == 2


def test_what_is_no_mail_in_a_mailbox_costs_the_others_nothing(
    folder: Path, tmp_path: Path
) -> None:
    broken = b"\x00\xff no header\n"
    (folder / "box.mbox").write_bytes(mbox(mail("One", "pears"), broken, mail("Two", "plums")))
    (folder / "empty.mbox").write_bytes(b"")
    report = build_index(folder, tmp_path / "i", model=FakeEmbedder(), on_error="skip")
    assert report.documents == 2
    assert any("box.mbox" in notice.path for notice in report.notices) or report.rejected == 1


def test_a_message_that_is_too_long_costs_itself_and_equal_ones_are_one(folder: Path) -> None:
    pump = mail("Pump", "It leaks.", Message_ID="<1@a>")
    messages = [
        *(pump, mail("Film", "frames " * 5000, Message_ID="<2@a>")),
        *(mail("Pump", "It does not.", Message_ID="<1@a>"), pump),
        *(mail("Pump", "It does not.", Message_ID="<1@a>"), mail("Seal", "It came.")),
    ]
    (folder / "box.mbox").write_bytes(mbox(*messages))
    items = list(read_corpus(folder, Reading(max_line=20_000)))
    (rejected,) = (item for item in items if isinstance(item, Rejected))
    assert rejected.location.source.endswith("box.mbox/2@a")
    assert rejected.reason.startswith("more than 20,000 characters (--max-line")
    texts = [item.text.strip().split("\n\n")[-1] for item in items if isinstance(item, Record)]
    assert sorted(texts) == ["It came.", "It does not.", "It leaks."]


def test_first_lines_are_found_at_the_start_and_behind_either_blank_line() -> None:
    message = LINE + b"Subject: x\n\nFrom here\nFrom there\n\n"
    data = message + message.replace(b"x", b"y") + message.replace(b"\n", b"\r\n")
    starts = [part.start for part in message_parts(data + b"\n" + LINE + b"Subject: z\n")]
    assert starts == [0, len(message), 2 * len(message), len(data) + 1]
    headless = b"Subject: x\n\nwords\n\n" + message
    assert [part.start for part in message_parts(headless)] == [0, len(headless) - len(message)]


def test_an_empty_mailbox_is_called_empty(folder: Path, tmp_path: Path) -> None:
    (folder / "Inbox.mbox").write_bytes(mbox(mail("One", "pears\n")))
    (folder / "Drafts.mbox").write_bytes(b"")
    report = build_index(folder, tmp_path / "i", model=FakeEmbedder())
    assert report.documents == 1
    assert [(notice.path.endswith("Drafts.mbox"), notice.reason) for notice in report.notices] == [
        (True, "empty")
    ]


def test_a_mail_of_apple_that_is_cut_says_so(folder: Path, tmp_path: Path) -> None:
    message = mail("One", "pears and plums\n")
    (folder / "1.emlx").write_bytes(b"%d\n" % len(message) + message + b"<plist></plist>")
    (folder / "2.emlx").write_bytes(b"%d\n" % len(message) + message[:-6])
    report = build_index(folder, tmp_path / "i", model=FakeEmbedder())
    assert report.documents == 2
    (notice,) = report.notices
    assert notice.path.endswith("2.emlx")
    assert notice.reason == "the last 6 bytes of the mail are missing"
    assert notice.lost
