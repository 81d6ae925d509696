"""Mails: EML by the standard library, MSG by python-oxmsg; the text, and what is attached to it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.input.readers.base import FileText, Unreadable, clean, one_line
from aveyb_retrieval.indexes.input.readers.html import read_html

if TYPE_CHECKING:
    from email.message import EmailMessage

    from aveyb_retrieval.indexes.input.readers.inner import InnerFiles

_HEADERS = ("From", "To", "Cc", "Date")


def read_eml(data: bytes, inner: InnerFiles) -> FileText:
    """Read a mail as it was sent. What is attached is read by the reader of its kind.

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
        body = message.get_body(("plain", "html"))
        text = "" if body is None else _content(body)
        inner.add("", "\n".join(head) + f"\n\n{text.strip()}")
        for part in message.iter_attachments():
            _attach(part, inner)
    except (MessageError, LookupError, ValueError, AttributeError) as error:
        raise Unreadable(f"damaged: not a mail ({type(error).__name__}: {one_line(str(error))})") from None
    return inner.text(one_line(str(message["Subject"] or "")))


def _attach(part: Any, inner: InnerFiles) -> None:
    if part.get_content_type() == "message/rfc822":
        inner.read(f"{part.get_filename() or 'message'}.eml", part.get_content().as_bytes())
    elif name := part.get_filename():
        inner.read(one_line(name), part.get_payload(decode=True) or b"")


def _content(part: Any) -> str:
    content = part.get_content()
    if part.get_content_subtype() == "html":
        return read_html(content.encode(), "utf-8").text
    return clean(str(content))


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
            inner.read(one_line(attachment.file_name or "attachment"), attachment.file_bytes or b"")
        subject = message.subject
    except (OSError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise Unreadable(f"damaged: not a mail of Outlook ({type(error).__name__}: {error})") from None
    return inner.text(one_line(subject or ""))
