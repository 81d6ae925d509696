# ruff: noqa: RUF001
"""Subjects of mails: what mail programs write in front of them, in many languages."""

from __future__ import annotations

import re

_COUNT = r"(?:\s?[\[(^]?\d{1,3}[\])]?)?"  # how often it was answered, as some programs write
_ANSWERS = (
    r"re|aw|antw|antwort|sv|vs|svar|ref|rif|r|res|odp|vá|ynt|cevap|ha|απ|σχετ|отв|ответ|תשובה|رد|"
    r"回复|答复|回覆|返信|답장|회신"
)
_FORWARDS = (
    r"fwd?|fw|wg|tr|rv|enc|vb|vl|pd|i|doorst|továbbítás|ilt|i̇lt|πρθ|пересл|הועבר|"
    r"转发|轉寄|転送|전달"
)
_ANSWER = re.compile(rf"\s{{0,2}}(?:{_ANSWERS}){_COUNT}\s{{0,2}}[:：]", re.IGNORECASE)
_FORWARD = re.compile(rf"\s{{0,2}}(?:{_FORWARDS}){_COUNT}\s{{0,2}}[:：]", re.IGNORECASE)
_LIST = re.compile(r"\s{0,2}\[[^\[\]\n]{1,60}\]")  # a mailing list's name


def is_answer(subject: str) -> bool:
    """Return whether a subject says that its mail answers or forwards another one."""
    subject = subject[_start(subject, _LIST) :]
    return bool(_ANSWER.match(subject) or _FORWARD.match(subject))


def is_forward(subject: str) -> bool:
    """Return whether a subject says that its mail forwards another one."""
    return _FORWARD.match(subject) is not None


def bare_subject(subject: str) -> str:
    """Return a subject without what mail programs write in front of it, in small letters."""
    position, start = -1, 0
    while start > position:
        position = start
        start = _start(subject, _ANSWER, _FORWARD, _LIST, position=position)
    return " ".join(subject[position:].casefold().split())


def _start(subject: str, *prefixes: re.Pattern[str], position: int = 0) -> int:
    """Where a subject goes on behind the first prefix that it has; `position` without one."""
    matches = (prefix.match(subject, position) for prefix in prefixes)
    return next((match.end() for match in matches if match), position)
