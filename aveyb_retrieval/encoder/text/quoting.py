# ruff: noqa: RUF001
"""What a mail repeats: quotations of other mails, signatures and disclaimers.

Mail programs mark a quotation in three ways: each line begins with ">"; a line such as "On Monday
Ada wrote:" (the lead) stands above it; or the headers of the quoted mail stand above it, and all
below is quoted. The libraries that know such lines, mail-parser-reply and quotequail, return texts
without their places in the mail, which passages and citations need.

A mail is cut into passages where it begins to repeat (`repeat_starts`). What stands behind a
quotation stays with it: an answer needs its question.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    BoolArray = npt.NDArray[np.bool_]
    IntArray = npt.NDArray[np.int64]

Span = tuple[int, int]  # characters [start, stop)

_HEAD = re.compile(r"(?:(?:From|To|Cc|Date): [^\n]*\n)+")  # as mails are read
_MARKS = re.compile(r"(?:[ \t]{0,3}(?:[>＞]|\|(?![^\n|]*\|)))+[ \t]?")
_LONGEST_LINE = 400  # characters of a lead
_LONGEST_MAIL = 1 << 20  # characters that are looked at: what is longer, no person has written
_WROTE = re.compile(  # in the languages of mail programs
    r"\b(?:wrote|writes|schrieb|schreef|a écrit|escribió|escribiu|va escriure|ha scritto|scrisse|"
    r"escreveu|skrev|skrifaði|kirjoitti|kirjutas|napisał(?:\(a\)|a)?|napsal(?:\(a\)|a)?|"
    r"napísal(?:\(a\)|a)?|napisa[ol](?:/la|\(la\)|la|/a|a)?|píše|írta|yazdı|şunu yazdı|a scris|"
    r"rašė|rakstīja|đã viết|menulis|έγραψε|писала?|писал\(а\)|пишет|написала?|написал\(а\)|"
    r"написа|пише|كتبت?|נכתב|כתבה?|כתב/ה|نوشت)\b"
    r"|написал\(а\)|добавив|写道|寫道|のメール|のメッセージ|書きました|작성|เขียน|ने लिखा",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"(?<![^\s<>@])[^\s<>@]+@[^\s<>@]+")
_NAMED_ADDRESS = re.compile(r"<[^\s<>@]+@[^\s<>@]+>")
_TIME = re.compile(r"\d{1,2} ?[:.h時点시] ?\d{2}|\d{1,2} ?時")
_YEAR = re.compile(r"(?:19|20)\d\d|\d{1,2}[./-]\d{1,2}[./-]\d{2}")
_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[^\W_]")
_FORWARDED = (
    *("original message", "original appointment", "forwarded message", "ursprüngliche nachricht"),
    *("weitergeleitete nachricht", "message d'origine", "message transféré", "mensaje original"),
    *("messaggio originale", "mensagem original", "oorspronkelijk bericht"),
    *("ursprungligt meddelande", "oprindelig meddelelse", "opprinnelig melding"),
    *("wiadomość oryginalna", "исходное сообщение", "原始邮件", "原始信件", "元のメッセージ"),
)
_RULED = re.compile(r"[-_—=*]{2,}+(?P<words>[^\n]*[^\W_])[^\n]*\Z")
_BEGIN_FORWARDED = re.compile(
    r"(?:begin forwarded message|anfang der weitergeleiteten nachricht|"
    r"début du message (?:réexpédié|transféré)|inizio messaggio inoltrato|"
    r"inicio del mensaje reenviado|início da mensagem (?:re)?encaminhada|"
    r"begin doorgestuurd bericht|vidarebefordrat brev|开始转发的邮件|転送されたメッセージ)"
    r"[ \t]*[:：]",
    re.IGNORECASE,
)
_FROM = re.compile(
    r"\*{0,2}(?:From|Von|Absender|De|De la|Expéditeur|Remitente|Remetente|Da|Mittente|Van|Afzender|"
    r"Från|Avsändare|Fra|Afsender|Lähettäjä|Od|Nadawca|Odesílatel|Odosielateľ|Pošiljatelj|Feladó|"
    r"Kimden|Gönderen|Expeditor|Από|Αποστολέας|От|Отправитель|Від|Відправник|Подател|Từ|Dari|จาก|"
    r"מאת|من|از|发件人|寄件者|寄件人|差出人|送信者|보낸 ?사람)\*{0,2}[ \t]*[:：]\*{0,2}[ \t]*[^\s]"
)
_HEADER = re.compile(r"\*{0,2}[^\W\d_][^\n:：@]{0,20}[ \t]*[:：]\*{0,2}(?:[ \t]|\Z)")
_HEADERS = 3  # of a quoted mail, at least
_RULE = re.compile(r"(?:_{5,}|-{5,}|={5,}|\*{5,})[ \t]*\Z")
_SIGNATURE = re.compile(r"--[ \t]?\Z")  # RFC 3676, 4.3
_SENT_FROM = re.compile(
    r"(?:sent from my|sent from (?:outlook|yahoo|mail) |get outlook for|"
    r"von meinem .{2,30} gesendet|gesendet von m|gesendet mit der|"
    r"envoyé de(?:puis)? m|enviado desde mi|enviado do meu|"
    r"inviato da|verzonden vanaf|skickat från min|sendt fra min|lähetetty |wysłane z|"
    r"odesláno z|отправлено с|发自我的|.{0,20}から送信)",
    re.IGNORECASE,
)
_DISCLAIMERS = tuple(
    re.compile(words, re.IGNORECASE)
    for words in (
        r"confiden|vertraulich|riservat|vertrouwelijk|konfident|fortrolig|poufn|конфиденц|"
        r"důvěrn|luottamuksel|privileged|機密|机密|保密",
        r"recipient|addressee|empfänger|adressat|destinat|ontvanger|geadresseerde|mottag|"
        r"modtager|получател|adresat|příjemc|vastaanottaj|受信者|宛先|收件人",
        r"in error|by mistake|irrtümlich|versehentlich|par erreur|por error|per errore|por engano|"
        r"onterecht|abusievelijk|misstag|ved en fejl|omyłk|ошибк|omylem|erehdyksessä|誤って|误收",
        r"delete|destroy|lösch|vernicht|supprimer|détrui|elimin|borr(?:ar|e)|cancell|distrugg|"
        r"apag|verwijder|vernietig|radera|slet|usun|удал|smaž|poist|削除|删除",
    )
)
_DISCLAIMING = 3  # of these four, in one paragraph
_LEAST_DISCLAIMER = 60  # characters
_LONGEST_SIGNATURE = 2000  # characters below a rule
_MOST_SIGNATURE_LINES = 60  # below a rule, with empty ones


class _Line(NamedTuple):
    """A line of a mail: its characters, how deeply it is quoted, and what stands behind the
    marks.
    """

    start: int
    stop: int
    level: int
    words: str


_SIGN = re.compile(
    rf"^[ \t]{{0,3}}[>＞|]|^--[ \t]?$|^[-_—=*]{{2}}[^\n]*\w"
    rf"|(?<![-_—=*])[-_—=*]{{5,}}+[ \t]*$|^{_FROM.pattern}",
    re.MULTILINE,
)
_COLON_AT_END = re.compile(r"[:：]\]?[ \t]*$", re.MULTILINE)


def may_repeat(text: str) -> bool:
    """Return whether a part of a mail may hold headers, a quotation, a signature or a disclaimer; a
    quick look.
    """
    if _SIGN.search(text) or _SENT_FROM.search(text):
        return True
    if _COLON_AT_END.search(text) and (_WROTE.search(text) or _NAMED_ADDRESS.search(text)):
        return True
    return _is_disclaimer(text)


def is_mail(text: str) -> bool:
    """Return whether a text begins with the headers of a mail, as mails are read."""
    return _HEAD.match(text) is not None


def repeated_spans(text: str) -> list[Span]:
    """Return what a mail repeats: quotations, signatures, disclaimers; ascending, disjoint.

    Where lines are marked, those lines alone are quoted: answers between them are the mail's own.
    Behind the lead or the headers of a quotation without marks, all is quoted.
    """
    return _Mail(text).spans()


def headers_and_repeated_spans(text: str) -> list[Span]:
    """Return these, and the headers that a mail begins with, which say nothing of its matter."""
    head = _HEAD.match(text)
    return [*([head.span()] if head else []), *repeated_spans(text)]


def repeated_passages(text: str, spans: IntArray) -> BoolArray:
    """Return which passages `[n]` of a mail, characters `[n, 2]`, say nothing but what it repeats;
    none of a text that is no mail.
    """
    if not is_mail(text):
        return np.zeros(len(spans), np.bool_)
    places = repeated_spans(text)
    return np.array([_is_within(text, places, span) for span in spans.tolist()], np.bool_)


def _is_within(text: str, places: list[Span], passage: Span) -> bool:
    """Whether a passage has no word outside of some places, ascending."""
    position, stop = passage
    first = bisect_right(places, position, key=itemgetter(1))
    for start, end in places[first:]:
        if start >= stop:
            break
        if _WORD.search(text, position, max(start, position)):
            return False
        position = max(position, end)
    return not _WORD.search(text, position, max(stop, position))


def repeat_starts(text: str) -> list[int]:
    """Return the characters at which a mail begins to repeat, and those at which a quotation in a
    quotation begins; none of a text that is no mail.
    """
    return _Mail(text).starts() if is_mail(text) else []


class _Mail:
    """A mail, line by line."""

    def __init__(self, text: str) -> None:
        head = _HEAD.match(text)
        self._lines = _lines(text[:_LONGEST_MAIL], head.end() if head else 0)
        self._filled, self._shallower = _links(self._lines)
        self._places: set[int] = set()  # at which quotations begin
        self._repeated: list[Span] = []  # lines [start, stop) of quotations and endings
        self._find_quotations()
        self._find_endings()

    def spans(self) -> list[Span]:
        spans: list[Span] = []
        for line, is_repeated in zip(self._lines, self._is_repeated, strict=True):
            if not is_repeated:
                continue
            if spans and spans[-1][1] == line.start:
                spans[-1] = spans[-1][0], line.stop
            else:
                spans.append((line.start, line.stop))
        return spans

    def starts(self) -> list[int]:
        places = sorted({*(start for start, _ in self.spans()), *self._places})
        first = self._lines[0].start if self._lines else 0
        own = next((line.start for line in self._own_lines() if line.words), None)
        # the headers alone are no passage
        return [start for start in places if start > first and own is not None and start > own]

    @cached_property
    def _is_repeated(self) -> list[bool]:
        """Whether each line is repeated; an empty one is where the line above it is."""
        changes = [0] * (len(self._lines) + 1)
        for start, stop in self._repeated:
            changes[start] += 1
            changes[stop] -= 1
        is_repeated = [
            line.level > 0 or depth > 0
            for line, depth in zip(self._lines, accumulate(changes[:-1]), strict=True)
        ]
        for number, line in enumerate(self._lines[1:], start=1):
            if not line.words:
                is_repeated[number] = is_repeated[number - 1]
        return is_repeated

    def _own_lines(self) -> Iterator[_Line]:
        return (
            line
            for line, is_repeated in zip(self._lines, self._is_repeated, strict=True)
            if not is_repeated
        )

    def _find_quotations(self) -> None:
        """Mark leads, and what stands below quotations that have no marks."""
        number = 0
        while number < len(self._lines):
            above, below, is_sure = self._quotation(number)
            if below == number:
                number += 1
                continue
            first, level = self._lines[above], self._lines[above].level
            is_marked = self._level_below(below) > level
            if not is_marked and not is_sure:
                number += 1
                continue
            self._places.add(first.start)
            stop = below if is_marked else self._end_of_quotation(below, level)
            self._repeated.append((above, stop))
            number = below

    def _end_of_quotation(self, number: int, level: int) -> int:
        """The next line that is not empty, from a line on, and is quoted less deeply than `level`;
        the number of lines where none is.
        """
        number = self._filled[number]
        while number < len(self._lines) and self._lines[number].level >= level:
            number = self._shallower[number]
        return number

    def _level_below(self, number: int) -> int:
        """How deeply the next line that is not empty is quoted."""
        filled = self._filled[number]
        return self._lines[filled].level if filled < len(self._lines) else 0

    def _quotation(self, number: int) -> tuple[int, int, bool]:
        """The lines `[above, below)` that lead to a quotation and begin, or end, at a line, and
        whether that is sure without marks below; none where `below` is `number`.
        """
        words = self._lines[number].words
        if words.endswith((":", "：", ":]")):
            above, is_sure = self._lead(number)
            if above <= number:
                return above, number + 1, is_sure
        ruled = _RULED.match(words)
        if ruled:
            title = ruled["words"].lower()
            count = self._header_count(number + 1)
            if count or any(words in title for words in _FORWARDED):
                return number, number + 1 + count, True
        if _FROM.match(words) and (count := self._header_count(number)) >= _HEADERS:
            above = number
            if number and _RULE.match(self._lines[number - 1].words):
                above = number - 1
            return above, number + count, True
        return number, number, False

    def _lead(self, number: int) -> tuple[int, bool]:
        """The first line of the lead that ends at a line, and whether it is sure without marks
        below; behind `number` where there is none.
        """
        last = self._lines[number]
        if _BEGIN_FORWARDED.match(last.words):
            return number, True
        words, first = last.words, number
        for above in range(number, max(number - 3, -1), -1):
            line = self._lines[above]
            if above < number:
                if not line.words or line.level != last.level or line.words.endswith((":", ".")):
                    break
                words = f"{line.words} {words}"
            if len(words) > _LONGEST_LINE:
                break
            if _is_lead(words):
                first = above
                if _has_date(words):
                    return first, True
        is_sure = _ADDRESS.search(last.words) is not None
        return (first, is_sure) if _is_lead(last.words) else (number + 1, False)

    def _header_count(self, number: int) -> int:
        """How many lines are headers from a line on, with those that go on with one."""
        if number >= len(self._lines):
            return 0
        count, level = 0, self._lines[number].level
        for line in self._lines[number : number + 20]:
            if line.level != level or not line.words:
                break
            if not _HEADER.match(line.words) and (not count or line.words.endswith((".", "!"))):
                break
            count += 1
        headers = sum(
            _HEADER.match(line.words) is not None for line in self._lines[number : number + count]
        )
        return count if headers * 2 > count else 0

    def _find_endings(self) -> None:
        """Mark signatures and disclaimers, in quotations too, where they are parts of their own."""
        number = 0
        while number < len(self._lines):
            stop = self._ending(number)
            if stop > number:
                self._places.add(self._lines[number].start)
                self._repeated.append((number, stop))
            number = max(stop, number + 1)

    def _ending(self, number: int) -> int:
        """The line behind the signature or disclaimer that begins at a line; `number` where none
        does.
        """
        line = self._lines[number]
        if _SENT_FROM.match(line.words):
            return number + 1
        begins = number == 0 or not self._lines[number - 1].words
        if begins and line.words:
            stop = self._end_of_paragraph(number)
            if _is_disclaimer(" ".join(part.words for part in self._lines[number:stop])):
                return stop
        if _SIGNATURE.match(line.words):
            return self._end_of_signature(number, len(self._lines))
        if _RULE.match(line.words):
            longest = number + 1 + _MOST_SIGNATURE_LINES
            stop = self._end_of_signature(number, longest + 1)
            return stop if stop <= longest and self._is_contact(number + 1, stop) else number
        return number

    def _is_contact(self, start: int, stop: int) -> bool:
        """Whether lines are few words, with an address."""
        lines = self._lines[start:stop]
        if sum(len(line.words) for line in lines) > _LONGEST_SIGNATURE:
            return False
        return any(_ADDRESS.search(line.words) for line in lines)

    def _end_of_signature(self, number: int, most: int) -> int:
        """The line behind the signature whose first line is `number`, at most `most`."""
        stop = number + 1
        while stop < min(most, len(self._lines)) and not self._ends_signature(stop, number):
            stop += 1
        return stop

    def _ends_signature(self, number: int, first: int) -> bool:
        """Whether a signature ends in front of a line: a quotation begins, or its own ends."""
        line, level = self._lines[number], self._lines[first].level
        if line.level != level:
            return bool(line.words) or line.level > level
        return not level and line.start in self._places

    def _end_of_paragraph(self, number: int) -> int:
        level = self._lines[number].level
        stop = number
        while stop < len(self._lines) and self._lines[stop].words:
            if self._lines[stop].level != level:
                break
            stop += 1
        return stop


def _lines(text: str, start: int) -> list[_Line]:
    lines = []
    for written in text[start:].splitlines(keepends=True):
        marks = _MARKS.match(written)
        level = sum(marks[0].count(sign) for sign in ">＞|") if marks else 0
        words = written[marks.end() if marks else 0 :].strip()
        lines.append(_Line(start, start + len(written), level, words))
        start += len(written)
    return lines


def _links(lines: list[_Line]) -> tuple[list[int], list[int]]:
    """For each line the next one that is not empty, which may be itself; and for each that is not
    empty, the next such line that is quoted less deeply. The number of lines where there is none.

    With them, no walk begins anew for each of many quotations.
    """
    count = len(lines)
    filled, shallower = [count] * (count + 1), [count] * count
    for number in range(count - 1, -1, -1):
        line = lines[number]
        if not line.words:
            filled[number] = filled[number + 1]
            continue
        filled[number] = number
        below = filled[number + 1]
        while below < count and lines[below].level >= line.level:
            below = shallower[below]
        shallower[number] = below
    return filled, shallower


def _is_lead(words: str) -> bool:
    """Whether a line, or several, say who wrote what stands below."""
    if len(words) > _LONGEST_LINE:
        return False
    if _WROTE.search(words):
        return True
    return _NAMED_ADDRESS.search(words) is not None and _TIME.search(words) is not None


def _has_date(words: str) -> bool:
    """Whether a lead says when, so that it needs no marks below."""
    if _TIME.search(words):
        return True
    return _YEAR.search(words) is not None and len(_NUMBER.findall(words)) > 1


def _is_disclaimer(paragraph: str) -> bool:
    if len(paragraph) < _LEAST_DISCLAIMER:
        return False
    return sum(words.search(paragraph) is not None for words in _DISCLAIMERS) >= _DISCLAIMING
