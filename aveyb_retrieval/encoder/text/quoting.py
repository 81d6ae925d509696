# ruff: noqa: RUF001
"""What a mail repeats: quotations of other mails, signatures and disclaimers.

Mail programs mark a quotation in three ways: each line begins with ">"; a line such as "On Monday
Ada wrote:" (the lead) stands above it; or the headers of the quoted mail stand above it, and all
below is quoted. The libraries that know such lines, mail-parser-reply and quotequail, return texts
without their places in the mail, which passages and citations need.

A mail is cut into passages where it begins to repeat (`repeat_starts`). What stands behind a
quotation stays with it: an answer needs its question.

What is attached stands behind the mail, each file below a heading with its name. It repeats
nothing, unless it is a mail, which may.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from enum import IntEnum
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from aveyb_retrieval.encoder.text.subjects import is_forward

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    IntArray = npt.NDArray[np.int64]

Span = tuple[int, int]  # characters [start, stop)

_HEAD = re.compile(r"(?:(?:From|To|Cc|Date): [^\n]*\n)+")  # as mails are read
_ATTACHED = re.compile(  # the heading of an attachment
    r"(?<=\n\n)# (?:[^\n]{1,300}\.[A-Za-z0-9]{1,8}|without a name \([^\n()]{1,100}\))\n\n"
)
_MARKS = re.compile(r"(?:[ \t]{0,3}(?:[>＞]|\|(?![^\n|]*\|)))+[ \t]?")
_MAX_LEAD_CHARACTERS = 400  # characters of a lead
_MAX_MAIL_CHARACTERS = (
    1 << 20
)  # characters that are looked at: what is longer, no person has written
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
_WORDS = re.compile(r"[^\W_]+")
_WORDS_COMPARED = 4  # in a row, of two mails
_LONGEST_COMPARED = 20_000  # characters of a mail
_ANSWERED = (  # words of a rule above a mail that is answered
    *("original message", "original appointment", "ursprüngliche nachricht", "message d'origine"),
    *("mensaje original", "messaggio originale", "mensagem original", "oorspronkelijk bericht"),
    *("ursprungligt meddelande", "oprindelig meddelelse", "opprinnelig melding"),
    *("wiadomość oryginalna", "исходное сообщение", "原始邮件", "原始信件", "元のメッセージ"),
)
_FORWARDED = (  # and above one that is forwarded
    *("forwarded message", "forwarded by", "weitergeleitete nachricht", "weitergeleitet von"),
    *("message transféré", "mensaje reenviado", "messaggio inoltrato", "mensagem encaminhada"),
    *("doorgestuurd bericht", "vidarebefordrat", "videresendt", "przekazana wiadomość"),
    *("пересылаемое сообщение", "пересланное сообщение", "转发的邮件", "転送されたメッセージ"),
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
_MIN_HEADER_LINES = 3  # of a quoted mail, at least
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
_MIN_DISCLAIMER_SIGNS = 3  # of these four, in one paragraph
_MIN_DISCLAIMER_CHARACTERS = 60  # characters
_MAX_SIGNATURE_CHARACTERS = 2000  # characters below a rule, or a name
_LONGEST_NAME = 60  # characters of a line
_SIGNATURE_LINES = 2  # at least, below a name and without an address or a number
_CONTACT = re.compile(r"(?<![^\s<>@])[^\s<>@]+@[^\s<>@]|\d(?:[ ()/.-]{0,3}\d){5}|www\.|https?://")
_POSTSCRIPT = re.compile(r"P\.? ?S\b|N\.? ?B\b|ps:", re.IGNORECASE)
_SENDER = re.compile(r"^From: (?P<name>[^\n<]*)(?:<(?P<address>[^\s@>]*))?", re.MULTILINE)
_LETTERS = re.compile(r"[^\W\d_]+")
_PACKED = re.compile(r"# (?:winmail\.dat|[^\n]*\.tnef)\n", re.IGNORECASE)
_MOST_SIGNATURE_LINES = 60  # below a rule, with empty ones


class Repetition(IntEnum):
    """What a part of a mail is to it: the least repeated first."""

    OWN = 0
    FORWARDED = 1  # passed on, from another mail
    QUOTED = 2
    SIGNED = 3  # a signature or a disclaimer, as other mails of the sender may have it


_Piece = tuple[int, int, Repetition]  # characters [start, stop), and how they are repeated


class _Line(NamedTuple):
    """A line of a mail: its characters, how deeply it is quoted, and what stands behind the
    marks.
    """

    start: int
    stop: int
    level: int
    words: str


class _Quotation(NamedTuple):
    """A quotation of the lines `[start, stop)`: how deeply they are marked, at least, and whether
    the mail is forwarded.
    """

    start: int
    stop: int
    level: int
    is_forward: bool


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
    spans: list[Span] = []
    for start, stop, _ in _pieces(text):
        if spans and spans[-1][1] == start:
            spans[-1] = spans[-1][0], stop
        else:
            spans.append((start, stop))
    return spans


def headers_and_repeated_spans(text: str) -> list[Span]:
    """Return these, and the headers that a mail begins with, which say nothing of its matter."""
    head = _HEAD.match(text)
    return [*([head.span()] if head else []), *repeated_spans(text)]


def repetitions(title: str, text: str, spans: IntArray) -> IntArray:
    """Return what passages `[n]` of a mail, characters `[n, 2]`, are to it (`Repetition`); all of a
    text that is no mail are its own.
    """
    if not is_mail(text):
        return np.full(len(spans), Repetition.OWN, np.int64)
    pieces = _pieces(text, is_forwarding=is_forward(title))
    return np.array([_repetition(text, pieces, span) for span in spans.tolist()], np.int64)


def _repetition(text: str, pieces: list[_Piece], passage: Span) -> Repetition:
    """What a passage is: the least of its words' repetitions."""
    position, stop = passage
    least = Repetition.SIGNED
    for start, end, repetition in pieces[bisect_right(pieces, position, key=itemgetter(1)) :]:
        if start >= stop:
            break
        if _WORD.search(text, position, max(start, position)):
            return Repetition.OWN
        position = max(position, start)
        if _WORD.search(text, position, min(end, stop)):
            least = min(least, repetition)
        position = end
    if _WORD.search(text, position, max(stop, position)):
        return Repetition.OWN
    return least


WordRuns: TypeAlias = "set[tuple[str, ...]]"


def said_runs(mail: str) -> WordRuns:
    """Return the runs of words that a mail says itself."""
    return _word_runs(_own_text(mail))


def quoted_runs(mail: str) -> WordRuns:
    """Return the runs of words that a mail repeats."""
    return _word_runs(" ".join(mail[start:stop] for start, stop in repeated_spans(mail)))


def are_quoted(said: WordRuns, quoted: WordRuns) -> bool:
    """Return whether at least half of what an earlier mail says is among what a mail repeats."""
    return bool(said) and 2 * len(said & quoted) >= len(said)


def _own_text(mail: str) -> str:
    """What a mail says itself, without its headers and attachments."""
    attached = _ATTACHED.search(mail)
    mail = mail[: attached.start()] if attached else mail
    position, parts = 0, []
    for start, stop in headers_and_repeated_spans(mail):
        parts.append(mail[position:start])
        position = stop
    return " ".join([*parts, mail[position:]])


def _word_runs(text: str) -> WordRuns:
    """Runs of some words each, or the only one of a shorter text; none of one without words."""
    words = _WORDS.findall(text[:_LONGEST_COMPARED].casefold())
    if not words:
        return set()
    size = min(_WORDS_COMPARED, len(words))
    return {tuple(words[n : n + size]) for n in range(len(words) - size + 1)}


def repeat_starts(text: str) -> list[int]:
    """Return the characters at which a mail begins to repeat, and those at which a quotation in a
    quotation, or behind a repetition an attachment or a postscript begins; none of a text that is
    no mail.
    """
    if not is_mail(text):
        return []
    starts: list[int] = []
    is_behind = False
    for mail, start in _mails(text):
        if is_behind:
            starts.append(start)
        if mail is not None:
            starts += mail.starts()
        is_behind = mail is not None and mail.ends_repeating
    return starts


def _pieces(text: str, *, is_forwarding: bool = False) -> list[_Piece]:
    """The parts of a mail that it repeats, ascending, and how."""
    return [
        piece
        for mail, _ in _mails(text, is_forwarding=is_forwarding)
        if mail is not None
        for piece in mail.pieces()
    ]


def _mails(text: str, *, is_forwarding: bool = False) -> Iterator[tuple[_Mail | None, int]]:
    """A mail and each file that is attached to it, with its first character; None of a file that
    is no mail.
    """
    headings = list(_ATTACHED.finditer(text))
    stops = [*(heading.start() for heading in headings), len(text)]
    yield _Mail(text, 0, stops[0], is_forwarding=is_forwarding), 0
    for heading, stop in zip(headings, stops[1:], strict=True):
        begins_mail = _PACKED.match(heading[0]) or _HEAD.match(text, heading.end())
        mail = _Mail(text, heading.end(), stop) if begins_mail else None
        yield mail, heading.start()


class _Mail:
    """A mail in the characters `[start, stop)` of a text, line by line."""

    def __init__(self, text: str, start: int, stop: int, *, is_forwarding: bool = False) -> None:
        head = _HEAD.match(text, start, stop)
        self._is_forwarding = is_forwarding
        self._names = _sender_words(head[0]) if head else frozenset()
        self._lines = _lines(text[: min(stop, _MAX_MAIL_CHARACTERS)], head.end() if head else start)
        self._filled, self._shallower = _links(self._lines)
        self._places: set[int] = set()  # at which quotations begin
        self._repetitions = self._repetitions_by(self._quotations())
        self._find_endings()
        self._find_signature()
        self._fill_gaps()

    def pieces(self) -> list[_Piece]:
        """What is repeated, ascending, and how."""
        pieces: list[_Piece] = []
        for line, repetition in zip(self._lines, self._repetitions, strict=True):
            if repetition == Repetition.OWN:
                continue
            if pieces and pieces[-1][1:] == (line.start, repetition):
                pieces[-1] = pieces[-1][0], line.stop, repetition
            else:
                pieces.append((line.start, line.stop, repetition))
        return pieces

    def starts(self) -> list[int]:
        places = sorted({*self._first_places(), *self._places})
        first = self._lines[0].start if self._lines else 0
        own = next((line.start for line in self._own_lines() if line.words), None)
        # the headers alone are no passage
        return [start for start in places if start > first and own is not None and start > own]

    @property
    def ends_repeating(self) -> bool:
        """Whether its last words are repeated."""
        return bool(self._repetitions) and self._repetitions[-1] != Repetition.OWN

    def _first_places(self) -> Iterator[int]:
        """Where repetitions begin behind what is the mail's own."""
        was_own = True
        for line, repetition in zip(self._lines, self._repetitions, strict=True):
            is_own = repetition == Repetition.OWN
            if was_own and not is_own:
                yield line.start
            was_own = is_own

    def _own_lines(self) -> Iterator[_Line]:
        return (
            line
            for line, repetition in zip(self._lines, self._repetitions, strict=True)
            if repetition == Repetition.OWN
        )

    def _quotations(self) -> list[_Quotation]:
        """The leads, with what stands below those of quotations without marks; later ones may be in
        earlier ones.
        """
        quotations: list[_Quotation] = []
        number = 0
        while number < len(self._lines):
            above, below, is_sure = self._quotation(number)
            if below == number:
                number += 1
                continue
            level = self._lines[above].level
            inner = max(self._level_below(below), level)
            is_marked = inner > level
            if not is_marked and not is_sure:
                number += 1
                continue
            is_forwarded = self._forwards(number, is_first=not quotations)
            stop = below
            if not is_marked or is_forwarded:
                stop = self._end_of_quotation(below, inner)
            self._places.add(self._lines[above].start)
            quotations.append(_Quotation(above, stop, inner, is_forwarded))
            number = below
        return quotations

    def _forwards(self, number: int, *, is_first: bool) -> bool:
        """Whether a line leads to a mail that is forwarded, rather than answered."""
        if self._is_forwarding and is_first:
            return True
        words = self._lines[number].words
        if _BEGIN_FORWARDED.match(words):
            return True
        ruled = _RULED.match(words)
        return ruled is not None and _has_words(ruled["words"], _FORWARDED)

    def _repetitions_by(self, quotations: list[_Quotation]) -> list[Repetition]:
        """What each line is to the mail, by the innermost quotation that it is in."""
        repetitions: list[Repetition] = []
        waiting, opened = quotations[::-1], list[_Quotation]()
        for number, line in enumerate(self._lines):
            while waiting and waiting[-1].start <= number:
                opened.append(waiting.pop())
            while opened and opened[-1].stop <= number:
                opened.pop()
            repetition = Repetition.QUOTED if line.level else Repetition.OWN
            if opened:
                is_forwarded = opened[-1].is_forward and line.level <= opened[-1].level
                repetition = Repetition.FORWARDED if is_forwarded else Repetition.QUOTED
            repetitions.append(repetition)
        return repetitions

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
                is_forwarded = _BEGIN_FORWARDED.match(words) is not None
                return above, self._below_headers(number) if is_forwarded else number + 1, is_sure
        ruled = _RULED.match(words)
        if ruled and (
            self._header_count(number + 1) or _has_words(ruled["words"], _ANSWERED + _FORWARDED)
        ):
            return number, self._below_headers(number), True
        if _FROM.match(words) and (count := self._header_count(number)) >= _MIN_HEADER_LINES:
            above = number
            if number and _RULE.match(self._lines[number - 1].words):
                above = number - 1
            return above, number + count, True
        return number, number, False

    def _below_headers(self, number: int) -> int:
        """The line below a lead and the headers that follow it, maybe behind empty lines."""
        first = self._filled[number + 1]
        if first < len(self._lines) and _FROM.match(self._lines[first].words):
            return first + self._header_count(first)
        return number + 1 + self._header_count(number + 1)

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
            if len(words) > _MAX_LEAD_CHARACTERS:
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
                self._sign(number, stop)
            number = max(stop, number + 1)

    def _find_signature(self) -> None:
        """Mark the signature that begins with the sender's name and goes on with where to reach
        them, up to a postscript.
        """
        number = next((n for n in range(1, len(self._lines)) if self._is_name(n)), None)
        if number is None:
            return
        stop = number + 1
        while stop < len(self._lines) and self._repetitions[stop] == Repetition.OWN:
            if _POSTSCRIPT.match(self._lines[stop].words):
                break
            stop += 1
        below = [line.words for line in self._lines[number + 1 : stop] if line.words]
        is_contact = any(_CONTACT.search(words) for words in below)
        is_longer = sum(map(len, below)) > _MAX_SIGNATURE_CHARACTERS
        if is_longer or (len(below) < _SIGNATURE_LINES and not is_contact):
            return
        self._sign(number, stop)
        if stop < len(self._lines) and self._repetitions[stop] == Repetition.OWN:
            self._places.add(self._lines[stop].start)

    def _is_name(self, number: int) -> bool:
        """Whether a line of the mail itself is the sender's name alone."""
        line = self._lines[number]
        if self._repetitions[number] != Repetition.OWN or len(line.words) > _LONGEST_NAME:
            return False
        words = _words_of(line.words)
        return bool(words) and words <= self._names

    def _sign(self, number: int, stop: int) -> None:
        """Let lines be a signature or a disclaimer; one in a quotation is quoted."""
        self._places.add(self._lines[number].start)
        for n in range(number, stop):
            if self._repetitions[n] == Repetition.OWN:
                self._repetitions[n] = Repetition.SIGNED

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
        if sum(len(line.words) for line in lines) > _MAX_SIGNATURE_CHARACTERS:
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

    def _fill_gaps(self) -> None:
        """Let empty lines be repeated where the line above them is."""
        for number, line in enumerate(self._lines[1:], start=1):
            if not line.words:
                self._repetitions[number] = self._repetitions[number - 1]

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


def _sender_words(head: str) -> frozenset[str]:
    """The words of a sender's name, or of the address where there is no name."""
    sender = _SENDER.search(head)
    if sender is None:
        return frozenset()
    name = sender["name"] or sender["address"] or ""
    return _words_of(name.partition("@")[0])


def _words_of(text: str) -> frozenset[str]:
    return frozenset(_LETTERS.findall(text.casefold()))


def _is_lead(words: str) -> bool:
    """Whether a line, or several, say who wrote what stands below."""
    if len(words) > _MAX_LEAD_CHARACTERS:
        return False
    if _WROTE.search(words):
        return True
    return _NAMED_ADDRESS.search(words) is not None and _TIME.search(words) is not None


def _has_date(words: str) -> bool:
    """Whether a lead says when, so that it needs no marks below."""
    if _TIME.search(words):
        return True
    return _YEAR.search(words) is not None and len(_NUMBER.findall(words)) > 1


def _has_words(title: str, known: Sequence[str]) -> bool:
    """Whether a rule names one of some words."""
    title = title.lower()
    return any(words in title for words in known)


def _is_disclaimer(paragraph: str) -> bool:
    if len(paragraph) < _MIN_DISCLAIMER_CHARACTERS:
        return False
    return (
        sum(words.search(paragraph) is not None for words in _DISCLAIMERS) >= _MIN_DISCLAIMER_SIGNS
    )
