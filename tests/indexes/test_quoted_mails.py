# ruff: noqa: RUF001
"""What a mail quotes is known as quoted, and counts less than what it says."""

from __future__ import annotations

import pytest

from aveyb_retrieval.encoder.text.quoting import may_repeat, repeated_spans
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
