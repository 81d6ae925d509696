"""Every engine answers searches as our own files do: the same hits, for the same options and
filters.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval.errors import AveyBError, ConfigError, IndexFormatError, InputError
from tests.engines.stands import EMBEDDER, LocalStand
from tests.indexes.conftest import assert_best, true_scores
from tests.indexes.fake import FakeEmbedder
from tests.indexes.test_filters import holds
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aveyb_retrieval import Hit, Retriever
    from tests.engines.stands import Collection, Documents, Stand

QUERY = "zinc hull word1 word17"
TOLERANCE = 1e-4
SAMPLING = ("indexes.search.snapshot", "engines.collection")


def plain(value: Any, *, about: bool = False) -> Any:
    """A hit's fields as lists and dicts; `about`: with numbers that equal those of sums in another
    order.
    """
    if isinstance(value, float) and about:
        return pytest.approx(value, abs=TOLERANCE)
    if isinstance(value, dict):
        return {key: plain(item, about=about) for key, item in value.items()}
    return (
        [plain(item, about=about) for item in value] if isinstance(value, (list, tuple)) else value
    )


def assert_same(found: list[Hit], wanted: list[Hit]) -> None:
    """The same scores in the same order, and the same hits; equals may stand in any order."""
    assert [hit.score for hit in found] == pytest.approx(
        [hit.score for hit in wanted], abs=TOLERANCE
    )
    if not wanted:
        return
    last = wanted[-1].score + TOLERANCE  # those that tie with the last one may be others
    theirs = {(hit.id, hit.span): hit for hit in found}
    for hit in wanted:
        if hit.score > last:
            other = theirs[hit.id, hit.span]
            assert plain(other.to_dict(text=True)) == plain(hit.to_dict(text=True), about=True)


def test_what_only_an_index_directory_can_is_refused(library: Retriever, stand: Stand) -> None:
    if isinstance(stand, LocalStand):
        assert [hit.id for hit in library.search(QUERY, ids=["zinc"])] == ["zinc"]
        return
    for options in (
        {"filter": {"_id": "zinc"}},
        {"filter": {"$not": {"title": "Zinc"}}},
        {"ids": ["zinc"]},
    ):
        with pytest.raises(
            ConfigError,
            match="only for index directories; engines filter by metadata",
        ):
            library.search(QUERY, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"filter: \$startsWith.* on 'year'"):
        library.search(QUERY, filter={"year": {"$startsWith": "20"}})
    with pytest.raises(ConfigError, match="only index directories count values"):
        library.values("year")
    assert library.search(QUERY, 3, offset=2) == library.search(QUERY, 5)[2:]


# --- rankings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["document", "passage", "both"])
def test_scores_are_cosines(library: Retriever, rows: Documents, granularity: Any) -> None:
    hits = library.search(QUERY, 10, mode="dense", granularity=granularity)
    assert_best(hits, true_scores(rows, EMBEDDER, QUERY, granularity), 10)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "dense"},
        {"mode": "dense", "exact": True},
        {"mode": "dense", "passages": 3, "context": 1},
        {"mode": "dense", "granularity": "document"},
        {"mode": "dense", "min_score": 0.3},
        {"mode": "dense", "rerank": "maxsim", "candidates": 20},
        {"mode": "dense", "filter": {"year": {"$gte": 2010}}},
        {"mode": "dense", "unit": "passage"},
        {"mode": "dense", "unit": "passage", "per_document": 1},
        {"mode": "dense", "unit": "passage", "diversity": 0.5, "fold": False},
        {"mode": "dense", "unit": "passage", "context": 2, "filter": {"tags": "a"}},
        {"mode": "dense", "unit": "passage", "min_score": 0.2},
    ],
    ids=str,
)
def test_hits_by_vectors_are_those_of_our_own_files(
    library: Retriever, ours: Retriever, options: dict[str, Any]
) -> None:
    assert_same(library.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fusion": "rrf"},
        {"weight": 0.9, "passages": 2},
        {"min_score": 0.05},
        {"rerank": "maxsim", "candidates": 20},
        {"filter": {"year": {"$gte": 2010}}, "context": 1},
        {"unit": "passage"},
        {"unit": "passage", "per_document": 2, "fold": False},
        {"unit": "passage", "rerank": "maxsim", "candidates": 20},
        {"boost": {"year": 0.5}},
        {"unit": "passage", "diversity": 0.3, "filter": {"tags": {"$in": ["a", "b"]}}},
        {"mode": "lexical"},
        {"mode": "lexical", "passages": 2, "filter": {"year": {"$lt": 2010}}},
        {"mode": "lexical", "unit": "passage"},
    ],
    ids=str,
)
def test_hits_with_words_are_those_of_our_own_files(
    library: Retriever, ours: Retriever, options: dict[str, Any], needs: Callable[[str], None]
) -> None:
    if options.get("unit") != "passage" or options.get("mode") == "lexical":
        needs("our-statistics")
    assert_same(library.search(QUERY, 10, **options), ours.search(QUERY, 10, **options))


@pytest.mark.parametrize(
    "options", [{}, {"mode": "lexical"}, {"filter": {"year": {"$gte": 2005}}}], ids=str
)
def test_documents_by_words_are_those_of_our_own_files(
    library: Retriever, ours: Retriever, options: dict[str, Any]
) -> None:
    """Whatever an engine counts: nine of the ten best of a hundred queries."""
    same = 0
    for number in range(100):
        query = f"word{number} word{3 * number % 300} word{7 * number % 300}"
        wanted = {hit.id for hit in ours.search(query, 10, **options)}
        same += len(wanted & {hit.id for hit in library.search(query, 10, **options)}) / len(wanted)
    assert same >= 90


def test_hybrid_scores_do_not_depend_on_the_order_of_documents(
    collection: Collection,
    stand: Stand,
    rows: Documents,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    needs: Callable[[str], None],
) -> None:
    needs("our-statistics")
    for module in SAMPLING:
        monkeypatch.setattr(f"aveyb_retrieval.{module}.SAMPLE_DOCUMENTS", 16)
    collection.publish(rows)
    other = stand.collection()
    other.publish(rows[::-1])
    with collection.load() as forwards, other.load() as backwards:
        wanted = forwards.search(QUERY, 10)
        assert_same(backwards.search(QUERY, 10), wanted)
    local = LocalStand(tmp_path).collection()
    local.publish(rows)
    with local.load() as ours:
        assert_same(wanted, ours.search(QUERY, 10))


@pytest.mark.parametrize(
    "query", ["京都", "都", "creme brulee", "ships' hulls", "word1 word1", '"; DROP TABLE x', "of"]
)
def test_words_are_found_by_the_rules_of_our_own_files(
    library: Retriever, ours: Retriever, query: str
) -> None:
    assert library.words(query) == ours.words(query)
    for options in ({}, {"unit": "passage", "fold": False}):
        found, wanted = (r.search(query, 500, mode="lexical", **options) for r in (library, ours))
        assert sorted((h.id, h.span) for h in found) == sorted((h.id, h.span) for h in wanted)
    found, wanted = (r.search(query, 5, unit="passage") for r in (library, ours))
    assert [hit.id for hit in found] == [hit.id for hit in wanted]
    # a collection keeps no weights of passages: vectors count there as if the model knew all texts
    known = [place for place, hit in enumerate(wanted) if hit.text.isascii()]
    assert_same([found[place] for place in known], [wanted[place] for place in known])


def test_unknown_words_find_nothing(library: Retriever) -> None:
    assert library.search("nosuchwordatall", 5, mode="lexical") == []


@pytest.mark.parametrize("unit", ["document", "passage"])
def test_more_than_there_are_gives_all(library: Retriever, rows: Documents, unit: Any) -> None:
    hits = library.search(QUERY, 5000, mode="dense", unit=unit, fold=False)
    if unit == "document":
        assert sorted(hit.id for hit in hits) == sorted(row["_id"] for row in rows)
    else:
        encoded = EMBEDDER.encode_documents(
            ((f"{r['title']}\n" if r["title"] else ""), r["text"]) for r in rows
        )
        assert len(hits) == sum(len(each.passages) for each in encoded)


def test_vectors_can_be_searched_for(library: Retriever) -> None:
    vectors = EMBEDDER.encode_queries([QUERY, "word3"])
    found = library.search_vectors(vectors * 7, 5)
    assert [[h.id for h in hits] for hits in found] == [
        [h.id for h in library.search(query, 5, mode="dense")] for query in (QUERY, "word3")
    ]


def test_several_queries_are_answered_as_one_by_one(library: Retriever) -> None:
    queries = [QUERY, "word2 word8", "sea"]
    together = library.search(queries, 4, mode="dense")
    for query, hits in zip(queries, together, strict=True):
        assert_same(hits, library.search(query, 4, mode="dense"))


def test_many_threads_get_the_same_answers(library: Retriever) -> None:
    queries = [f"word{i} word{i + 1}" for i in range(24)]
    alone = [[hit.id for hit in library.search(query, 5, mode="dense")] for query in queries]
    with ThreadPoolExecutor(6) as pool:
        found = list(
            pool.map(
                lambda query: [hit.id for hit in library.search(query, 5, mode="dense")], queries
            )
        )
    assert found == alone


def test_rank_gives_ids_and_scores(library: Retriever) -> None:
    (pairs,) = library.rank([QUERY], 5, mode="dense")
    assert pairs == [(hit.id, hit.score) for hit in library.search(QUERY, 5, mode="dense")]


# --- filters -------------------------------------------------------------------------------------

FILTERS: list[dict[str, Any]] = [
    {},
    {"year": 2004},
    {"year": 2004.0},
    {"year": "2004"},
    {"year": {"$ne": 2004}},
    {"year": {"$gt": 2010}},
    {"year": {"$gte": 2010, "$lt": 2013}},
    {"year": {"$lte": 2001.5}},
    {"tags": {"$gt": "e"}},
    {"tags": "a"},
    {"tags": {"$in": ["a", "f", 3, None]}},
    {"tags": {"$nin": ["a", "d"]}},
    {"year": {"$in": []}},
    {"tags": {"$contains": "b"}},
    {"tags": {"$any": ["c", "f"]}},
    {"tags": {"$all": ["a", "d"]}},
    {"tags": {"$not": {"$all": ["a", "d"]}}},
    {"tags": {"$exists": False}},
    {"tags": {"$is_empty": True}},
    {"missing": None},
    {"missing": {"$ne": 1}},
    {"$and": [{"year": {"$gt": 2003}}, {"tags": "a"}]},
    {"$or": [{"year": 2004}, {"tags": {"$all": ["b", "e"]}}]},
    {"$not": {"year": {"$gt": 2003}, "tags": "a"}},
    {"tags": "é"},
]


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_a_filter_lets_through_what_plain_python_does(
    library: Retriever, rows: Documents, where: Any
) -> None:
    wanted = [row["_id"] for row in rows if holds(where, row)]
    assert sorted(document.id for document in library.documents(where)) == sorted(wanted)
    assert library.count(where) == len(wanted)
    hits = library.search(QUERY, 500, mode="dense", filter=where, fold=False)
    assert sorted(hit.id for hit in hits) == sorted(wanted)


VALUES: list[dict[str, Any]] = [
    {"x": value}
    # what a list in a list holds counts in an index directory only
    for value in (
        None,
        True,
        False,
        0,
        1,
        -1.5,
        2**53,
        1e300,
        "",
        "a",
        "1",
        "null",
        [],
        {},
        [1, "a"],
        [None],
    )
] + [
    {"x": {"y": [1, {"z": "deep"}]}},
    {"x": {"y": {"z": "deep"}}},
    {"x": {"y": [{"z": "deep"}]}},
    {"x": {"y": [{"z": ["b", 1]}, {"z": "deep"}, {"z": ""}]}},
    {"x": [{"y": [{"z": "c"}, {}]}, {"y": {"z": "deep"}}]},
    {"a.b": 1},
    {"x": {"0": "zero"}},
    {},
]
QUESTIONS: list[dict[str, Any]] = [
    *(
        {"x": value}
        for value in (
            None,
            True,
            False,
            0,
            1,
            1.0,
            -1.5,
            2**53,
            2.0**53,
            1e300,
            "",
            "a",
            "1",
            "null",
        )
    ),
    {"x": {"$gt": 0}},
    {"x": {"$lte": "a"}},
    {"x": {"$exists": True}},
    {"x": {"$is_empty": True}},
    {"x": {"$is_empty": False}},
    {"x": {"$contains": ""}},
    {"x": {"$contains": 1}},
    {"x": {"$all": []}},
    {"x": {"$any": [1, "a", None]}},
    {"x": {"$not": {"$gt": 0}}},
    {"x.y.z": "deep"},
    {"x.y.z": {"$nin": ["b", "c"]}},
    {"x.y.z": {"$gt": "c"}},
    {"x.y.z": {"$lt": 2}},
    {"x.y.z": {"$contains": "ee"}},
    {"x.y.z": {"$contains": "deep"}},
    {"x.y.z": {"$all": ["deep", "c"]}},
    {"x.y.z": {"$any": ["b", "c"]}},
    {"x.y.z": {"$exists": False}},
    {"x.y.z": {"$is_empty": True}},
    {"x.y": 1},
    {"x.0": "zero"},
    {"x.0": 1},
    {"a\\.b": 1},
    {"a.b": 1},
]


def test_filters_compare_every_type_as_plain_python_does(collection: Collection) -> None:
    documents = [
        {"_id": str(n), "text": f"word{n}", "metadata": each} for n, each in enumerate(VALUES)
    ]
    collection.publish(documents)
    with collection.load() as retriever:
        for where in QUESTIONS:
            plain = {"a.b": 1} if where == {"a\\.b": 1} else None
            wanted = [
                row["_id"]
                for row in documents
                if (row["metadata"].get("a.b") == 1 if plain else holds(where, row["metadata"]))
            ]
            assert sorted(d.id for d in retriever.documents(where)) == sorted(wanted), where
            assert sorted(
                h.id for h in retriever.search("word1", 50, mode="dense", filter=where)
            ) == sorted(wanted)


@pytest.mark.parametrize(
    "where", [{"year": {"$near": 3}}, {"year": {"$gt": None}}, {"": 1}, {"year": {"$gt": math.nan}}]
)
@pytest.mark.parametrize(
    "use",
    [
        lambda library, where: library.search(QUERY, 3, mode="dense", filter=where),
        lambda library, where: library.count(where),
        lambda library, where: library.documents(where),
    ],
    ids=["search", "count", "documents"],
)
def test_a_filter_that_means_nothing_is_an_error(
    library: Retriever, use: Callable[[Retriever, Any], object], where: Any
) -> None:
    with pytest.raises(ConfigError, match="filter"):
        use(library, where)


# --- documents -----------------------------------------------------------------------------------


def test_documents_are_fetched_by_id(library: Retriever, rows: Documents) -> None:
    wanted = ["zinc", "doc-3", "kyoto", "doc-3"]
    by_id = {row["_id"]: row for row in rows}
    assert [(d.id, d.title, d.text) for d in library.get(wanted)] == [
        (i, by_id[i]["title"], by_id[i]["text"]) for i in wanted
    ]
    assert [d.id for d in library.get(["nobody", "zinc"], missing_ok=True)] == ["zinc"]
    with pytest.raises(InputError, match="nobody"):
        library.get(["zinc", "nobody"])
    assert library.get([]) == []


def test_documents_are_listed_in_parts(library: Retriever, rows: Documents) -> None:
    whole = [document.id for document in library.documents()]
    assert len(whole) == len(set(whole)) == len(rows) == len(library) == library.count()
    assert [d.id for d in library.documents(limit=7, offset=50)] == whole[50:57]
    assert list(library.documents(offset=5000)) == []


# --- errors --------------------------------------------------------------------------------------


def test_another_model_is_refused(collection: Collection) -> None:
    collection.publish([{"_id": "a", "text": "word1"}])
    with pytest.raises(IndexFormatError, match="fake-a"):
        collection.load(model=FakeEmbedder(seed="b"))


@refusals(
    {
        ConfigError: {
            "did you mean 'k'": lambda library: library.search(QUERY, top_k=3),
            "token": lambda library: library.search(QUERY, 3, mode="dense", rerank="token-vectors"),
        },
        InputError: {"shape": lambda library: library.search_vectors(np.ones((1, 3)))},
    }
)
def test_unknown_options_and_other_vectors_are_refused(
    library: Retriever, refused: Refusal
) -> None:
    refused(library)


def test_documents_alone_have_no_passages(collection: Collection) -> None:
    collection.publish(
        [{"_id": str(n), "text": f"word{n}"} for n in range(5)], granularity="document"
    )
    with collection.load() as retriever:
        assert retriever.granularity == "document"
        (hit,) = retriever.search("word3", 1, mode="dense")
        assert (hit.id, hit.passage, hit.passages) == ("3", None, ())
        with pytest.raises(ConfigError, match="granularity"):
            retriever.search("word3", unit="passage")


def test_a_closed_retriever_is_an_error(collection: Collection) -> None:
    collection.publish([{"_id": "a", "text": "word1"}])
    retriever = collection.load()
    retriever.close()
    retriever.close()
    with pytest.raises(AveyBError, match="closed"):
        retriever.search("word1", mode="dense")


def test_what_a_mail_repeats_counts_as_in_our_own_files(
    collection: Collection, tmp_path: Path
) -> None:
    def mail(name: str, day: int, text: str) -> dict[str, Any]:
        date = f"2026-05-{day:02}T08:00:00+00:00"
        about = {"type": "mail", "thread": "a@x", "date": date}
        return {"_id": name, "title": "Zinc", "text": f"From: Ada\nDate: {date}\n\n{text}", **about}

    price = "The zinc plates of the hull are paid with 40 crowns in May."
    quotation = "\n".join(f"> {line}" for line in price.splitlines())
    mails = [
        mail("price", 1, price),
        mail("thanks", 2, f"Thank you for all of it.\n\nOn 1 May 2026 Ada wrote:\n\n{quotation}\n"),
    ]
    others = [{"_id": f"n{n}", "text": f"word{n} word17 of the yard"} for n in range(12)]
    collection.publish([*mails, *others])
    own = LocalStand(tmp_path).collection()
    own.publish([*mails, *others])
    options: Any = {"k": 5, "fold": False, "unit": "passage"}
    query = "zinc plates crowns"
    found, wanted = (held.load().search(query, **options) for held in (collection, own))
    assert [hit.id for hit in found[:2]] == [hit.id for hit in wanted[:2]]
    assert found[0].id == "price"
    quoted = next(hit for hit in found if hit.id == "thanks")
    assert quoted.score < found[0].score / 2
    assert quoted.score == pytest.approx(
        next(hit.score for hit in wanted if hit.id == "thanks"), abs=TOLERANCE
    )
