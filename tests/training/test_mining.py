"""Hard negatives, with a model whose vectors are angles: every cosine is known."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from datasets import Dataset

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.types import EncodedRow
from aveyb_retrieval.training.contrastive import Mined, mine_negatives
from aveyb_retrieval.training.settings import MiningRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.types import FloatArray

# cosine to any anchor
COSINES = {
    "tea is brewed hot": 0.9,
    "coffee is brewed hot": 0.88,
    "steel is brewed never": 0.7,
    "boats float": 0.5,
    "birds sing": 0.3,
}
TEA, COFFEE, STEEL, BOATS, BIRDS = COSINES
NO_MARGIN = MiningRules(negatives=9, relative_margin=None)


class Angles:
    """Queries lie on the first axis, a text of `COSINES` at its cosine from it, any other at right
    angles.
    """

    dim, model_name, fingerprint = 2, "angles", "0" * 64

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedRow]:
        for _, text in documents:
            cosine = COSINES.get(text, 0.0)
            vector = np.array([cosine, math.sqrt(1 - cosine**2)], np.float32)
            yield EncodedRow(vector, np.empty((0, 2), np.float32), np.empty((0, 2), np.int64))

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        return np.tile(np.array([1, 0], np.float32), (len(queries), 1))

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[FloatArray]:
        raise AssertionError("mining does not rerank")


def mine(pairs: Iterable[tuple[str, str]], rules: MiningRules, **options: object) -> Mined:
    rows = Dataset.from_list(
        [{"anchor": anchor, "positive": positive} for anchor, positive in pairs]
    )
    return mine_negatives(rows, rules, model=Angles(), **options)


def negatives(mined: Mined, anchor: str, positive: str) -> list[str]:
    return [
        r["negative"] for r in mined.triplets if (r["anchor"], r["positive"]) == (anchor, positive)
    ]


def test_nearest_first_without_the_anchors_own_positives() -> None:
    pairs = [
        ("drink", COFFEE),
        ("drink", BOATS),
        ("song", BIRDS),
        ("song", BIRDS),
        ("drink", COFFEE),
    ]
    mined = mine(pairs, NO_MARGIN, corpus=[TEA, STEEL, "  ", TEA])
    assert (
        negatives(mined, "drink", COFFEE) == negatives(mined, "drink", BOATS) == [TEA, STEEL, BIRDS]
    )
    # a pair given twice counts once
    assert negatives(mined, "song", BIRDS) == [TEA, COFFEE, STEEL, BOATS]
    assert (mined.texts, mined.anchors, len(mined.triplets)) == (5, 2, 10)
    assert mined.short == ["drink", "song"] and mined.left_out == []


def test_a_text_equal_to_the_anchor_is_no_negative() -> None:
    mined = mine([(TEA, COFFEE), ("song", TEA)], NO_MARGIN, corpus=[BIRDS])
    assert negatives(mined, TEA, COFFEE) == [BIRDS]


def test_an_answer_in_other_white_space_or_case_or_around_or_within_is_no_negative() -> None:
    around = f"He said: {COFFEE.upper()}  and sat down"
    mined = mine(
        [("Drink", COFFEE), ("drink ", TEA)],
        NO_MARGIN,
        corpus=[f"{COFFEE}\n", TEA.title(), around, "is  Brewed", STEEL],
    )
    assert {row["negative"] for row in mined.triplets} == {STEEL}
    assert negatives(mine([("drink", "yes")], NO_MARGIN, corpus=["her eyes"]), "drink", "yes") == [
        "her eyes"
    ]


def test_negatives_are_cut_as_an_index_cuts_them() -> None:
    from aveyb_retrieval import Embedder
    from aveyb_retrieval.encoder.text.passages import PassageSize

    model = Embedder.load().with_passage_size(PassageSize(16))
    long = (
        "Boats float on the river in summer. Birds sing in the trees all day. Steel is made in the"
        " north. " * 2
    )
    rows = Dataset.from_list([{"anchor": "what do birds do", "positive": "they sing"}])
    found = mine_negatives(rows, NO_MARGIN, model=model, corpus=[long]).triplets["negative"]
    assert len(found) > 2 and all(text in long and len(text) < 100 for text in found)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"relative_margin": None}, [TEA, STEEL, BOATS]),
        ({"relative_margin": 0.0}, [STEEL, BOATS, BIRDS]),  # tea is nearer than the positive itself
        ({"relative_margin": 0.2}, [STEEL, BOATS, BIRDS]),  # 0.88 - 20 % is 0.704
        ({"relative_margin": 0.21}, [BOATS, BIRDS]),  # 0.695
        ({"relative_margin": None, "absolute_margin": 0.3}, [BOATS, BIRDS]),
        ({"relative_margin": None, "max_score": 0.6}, [BOATS, BIRDS]),
        ({"relative_margin": 0.05, "max_score": 0.4}, [BIRDS]),
    ],
)
def test_limits(rules: dict[str, float | None], expected: list[str]) -> None:
    mined = mine([("drink", COFFEE)], MiningRules(negatives=3, **rules), corpus=COSINES)
    assert negatives(mined, "drink", COFFEE) == expected


def test_the_lowest_of_several_positives_sets_the_limit() -> None:
    mined = mine([("drink", TEA), ("drink", BOATS)], MiningRules(negatives=9), corpus=COSINES)
    assert negatives(mined, "drink", TEA) == [BIRDS]


def test_margin_of_a_positive_below_zero() -> None:
    assert MiningRules(relative_margin=0.5).limit(-0.2) == pytest.approx(-0.3)


def test_ranks_are_counted_without_positives_and_before_margins() -> None:
    mined = mine(
        [("drink", COFFEE)],
        MiningRules(range_min=1, range_max=3, relative_margin=None),
        corpus=COSINES,
    )
    assert negatives(mined, "drink", COFFEE) == [STEEL]  # tea has rank 0
    mined = mine([("drink", COFFEE)], MiningRules(negatives=2, range_max=2), corpus=COSINES)
    # the margin took tea, of two
    assert negatives(mined, "drink", COFFEE) == [STEEL] and mined.short == ["drink"]


def test_words_propose_and_cosines_decide() -> None:
    pairs = [("tea brewed", STEEL)]
    lexical = mine(pairs, NO_MARGIN, corpus=COSINES, mode="lexical")
    # the others hold none of the words
    assert negatives(lexical, "tea brewed", STEEL) == [TEA, COFFEE]
    with pytest.raises(
        InputError, match=r"none of 1 anchors has a negative among 5 texts, ranks 0 to 50"
    ):
        mine(pairs, MiningRules(), corpus=COSINES, mode="lexical")
    hybrid = mine(pairs, MiningRules(negatives=2), corpus=COSINES, mode="hybrid")
    assert set(negatives(hybrid, "tea brewed", STEEL)) == {BOATS, BIRDS}


def test_anchors_without_negatives_are_named() -> None:
    mined = mine([("song", BIRDS), ("drink", TEA)], MiningRules())
    assert mined.left_out == ["song"] and mined.short == []
    assert list(mined.triplets) == [{"anchor": "drink", "positive": TEA, "negative": BIRDS}]


def test_more_anchors_than_are_searched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(f"anchor {i}", text) for i, text in enumerate(COSINES)]
    whole = mine(pairs, NO_MARGIN)
    monkeypatch.setattr("aveyb_retrieval.training.contrastive._ANCHORS_PER_SEARCH", 2)
    assert list(mine(pairs, NO_MARGIN).triplets) == list(whole.triplets)


def test_saved_triplets_are_read_as_pairs(tmp_path: Path) -> None:
    from aveyb_retrieval.training.contrastive import read_pairs

    mined = mine([("tée", TEA)], NO_MARGIN, corpus=COSINES)
    mined.save(tmp_path / "new" / "triplets.jsonl")
    assert list(read_pairs([tmp_path / "new" / "triplets.jsonl"])) == list(mined.triplets)
    assert (
        json.loads((tmp_path / "new" / "triplets.jsonl").read_text().splitlines()[0])["negative"]
        == COFFEE
    )
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["triplets.jsonl"]


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"negatives": 0}, "negatives is 0"),
        ({"range_min": -1}, "range_min is -1"),
        ({"range_min": 48, "negatives": 3}, "leave 2 ranks for 3 negatives"),
        ({"relative_margin": -0.1}, "relative_margin is -0.1"),
        ({"absolute_margin": math.nan}, "absolute_margin is nan"),
    ],
)
def test_rules_out_of_range(rules: dict[str, float], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        mine([("drink", TEA)], MiningRules(**rules))


def test_unknown_mode_is_refused_before_anything_is_encoded() -> None:
    with pytest.raises(ConfigError, match="mode='sparse'"):
        mine_negatives(
            Dataset.from_list([{"anchor": "a", "positive": TEA}]),
            mode="sparse",
            model="no such folder",
        )
