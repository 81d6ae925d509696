"""Several indexes in one search: one ranking, as of one index that holds the documents of all."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Hit, Index, Retriever, build_index
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.passage_scores import word_weights
from aveyb_retrieval.indexes.store.tables import MAX_GIVEN_ROWS
from tests import one_change
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from pathlib import Path

ROWS = make_documents(150, longest=120)
PARTS = {"a": ROWS[:30], "b": ROWS[30:120], "c": ROWS[120:]}
QUERY = "word1 word5 word7"
EXACT: list[dict[str, Any]] = [
    {"mode": "dense"},
    {"mode": "dense", "granularity": "passage", "passages": 3, "context": 1},
    {"mode": "dense", "filter": {"year": {"$gte": 2010}}, "offset": 4},
    {"mode": "dense", "rerank": "maxsim"},
    {"unit": "passage", "candidates": 1000},
    {"unit": "passage", "candidates": 1000, "per_document": 1, "diversity": 0.4, "context": 1},
    {
        "unit": "passage",
        "candidates": 1000,
        "ids": [f"doc-{i}" for i in range(0, 150, 4)],
        "fold": False,
    },
    {"unit": "passage", "candidates": 1000, "rerank": "maxsim", "min_score": 0.1},
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("several")
    for name, rows in {**PARTS, "whole": ROWS}.items():
        build_index(rows, root / name, model=FakeEmbedder())
    return root


@pytest.fixture(scope="module")
def whole(root: Path) -> Retriever:
    return Retriever.load(root / "whole", model=FakeEmbedder())


@pytest.fixture(scope="module")
def several(root: Path) -> Retriever:
    return Retriever.load({name: root / name for name in PARTS}, model=FakeEmbedder())


def shown(hit: Hit) -> Any:
    return (
        hit.id,
        hit.span,
        pytest.approx(hit.score, abs=1e-5),
        hit.text,
        hit.metadata,
        hit.context,
        hit.duplicates,
    )


@pytest.mark.parametrize("options", EXACT, ids=str)
def test_vectors_and_passages_rank_as_in_one_index(
    several: Retriever, whole: Retriever, options: dict[str, Any]
) -> None:
    wanted = whole.search(QUERY, 12, **options)
    found = several.search(QUERY, 12, **options)
    assert [shown(hit) for hit in found] == [shown(hit) for hit in wanted]
    assert [hit.confidence for hit in found] == pytest.approx(
        [hit.confidence for hit in wanted], abs=1e-5
    )
    for hit in found:
        assert hit.id in {row["_id"] for row in PARTS[hit.index or ""]}
    assert {hit.index for hit in wanted} == {None}


@pytest.mark.parametrize(
    "options", [{}, {"fusion": "rrf"}, {"rerank": "maxsim"}, {"mode": "lexical"}], ids=str
)
def test_words_rank_nearly_as_in_one_index(
    several: Retriever, whole: Retriever, options: dict[str, Any]
) -> None:
    queries = [f"word{i} word{i + 1}" for i in range(0, 40, 2)]
    same = [
        len({hit.id for hit in found} & {hit.id for hit in wanted})
        for found, wanted in zip(
            several.search(queries, 5, **options), whole.search(queries, 5, **options), strict=True
        )
    ]
    assert np.mean(same) > 4, same


def test_words_that_are_common_in_one_index_are_weighed_as_among_all(tmp_path: Path) -> None:
    rows = {
        "common": [{"_id": f"c{i}", "text": f"zinc tin{i}"} for i in range(30)],
        "rare": [{"_id": f"r{i}", "text": f"lead lead{i}" if i else "zinc ore"} for i in range(30)],
    }
    for name, some in rows.items():
        build_index(some, tmp_path / name, model=FakeEmbedder())
    build_index(
        [row for some in rows.values() for row in some], tmp_path / "all", model=FakeEmbedder()
    )
    both = Retriever.load([tmp_path / name for name in rows], model=FakeEmbedder())
    of_all = {
        hit.id: hit.score
        for hit in Retriever.load(tmp_path / "all").search("zinc", 31, mode="lexical")
    }
    alone = {
        hit.id: hit.score
        for each in both.indexes.values()
        for hit in each.search("zinc", 31, mode="lexical")
    }
    found = {hit.id: hit.score for hit in both.search("zinc", 31, mode="lexical")}
    assert alone["r0"] > 5 * alone["c0"], "each by itself"
    assert found == pytest.approx(of_all, rel=0.1)


@pytest.mark.parametrize("granularity", ["document", "passage", "both"])
def test_scores_of_words_are_those_of_one_index(tmp_path: Path, granularity: str) -> None:
    """Also without passages: no word weighs less than nothing, however many hold it."""
    rows = {
        name: [
            {"_id": f"{name}{i}", "text": ("zinc " if i < holding else "") + "ore of tin here"}
            for i in range(60)
        ]
        for name, holding in (("few", 1), ("half", 30), ("all", 60))
    }
    options: dict[str, Any] = {"model": FakeEmbedder(), "granularity": granularity}
    for name, some in rows.items():
        build_index(some, tmp_path / name, **options)
    build_index([row for some in rows.values() for row in some], tmp_path / "one", **options)
    one = Retriever.load(tmp_path / "one")
    both = Retriever.load([tmp_path / name for name in rows])
    for query in ("zinc", "ore", "zinc ore tin", "absent zinc"):
        found = {hit.id: hit.score for hit in both.search(query, 300, mode="lexical", fold=False)}
        wanted = {hit.id: hit.score for hit in one.search(query, 300, mode="lexical", fold=False)}
        assert found == pytest.approx(wanted, rel=0.1, abs=0.02)
    for retriever in (one, both):
        with retriever._engine.view() as view:
            weights = word_weights(view, ["zinc", "ore", "absent"])
        assert (weights > 0).all() and weights.argmax() == 2


def test_documents_of_the_same_id_are_both_found_and_told_apart(tmp_path: Path) -> None:
    for name in "ab":
        build_index(
            [{"_id": "memo", "text": f"word1 word2 of {name}"}],
            tmp_path / name,
            model=FakeEmbedder(),
        )
    both = Retriever.load({"left": tmp_path / "a", "right": tmp_path / "b"}, model=FakeEmbedder())
    hits = both.search("word1", unit="passage")
    assert sorted((hit.index, hit.id, hit.text[-1]) for hit in hits) == [
        ("left", "memo", "a"),
        ("right", "memo", "b"),
    ]
    assert sorted(document.index or "" for document in both.documents()) == ["left", "right"]
    assert [hit.index for hit in both.search("word1", ids=["memo"])] in (
        ["left", "right"],
        ["right", "left"],
    )
    assert both.indexes["right"].get(["memo"])[0].text.endswith("b")
    with pytest.raises(ConfigError, match=r"left|retriever.indexes\[hit.index\].get\(ids\)"):
        both.get(["memo"])


def test_quotations_are_looked_for_in_all_of_them(tmp_path: Path) -> None:
    said = {
        "a": "The lease of the garage ends in June.",
        "b": "The lease of the cellar ends in July.",
    }
    for name, text in said.items():
        build_index([{"_id": "memo", "text": text}], tmp_path / name, model=FakeEmbedder())
    both = Retriever.load({name: tmp_path / name for name in said}, model=FakeEmbedder())
    quotes = [f'"{text}"' for text in said.values()]
    found = both.check_quotes(
        " ".join([*quotes, '"The lease of the cellar ends in May"', '"Nobody was ever there"'])
    )
    told = [(check.verdict, check.index, check.id) for check in found]
    assert told == [
        ("found", "a", "memo"),
        ("found", "b", "memo"),
        ("altered", "b", "memo"),
        ("absent", None, None),
    ]
    assert [check.version for check in found[:2]] == [both.indexes[name].version for name in said]
    hits = sorted(both.search("lease"), key=lambda hit: hit.index or "")
    (marked,) = both.check_quotes(f"{quotes[1]} [1, 2]", hits)
    assert (marked.verdict, marked.mark, marked.to_dict()["index"]) == ("found", 2, "b")
    assert both.check_quotes(f"{quotes[1]} [1]", hits)[0].verdict == "elsewhere"
    assert both.visible({"_id": "none"}).check_quotes(quotes[0])[0].verdict == "absent"
    (alone,) = both.indexes["b"].check_quotes(quotes[1], hits[1:])  # of hits of several, in one
    assert (alone.verdict, alone.index) == ("found", None)


def test_counts_and_values_add_up(
    several: Retriever, whole: Retriever, tmp_path: Path, root: Path
) -> None:
    assert len(several) == several.count() == len(ROWS)
    for where in ({"year": 2004}, {"tags": "a"}, {"_id": {"$in": ["doc-1", "doc-140"]}}):
        assert several.count(where) == whole.count(where)
        assert several.values("tags", where) == whole.values("tags", where)
    assert several.values("year", limit=3) == whole.values("year", limit=3)
    assert [d.id for d in several.documents(limit=40, offset=10)] == [
        row["_id"] for row in ROWS[10:50]
    ]
    build_index([{"_id": "x", "text": "w", "only": True}], tmp_path / "other", model=FakeEmbedder())
    wider = Retriever.load([root / "a", tmp_path / "other"])
    assert wider.values("only") == [(True, 1)]
    assert wider.values("tags") == several.indexes["a"].values("tags")
    with pytest.raises(ConfigError, match="none has the field 'yeer'"):
        wider.values("yeer")


def test_a_value_is_counted_however_rare_it_is_in_one_index(tmp_path: Path) -> None:
    many = [f"a{number:05}" for number in range(MAX_GIVEN_ROWS)]
    build_index(
        [{"_id": "x", "text": "w", "tags": [*many, "rare"]}], tmp_path / "a", model=FakeEmbedder()
    )
    build_index([{"_id": "y", "text": "w", "tags": ["rare"]}], tmp_path / "b", model=FakeEmbedder())
    both = Retriever.load([tmp_path / "a", tmp_path / "b"])
    assert both.values("tags", limit=2) == [("rare", 2), ("a00000", 1)]
    assert (
        len(both.indexes[str(tmp_path / "a")].values("tags", limit=MAX_GIVEN_ROWS))
        == MAX_GIVEN_ROWS
    )


def test_queries_that_are_vectors_and_pairs(several: Retriever, whole: Retriever) -> None:
    vectors = FakeEmbedder().encode_queries([QUERY, "word9"])
    for found, wanted in zip(
        several.search_vectors(vectors, 5), whole.search_vectors(vectors, 5), strict=True
    ):
        assert [shown(hit) for hit in found] == [shown(hit) for hit in wanted]
    assert [name for name, _ in several.rank([QUERY], 5, mode="dense")[0]] == [
        hit.id for hit in whole.search(QUERY, 5, mode="dense")
    ]
    assert several.words("the word1") == whole.words("the word1")


def test_retrievers_that_are_open_are_taken_and_followed(tmp_path: Path) -> None:
    with Index.create(tmp_path / "a", model=FakeEmbedder()) as index:
        build_index([{"_id": "b", "text": "zinc"}], tmp_path / "b", model=FakeEmbedder())
        both = Retriever.load([index, tmp_path / "b"], model=FakeEmbedder())
        assert [(hit.index, hit.id) for hit in both.search("zinc", fold=False)] == [
            (str(tmp_path / "b"), "b")
        ]
        index.add([{"_id": "a", "text": "zinc"}])
        assert {hit.id for hit in both.search("zinc", fold=False)} == {"a", "b"}
        one_change.upsert([{"_id": "c", "text": "zinc"}], tmp_path / "b", model=FakeEmbedder())
        assert both.is_stale
        both.reopen()
        assert {hit.id for hit in both.search("zinc", fold=False)} == {"a", "b", "c"}
        assert not both.is_stale


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ({"model": FakeEmbedder(seed="z")}, "other: model is 'fake-z .*', but a has 'fake-a .*'"),
        ({"granularity": "document"}, "other: granularity is 'document', but a has 'both'"),
        (
            {"language": "german"},
            "other: language is 'german', but a has 'auto'; one ranking needs indexes",
        ),
    ],
    ids=["model", "granularity", "language"],
)
def test_indexes_that_were_not_made_alike_are_refused(
    root: Path, tmp_path: Path, made: dict[str, Any], told: str
) -> None:
    build_index(ROWS[:3], tmp_path / "other", **{"model": FakeEmbedder(), **made})
    with pytest.raises(ConfigError, match=told) as refused:
        Retriever.load({"a": root / "a", "other": tmp_path / "other"})
    assert "\n" not in str(refused.value)


@refusals(
    {
        ConfigError: {
            "no indexes: give 1 to 127 indexes, each once and by itself": lambda root, several: (
                Retriever.load([])
            ),
            "no indexes": lambda root, several: Retriever.load({}),
            "a: give 1 to 127 indexes, each once": lambda root, several: Retriever.load(
                [root / "a", str(root / "a")]
            ),
            "give 1 to 127 indexes": lambda root, several: Retriever.load(
                {f"{i}": root / "a" for i in range(128)}
            ),
            "a, b, c: give 1 to 127 indexes, each once and by itself": lambda root, several: (
                Retriever.load([root / "a", several])
            ),
            r"token-vectors.*no token vectors": lambda root, several: several.search(
                QUERY, rerank="token-vectors"
            ),
        },
    }
)
def test_what_is_no_choice_of_indexes_is_refused(
    root: Path, several: Retriever, refused: Refusal
) -> None:
    refused(root, several)


def test_a_copy_by_pickle_opens_the_same_places(root: Path, several: Retriever) -> None:
    one = Retriever.load(str(root / "a"), device="cpu", mapped=False)
    for retriever in (one, several):
        copy = pickle.loads(pickle.dumps(retriever))
        assert (copy.path, list(copy.indexes)) == (retriever.path, list(retriever.indexes))
        wanted, found = (each.search(QUERY, 3, mode="lexical") for each in (retriever, copy))
        assert found == wanted
        assert len(pickle.dumps(retriever)) < 2000, "the places and the options, no more"
