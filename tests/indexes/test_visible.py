"""`Retriever.visible`: an index with hidden documents answers as one that never had them, to the
last digit.
"""

from __future__ import annotations

import pickle
import random
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import ConfigError, Index, InputError, Retriever, build_index
from aveyb_retrieval.indexes.store.rows import RowTable
from aveyb_retrieval.indexes.store.tables import Tables
from tests.indexes.fake import FakeEmbedder
from tests.recorder import record_calls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aveyb_retrieval.indexes.search.hit import Result

SEEN = {"team": "legal"}
WORDS = [
    "tenant",
    "lease",
    "notice",
    "tenor",
    "rent",
    "month",
    "repair",
    "court",
    "deposit",
    "roof",
    "boiler",
    "garden",
]
SECRET = ["tenderness", "zygomorphic", "tenants", "bonus", "salary"]
QUERIES = [
    "tenant lease",
    "notice of a month",
    "zygomorphic rent",
    "tennant",
    "the boiler of the roof and the garden",
]
CHOICES: list[dict[str, Any]] = [
    {},
    {"unit": "passage"},
    {"unit": "passage", "diversity": 0.4, "fold": False},
    {"mode": "lexical"},
    {"mode": "lexical", "unit": "passage"},
    {"mode": "dense"},
    {"fusion": "rrf"},
    {"granularity": "document"},
    {"min_score": 0.05},
    {"filter": {"year": {"$gte": 2005}}},
    {"rerank": "maxsim"},
    {"passages": 3, "context": 1},
    {"boost": {"year": 0.3}},
    {"offset": 4},
]


def documents(team: str, count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    words, longest = (WORDS, 90) if team == "legal" else ([*WORDS[:4] * 3, *SECRET], 300)
    return [
        {
            "_id": f"{team}-{i}",
            "title": rng.choice(words),
            "text": " ".join(
                rng.choices(words, range(1, len(words) + 1), k=rng.randint(0, longest))
            ),
            "team": team,
            "year": 2000 + i % 10,
            **({"wage": i} if team == "board" else {}),
        }
        for i in range(count)
    ]


@pytest.fixture(scope="module", params=["built", "changed"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Retriever]]:
    """What can be seen of an index with hidden documents, and an index without them."""
    top, shown, hidden = (
        tmp_path_factory.mktemp("visible"),
        documents("legal", 60, 1),
        documents("board", 200, 2),
    )
    mixed = [*hidden[:100], *shown, *hidden[100:]]
    model = FakeEmbedder()
    build_index(shown, top / "without", model=model)
    if request.param == "built":
        build_index(mixed, top / "with", model=model)
    else:  # in pieces, of which Lance's index has not all, with documents that are gone
        build_index(mixed[:120], top / "with", model=model)
        with Index.open(top / "with", model=model) as index:
            index.add(
                [
                    {**each, "_id": f"x{i}", "text": each["text"] + " roof"}
                    for i, each in enumerate(shown)
                ]
            )
            for start in range(120, 260, 35):
                index.add(mixed[start : start + 35])
            index.delete([f"x{i}" for i in range(60)])
    with (
        Retriever.load(top / "with", model=model) as whole,
        Retriever.load(top / "without", model=model) as alone,
    ):
        yield [whole.visible(SEEN), alone]


def check_same(part: Result, alone: Result) -> None:
    assert [hit.id for hit in part] == [hit.id for hit in alone]
    for one, other in zip(part, alone, strict=True):
        found = [hit.to_dict(text=True) for hit in (one, other)]
        numbers = [
            [each.pop("score"), each.pop("confidence", None) or 0.0, *each.pop("scores").values()]
            for each in found
        ]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-6)
        passages = [[(p.span, p.text) for p in hit.passages] for hit in (one, other)]
        assert passages[0] == passages[1]
        assert [p.score for p in one.passages] == pytest.approx(
            [p.score for p in other.passages], abs=1e-6
        )
        assert [{**each, "passages": 0} for each in found[:1]] == [
            {**each, "passages": 0} for each in found[1:]
        ]
    assert (part.words, part.unmet, part.suggestions) == (
        alone.words,
        alone.unmet,
        alone.suggestions,
    )


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_hits_scores_and_confidences_are_those_of_an_index_without_the_others(
    pair: list[Retriever], options: dict[str, Any]
) -> None:
    for query in QUERIES:
        part, alone = (each.search(query, 20, **options) for each in pair)
        assert part or query == "tennant" or "min_score" in options
        check_same(part, alone)


@pytest.mark.parametrize(
    "query",
    [
        "ten*",
        "t* rent",
        "tenantt~",
        "+zygomorphic rent",
        "rent -bonus",
        '"bonus salary" roof',
        "zyg* rent",
        "sallary~ roof",
    ],
)
def test_operators_stand_for_words_that_can_be_seen(pair: list[Retriever], query: str) -> None:
    for options in ({}, {"unit": "passage"}, {"mode": "lexical"}):
        part, alone = (each.search(query, 20, operators=True, **options) for each in pair)
        check_same(part, alone)


def test_without_it_a_filter_has_the_statistics_of_all(tmp_path: Path) -> None:
    """The reason for it: the same search under a filter alone scores otherwise."""
    build_index(
        [*documents("legal", 20, 1), *documents("board", 40, 2)],
        tmp_path / "i",
        model=FakeEmbedder(),
    )
    with Retriever.load(tmp_path / "i", model=FakeEmbedder()) as whole:
        ways = [
            whole.search("tenant lease", 5, filter=SEEN),
            whole.visible(SEEN).search("tenant lease", 5),
        ]
    assert ways[0][0].score != pytest.approx(ways[1][0].score, abs=1e-3)


def test_all_that_reads_documents_sees_no_others(pair: list[Retriever]) -> None:
    part, alone = pair
    assert (len(part), part.count(), part.count({"team": "board"})) == (60, 60, 0)
    assert {each.id for each in part.documents()} == {each.id for each in alone.documents()}
    assert part.values("team") == [("legal", 60)]
    assert sorted(part.values("year")) == sorted(alone.values("year"))
    assert part.grep("zygomorphic") == [] and part.contents().left == 0
    assert part.get(["board-1"], missing_ok=True) == [] and part.advice({"wage": 1}) == []
    assert (
        part.check_quotes('It says "zygomorphic bonus tenderness salary bonus".')[0].verdict
        == "absent"
    )
    with pytest.raises(InputError, match="no document has the id 'board-1'"):
        part.get(["board-1"])
    for ask in (lambda: part.values("wage"), lambda: part.search("rent", boost={"wage": 1.0})):
        with pytest.raises(ConfigError, match="the field 'wage'"):
            ask()


def test_what_cannot_be_seen_stays_so_in_copies_and_in_several(pair: list[Retriever]) -> None:
    part, alone = pair
    other = Retriever.load({"one": part, "two": alone})
    assert other.count() == 120 and other.search("zygomorphic", mode="lexical") == []
    assert Retriever.load({"one": part}).visible({"year": 2001}).count() == 6
    with pytest.raises(ConfigError):
        part.visible({"a": {"$near": 1}})


@pytest.mark.parametrize("several", [False, True])
def test_a_part_of_a_part_satisfies_both_filters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, several: bool
) -> None:
    """In every way of reading, by as many filters as there are, in any order."""
    model = FakeEmbedder()
    build_index(
        [*documents("legal", 40, 1), *documents("board", 40, 2)], tmp_path / "i", model=model
    )
    old, seven = {"year": {"$gte": 2005}}, {"_id": {"$contains": "7"}}
    wide = {"year": {"$gte": 1990}}
    vector = model.encode_queries(["tenant lease"])
    with Retriever.load(tmp_path / "i", model=model) as whole:
        read = Retriever.load({"one": whole}) if several else whole
        seen = {d.id for d in whole.documents({"$and": [SEEN, old, seven]})}
        assert 2 < len(seen) < 20
        for order in ((SEEN, old, seven), (seven, SEEN, old), (old, seven, SEEN)):
            part = read
            for where in order:
                part = part.visible(where)
            for filter in (None, {}, wide, {"$or": [wide, {"team": "board"}]}):
                ways = {
                    "documents": [d.id for d in part.documents(filter)],
                    "search": [
                        hit.id for hit in part.search("tenant", 80, filter=filter, fold=False)
                    ],
                    "vectors": [
                        hit.id for hit in part.search_vectors(vector, 80, filter=filter)[0]
                    ],
                    "contents": [d.id for d in part.contents(filter=filter).documents],
                }
                assert {name: set(ids) for name, ids in ways.items()} == dict.fromkeys(ways, seen)
                assert part.count(filter) == len(seen)
                assert part.values("team", filter) == [("legal", len(seen))]
                assert {m.id for m in part.grep("a", filter=filter)} <= seen
            assert len(part) == len(seen) and part.advice({"wage": 1}) == []
            hidden = [d.id for d in whole.documents({"team": "board"})]
            assert part.search("bonus salary", 80, ids=hidden) == []
            assert part.search('"bonus salary"', 80, operators=True) == []
            if not several:
                assert part.get(hidden, missing_ok=True) == []
                for reads in (part.outline, part.read):
                    with pytest.raises(InputError, match="no document has the id"):
                        reads(hidden[0])
                copy = pickle.loads(pickle.dumps(part))
                assert {d.id for d in copy.documents(wide)} == seen
                copy.close()
            caplog.clear()
            assert part.search("tenant", filter={"waeg": 3}) == []
            assert "wage" not in caplog.text


def test_a_part_searches_with_the_model_that_was_given(tmp_path: Path) -> None:
    build_index(documents("legal", 12, 1), tmp_path / "a", vectors=None, model=FakeEmbedder())
    build_index(documents("board", 12, 2), tmp_path / "b", vectors=None, model=FakeEmbedder())
    model = FakeEmbedder()
    places = {name: tmp_path / name for name in "ab"}
    loaded = Retriever.load(places, model=model)
    opened = [Retriever.load(place, model=model) for place in places.values()]
    for several in (
        loaded,
        Retriever.load(opened),
        Retriever.load([each.visible({}) for each in opened]),
        Retriever.load([Retriever.load(place) for place in places.values()], model=model),
    ):
        for part in (several, several.visible(SEEN), several.visible(SEEN).visible({})):
            assert part.model is model
            assert part.search("tenant lease", 3)


def test_no_expression_looks_at_what_is_hidden(tmp_path: Path) -> None:
    """One that takes too long with a hidden text would tell of it."""
    secret = {"_id": "s", "text": "word1", "path": f"hr/{'a' * 200}!"}
    papers = [{"_id": f"{i}", "text": "word1", "path": f"pub/{i}"} for i in range(12)]
    build_index([secret, *papers], tmp_path / "ix", model=FakeEmbedder())
    explodes = {"path": {"$regex": "^hr/(a|aa)+$"}}
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        with pytest.raises(ConfigError, match="took longer"):
            retriever.count(explodes)
        for seen in ({"path": {"$regex": "^pub/"}}, {"$not": {"path": {"$regex": "^hr/"}}}):
            part = retriever.visible(seen)
            assert part.count(explodes) == 0 and part.values("path", explodes) == []
            assert part.search("word1", filter=explodes, mode="lexical") == []
            assert part.visible({"path": {"$regex": "1"}}).count(explodes) == 0
            either = {"$or": [explodes, {"path": {"$regex": r"1\d$"}}]}
            assert [document.id for document in part.documents(either)] == ["10", "11"]


def test_a_copy_by_pickle_sees_no_more(tmp_path: Path) -> None:
    build_index(
        [*documents("legal", 3, 1), *documents("board", 3, 2)], tmp_path / "i", model=FakeEmbedder()
    )
    with Retriever.load(tmp_path / "i") as whole:
        copy = pickle.loads(pickle.dumps(whole.visible(SEEN)))
    assert copy.count() == 3
    copy.close()
    nothing = Retriever.load(tmp_path / "i", model=FakeEmbedder()).visible({"team": "nobody"})
    assert nothing.search("tenant") == [] and nothing.search("tenent").suggestions == {}


def test_a_beginning_of_too_many_words_is_refused_before_all_texts_of_a_part_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"_id": f"{n}", "text": " ".join(f"x{n}y{i}" for i in range(100)), **SEEN}
        for n in range(200)
    ]
    build_index(rows, tmp_path / "i", model=FakeEmbedder(), language="none")
    taken = record_calls(monkeypatch, RowTable, "take")
    with Retriever.load(tmp_path / "i", model=FakeEmbedder()).visible(SEEN) as part:
        with pytest.raises(ConfigError, match="more than 1,024 words"):
            part.search("x*", mode="lexical", operators=True)
        assert sum(len(call["numbers"]) for call in taken) == 64
        assert part.search("x39y1*", mode="lexical", operators=True)


def test_searches_of_a_part_read_once_what_all_passages_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(
        [*documents("legal", 12, 1), *documents("board", 12, 2)],
        tmp_path / "i",
        model=FakeEmbedder(),
    )
    reads = {
        name: record_calls(monkeypatch, Tables, name) for name in ("repeating", "light", "renamed")
    }
    with Retriever.load(tmp_path / "i", model=FakeEmbedder()) as whole:
        part = whole.visible(SEEN)
        for query in QUERIES[:2]:
            assert part.search(query, 3)
        assert part.visible({"year": 2001}).search(QUERIES[0], 3)
    assert sorted(call["kind"] for call in reads["light"]) == ["document", "passage"]
    assert (len(reads["repeating"]), len(reads["renamed"])) == (1, 1)


def test_a_filter_that_is_changed_later_shows_nothing_else(tmp_path: Path) -> None:
    rows = [{"_id": f"{team}{i}", "text": "word", "team": team} for team in "ab" for i in range(3)]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder())
    shown: dict[str, Any] = {"team": {"$in": ["a"]}}
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        both = Retriever.load({"x": retriever})
        parts = [
            retriever.visible(shown),
            retriever.visible(shown).visible({}),
            both.visible(shown),
        ]
        shown["team"]["$in"].append("b")
        shown["team"] = "b"
        for part in parts:
            assert {hit.id[0] for hit in part.search("word", 6, fold=False)} == {"a"}
            assert len(part) == 3


def test_languages_of_hidden_documents_do_not_count(tmp_path: Path) -> None:
    english = "The tenant gives notice to the landlord of the house, and that is all he has to do. "
    german = "Der Mieter k\u00fcndigt dem Vermieter des Hauses, und das ist alles, was er tut. "
    rows = [
        {"_id": f"{team}{i}", "text": text * 3, "team": team}
        for team, text in (("legal", english), ("board", german))
        for i in range(3 if team == "legal" else 5)
    ]
    model = FakeEmbedder()
    build_index(rows, tmp_path / "with", model=model)
    build_index(rows[:3], tmp_path / "without", model=model)
    with (
        Retriever.load(tmp_path / "with", model=model) as whole,
        Retriever.load(tmp_path / "without", model=model) as without,
    ):
        part = whole.visible(SEEN)
        for question in ("H\u00e4user", "die Wohnung", "k\u00fcndigen", "tenants and houses"):
            assert part.words(question) == without.words(question)
            found = part.search(question, mode="lexical", fold=False)
            alone = without.search(question, mode="lexical", fold=False)
            assert found.words == alone.words
            assert [hit.id for hit in found] == [hit.id for hit in alone]
            assert [hit.score for hit in found] == pytest.approx([hit.score for hit in alone])
