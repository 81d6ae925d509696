"""The words that an index of words has: read from Lance's own files, whatever they are made of."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store.dataset import WORDS, Dataset
from aveyb_retrieval.indexes.store.vocabulary import Vocabulary, WordSet, swaps, within

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([pa.field("number", pa.int64()), pa.field(WORDS, pa.large_string())])
LETTERS = "abcdetoz-/&%AZ09\u00e9\u0431\u0939\u093f\u66f8\U0001f600"


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Vocabulary, Counter[str]]:
    """Every letter of ASCII, nodes of more than 32 and of all kinds, and rows that are not indexed
    yet.
    """
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


def _stored(place: Path, rows: list[list[str]], fresh: list[list[str]]) -> Vocabulary:
    def table(some: list[list[str]], first: int) -> pa.Table:
        return pa.Table.from_arrays(
            [range(first, first + len(some)), [f" {' '.join(row)} " for row in some]], schema=SCHEMA
        )

    dataset = Dataset.create(place / "words.lance", SCHEMA, "number")
    dataset.append(table(rows, 0))
    dataset.index(WORDS)
    dataset.append(table(fresh, len(rows)))
    return dataset.vocabulary()


def test_every_word_is_read_with_its_rows(counted: tuple[Vocabulary, Counter[str]]) -> None:
    vocabulary, words = counted
    assert vocabulary.beginning("") == dict(words)
    assert vocabulary.counts(words) == list(words.values())
    assert vocabulary.counts(
        ["", "nosuchword", "same", "\u66f8\u66f8\u66f8\u66f8\u66f8\u66f8"]
    ) == [0, 0, 0, 0]


def _damaged(part: WordSet) -> list[WordSet]:
    return [
        replace(part, rows=part.rows[:1], _nodes={}),
        replace(part, data=part.data[-20:], _nodes={}),
    ]


@pytest.mark.parametrize("which", [0, 1])
def test_words_whose_numbers_or_bytes_lead_nowhere_are_damage(which: int, tmp_path: Path) -> None:
    (part,) = _stored(tmp_path, [["alpha"], ["beta"], ["zeta"]], []).parts
    assert isinstance(part, WordSet)
    words = Vocabulary([_damaged(part)[which]], {})
    for ask in (
        lambda: words.counts(["zeta"]),
        lambda: words.beginning("z"),
        lambda: words.near("zeto", 1),
    ):
        with pytest.raises(IndexFormatError, match="missing or damaged"):
            ask()


@pytest.mark.parametrize("start", ["a", "ab", "\u66f8", "\u0939\u093f", "same", "nosuch"])
def test_words_that_begin_alike(counted: tuple[Vocabulary, Counter[str]], start: str) -> None:
    vocabulary, words = counted
    assert vocabulary.beginning(start) == {
        word: rows for word, rows in words.items() if word.startswith(start)
    }


@pytest.mark.parametrize("edits", [0, 1, 2])
@pytest.mark.parametrize("word", ["abd", "\u66f8ab", "zz", "b\u00e9to", "\U0001f600a", "same" * 15])
def test_words_a_few_edits_away(
    counted: tuple[Vocabulary, Counter[str]], word: str, edits: int
) -> None:
    vocabulary, words = counted
    near = {
        each: rows
        for each, rows in words.items()
        if within(word, each, edits) or each in swaps(word)
    }
    assert vocabulary.near(word, edits) == near
