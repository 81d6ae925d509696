"""Messages that Slack and Teams export as JSON: who said what, and when."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import FileText, Parts, Unreadable, clean, one_line
from aveyb_retrieval.documents.readers.html import page_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aveyb_retrieval.documents.readers.file_limits import Limits

_SIGN = re.compile(rb'"ts"\s*:\s*"\d{9,11}\.\d|"createdDateTime"\s*:\s*"\d{4}-')
_REFERENCE = re.compile(r"<([@#!]?)([^<>|]*)(?:\|([^<>]*))?>")  # of Slack: users, channels, pages
_SECONDS = re.compile(r"\d{9,11}(?:\.\d{1,9})?")


def looks_like_chat(start: bytes) -> bool:
    """Return whether a file of JSON begins as messages of Slack or Teams do."""
    return _SIGN.search(start) is not None


class Message(NamedTuple):
    """One message: who sent it, when (ISO 8601, UTC; "" where that is not known), and its text."""

    sender: str
    date: str
    text: str


def read_chat(data: bytes, limits: Limits, users: Mapping[str, str], channel: str) -> FileText:
    """Read messages, each a paragraph below its sender and time.

    Args:
        data: JSON: a list of Slack's messages, or Teams' in a list, in "value" or "messages".
        limits: Of reading.
        users: Names of Slack's users by their ids.
        channel: What the messages are called.

    Raises:
        Unreadable: it holds something else.
    """
    try:
        content = json.loads(decode(data, limits.encoding))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON ({error})") from None
    messages = [message for message in _messages(content, users) if message.text.strip()]
    if not messages:
        raise Unreadable("holds no messages of Slack or Teams: index it by itself")
    parts = Parts("line", limits)
    for message in messages:
        when = message.date[:16].replace("T", " ")
        head = ", ".join(filter(None, (message.sender, when and f"{when} UTC")))
        parts.add(f"{head}: {message.text}" if head else message.text)
    dates = sorted(message.date for message in messages if message.date)
    senders = list(dict.fromkeys(message.sender for message in messages if message.sender))
    metadata: dict[str, Any] = {"channel": channel, "senders": senders}
    if dates:
        metadata |= {"date": dates[0], "last_date": dates[-1]}
    day = dates[0][:10] if dates else ""
    text = parts.text("").text
    return FileText(one_line(f"{channel} {day}"), text, metadata=metadata)


def read_users(data: bytes) -> dict[str, str]:
    """Return the names of Slack's users by their ids; none where that cannot be read."""
    try:
        users = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    rows = [user for user in users if isinstance(user, dict)] if isinstance(users, list) else []
    return {str(user["id"]): _name(user) for user in rows if "id" in user}


def _name(user: Mapping[str, Any]) -> str:
    profile = _object(user, "profile")
    names = (
        user.get("real_name"),
        profile.get("real_name"),
        profile.get("display_name"),
        user.get("name"),
        user.get("id"),
    )
    return next(one_line(name) for name in names if isinstance(name, str) and name.strip())


def _messages(content: Any, users: Mapping[str, str]) -> Iterator[Message]:
    if isinstance(content, dict):
        lists = [content.get("value"), content.get("messages")]
        content = next((rows for rows in lists if isinstance(rows, list)), [])
    for row in content if isinstance(content, list) else ():
        if not isinstance(row, dict):
            continue
        if _is_slack(row):
            yield _of_slack(row, users)
        elif "createdDateTime" in row and isinstance(row.get("body"), dict):
            yield _of_teams(row)
            for reply in row.get("replies") or ():
                if isinstance(reply, dict) and isinstance(reply.get("body"), dict):
                    yield _of_teams(reply)


def _is_slack(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("ts"), str) and _SECONDS.fullmatch(row["ts"]) is not None


def _of_slack(row: Mapping[str, Any], users: Mapping[str, str]) -> Message:
    profile = row.get("user_profile")
    names = (
        users.get(str(row.get("user"))),
        _name(profile) if isinstance(profile, dict) and profile.get("real_name") else None,
        row.get("username"),
        row.get("user"),
        row.get("bot_id"),
    )
    sender = next((str(name) for name in names if name), "")
    date = datetime.fromtimestamp(float(row["ts"]), UTC).isoformat(timespec="seconds")
    texts = [str(row.get("text") or "")]
    for attachment in _rows(row, "attachments"):
        texts += [
            str(attachment[key])
            for key in ("pretext", "title", "text", "fallback")
            if attachment.get(key) and not (key == "fallback" and attachment.get("text"))
        ]
    texts += [str(file.get("title") or file.get("name") or "") for file in _rows(row, "files")]
    lines = [html.unescape(_REFERENCE.sub(_named(users), text)) for text in texts if text.strip()]
    return Message(sender, date, clean("\n".join(lines)))


def _object(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _rows(row: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    rows = row.get(name)
    return [item for item in rows if isinstance(item, dict)] if isinstance(rows, list) else []


def _named(users: Mapping[str, str]) -> Any:
    def replace(match: re.Match[str]) -> str:
        sign, target, label = match.groups()
        if sign == "@":
            return f"@{label or users.get(target, target)}"
        if sign == "#":
            return f"#{label or target}"
        if sign == "!":
            return f"@{label or target}"
        return f"{label} ({target})" if label and label != target else target

    return replace


def _of_teams(row: Mapping[str, Any]) -> Message:
    sender = _object(row, "from")
    names = [
        who.get("displayName")
        for who in (sender.get(kind) for kind in ("user", "application", "device"))
        if isinstance(who, dict)
    ]
    body = row["body"]
    content = str(body.get("content") or "")
    is_page = str(body.get("contentType") or "html").lower() == "html"
    text = page_text(content)[1] if is_page else clean(content)
    subject = row.get("subject")
    files = [str(file.get("name") or "") for file in _rows(row, "attachments")]
    parts = [subject if isinstance(subject, str) else "", text.strip(), *files]
    name = next((one_line(name) for name in names if isinstance(name, str)), "")
    return Message(name, _instant(row.get("createdDateTime")), "\n".join(filter(None, parts)))


def _instant(written: Any) -> str:
    try:
        instant = datetime.fromisoformat(str(written))
    except ValueError:
        return ""
    zoned = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return zoned.astimezone(UTC).isoformat(timespec="seconds")
