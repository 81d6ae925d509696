"""Boosts: numbers and dates of metadata move candidates, in every mode, and what means nothing is
told in one line.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Index, Retriever
from aveyb_retrieval.errors import ConfigError
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime.now(UTC)
ROWS = [
    {
        "_id": f"{i}",
        "text": f"zinc hull word{i} word{i + 1}",
        "of": {"stars": i % 5},
        "made": [
            date(1999, 1, 1),
            NOW - timedelta(days=30),
            (NOW - timedelta(days=60)).replace(tzinfo=None),
        ][i % 3],
        **({"only": 10} if i == 7 else {}),
        "note": f"note {i}",
    }
    for i in range(40)
]
MODES: list[dict[str, Any]] = [
    {},
    {"mode": "dense"},
    {"mode": "lexical"},
    {"fusion": "rrf"},
    {"rerank": "maxsim"},
    {"unit": "passage"},
    {"unit": "passage", "mode": "dense", "per_document": 1},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index.create(tmp_path_factory.mktemp("boost") / "ix", model=FakeEmbedder()) as index:
        index.add(ROWS)
        yield index


@pytest.mark.parametrize("options", MODES, ids=str)
def test_what_is_added_is_what_is_documented(index: Index, options: dict[str, Any]) -> None:
    plain = (
        {hit.id: hit.score for hit in index.search("zinc word3", 40, fold=False, **options)}
        if (options.get("unit") == "passage")
        else {hit.id: hit.score for hit in index.search("zinc word3", 40, **options)}
    )
    fold = {"fold": False} if options.get("unit") == "passage" else {}
    boost = {"of.stars": 0.5, "made": {"weight": 0.25, "half_life": 30}, "only": -0.1}
    hits = index.search("zinc word3", 40, boost=boost, **fold, **options)
    best = max(map(abs, plain.values()))
    assert {hit.id for hit in hits} == set(plain)
    for hit in hits:
        i = int(hit.id)
        new = 0.25 * [0, 0.5, 0.25][i % 3]
        added = best * (0.5 * (i % 5) / 4 + new - (0.1 if i == 7 else 0))
        assert hit.scores["boost"] == pytest.approx(added, abs=1e-4 * best)
        assert hit.score == pytest.approx(plain[hit.id] + added, abs=1e-4 * best)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_it_moves_candidates_before_the_best_are_taken(
    index: Index, options: dict[str, Any]
) -> None:
    assert index.search("zinc word30", 1, **options)[0].id != "7"
    (hit,) = index.search("zinc word30", 1, boost={"only": 50}, **options)
    assert hit.id == "7"
    if hit.confidence is not None:
        assert 0 <= hit.confidence <= 1, "of the passage, without the boost"
    pages = [index.search("zinc", 5, offset=at, boost={"of.stars": 1}, **options) for at in (0, 5)]
    assert [hit.id for page in pages for hit in page] == [
        hit.id for hit in index.search("zinc", 10, boost={"of.stars": 1}, **options)
    ]


def test_the_least_score_is_asked_of_what_fits_not_of_what_is_new(index: Index) -> None:
    confidences = sorted(hit.confidence or 0 for hit in index.search("word3", 40))
    least = confidences[len(confidences) // 2]
    fits = {hit.id for hit in index.search("word3", 40, min_score=least)}
    assert 0 < len(fits) < 40
    assert {
        hit.id for hit in index.search("word3", 40, min_score=least, boost={"only": 50})
    } == fits


def test_dates_to_come_and_times_of_other_zones(tmp_path: Any) -> None:
    now = datetime.now(UTC)
    ahead = now.astimezone(timezone(timedelta(hours=9)))
    with Index.create(tmp_path / "ix", model=FakeEmbedder()) as index:
        index.add(
            [
                {"_id": "later", "text": "zinc", "made": now + timedelta(days=400)},
                {"_id": "now", "text": "zinc", "made": ahead},
                {"_id": "z", "text": "zinc", "made": now.strftime("%Y-%m-%dT%H:%M:%SZ")},
                {"_id": "none", "text": "zinc", "made": None},
            ]
        )
        hits = index.search("zinc", boost={"made": {"weight": 1, "half_life": 1}}, fold=False)
        shares = {
            hit.id: hit.scores["boost"] / max(h.score - h.scores["boost"] for h in hits)
            for hit in hits
        }
        assert shares == pytest.approx({"later": 1, "now": 1, "z": 1, "none": 0}, abs=0.01)


@pytest.mark.parametrize(
    ("boost", "told"),
    [
        (["stars"], r"boost=\['stars'\]: must map fields to weights"),
        ({"stars": math.nan}, "boost: weight=nan of 'stars': must be a number from -100 to 100"),
        ({"stars": math.inf}, "weight=inf"),
        ({"stars": True}, "weight=True"),
        ({"stars": "2"}, "weight='2'"),
        ({"stars": 10**400}, "weight=1"),
        ({"made": {"weight": 1, "half_life": -3}}, "half_life=-3 of 'made': must be a number from"),
        ({"made": {"weight": 1, "half_life": 0}}, "half_life=0 of"),
        ({"made": {"weight": 1, "half_life": math.nan}}, "half_life=nan"),
        ({"made": {"half_life": 3}}, "must be a weight, or a weight and a half_life"),
        ({"made": {"weight": 1, "days": 3}}, "must be a weight, or a weight and a half_life"),
        ({7: 1}, "boost: 7: 1: must be"),
        ({"": 1}, "boost: '': 1: must be"),
        ({"title": 5}, "boost: 'title' is a text of each document"),
        ({"_id": 5}, "boost: '_id' is a text of each document"),
        ({"yeer": 1}, "boost: no document has the field 'yeer'"),
        ({"note": 1}, "boost: 'note' of document '\\d+' is 'note \\d+'; a number is needed"),
        (
            {"note": {"weight": 1, "half_life": 9}},
            "is 'note \\d+'; a date such as 2024-05-06 is needed",
        ),
        ({"of.stars": {"weight": 1, "half_life": 9}}, "is \\d; a date such as"),
        ({"of": 1}, "a number is needed"),
    ],
    ids=str,
)
def test_what_means_nothing_is_told(index: Index, boost: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        index.search("zinc", boost=boost)
    assert "\n" not in str(refused.value)


def test_no_boost_and_one_of_a_field_that_no_candidate_has(index: Index) -> None:
    plain = index.search("zinc word3", 3)
    assert (
        index.search("zinc word3", 3, boost=None)
        == index.search("zinc word3", 3, boost={})
        == plain
    )
    moved = index.search("zinc word3", 3, boost={"only": 1}, filter={"_id": {"$ne": "7"}})
    assert [hit.scores["boost"] for hit in moved] == [0, 0, 0]


def test_several_indexes_are_boosted_together(index: Index, tmp_path: Any) -> None:
    with Index.create(tmp_path / "more", model=FakeEmbedder()) as more:
        more.add([{"_id": "m", "text": "zinc hull", "of": {"stars": 40}}])
        both = Retriever.load([index, more])
        hits = both.search("zinc hull", 41, boost={"of.stars": 2})
        assert (hits[0].id, hits[0].index) == ("m", str(more.path))
        stars = {hit.id: hit.scores["boost"] / hits[0].scores["boost"] for hit in hits}
        assert stars["4"] == pytest.approx(0.1), "a quotient by the largest of both"
