"""The lists of an index of words, and vectors of some rows, against what they are made of."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import lance
import numpy as np
import pyarrow as pa
import pytest

from aveyb_retrieval import Retriever, add_documents, build_index, compact_index
from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.nearest.faiss_file import best_halves
from aveyb_retrieval.indexes.store.dataset import WORDS, Dataset
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

SHARES = {"each": 1.0, "half": 0.5, "some": 0.1, "few": 0.01}
SIZES = {"one": 1, "rest": 127, "block": 128, "more": 129, "blocks": 256}


def _rows(first: int, count: int, seed: int) -> dict[int, Counter[str]]:
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


def _table(rows: dict[int, Counter[str]]) -> pa.Table:
    texts = [f" {' '.join(words.elements())} " if words else "" for words in rows.values()]
    return pa.table({"doc": pa.array(rows, pa.int64()), WORDS: pa.array(texts, pa.large_string())})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, dict[int, Counter[str]]]:
    """Two thousand rows in the index of words, a hundred in none, and which of them are not
    deleted.
    """
    path, old, new = (
        tmp_path_factory.mktemp("postings") / "x.lance",
        _rows(0, 2000, 0),
        _rows(20_000, 300, 1),
    )
    lance.write_dataset(_table(old), str(path))
    dataset = Dataset(path, "doc", lance.dataset(str(path)))
    dataset.index(WORDS)
    dataset.append(_table(new))
    gone = list(old)[::7] + list(new)[::7]
    dataset.delete(np.array(gone))
    return dataset, {number: words for number, words in (old | new).items() if number not in gone}


@pytest.mark.parametrize("word", [*SHARES, *SIZES, "none"])
def test_lists_are_those_of_the_rows(
    made: tuple[Dataset, dict[int, Counter[str]]], word: str
) -> None:
    dataset, rows = made
    listed, twice = dataset.postings([word, word], lambda numbers: numbers % 3 > 0)
    assert np.array_equal(listed, twice)
    found = {n: (count, length) for n, count, length in listed.tolist() if n in rows}
    assert found == {
        n: (words[word], words.total()) for n, words in rows.items() if word in words and n % 3
    }
    assert [n for n in dataset.holding((word,)).tolist() if n in rows] == [
        n for n in rows if word in rows[n]
    ]


@pytest.mark.parametrize("share", [1, 3, 40])
def test_scores_of_some_are_those_of_all(
    made: tuple[Dataset, dict[int, Counter[str]]], share: int
) -> None:
    dataset, rows = made
    words = ["few", "half", "block", "none"]
    numbers, scores = dataset.by_words(words, len(rows))
    some = np.array(list(rows)[::share])
    there = np.isin(numbers, some)
    for k in (10, len(rows)):
        found, values = dataset.scored(words, k, lambda each: np.isin(each, some))
        assert values == pytest.approx(scores[there][:k], rel=1e-5)
        assert dict(zip(found, values, strict=True)).keys() >= set(
            numbers[there][: k // 2].tolist()
        )


def test_lists_of_another_layout_are_refused(
    made: tuple[Dataset, dict[int, Counter[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "aveyb_retrieval.indexes.store.postings._LAYOUT", {b"posting_block_size": b"256"}
    )
    again = Dataset.open(made[0].path, made[0].version, "doc")
    with pytest.raises(IndexFormatError, match="another layout"):
        again.holding(("some",))


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
    build_index(make_documents(60), tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as reader:
        for number in range(4):
            assert reader.search("+word1 wor*", operators=True)
            texts = reader._engine.snapshot.tables.texts
            for column, sets in texts._word_sets.items():
                assert list(sets) == [file for file, _ in texts._words_indexed(column)[0]]
            add_documents(
                [{"_id": f"new{number}", "text": "word1 anew"}],
                tmp_path / "ix",
                model=FakeEmbedder(),
            )
            compact_index(tmp_path / "ix")
            reader.reopen()
