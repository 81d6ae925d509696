"""Mailboxes: the messages of an MBOX file (RFC 4155), and of a Maildir.

A message of an MBOX file begins with a line "From ", behind a blank line. Programs write "From "
at the head of a line of text as ">From ", but not all do: such a line begins a message only if it
has a time, or a header follows.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from typing import TYPE_CHECKING, NamedTuple

from aveyb_retrieval.documents.readers.filetext import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BOUNDARY = re.compile(
    rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\n]*\n(?=[!-9;-~]+:)"
    rb"|(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\n]*\d:\d\d[^\n]*\d{4}[^\n]*\n"
)
_FIRST_WORD = b"\nFrom "
_ESCAPED_FROM = re.compile(rb"^>(>*From )", re.MULTILINE)
_HEADER_BYTES = 1 << 16  # bytes of a message in which its id is looked for
_MESSAGE_ID = re.compile(
    rb"^message-id:[ \t]*(?:\r?\n[ \t]+)?<?([^<>\s]+)>?", re.IGNORECASE | re.MULTILINE
)
_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")
_MAILDIR = ("cur", "new", "tmp")
_HASH_DIGITS = 16  # hexadecimal digits of a message without an id


class MessagePart(NamedTuple):
    """A message of an MBOX file: its name in the file, and its bytes `[start, stop)`."""

    name: str
    start: int
    stop: int


def looks_like_mailbox(start: bytes) -> bool:
    """Return whether a file that begins with these bytes is an MBOX file."""
    return _BOUNDARY.match(start) is not None


def messages_of(path: Path) -> Iterator[MessagePart]:
    """Yield the messages of an MBOX file; of equal ones the first.

    A message is named by its Message-ID, so that its name stays when the file grows or is sorted
    anew. Other messages of the same Message-ID, and those without one, are named by their bytes.
    Raises Unreadable: the file cannot be read.
    """
    try:
        with path.open("rb") as handle:
            if not handle.read(1):
                return
            with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield from message_parts(data)
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read ({error})") from None


def message_parts(data: mmap.mmap | bytes) -> Iterator[MessagePart]:
    """Yield the messages of the contents of an MBOX file, as `messages_of` does."""
    starts = list(_boundaries(data))
    if not starts or starts[0] > 0:
        starts.insert(0, 0)
    first_parts: dict[str, MessagePart] = {}
    digests: dict[str, bytes] = {}  # of those whose name is there again
    for start, stop in zip(starts, [*starts[1:], len(data)], strict=True):
        name = _message_id(data, start, stop)
        if name in first_parts or not name:
            digest = _digest(data, start, stop)
            if name and name not in digests:
                digests[name] = _digest(data, *first_parts[name][1:])
            if digests.get(name) == digest:
                continue
            name = f"{name}#{digest.hex()[:_HASH_DIGITS]}".lstrip("#")
        if name not in first_parts:
            first_parts[name] = MessagePart(name, start, stop)
            yield first_parts[name]


def _boundaries(data: mmap.mmap | bytes) -> Iterator[int]:
    """Where messages begin. The first lines are looked for as bytes: an expression takes minutes
    for gigabytes.
    """
    if _BOUNDARY.match(data):
        yield 0
    position = data.find(_FIRST_WORD)
    while position >= 0:
        start = position + 1
        if _BOUNDARY.match(data, start):
            yield start
        position = data.find(_FIRST_WORD, start)


def _message_id(data: mmap.mmap | bytes, start: int, stop: int) -> str:
    """The Message-ID of a message as a part of a path; "" without one."""
    head = _without_first_line(data[start : min(stop, start + _HEADER_BYTES)])
    written = _MESSAGE_ID.search(_END_OF_HEADERS.split(head, maxsplit=1)[0])
    return written[1].decode("utf-8", "replace").replace("/", "%2F") if written else ""


def _digest(data: mmap.mmap | bytes, start: int, stop: int) -> bytes:
    return hashlib.sha256(message_bytes(data[start:stop])).digest()


def _without_first_line(data: bytes) -> bytes:
    return data.partition(b"\n")[2] if data.startswith(b"From ") else data


def message_bytes(data: bytes) -> bytes:
    """Return a message of an MBOX file as it was sent, without the blank line behind it."""
    message = _without_first_line(data)
    if b">From " in message:
        message = _ESCAPED_FROM.sub(rb"\1", message)
    for end in (b"\r\n\r\n", b"\n\n"):
        if message.endswith(end):
            return message.removesuffix(end) + end[: len(end) // 2]
    return message


def emlx_bytes(data: bytes) -> tuple[bytes, int]:
    """Return the message of a file of Apple Mail, and how many of its bytes are missing: a line
    with its length stands above it, and settings below.
    """
    length, _, behind = data.partition(b"\n")
    if not length.strip().isdigit():
        raise Unreadable("not a mail of Apple Mail: its first line is not a length")
    size = int(length)
    return behind[:size], max(0, size - len(behind))


def is_maildir(names: set[str]) -> bool:
    """Return whether a folder with these subfolders is a Maildir."""
    return names.issuperset(_MAILDIR)


def maildir_messages(folder: Path, before: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of a Maildir and of its folders, each with its name.

    A name has neither the folder `new` or `cur` nor the flags behind the colon, which change when a
    mail is read. `before` stands in front of it. Folders of a Maildir are hidden folders in it.
    """
    for part in ("cur", "new"):
        inside = folder / part
        for path in sorted(inside.iterdir()) if inside.is_dir() else ():
            if path.is_file() and not path.name.startswith("."):
                yield path, before + re.split("[:;!]2,", path.name, maxsplit=1)[0]
    for subfolder in sorted(folder.glob(".*")):
        if (subfolder / "cur").is_dir():
            yield from maildir_messages(subfolder, f"{before}{subfolder.name.lstrip('.')}/")
