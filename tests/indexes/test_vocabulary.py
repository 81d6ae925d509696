"""The words of lists: counted, and found by their beginnings and with typos."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store import vocabulary
from aveyb_retrieval.indexes.store.lance_session import damage
from aveyb_retrieval.indexes.store.mapped import LocalBytes
from aveyb_retrieval.indexes.store.vocabulary import IndexVocabulary, WordSet, swaps, within
from aveyb_retrieval.indexes.store.word_parts import WordPart, make_part

if TYPE_CHECKING:
    from pathlib import Path

LETTERS = "abcdetoz-/&%AZ09\u00e9\u0431\u0939\u093f\u66f8\U0001f600"


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[IndexVocabulary, Counter[str]]:
    """Letters of all sizes, words that begin alike, and rows that are in no part yet."""
    draw = random.Random(0)
    words = {"".join(draw.choices(LETTERS, k=draw.randint(1, 5))) for _ in range(3000)}
    words |= {chr(code) for code in range(33, 127)} | {
        "same" * each + end for each in (15, 50) for end in ("", "s")
    }
    rows = [[word] for word in sorted(words)] + [draw.sample(sorted(words), 30) for _ in range(20)]
    fresh = [["abc", "abd"], ["abc", "\u66f8\u66f8new"]]
    return _stored(tmp_path_factory.mktemp("words"), rows, fresh), Counter(
        word for row in rows + fresh for word in set(row)
    )


def _part(rows: list[list[str]]) -> WordPart:
    texts = pa.array([f" {' '.join(row)} " for row in rows], pa.large_string())
    return make_part([(np.arange(len(rows)), texts)])


def _stored(place: Path, rows: list[list[str]], fresh: list[list[str]]) -> IndexVocabulary:
    _part(rows).write(place / "x.arrow")
    words = WordPart.open(LocalBytes.map(place / "x.arrow")).words
    counted = Counter(word for row in fresh for word in set(row))
    return IndexVocabulary([words.guarded(partial(damage, place))], counted)


def test_every_word_is_read_with_its_rows(counted: tuple[IndexVocabulary, Counter[str]]) -> None:
    read, words = counted
    assert read.beginning("") == dict(words)
    assert read.counts(words) == list(words.values())
    assert read.counts(["", "nosuchword", "same", "\u66f8\u66f8\u66f8\u66f8\u66f8\u66f8"]) == [
        0,
        0,
        0,
        0,
    ]


def test_words_are_counted_alike_when_asked_again_and_forgotten(
    counted: tuple[IndexVocabulary, Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "MAX_REMEMBERED_WORDS", 5)
    read, words = counted
    asked = [*list(words)[:20], "nosuchword", "same" * 50]
    for _ in range(3):
        assert read.counts(asked) == [words[word] for word in asked]
    (part,) = read.parts
    assert isinstance(part, WordSet)
    assert len(part._places) <= 5 and "same" * 50 not in part._places


def test_words_whose_lists_lead_nowhere_are_damage(tmp_path: Path) -> None:
    (part,) = _stored(tmp_path, [["alpha"], ["beta"], ["zeta"]], []).parts
    assert isinstance(part, WordSet)
    words = IndexVocabulary([replace(part, stops=part.stops[:1], _heads={})], {})
    for ask in (
        lambda: words.counts(["zeta"]),
        lambda: words.beginning("z"),
        lambda: words.near("zeto", 1),
    ):
        with pytest.raises(IndexFormatError, match="missing or damaged"):
            ask()


def test_words_that_are_no_text_are_damage(tmp_path: Path) -> None:
    (part,) = _stored(tmp_path, [["alpha"], ["beta"], ["zeta"]], []).parts
    assert isinstance(part, WordSet)
    words = IndexVocabulary([replace(part, data=part.data | 128, _heads={})], {})
    with pytest.raises(IndexFormatError, match="missing or damaged"):
        words.beginning("")
    shorter = replace(_part([["alpha"], ["beta"]]), words=replace(part, data=part.data[:2]))
    with pytest.raises(ValueError, match="do not fit"):
        shorter.check()


@pytest.mark.parametrize("start", ["a", "ab", "\u66f8", "\u0939\u093f", "same", "nosuch"])
def test_words_that_begin_alike(counted: tuple[IndexVocabulary, Counter[str]], start: str) -> None:
    read, words = counted
    assert read.beginning(start) == {
        word: rows for word, rows in words.items() if word.startswith(start)
    }


@pytest.mark.parametrize("edits", [0, 1, 2])
@pytest.mark.parametrize("word", ["abd", "\u66f8ab", "zz", "b\u00e9to", "\U0001f600a", "same" * 15])
def test_words_a_few_edits_away(
    counted: tuple[IndexVocabulary, Counter[str]], word: str, edits: int
) -> None:
    vocabulary, words = counted
    near = {
        each: rows
        for each, rows in words.items()
        if within(word, each, edits) or each in swaps(word)
    }
    assert vocabulary.near(word, edits) == near


def test_a_beginning_of_too_many_words_is_known_without_reading_all(
    counted: tuple[IndexVocabulary, Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary, words = counted
    read = list[int]()
    spelled = WordSet.spelled
    monkeypatch.setattr(
        WordSet, "spelled", lambda self, place: (read.append(place), spelled(self, place))[1]
    )
    assert len(vocabulary.beginning("", 10)) > 10
    assert len(read) < 100 < len(words)
    alike = {word for word in words if word.startswith("same")}
    assert vocabulary.beginning("same", 10).keys() == alike
