# ruff: noqa: RUF001
"""What a mail quotes is known as quoted, and counts less than what it says."""

from __future__ import annotations

import numpy as np
import pytest

from aveyb_retrieval.encoder.text.quoting import (
    Repetition,
    may_repeat,
    repeat_starts,
    repeated_spans,
    repetitions,
)
from aveyb_retrieval.indexes.search.sentences import CitedText
from tests.indexes.test_sentences import sentences


def own(text: str) -> str:
    """What is left of a mail without what it quotes."""
    position, parts = 0, []
    for start, stop in repeated_spans(text):
        parts.append(text[position:start])
        position = stop
    return " ".join("".join([*parts, text[position:]]).split())


@pytest.mark.parametrize(
    "quotation",
    [
        "> old words\n> more\n",
        "On 5 Jan 2026 at 9:12, Bob <bob@example.org> wrote:\n\nold words\nmore\n",
        "Am 05.01.2026 um 09:12 schrieb Bob:\n> old words\n",
        "Le 5 janv. 2026 à 09:12, Bob a écrit :\n\nold words\n",
        "El 5 ene 2026, Bob <b@example.org> escribió:\nold words\n",
        "5 января 2026 г., Боб написал(а):\nold words\n",
        "2026年1月5日 Bob 写道：\nold words\n",
        "-----Ursprüngliche Nachricht-----\nVon: Bob\n\nold words\n",
        "Von: Bob\nGesendet: Montag\nAn: Ada\nBetreff: x\n\nold words\n",
        "-- \nAda, 555\n",
    ],
)
def test_a_quotation_is_known_in_many_forms(quotation: str) -> None:
    text = f"From: Ada\nTo: Bob\n\nNew words.\n\n{quotation}"
    assert may_repeat(text)
    assert own(text) == "From: Ada To: Bob New words."


@pytest.mark.parametrize(
    "text",
    [
        "From: Ada\nTo: Bob\nDate: today\n\nShe wrote: come at five.\n",
        "The law says: all of it.\n\nHe wrote a letter:\nDear all",
        "a > b is false; Fra: nobody",
    ],
)
def test_text_that_only_looks_like_one_is_none(text: str) -> None:
    assert own(text) == " ".join(text.split())


def test_answers_between_marked_lines_are_the_mails_own() -> None:
    text = "On 5 Jan 2026 Bob wrote:\n\n> 1. When?\n\nOn Monday.\n\n> 2. Where?\n\nHere.\n"
    assert own(text) == "On Monday. Here."


def best(query: str, text: str) -> str:
    spans = repeated_spans(text)
    span = sentences(query).cite([CitedText(text, repeated=spans)])[0].sentence
    return "" if span is None else " ".join(text[slice(*span)].split())


def test_what_is_said_is_cited_before_what_is_quoted() -> None:
    quote = "> Lorries leave by the north gate.\n"
    assert best("which gate do lorries leave by", f"Take the east gate.\n\n{quote}").endswith(
        "east gate."
    )
    assert "north" in best("which gate do lorries leave by", f"Agreed.\n\n{quote}")
    inline = "> Which gate do lorries use?\n\nThe east one.\n\n> Who signs?\n\nSofia does.\n"
    assert best("which gate do lorries use", inline) == "The east one."


def parts(text: str, title: str = "") -> list[tuple[str, Repetition]]:
    """The passages of a mail by their first words, and what they are to it."""
    starts = [0, *repeat_starts(text)]
    spans = np.array([*zip(starts, [*starts[1:], len(text)], strict=True)])
    kinds = map(Repetition, repetitions(title, text, spans).tolist())
    return [(" ".join(text[n:].split()[:2]), kind) for n, kind in zip(starts, kinds, strict=True)]


HEAD = "From: Ada Byron <ada@example.org>\nTo: Bob\n\n"
OWN, FORWARDED, QUOTED, SIGNED = Repetition


@pytest.mark.parametrize(
    "ending",
    [
        "-- \nAda, 555",
        "On 5 Jan 2026 at 9:12 Bob wrote:\n\nold words",
        "Von: B\nAn: A\nDatum: x\n\na",
    ],
)
def test_what_is_attached_is_not_repeated(ending: str) -> None:
    files = "# tide table.csv\n\n- hour: 4\n\n# without a name (image/png)\n\nSeal 9\n"
    *_, table = parts(f"{HEAD}See the table.\n\n{ending}\n\n{files}")
    assert table == ("# tide", OWN)
    contract = "confidential; the recipient shall delete it if received in error by them or others"
    assert parts(f"{HEAD}Here.\n\n# contract.pdf\n\n{contract}\n") == [("From: Ada", OWN)]


def test_an_attached_mail_repeats_by_itself() -> None:
    inner = f"{HEAD}Low water is at six.\n\n> When?\n"
    found = parts(f"{HEAD}Look.\n\n-- \nAda, 555\n\n# tide.eml\n\n{inner}")
    kinds = [("From: Ada", OWN), ("-- Ada,", SIGNED), ("# tide.eml", OWN), ("> When?", QUOTED)]
    assert found == kinds
    packed = "# winmail.dat\n\nAgreed.\n\n> When?\n"
    assert parts(f"{HEAD}Hello.\n\n{packed}")[-1] == ("> When?", QUOTED)


@pytest.mark.parametrize(
    ("title", "lead"),
    [
        ("Fwd: Tides", "From: Carl\nSent: Monday\nTo: Ada\nSubject: Tides\n"),
        ("WG: Tides", "Von: Carl\nGesendet: Montag\nAn: Ada\nBetreff: Tides\n"),
        ("Tides", "---------- Forwarded message ---------\nFrom: Carl\n"),
        ("Tides", "Anfang der weitergeleiteten Nachricht:\n\nVon: Carl\nAn: Ada\nDatum: 5. Mai\n"),
    ],
)
def test_what_is_forwarded_is_no_quotation(title: str, lead: str) -> None:
    text = f"{HEAD}For you.\n\n{lead}\nHigh water is at noon.\n\n> When?\n"
    assert [kind for _, kind in parts(text, title)][:2] == [OWN, FORWARDED]
    marked = "".join(f"> {line}\n" for line in f"{lead}\nHigh water.".splitlines())
    assert parts(f"{HEAD}For you.\n\n{marked}", title)[-1][1] == FORWARDED
    answered = text.replace(lead, "From: Carl\nSent: Monday\nTo: Ada\nSubject: Tides\n")
    assert parts(answered, "Re: Tides")[1][1] == QUOTED


def test_a_signature_begins_with_the_senders_name() -> None:
    signature = "Ada Byron\nEngines Ltd\nTel. 0555 123 456"
    text = f"{HEAD}It is done.\n\nBest regards,\n{signature}\n\nPS: Bring a lamp.\n\n> Is it?\n"
    assert parts(text) == [
        ("From: Ada", OWN),
        ("Ada Byron", SIGNED),
        ("PS: Bring", OWN),
        ("> Is", QUOTED),
    ]
    assert parts(f"{HEAD}It is done.\n\nAda\n") == [("From: Ada", OWN)]
    assert parts(f"{HEAD}The guests:\n\nCarl Gauss\nEmmy\nTel. 0555 123 456\n") == [
        ("From: Ada", OWN)
    ]
