# ruff: noqa: RUF001
"""What a mail quotes of the mails that it answers, and its signature.

Programs mark a quotation in three ways: each line begins with ">"; a line such as "On Monday Ada
wrote:" stands above it; or the headers of the mail that is answered stand above it, and all below
is quoted.
"""

from __future__ import annotations

import re

MAIL_TYPES = frozenset({"mail", "outlook", "applemail"})  # of documents, their field `type`
_QUOTE_SIGN = re.compile(r"[ \t]*[>|＞]")
_WROTE = (  # in the languages that mail programs are used in
    *("wrote", "writes", "schrieb", "schreef", "a écrit", "escribió", "ha scritto", "scrisse"),
    *("escreveu", "skrev", "kirjoitti", r"napisał\(a\)", "napisała?", r"napsal\(a\)", "napsala?"),
    *("píše", "írta", "yazdı", "a scris", "έγραψε", r"писал\(а\)", "пишет", r"написал\(а\)"),
    *(
        "написала?",
        "добавив",
        "写道",
        "寫道",
        "のメッセージ",
        "書きました",
        "님이 작성",
        "كتب",
        "כתב",
    ),
)
_COLON = "[:：]"
_LEAD = re.compile(  # the verb stands near the end of the line, or a date behind it
    rf"^(?=[^\n]{{0,300}}[\d@])[^\n]{{0,300}}(?:{'|'.join(_WROTE)})[^\n]{{0,200}}{_COLON}[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_ORIGINAL_MESSAGE = (
    *("original message", "original appointment", "forwarded message", "ursprüngliche nachricht"),
    *("weitergeleitete nachricht", "message d'origine", "message transféré", "mensaje original"),
    *("messaggio originale", "mensagem original", "oorspronkelijk bericht"),
    *("ursprungligt meddelande", "oprindelig meddelelse", "opprinnelig melding"),
    *("wiadomość oryginalna", "Исходное сообщение", "原始邮件", "原始信件", "元のメッセージ"),
)
_ORIGINAL = re.compile(
    rf"^[ \t]*[-_—]{{3,}}[ \t]*(?:{'|'.join(_ORIGINAL_MESSAGE)})[ \t]*[-_—]*[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_FROM = "From|Von|De|Da|Van|Från|Fra|Od|От|发件人|差出人"
_HEADERS = re.compile(  # of Outlook, without a line above them
    rf"^\*?(?:{_FROM})\*?[ \t]*{_COLON}[^\n]+\n"
    rf"(?:\*?[^\W\d_][^\n:：]{{0,20}}\*?[ \t]*{_COLON}[^\n]*\n){{2,8}}",
    re.MULTILINE,
)
_HEAD_OF_MAIL = 1  # headers at the first character are those of the mail itself
_SIGNATURE = re.compile(r"^-- ?$", re.MULTILINE)  # RFC 3676, 4.3


def has_quotation(text: str) -> bool:
    """Return whether a text may hold a quotation of a mail, or a signature; a quick look."""
    patterns = (_SIGNATURE, _ORIGINAL, _LEAD)
    return (
        ">" in text
        or any(pattern.search(text) for pattern in patterns)
        or _HEADERS.search(text, _HEAD_OF_MAIL) is not None
    )


def quoted_spans(text: str) -> list[tuple[int, int]]:
    """Return the characters `[start, stop)` of a mail that are quoted or its signature, ascending,
    disjoint.

    Where lines are marked, those lines alone are: answers between them are the mail's own. Behind
    the line of a quotation without marks all is quoted.
    """
    spans: list[tuple[int, int]] = []
    position, marked = 0, False
    for line in text.splitlines(keepends=True):
        stop = position + len(line)
        if _QUOTE_SIGN.match(line) or (marked and not line.strip()):
            marked = True
            if spans and spans[-1][1] == position:
                spans[-1] = spans[-1][0], stop
            else:
                spans.append((position, stop))
        else:
            marked = False
        position = stop
    leads = [lead.span() for lead in _LEAD.finditer(text)]
    spans += leads
    if (rest := _start_of_rest(text, spans, leads)) is not None:
        spans.append((rest, len(text)))
    for signature in _SIGNATURE.finditer(text):
        behind = [start for start, _ in spans if start > signature.start()]
        spans.append((signature.start(), min(behind, default=len(text))))
    return _merged(spans)


def _start_of_rest(
    text: str, marked: list[tuple[int, int]], leads: list[tuple[int, int]]
) -> int | None:
    """Where a quotation without marks begins, which goes on to the end; None without one.

    `marked` are lines with marks and the lines that lead to quotations, `leads` these alone.
    """
    starts = [found.start() for found in _ORIGINAL.finditer(text)]
    starts += [found.start() for found in _HEADERS.finditer(text, _HEAD_OF_MAIL)]
    for lead, end in leads:
        behind = len(text) - len(text[end:].lstrip())
        if not any(start <= behind < stop for start, stop in marked):
            starts.append(lead)
    return min(starts, default=None)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged
