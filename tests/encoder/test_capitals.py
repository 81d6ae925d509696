"""Capitals as marks: exact round trips, offsets in the text as it was, the same ids in
both views.
"""

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aveyb_retrieval.encoder.text.tokenizer import (
    END,
    LOCK,
    MARKS,
    UP,
    AveyBTokenizer,
    mark,
    restore,
)
from aveyb_retrieval.errors import ModelError
from aveyb_retrieval.training.texts import train_vocabulary

CASES = [
    ("See Paris", f"{UP}see{UP} paris"),
    ("NASA", f"{LOCK}nasa"),
    ("the APIs of", f"the{LOCK} api{END}s of"),
    ("HTTPServer", f"{LOCK}http{UP}server"),
    ("iPhone", f"i{UP}phone"),
    ("IPad", f"{UP}i{UP}pad"),
    ("A B CD", f"{UP}a{UP} b{LOCK} cd"),
    ("two  Blanks\nLine", f"two {UP} blanks\n{UP}line"),
    ("Éa É", "Éa É"),
    ("a\x0eB", f"a\x0e\x0e{UP}b"),
]
WORDS = ("paris", "berlin", "nasa")
TEXT = st.text(
    alphabet=st.one_of(
        st.sampled_from("abyzABYZ  \n.'1éÉ\x0e\x0f\x10"),
        st.characters(exclude_categories=["Cs", "Cn"], max_codepoint=0x2FFF),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def tokenizer() -> AveyBTokenizer:
    merges = [f" {word}"[:length].encode() for word in WORDS for length in range(2, len(word) + 2)]
    return AveyBTokenizer.from_ranks(
        [bytes([b]) for b in range(256)] + merges, capitals="marks", name="marked"
    )


@pytest.fixture(scope="module")
def auto(tokenizer: AveyBTokenizer, tmp_path_factory: pytest.TempPathFactory):
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("marked")
    tokenizer.save(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(("text", "marked"), CASES)
def test_rules(text: str, marked: str) -> None:
    found, positions = mark(text)
    assert found == marked
    assert [found[p + i] for i, p in enumerate(positions)] == [c for c in marked if c in MARKS][
        : len(positions)
    ]
    assert restore(found.encode()) == text.encode()


@given(TEXT)
@settings(max_examples=500, deadline=None)
def test_round_trip_and_both_views(tokenizer: AveyBTokenizer, auto, text: str) -> None:
    ids, offsets = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert auto(text)["input_ids"] == ids.tolist() == tokenizer.encode_ids(text).tolist()
    # Offsets: in order, and the tokens together cover every character once, but for characters cut
    # into bytes.
    assert (offsets[:, 0] <= offsets[:, 1]).all() and (np.diff(offsets[:, 0]) >= 0).all()
    covered = np.zeros(len(text), dtype=int)
    for start, end in offsets:
        covered[start:end] += 1
    assert (covered >= 1).all()
    assert (covered[[ord(c) < 128 for c in text]] == 1).all()


def test_offsets_name_the_words_of_the_text(tokenizer: AveyBTokenizer) -> None:
    text = "In Paris NASA, paris"
    ids, offsets = tokenizer.encode(text)
    found = [text[start:end] for start, end in offsets]
    assert found == ["", "I", "n", "", " Paris", "", " NASA", ",", " paris"]
    assert ids[4] == ids[8], "both spellings share a token"


def test_every_spelling_shares_the_words_token(tokenizer: AveyBTokenizer) -> None:
    plain = tokenizer.encode_ids(" berlin").tolist()
    assert len(plain) == 1
    for spelling in (" Berlin", " BERLIN"):
        assert tokenizer.encode_ids(spelling).tolist()[1:] == plain


def test_a_million_capitals_take_no_time(tokenizer: AveyBTokenizer) -> None:
    for text in ("A" * 1_000_000, "Ab" * 500_000, " A" * 500_000):
        started = time.process_time()
        marked, _ = mark(text)
        assert restore(marked.encode()) == text.encode()
        assert time.process_time() - started < 20


def test_vocabularies_learn_marked_text() -> None:
    learned = train_vocabulary(["PARIS Paris paris " * 20], 266, capitals="marks")
    assert not any(token.lower() != token for token in learned.ranks if len(token) > 1)
    assert b" paris" in learned.ranks


def test_saved_folder_keeps_the_marks(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    loaded = AveyBTokenizer.load(tmp_path)
    assert loaded.capitals == "marks"
    assert loaded.encode_ids("In Paris").tolist() == tokenizer.encode_ids("In Paris").tolist()


def test_unknown_treatment_of_capitals_is_refused() -> None:
    with pytest.raises(ModelError, match="capitals is 'lower'"):
        AveyBTokenizer.from_ranks([bytes([b]) for b in range(256)], capitals="lower", pattern=".")
