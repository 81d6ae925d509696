"""Mails: EML by the standard library, MSG by python-oxmsg; the text, and what is attached to it."""

from __future__ import annotations

import base64
import binascii
import io
import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.archives import is_archive, open_archive, read_member
from aveyb_retrieval.documents.readers.encodings import (
    decode,
    decoded_mostly,
    has_one_byte_characters,
    python_encoding,
    without_mark,
)
from aveyb_retrieval.documents.readers.filetext import FileText, Unreadable, clean, one_line
from aveyb_retrieval.documents.readers.html import named_encoding, page_text
from aveyb_retrieval.documents.readers.mailbox import emlx_bytes, message_bytes, message_parts
from aveyb_retrieval.documents.readers.tnef import SIGNATURE

if TYPE_CHECKING:
    from collections.abc import Callable
    from email.message import Message

    from aveyb_retrieval.documents.readers.archives import InnerFiles
    from aveyb_retrieval.documents.readers.file_limits import Limits

_SHOWN = ("From", "To", "Cc", "Date")
_FIELDS = {  # of metadata, by headers
    "from": "From",
    "to": "To",
    "cc": "Cc",
    "date": "Date",
    "subject": "Subject",
    "message_id": "Message-ID",
}
_PEOPLE = ("From", "Sender", "Reply-To", "To", "Cc", "Bcc")
_MESSAGE_IDS = re.compile(r"<[^<>\s]+>")
_SIGNS_OF_A_MAIL = ("From", "Subject", "To", "Date", "Message-ID", "Received")
_SUFFIXES = {  # of parts whose name has none that is known, by their type
    "text/plain": ".txt",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/rtf": ".rtf",
    "application/rtf": ".rtf",
    "text/calendar": ".ics",
    "application/ics": ".ics",
    "application/pdf": ".pdf",
    "message/rfc822": ".eml",
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "application/epub+zip": ".epub",
    "application/zip": ".zip",
    "application/xhtml+xml": ".xhtml",
    "application/vnd.ms-outlook": ".msg",
    "application/vnd.ms-excel": ".xls",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "application/vnd.oasis.opendocument.text": ".odt",
    "application/vnd.oasis.opendocument.spreadsheet": ".ods",
}
_STARTS = {
    b"%pdf-": ".pdf",
    b"{\\rtf": ".rtf",
    b"begin:vcalendar": ".ics",
    b"<!doctype html": ".html",
    b"<html": ".html",
}
_INSIDE = {
    "word/document.xml": ".docx",
    "ppt/presentation.xml": ".pptx",
    "xl/workbook.xml": ".xlsx",
}
_ANYTHING = (
    "application/octet-stream",
    "binary/octet-stream",
    "application/unknown",
    "application/x-unknown",
)
_PAGES, _NO_TEXTS = ("text/html", "text/x-amp-html"), ("text/calendar", "text/rtf", "text/csv")
_MAILS = ("message/rfc822", "message/global")
_BOUNDARY = re.compile(r"^--([^\s-][^\r\n]{0,199})\r?$", re.MULTILINE)
# RFC 3676: lines that go on, but no signature
_FLOWED = re.compile(r"(?<!^--) \n(?:>+ ?)?", re.MULTILINE)
_HEADER_COMMENT = re.compile(r"\([^()]*\)")
_WORD = re.compile(r"\w+")
_SAME_WORDS_SHARE = (
    0.9  # of a part's different words: then the plain text says as much as the page beside it
)


def read_eml(data: bytes, limits: Limits, inner: InnerFiles) -> FileText:
    """Read a mail as it was sent, and what is attached; text for which it names
    no encoding is in that of `limits`.
    """
    from email.errors import MessageError
    from email.parser import BytesParser

    encoding = limits.encoding
    message = BytesParser().parsebytes(data.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n\t "))
    try:
        header = partial(_header, message, encoding)
        if not any(map(header, _SIGNS_OF_A_MAIL)):
            raise Unreadable(
                "not a mail: it has none of the headers " + ", ".join(_SIGNS_OF_A_MAIL)
            )
        head, fields = _head(header)
        attached: list[Message] = []
        inner.add("", f"{head}\n\n{_text(message, encoding, attached)}")
        for part in attached:
            _attach(part, encoding, inner)
    except (MessageError, LookupError, ValueError, AttributeError) as error:
        raise Unreadable(
            f"damaged: not a mail ({type(error).__name__}: {one_line(str(error))})"
        ) from None
    return inner.text(header("Subject"), fields)


def read_emlx(data: bytes, limits: Limits, inner: InnerFiles) -> FileText:
    """Read a mail as Apple Mail keeps it."""
    message, missing = emlx_bytes(data)
    found = read_eml(message, limits, inner)
    if not missing:
        return found
    cut = f"the last {missing:,} bytes of the mail are missing"
    warning = "; ".join(filter(None, [cut, found.warning]))
    return replace(found, warning=warning, is_incomplete=True)


def read_mailbox(data: bytes, limits: Limits, inner: InnerFiles) -> FileText:
    """Read a mailbox that stands in another file, or is compressed: its messages are its pages.

    In a folder each message of a mailbox is a document of its own.
    """
    del limits
    for number, (_, start, stop) in enumerate(message_parts(data), start=1):
        message = message_bytes(data[start:stop])
        inner.read(f"message {number}.eml", partial(bytes, message))
    return inner.text("")


def _header(message: Message, encoding: str | None, name: str) -> str:
    """A header of a mail as one line, whatever encodings are named or meant; "" without it."""
    found = (value for header, value in message.raw_items() if header.lower() == name.lower())
    return one_line(_decoded(message, encoding, str(next(found, ""))))


def _decoded(message: Message, encoding: str | None, value: str) -> str:
    """A header's value with its encoded words (RFC 2047) and its bytes beyond ASCII as
    characters.
    """
    from email.errors import HeaderParseError
    from email.header import decode_header

    if not value.isascii() and any("\udc80" <= character <= "\udcff" for character in value):
        charset = message.get_content_charset() or encoding
        value = _characters(value.encode("ascii", "surrogateescape"), charset)
    if "=?" not in value:
        return value
    try:
        parts = decode_header(value)
    except (HeaderParseError, ValueError):  # damaged base64
        return value
    return "".join(_header_part(part, label) for part, label in parts)


def _header_part(part: str | bytes, label: str | None) -> str:
    """The characters of a part that `email.header.decode_header` found, and of its encoding."""
    if isinstance(part, str):
        return part
    return _characters(part, label) if label else part.decode("latin-1")


def _characters(data: bytes, *labels: str | None) -> str:
    """Decode by the first of these labels that fits, else as UTF-8, else as cp1252: one bad byte
    costs no mail.
    """
    for label in (without_mark(data), *labels, "utf-8"):
        # programs write us-ascii where they do not know: bytes beyond it are mostly UTF-8
        if (
            label
            and label.lower() not in ("us-ascii", "ascii", "unknown-8bit")
            and python_encoding(label)
        ):
            try:
                return decode(data, declared=label) if label != "utf-8" else data.decode("utf-8")
            except (Unreadable, UnicodeError):
                continue
    for label in filter(None, (*labels, "utf-8")):
        if not has_one_byte_characters(label) and (text := decoded_mostly(data, label)) is not None:
            return text
    return data.decode("cp1252", "replace")


def _head(header: Callable[[str], str]) -> tuple[str, dict[str, Any]]:
    """What stands above the text of a mail, and its metadata.

    `date` is the instant in UTC as in ISO 8601 where it is a date, so that dates compare, and
    `date_written` the same in the zone of the sender. `addresses` are
    those of senders and receivers in small letters. `thread` is the id of the first mail of the
    conversation, `labels` are those that Gmail gives.
    """
    from email.utils import getaddresses, parsedate_to_datetime

    head = "\n".join(f"{name}: {value}" for name in _SHOWN if (value := header(name)))
    fields: dict[str, Any] = {
        field: value for field, name in _FIELDS.items() if (value := header(name))
    }
    with suppress(KeyError, TypeError, ValueError, IndexError, OverflowError):
        sent = parsedate_to_datetime(fields["date"])
        sent = sent if sent.tzinfo else sent.replace(tzinfo=UTC)  # of "-0000": no zone is named
        fields["date_written"] = sent.isoformat()
        fields["date"] = sent.astimezone(UTC).isoformat()
    people = getaddresses([header(name) for name in _PEOPLE if header(name)])
    addresses = [address.lower() for _, address in people if "@" in address]
    references = _MESSAGE_IDS.findall(header("References"))
    answered = _MESSAGE_IDS.findall(header("In-Reply-To"))
    labels = [label.strip() for label in header("X-Gmail-Labels").split(",")]
    lists = {
        "addresses": list(dict.fromkeys(addresses)),
        "references": references,
        "labels": list(filter(None, labels)),
    }
    fields |= {name: values for name, values in lists.items() if values}
    if answered:
        fields["in_reply_to"] = answered[0]
    first = next(iter([*references, *answered, header("Message-ID")]), "")
    return head, fields | ({"thread": first} if first else {})


def _text(part: Message, encoding: str | None, attached: list[Message]) -> str:
    """The text of a part and of those in it; the others are added to `attached`."""
    kind = part.get_content_type()
    # whose body may have a name
    is_text = part.get_content_maintype() in ("text", "message", "multipart")
    if (
        kind in (*_MAILS, *_NO_TEXTS)
        or part.get_content_disposition() == "attachment"
        or not is_text
    ):
        attached.append(part)
        return ""
    payload: Any = part.get_payload()
    if part.get_content_maintype() == "multipart":
        if isinstance(payload, str):  # none of its lines is the boundary that it names
            again = _with_found_boundary(part, payload)
            return (
                _plain_text(part, encoding) if again is None else _text(again, encoding, attached)
            )
        texts = [text for inner in payload if (text := _text(inner, encoding, attached))]
        return _best(texts) if kind == "multipart/alternative" else "\n\n".join(texts)
    if isinstance(payload, list):  # message/delivery-status: headers in groups
        groups = (
            "\n".join(f"{name}: {value}" for name, value in group.items()) for group in payload
        )
        return clean("\n\n".join(groups)).strip()
    return _page(part, encoding) if kind in _PAGES else _plain_text(part, encoding)


def _with_found_boundary(part: Message, payload: str) -> Message | None:
    """A multipart whose boundary is another than it names, read again with the one that its lines
    begin with.
    """
    from email.parser import BytesParser

    found = _BOUNDARY.search(payload)
    if found is None:
        return None
    body = payload.encode("utf-8", "surrogateescape")
    head = f'Content-Type: {part.get_content_type()}; boundary="{found[1].rstrip()}"\n\n'
    again = BytesParser().parsebytes(head.encode("utf-8", "surrogateescape") + body)
    return again if isinstance(again.get_payload(), list) else None


def _best(texts: list[str]) -> str:
    """Of texts that are meant to say the same: the plain one where it does, else the longest; what
    it lacks follows.
    """
    if not texts:
        return ""
    words = [_words(text) for text in texts]
    everything = set().union(*words)
    first = next(
        (n for n, own in enumerate(words) if len(own) >= _SAME_WORDS_SHARE * len(everything)), None
    )
    best = max(range(len(texts)), key=lambda n: len(words[n])) if first is None else first
    said, parts = set(words[best]), [texts[best]]
    for text in (*texts[:best], *texts[best + 1 :]):
        for line in text.split("\n"):
            if _words(line) - said:
                parts.append(line)
                said |= _words(line)
    return "\n\n".join([parts[0], *(["\n".join(parts[1:])] if parts[1:] else [])])


def _words(text: str) -> set[str]:
    """The different words of a text, without those of addresses."""
    words = (word for word in text.lower().split() if "@" not in word and "://" not in word)
    return set(_WORD.findall(" ".join(words)))


def _bytes(part: Message) -> bytes:
    """The content of a part. Its coding may have blanks and a comment behind it (RFC 2045, 6.1),
    with which the standard library does not know it.
    """
    written = str(part.get("Content-Transfer-Encoding", ""))
    coding = _HEADER_COMMENT.sub("", written).strip().lower()
    if coding != written.lower():
        del part["Content-Transfer-Encoding"]
        part["Content-Transfer-Encoding"] = coding
    payload = part.get_payload(decode=True)
    if isinstance(payload, bytes):
        return payload
    raw = part.get_payload()
    return raw.encode("utf-8", "surrogateescape") if isinstance(raw, str) else b""


def _plain_text(part: Message, encoding: str | None) -> str:
    text = clean(_characters(_bytes(part), part.get_content_charset(), encoding)).strip()
    return _FLOWED.sub("", text) if str(part.get_param("delsp", "")).lower() == "yes" else text


def _page(part: Message, encoding: str | None) -> str:
    data = _bytes(part)
    text = _characters(data, part.get_content_charset(), named_encoding(data), encoding)
    return page_text(text)[1]


def _attach(part: Message, encoding: str | None, inner: InnerFiles) -> None:
    name, kind = one_line(_decoded(part, encoding, _name(part))), part.get_content_type()
    if kind in _MAILS:
        payload: Any = part.get_payload()
        if not name and isinstance(payload, list) and payload:
            name = one_line(_header(payload[0], encoding, "Subject")[:100])
        name = name or "message"
        inner.read(
            name if name.lower().endswith(".eml") else f"{name}.eml", lambda: _forwarded(part)
        )
        return
    data = _bytes(part)
    is_packed = data.startswith(SIGNATURE)
    suffix = ".txt" if kind.startswith("text/") else ""
    suffix = ".tnef" if is_packed else _SUFFIXES.get(kind, suffix)
    if not suffix and kind in _ANYTHING:
        suffix = _suffix_by_content(data)
    shown = name or f"without a name ({kind})"
    inner.read(shown, lambda: data, otherwise=f"{shown}{suffix}" if suffix else "")


def _name(part: Message) -> str:
    try:
        return part.get_filename() or ""
    except (LookupError, ValueError, TypeError, AttributeError):
        # of an encoding or a number that is none
        return ""


def _forwarded(part: Message) -> bytes:
    """The bytes of a mail in a mail; some programs write it in base64, which the
    standard forbids.
    """
    payload: Any = part.get_payload()
    if isinstance(payload, str) or not payload:
        return _bytes(part)
    inside: Message = payload[0]
    if (
        str(part.get("Content-Transfer-Encoding", "")).strip().lower() == "base64"
        or not inside.keys()
    ):
        # where it was not base64 after all: the mail as it stands
        with suppress(binascii.Error, ValueError):
            text = inside.get_payload()
            decoded = base64.b64decode("".join(text.split()) if isinstance(text, str) else "")
            if b":" in decoded[:1000]:
                return decoded
    return inside.as_bytes()


def _suffix_by_content(data: bytes) -> str:
    """A suffix for bytes whose name and type tell nothing; "" where they tell nothing, either."""
    start = data[:1024].lstrip()
    if is_archive(start):
        try:
            archive = open_archive(data)
            names = set(archive.namelist())
            kind = (
                read_member(archive, "mimetype")[:100].decode("latin-1").strip()
                if "mimetype" in names
                else ""
            )
        except Unreadable:  # reading it says why
            return ".zip"
        return next(
            (suffix for name, suffix in _INSIDE.items() if name in names),
            _SUFFIXES.get(kind, ".zip"),
        )
    for sign, suffix in _STARTS.items():
        if start[: len(sign)].lower() == sign:
            return suffix
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return "" if "\0" in text or not text.strip() else ".txt"


def read_msg(data: bytes, _limits: Limits, inner: InnerFiles) -> FileText:
    """Read a mail as Outlook keeps it."""
    from oxmsg import Message

    try:
        message = Message.load(io.BytesIO(data))
        subject = one_line(message.subject or "")
        headers = {"from": one_line(message.sender or "")}
        headers |= {
            name.lower(): one_line(value) for name, value in message.message_headers.items()
        }
        headers["subject"] = subject or headers.get("subject", "")
        head, fields = _head(lambda name: headers.get(name.lower(), ""))
        page = page_text(message.html_body)[1] if message.html_body else ""
        texts = [text for text in (clean(message.body or "").strip(), page) if text]
        inner.add("", f"{head}\n\n{_best(texts)}")
        for attachment in message.attachments:
            name = one_line(attachment.file_name or "attachment")
            inner.read(name, lambda attachment=attachment: attachment.file_bytes or b"")  # type: ignore[misc]
    except (OSError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise Unreadable(
            f"damaged: not a mail of Outlook ({type(error).__name__}: {error})"
        ) from None
    return inner.text(subject, fields)
