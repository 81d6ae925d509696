"""The lists of words, and vectors of some rows, against what they are made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from aveyb_retrieval import Index, Retriever, build_index
from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.nearest.faiss_file import best_halves
from aveyb_retrieval.indexes.store import manifest, word_parts
from aveyb_retrieval.indexes.store.mapped import LocalBytes
from aveyb_retrieval.indexes.store.postings import FreshLists, WordLists, bm25
from aveyb_retrieval.indexes.store.word_parts import (
    BYTES_AT_ONCE,
    WordPart,
    make_part,
    merge_parts,
)
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.types import BoolArray, IntArray

SHARES = {"each": 1.0, "half": 0.5, "some": 0.1, "few": 0.01}
SIZES = {"one": 1, "rest": 127, "block": 128, "more": 129, "blocks": 256}
Rows = dict[int, Counter[str]]


def _rows(first: int, count: int, seed: int) -> Rows:
    """Rows with words of all frequencies, some without words."""
    rng = np.random.default_rng(seed)
    rows = {
        number: Counter[str]() for number in (first + np.cumsum(rng.integers(1, 9, count))).tolist()
    }
    numbers = list(rows)
    for word, share in SHARES.items():
        for number in rng.permutation(numbers)[: int(share * (count - 1))].tolist():
            rows[number][word] = int(rng.integers(1, 4 if share < 1 else 300))
    for word, size in SIZES.items():
        for number in rng.permutation(numbers)[:size].tolist():
            rows[number][word] += 1
    return rows


def _part(rows: Rows) -> WordPart:
    """The part of some rows, made of texts in pieces of a hundred."""
    numbers = np.array(list(rows), np.int64)
    texts = [f" {' '.join(words.elements())} " if words else "" for words in rows.values()]
    pieces = range(0, len(rows), 100)
    return make_part(
        (numbers[start : start + 100], pa.array(texts[start : start + 100], pa.large_string()))
        for start in pieces
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[WordLists, Rows]:
    """Three thousand rows in a merged part and one that is not, a hundred in none; and those that
    are not deleted.
    """
    place = tmp_path_factory.mktemp("postings")
    old, later, fresh = _rows(0, 1000, 0), _rows(10_000, 2000, 2), _rows(40_000, 150, 1)
    halves = [dict(list(old.items())[part]) for part in (slice(0, 450), slice(450, None))]
    merged = merge_parts([_part(half) for half in halves], lambda numbers: numbers >= 0)
    parts = []
    for number, part in enumerate((merged, _part(later))):
        part.write(place / f"{number}.arrow")
        parts.append(WordPart.open(LocalBytes.map(place / f"{number}.arrow")))
    gone = [*list(old)[::7], *list(later)[::5], *list(fresh)[::7]]
    every = old | later | fresh
    alive = {number: words for number, words in every.items() if number not in gone}
    return WordLists(parts, FreshLists({n: fresh[n] for n in fresh if n in alive})), alive


@pytest.mark.parametrize("word", [*SHARES, *SIZES, "none"])
def test_lists_are_those_of_the_rows(made: tuple[WordLists, Rows], word: str) -> None:
    lists, rows = made
    listed, twice = lists.listed([word, word], lambda numbers: numbers % 3 > 0)
    assert np.array_equal(listed, twice)
    found = {n: (count, length) for n, count, length in listed.tolist() if n in rows}
    assert found == {
        n: (words[word], words.total()) for n, words in rows.items() if word in words and n % 3
    }


def test_words_that_rows_hold_are_those_of_their_texts(made: tuple[WordLists, Rows]) -> None:
    """Of rows of every part and of none, in any order, and of numbers that no row has."""
    lists, rows = made
    words = [*SHARES, "none", *SIZES, "each"]
    numbers = np.random.default_rng(3).permutation([*rows, 39_999, 50_000])
    held = lists.held(numbers, words)
    assert held.tolist() == [
        [word in rows.get(number, ()) for word in words] for number in numbers.tolist()
    ]
    assert lists.held(numbers[:0], words).shape == (0, len(words))
    assert lists.held(numbers, []).shape == (len(numbers), 0)


@pytest.mark.parametrize("k", [1, 2, 10, 300, 10_000])
@pytest.mark.parametrize("share", [1, 3, 40])
@pytest.mark.parametrize(
    "words",
    [["few", "half", "block", "none"], ["each"], ["each", "half", "some"], ["one", "each"], []],
)
def test_the_best_are_those_of_all_scores(
    made: tuple[WordLists, Rows], words: list[str], share: int, k: int
) -> None:
    lists, rows = made
    some = np.array(list(rows)[::share])

    def keep(numbers: IntArray) -> BoolArray:
        return np.isin(numbers, some)

    in_parts = sum(len(part.numbers) for part in lists.parts)
    total = sum(int(part.lengths.sum()) for part in lists.parts)
    holding = np.array([sum(part.count(word) for part in lists.parts) for word in words])
    scored = [
        bm25(
            WordLists(lists.parts, FreshLists({})).listed(words, keep),
            in_parts,
            total / in_parts,
            holding,
        )
    ]
    in_parts += len(lists.fresh.numbers)
    total += lists.fresh.total
    holding = holding + [lists.fresh.count(word) for word in words]
    scored.append(
        bm25(WordLists([], lists.fresh).listed(words, keep), in_parts, total / in_parts, holding)
    )
    numbers, scores = (np.concatenate(columns) for columns in zip(*scored, strict=True))
    order = np.lexsort((numbers, -scores.astype(np.float32)))[:k]
    found, values = lists.best(words, k, keep)
    assert found.tolist() == numbers[order].tolist()
    assert values == pytest.approx(scores[order], rel=1e-6)


def _in_order() -> tuple[WordPart, list[list[str]]]:
    """A merged part of rows with words in any order, and these words."""
    rng = np.random.default_rng(5)
    rows = [rng.choice(list("abcdefgh"), size).tolist() for size in rng.integers(0, 60, 200)]
    texts = pa.array([f" {' '.join(row)} " if row else "" for row in rows], pa.large_string())
    halves = [
        make_part([(np.arange(start, start + 100), texts[start : start + 100])])
        for start in (0, 100)
    ]
    return merge_parts(halves, lambda numbers: numbers >= 0), rows


@pytest.mark.parametrize("at_once", [8, 100, BYTES_AT_ONCE])
@pytest.mark.parametrize("phrase", ["ab", "aa", "abc", "cabac", "a", "az", "hgfe"])
def test_a_part_knows_which_rows_hold_words_one_after_another(
    phrase: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("BYTES_AT_ONCE", "_OCCURRENCES_AT_ONCE", "_COPIED_AT_ONCE"):
        monkeypatch.setattr(word_parts, limit, at_once)
    part, rows = _in_order()
    here = [row for row, words in enumerate(rows) if phrase in "".join(words)]
    assert part.numbers[part.holding(tuple(phrase))].tolist() == here


def test_rows_that_are_gone_leave_their_lists_when_parts_are_merged() -> None:
    rows = _rows(0, 500, 3)
    some = {n: words for n, words in rows.items() if n % 4}
    merged = merge_parts([_part(rows)], lambda numbers: numbers % 4 > 0)
    anew = _part(some)
    assert merged.words.array.to_pylist() == anew.words.array.to_pylist()
    for name in ("rows", "counts", "ends", "positions", "numbers", "lengths"):
        assert np.array_equal(getattr(merged, name), getattr(anew, name))
    assert np.array_equal(merged.words.stops, anew.words.stops)
    assert np.array_equal(merged.words.shared, anew.words.shared)


@pytest.mark.parametrize("rows", [{}, {3: Counter[str]()}, {1: Counter({"\u66f8": 70_000})}])
def test_parts_of_few_words(rows: Rows, tmp_path: Path) -> None:
    _part(rows).write(tmp_path / "x.arrow")
    part = WordPart.open(LocalBytes.map(tmp_path / "x.arrow"))
    assert part.numbers.tolist() == [n for n, words in rows.items() if words]
    assert part.lengths.tolist() == [words.total() for words in rows.values() if words]
    assert part.count("\u66f8") == sum(bool(words) for words in rows.values())


def test_a_list_of_rows_that_are_none_is_refused(tmp_path: Path) -> None:
    part = _part(_rows(0, 50, 4))
    wrong = replace(part, rows=part.rows + 200)
    wrong.write(tmp_path / "x.arrow")
    opened = WordPart.open(LocalBytes.map(tmp_path / "x.arrow"))
    with pytest.raises(ValueError, match="rows that are none"):
        WordLists([opened], FreshLists({})).listed(["each"], lambda numbers: numbers >= 0)
    shorter = replace(part, rows=part.rows[:-1], counts=part.counts[:-1])
    shorter.write(tmp_path / "y.arrow")
    with pytest.raises(ValueError, match="do not fit"):
        WordPart.open(LocalBytes.map(tmp_path / "y.arrow"))
    fewer = replace(part, counts=part.counts + 1)
    with pytest.raises(ValueError, match="positions that are none"):
        fewer.holding(("each", "half"))


def test_an_index_with_damaged_lists_says_so(tmp_path: Path) -> None:
    build_index(make_documents(60), tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as reader:
        for path in (tmp_path / "ix" / "words").iterdir():
            path.write_bytes(b"\0" * path.stat().st_size)
        with pytest.raises(IndexFormatError, match="missing or damaged"):
            reader.search("word1", mode="lexical")


def test_halves_as_good_as_the_last_are_all_found() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 24)).astype(np.float16)
    rows[100:200] = rows[0]
    queries = np.stack([rows[0], rows[7]]).astype(np.float32)
    scores = queries @ rows.astype(np.float32).T
    for k in (1, 5, 450, 500):
        least = np.sort(scores, axis=1)[:, -k] - 1e-3
        wanted = np.flatnonzero((scores >= least[:, None]).any(axis=0))
        assert np.array_equal(best_halves(rows, queries, k, 1e-3), wanted)


def test_a_reader_that_follows_a_writer_keeps_the_words_of_its_version_alone(
    tmp_path: Path,
) -> None:
    root, model = tmp_path / "ix", FakeEmbedder()
    build_index(make_documents(60), root, model=model)
    with Retriever.load(root, model=model) as reader, Index.open(root, model=model) as index:
        for number in range(4):
            assert reader.search("+word1 wor*", operators=True)
            lists = reader._engine.snapshot.tables.texts.words
            for words in lists.values():
                assert set(words._opened) <= {part.file for part in words.parts}
            assert any(words._opened for words in lists.values())
            index.add([{"_id": f"new{number}", "text": "word1 anew"}])
            index.compact()
            reader.reopen()


def test_counts_that_do_not_fit_their_positions_are_not_merged() -> None:
    """Each word's positions lie behind those of the words before it: one count moves them all."""
    for step in (-1, 1):
        part = _part(_rows(0, 50, 4))
        counts = part.counts.copy()
        counts[counts.argmax()] = int(counts.max()) + step
        with pytest.raises(ValueError, match="positions that do not fit"):
            merge_parts([replace(part, counts=counts)], lambda numbers: numbers >= 0)


def test_a_change_of_an_index_with_a_damaged_count_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_QUICK_BYTES", 0)
    build_index(make_documents(60), tmp_path / "ix", model=FakeEmbedder())
    for path in (tmp_path / "ix" / "words").iterdir():
        part = WordPart.open(LocalBytes.map(path))
        counts = part.counts.copy()
        counts[0] += 1
        replace(part, counts=counts, source=None).write(path)
    with (
        Index.open(tmp_path / "ix", model=FakeEmbedder()) as index,
        pytest.raises(IndexFormatError, match="missing or damaged"),
    ):
        index.add([{"_id": "new", "text": "rubber seals"}])
        index.compact()
