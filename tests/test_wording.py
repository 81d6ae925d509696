"""Counts in messages agree with their nouns."""

from __future__ import annotations

import pytest

from aveyb_retrieval.errors import how_it_ended, plural, shortened


@pytest.mark.parametrize(
    ("count", "nouns", "text"),
    [
        (0, ("document",), "0 documents"),
        (1, ("document",), "1 document"),
        (1234567, ("document",), "1,234,567 documents"),
        (1, ("judged query", "judged queries"), "1 judged query"),
        (2, ("judged query", "judged queries"), "2 judged queries"),
    ],
)
def test_counts_agree_with_their_nouns(count, nouns, text):
    assert plural(count, *nouns) == text


def test_a_long_message_keeps_its_begin_and_its_end():
    text = shortened("filter " + "v" * 10_000 + ": not known; known are $eq, $ne")
    assert len(text) == 600
    assert text.startswith("filter vvv") and text.endswith("known are $eq, $ne")
    assert shortened("short") == "short"


def test_a_process_ended_by_a_signal_or_with_its_last_words():
    assert how_it_ended(-11, "nothing of this\n") == "SIGSEGV"
    assert how_it_ended(1, "Traceback\n\nMemoryError\n") == "MemoryError"
    assert how_it_ended(3) == "exit code 3"
