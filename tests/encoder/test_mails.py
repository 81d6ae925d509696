# ruff: noqa: RUF001
"""What mail programs write: prefixes of subjects, and what a mail repeats of others."""

from __future__ import annotations

import time

import pytest

from aveyb_retrieval.encoder.text.quoting import repeat_starts, repeated_spans
from aveyb_retrieval.encoder.text.subjects import bare_subject, is_answer, is_forward

# --- subjects ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "subject",
    ["RE: Nets", "Aw: Re: Nets", "SV: nets", "Re[3]: Nets", "RE (2): Nets", "[crew] Re:  Nets"],
)
def test_an_answer_is_of_the_same_subject(subject: str) -> None:
    assert is_answer(subject)
    assert not is_forward(subject)
    assert bare_subject(subject) == "nets"


@pytest.mark.parametrize(
    "subject", ["Fwd: Nets", "WG: Nets", "RV: Nets", "转发：Nets", "TR : Nets"]
)
def test_a_forward_is_one_too(subject: str) -> None:
    assert is_answer(subject)
    assert is_forward(subject)
    assert bare_subject(subject) == "nets"


@pytest.mark.parametrize("subject", ["Nets", "Regarding: nets", "Reply", "Awful: nets", ""])
def test_other_subjects_are_as_they_are(subject: str) -> None:
    assert not is_answer(subject)
    assert bare_subject(subject) == subject.casefold()


# --- quotations, in time that grows as the mail does ----------------------------------------------

HEAD = "From: ada@example.org\nDate: Mon, 05 Jan 2026 10:00:00 +0100\n\nIt leaks.\n\n"
MAX_SECONDS = 15  # of the processor: a walk to the end from each line takes 17 to 90
SHAPES = {  # what a mail says again and again, up to how many characters
    "marked lines": ("> It leaks at the flange\n>\n", 600_000),
    "leads": ("On 5 May 2026 at 10:00 Ada <ada@example.org> wrote:\n\n", 600_000),
    "leads far apart": ("Ada wrote:\n" + "\n" * 22, 600_000),
    "headers": ("From: Ada\nTo: Bob\nDate: today\nSubject: pump\n\nIt leaks.\n", 600_000),
    "forwarded mails": ("-----Original Message-----\nFrom: Ada\nTo: Bob\n\nIt leaks.\n", 600_000),
    "rules": ("------\nx\n", 100_000),
    "rules far apart": ("------\n" + "\n" * 2000, 200_000),
    "quotations in quotations": ("> > Bob wrote:\n> > > x\n> Ada wrote:\n> > y\n", 200_000),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_long_mail_takes_linear_time(shape: str) -> None:
    lines, characters = SHAPES[shape]
    mail = HEAD + lines * (characters // len(lines))
    start = time.process_time()
    spans, starts = repeated_spans(mail), repeat_starts(mail)
    assert time.process_time() - start < MAX_SECONDS
    assert all(0 <= begin < end <= len(mail) for begin, end in spans)
    assert starts == sorted(starts)


def test_a_contact_below_a_rule_is_short() -> None:
    contact = "------\nAda Lovelace\nada@example.org\n"
    assert repeated_spans(HEAD + contact) == [(len(HEAD), len(HEAD + contact))]
    for between in ("\n" * 200, "words of the mail itself\n" * 100):
        assert repeated_spans(f"{HEAD}------\n{between}ada@example.org\n") == []
