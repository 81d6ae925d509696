# ruff: noqa: RUF001
"""What mail programs write in front of a subject."""

from __future__ import annotations

import pytest

from aveyb_retrieval.encoder.text.subjects import bare_subject, is_answer, is_forward


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
