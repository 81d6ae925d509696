"""Mails: EML by the standard library, MSG by python-oxmsg; the text, and what is attached to it."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.base import FileText, Unreadable, clean, decode, one_line
from aveyb_retrieval.documents.readers.html import browser_encoding, named_encoding, read_html

if TYPE_CHECKING:
    from email.message import EmailMessage

    from aveyb_retrieval.documents.readers.archives import InnerFiles

_HEADERS = ("From", "To", "Cc", "Date")


def read_eml(data: bytes, encoding: str | None, inner: InnerFiles) -> FileText:
    """Read a mail as it was sent. What is attached is read by the reader of its kind.

    `encoding` is that of text for which the mail names none.

    Raises:
        Unreadable: it is not a mail.
    """
    from email import policy
    from email.errors import MessageError
    from email.parser import BytesParser

    message: EmailMessage = BytesParser(policy=policy.default).parsebytes(data)
    try:
        if not (message["From"] or message["Subject"]):
            raise Unreadable("not a mail: neither From nor Subject")
        head = [f"{name}: {one_line(str(message[name]))}" for name in _HEADERS if message[name]]
        attached: list[EmailMessage] = []
        inner.add("", "\n".join(head) + f"\n\n{_text(message, encoding, attached)}")
        for part in attached:
            _attach(part, inner)
    except (MessageError, LookupError, ValueError, AttributeError) as error:
        raise Unreadable(f"damaged: not a mail ({type(error).__name__}: {one_line(str(error))})") from None
    return inner.text(one_line(str(message["Subject"] or "")))


def _text(part: EmailMessage, encoding: str | None, attached: list[EmailMessage]) -> str:
    """The text of a part and of those in it; the others are added to `attached`."""
    if part.get_content_maintype() == "multipart":
        parts: list[Any] = list(part.iter_parts())
        one_of_them = part.get_content_subtype() == "alternative"
        if one_of_them:
            parts.sort(key=lambda inner: inner.get_content_type() != "text/plain")
        texts = [text for inner in parts if (text := _text(inner, encoding, attached))]
        return "\n\n".join(texts[:1] if one_of_them else texts)
    if part.get_content_type() in ("text/plain", "text/html") and not part.get_filename():
        return _content(part, encoding).strip()
    attached.append(part)
    return ""


def _attach(part: EmailMessage, inner: InnerFiles) -> None:
    if part.get_content_type() == "message/rfc822":
        inner.read(f"{part.get_filename() or 'message'}.eml", lambda: part.get_content().as_bytes())
    elif name := part.get_filename():
        inner.read(one_line(name), lambda: _bytes(part))
    elif part.is_attachment():
        inner.leave_out("without a name", part.get_content_type())


def _content(part: EmailMessage, encoding: str | None) -> str:
    data = _bytes(part)
    is_html = part.get_content_subtype() == "html"
    # programs write us-ascii where they do not know: bytes beyond it are mostly UTF-8
    label = part.get_content_charset("us-ascii")
    charset = browser_encoding(label) if label != "us-ascii" else None
    text = _decoded(data, charset, named_encoding(data) if is_html else None, encoding, "utf-8")
    return read_html(text.encode(), "utf-8").text if is_html else clean(text)


def _decoded(data: bytes, *encodings: str | None) -> str:
    """Decode by the first of these encodings that fits, else as cp1252: one bad byte does not cost the mail."""
    for encoding in filter(None, encodings):
        try:
            return decode(data, encoding)
        except (Unreadable, UnicodeError):
            continue
    return data.decode("cp1252", "replace")


def _bytes(part: Any) -> bytes:
    return part.get_payload(decode=True) or b""


def read_msg(data: bytes, inner: InnerFiles) -> FileText:
    """Read a mail as Outlook keeps it.

    Raises:
        Unreadable: it is not one.
    """
    from oxmsg import Message

    try:
        message = Message.load(io.BytesIO(data))
        headers = {name: value for name, value in message.message_headers.items() if name in _HEADERS}
        head = [f"{name}: {one_line(value)}" for name, value in ({"From": message.sender} | headers).items() if value]
        text = message.body or ""
        if not text.strip() and message.html_body:
            text = read_html(message.html_body.encode(), "utf-8").text
        inner.add("", "\n".join(head) + f"\n\n{clean(text).strip()}")
        for attachment in message.attachments:
            inner.read(one_line(attachment.file_name or "attachment"), partial(_bytes_of_msg, attachment))
        subject = message.subject
    except (OSError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise Unreadable(f"damaged: not a mail of Outlook ({type(error).__name__}: {error})") from None
    return inner.text(one_line(subject or ""))


def _bytes_of_msg(attachment: Any) -> bytes:
    return attachment.file_bytes or b""
