"""`/search`, `/documents` and `/indexes` give what `Retriever` gives, and refuse what it refuses in
its words.
"""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections import Counter

import pytest
from starlette.testclient import TestClient

from aveyb_retrieval import ConfigError, Retriever, build_index
from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.server.app import create_app
from aveyb_retrieval.server.indexes import Indexes
from aveyb_retrieval.server.limits import ServerLimits
from tests import one_change
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder
from tests.server.conftest import CountingEmbedder

JSON = {"Content-Type": "application/json"}
OPTIONS = [
    {},
    {"mode": "dense", "granularity": "passage"},
    {"mode": "lexical"},
    {"fusion": "rrf", "candidates": 50},
    {"weight": 0.7, "passages": 3, "context": 1},
    {"unit": "passage", "per_document": 1, "diversity": 0.3, "fold": False},
    {"filter": {"year": {"$gte": 2010}, "tags": "a"}},
    {"filter": {"$not": {"tags": {"$regex": "^[ab]$"}}}},
    {"min_score": 0.0, "rerank": "maxsim"},
    {"mode": "dense", "exact": True},
    {"ids": ["doc-1", "doc-2", "doc-77", "nobody"]},
    {"offset": 3},
    {"boost": {"year": 0.5}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_search_gives_what_the_retriever_gives(client, folder, model, options):
    with Retriever.load(folder, model=model) as retriever:
        # the server looks one further, to say whether there is more
        expected = [
            hit.to_dict() for hit in retriever.search("word1 word2 word3", 8, **options)[:7]
        ]
    posted = client.post("/search", json={"query": "word1 word2 word3", "k": 7, **options})
    assert posted.status_code == 200, posted.text
    assert posted.json()["hits"] == json.loads(json.dumps(expected))
    parameters = {name: v if isinstance(v, str) else json.dumps(v) for name, v in options.items()}
    got = client.get("/search", params={"query": "word1 word2 word3", "k": "7", **parameters})
    assert got.json() == posted.json()


def test_operators_suggestions_and_what_nothing_fulfills_are_told(client):
    asked = {"query": "+word1 -word2", "operators": True, "k": 100, "mode": "lexical"}
    answer = client.post("/search", json=asked).json()
    texts = [
        hit["passage"].split()
        for hit in client.post("/search", json={**asked, "unit": "passage"}).json()["hits"]
    ]
    assert answer["words"] == ["word1"]
    assert texts
    assert all("word1" in text and "word2" not in text for text in texts)
    recent = client.post(
        "/search", json={**asked, "unit": "passage", "filter": {"year": {"$gte": 2010}}}
    ).json()["hits"]
    assert {(hit["id"], *hit["span"]) for hit in recent} == {
        (hit["id"], *hit["span"])
        for hit in client.post("/search", json={**asked, "unit": "passage"}).json()["hits"]
        if hit["metadata"]["year"] >= 2010
    }
    nothing = client.get(
        "/search", params={"query": '+word1 "word1 nowhere"', "operators": "true"}
    ).json()
    assert (nothing["hits"], nothing["unmet"]) == ([], ['"word1 nowhere"'])
    assert client.post("/search", json={"query": "wrod1"}).json()["suggestions"] == {
        "wrod1": ["word1"]
    }
    refused = client.post("/search", json={"query": 'an "open quote', "operators": True})
    assert refused.status_code == 422
    assert "does not close" in refused.json()["error"]


def test_several_queries_give_several_results(client):
    answer = client.post("/search", json={"query": ["word1", "word2"], "k": 2}).json()
    single = client.post("/search", json={"query": "word2", "k": 2}).json()
    assert [result["query"] for result in answer["results"]] == ["word1", "word2"]
    assert answer["results"][1]["hits"] == single["hits"]
    assert single["words"] == ["word2"]


def test_pages_follow_each_other(client):
    asked = {"query": "word1 word5", "k": 5}
    whole = client.post("/search", json={**asked, "k": 25}).json()["hits"]
    page = client.post("/search", json=asked).json()
    found = page["hits"]
    while page["next"] is not None and len(found) < 25:
        again = client.post("/search", json={**asked, "offset": len(found)}).json()
        page = client.post("/search", json={**asked, "cursor": page["next"]}).json()
        assert page == again
        found += page["hits"]
    assert found == whole


@pytest.mark.parametrize("k", [3, 7, 40, 100])
def test_the_last_page_ends_where_a_search_may_not_go_on(client, k):
    asked, found = {"query": "word1 word5", "k": k}, []
    page = client.post("/search", json=asked).json()
    while page["next"] is not None:
        found += page["hits"]
        page = client.post("/search", json={**asked, "cursor": page["next"]}).json()
    found += page["hits"]
    assert found == client.post("/search", json={**asked, "k": 100}).json()["hits"]


def test_a_cursor_of_another_search_is_refused(client):
    cursor = client.post("/search", json={"query": "word1 word5", "k": 5}).json()["next"]
    for other in (
        {"query": "word1"},
        {"query": "word1 word5", "mode": "dense"},
        {"query": "word5 word1"},
    ):
        answer = client.post("/search", json={**other, "cursor": cursor})
        assert (
            answer.status_code,
            "of another search, or the index has changed" in answer.text,
        ) == (409, True)
    for wrong in ("5", "x-1", f"{cursor}0", "-1-0123456789abcdef", "\u0661-0123456789abcdef"):
        assert (
            client.post("/search", json={"query": "word1 word5", "cursor": wrong}).status_code
            == 422
        )
    for more in ({"offset": 3}, {"query": ["word1 word5"]}):
        assert (
            client.post(
                "/search", json={"query": "word1 word5", "cursor": cursor, **more}
            ).status_code
            == 422
        )


def test_facets_follow_the_query_where_it_is_asked_for(client):
    found = client.post("/search", json={"query": "word1", "mode": "lexical", "k": 100}).json()[
        "hits"
    ]
    assert 0 < len(found) < 100
    years = Counter(hit["metadata"]["year"] for hit in found)
    asked = {"query": "word1", "k": 1, "facets": ["year"], "facets_of": "found"}
    answer = client.post("/search", json=asked).json()
    assert {each["value"]: each["count"] for each in answer["facets"]["year"]} == years
    assert (
        client.post("/search", json={**asked, "query": "nothing-like-it"}).json()["facets"]["year"]
        == []
    )


def test_facets_count_what_the_filter_and_the_ids_let_through(client, folder):
    ids = [f"doc-{i}" for i in range(50)]
    asked = {
        "query": "zzz",
        "mode": "lexical",
        "facets": ["tags", "year"],
        "ids": ids,
        "filter": {"year": {"$lt": 2003}},
    }
    answer = client.post("/search", json=asked).json()
    assert answer["hits"] == []
    assert answer["facets"]["year"] == [{"value": year, "count": 3} for year in (2000, 2001, 2002)]
    with Retriever.load(folder) as retriever:
        counted = retriever.values("tags", {"_id": {"$in": ids}, "year": {"$lt": 2003}})
    assert [(each["value"], each["count"]) for each in answer["facets"]["tags"]] == counted
    several = client.post("/search", json={**asked, "query": ["zzz", "yyy"]}).json()
    assert several["facets"] == answer["facets"]
    assert client.post("/search", json={"query": "word1"}).json()["facets"] == {}


def test_the_last_page_says_so(client):
    rare = {"query": "word1", "mode": "lexical", "filter": {"year": 2003}}
    answer = client.post("/search", json={**rare, "k": 100}).json()
    assert answer["next"] is None
    # as far as max_k goes
    assert client.post("/search", json={"query": "word1", "k": 100}).json()["next"] is None


def test_texts_come_only_when_asked_for(client):
    assert "text" not in client.get("/search", params={"query": "word1"}).json()["hits"][0]
    hit = client.get(
        "/search", params={"query": "word1", "text": "true", "mode": "lexical"}
    ).json()["hits"][0]
    assert "word1" in hit["text"]


def test_a_query_of_digits_stays_a_text(client):
    assert client.get("/search", params={"query": "12"}).json()["query"] == "12"
    assert client.get("/outline", params={"under": "12"}).json()["documents"] == []
    heading = client.get("/documents/doc-3", params={"heading": "2020"})
    assert (heading.status_code, "no heading '2020'" in heading.text) == (422, True)


REFUSED = [
    ({}, 422, "query: missing"),
    ({"query": "  "}, 422, "query: empty"),
    ({"query": 7}, 422, "query: a number"),
    ({"query": {"a": 1}}, 422, "query: an object; a text is needed"),
    ({"query": ["a", None]}, 422, "query 2 of 2: null; a text is needed"),
    ({"query": "a", "min_score": 10**400}, 422, "min_score=1000"),
    ({"query": ["a", ""]}, 422, "query 2 of 2: empty"),
    ({"query": []}, 422, "query: an empty list"),
    ({"query": "\ud800"}, 422, "not valid Unicode"),
    ({"query": "a", "k": 0}, 422, "k=0: must be a whole number from 1 to 100"),
    ({"query": "a", "k": 101}, 422, "k=101: must be a whole number from 1 to 100"),
    ({"query": "a", "k": 2.5}, 422, "k=2.5"),
    ({"query": "a", "k": True}, 422, "k=True"),
    ({"query": "a", "k": 60, "offset": 60}, 422, "together they must be at most 100"),
    ({"query": "a", "offset": -1}, 422, "offset=-1"),
    ({"query": "a", "candidates": 10**9}, 422, "candidates=1000000000"),
    ({"query": "a", "index": "other"}, 404, "index='other': no such index; there are 'words'"),
    (
        {"query": "a", "rerank": "some/cross-encoder"},
        422,
        "rerank='some/cross-encoder': must be 'maxsim'",
    ),
    ({"query": "a", "filter": "year"}, 422, "filter='year': must be an object, such as {"),
    ({"query": "a", "filter": {"year": {"$around": 3}}}, 422, "$around"),
    ({"query": "a", "filter": {"tags": {"$regex": "("}}}, 422, "not a regular expression"),
    ({"query": "a", "top_k": 3}, 422, "a search has no option 'top_k'; did you mean 'k'?"),
    ({"query": "a", "self": 1}, 422, "a search has no option 'self'"),
    ({"query": "a", "built": 1}, 422, "a search has no option 'built'"),
    ({"query": "a", "ids": "doc-1"}, 422, "ids: a string; a list of texts is needed"),
    ({"query": "a", "ids": ["b", 3]}, 422, "ids 2 of 2: a number; a text is needed"),
    ({"query": "a", "ids": ["b"] * 10_001}, 413, "ids: 10,001 texts; at most 10,000"),
    ({"query": "a", "cursor": "5"}, 422, "cursor='5': must be the `next` of an answer"),
    ({"query": "a", "boost": [1]}, 422, "boost=[1]: must be an object"),
    ({"query": "a", "filter": {"_id": 3}}, 422, "'_id' is text and never equals 3"),
    ({"query": "a", "facets": "year"}, 422, "facets: a string; a list of texts is needed"),
    (
        {"query": "a", "facets": ["yeer"]},
        422,
        "none has the field 'yeer'; did you mean 'year'? The fields are",
    ),
    ({"q": "a", "k": 1}, 422, "a search has no option 'q'; did you mean 'query'?"),
    ({"query": "a", "facets": ["a"] * 21}, 413, "facets: 21 texts; at most 20"),
    ({"query": "a", "text": "yes"}, 422, "text='yes': must be true or false"),
    ({"query": "a", "per_document": 2}, 422, "per_document=2: only with unit='passage'"),
]


@pytest.mark.parametrize(
    ("fields", "status", "message"), REFUSED, ids=[str(fields)[:60] for fields, _, _ in REFUSED]
)
def test_refusals_name_the_field_and_the_value(client, fields, status, message):
    answer = client.post("/search", content=json.dumps(fields), headers=JSON)
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text
    assert not answer.json()["error"].endswith(".")


def test_a_filter_that_means_nothing_here_is_told(client):
    answer = client.post("/search", json={"query": "word1", "filter": {"yaer": 2004}}).json()
    assert answer["hits"] == []
    assert "none has the field 'yaer'; did you mean 'year'?" in answer["note"]
    assert client.post("/search", json={"query": "word1"}).json()["note"] == ""


OPTION_ERRORS = [
    {"min_score": 2.5},
    {"boost": {"year": -1000}},
    {"mode": "fast"},
    {"weight": 2},
    {"per_document": 0},
    {"diversity": "much"},
    {"fusion": "sum"},
    {"unit": "sentence"},
]


@pytest.mark.parametrize("options", OPTION_ERRORS, ids=str)
def test_options_are_refused_in_the_words_of_the_library(client, folder, model, options):
    with Retriever.load(folder, model=model) as retriever, pytest.raises(ConfigError) as raised:
        retriever.search("a", 11, **options)
    answer = client.post("/search", json={"query": "a", **options})
    assert answer.status_code == 422
    assert answer.json() == {"error": str(raised.value), "error_type": "Validation"}


HALF_PAIRS = [
    b'{"query": "a\\ud800"}',
    b'{"query": "a", "filter": {"\\uDC00": 1}}',
    b'{"query": "a", "ids": ["\\udfff"]}',
]


@pytest.mark.parametrize("body", HALF_PAIRS, ids=str)
def test_half_of_a_surrogate_pair_is_refused_wherever_it_is(client, body):
    answer = client.post("/search", content=body, headers=JSON)
    assert (answer.status_code, "half of a surrogate pair" in answer.text) == (422, True)
    whole = {"query": "\N{WOMAN}", "filter": {"year": {"$gte": 2000}}}
    assert client.post("/search", content=json.dumps(whole), headers=JSON).status_code == 200


LONG_NUMBER = b'{"query": "a", "k": ' + b"9" * 5000 + b"}"
BODIES = [b"", b"{", b"[1]", b"null", b'{"query": NaN}', b"\xff", LONG_NUMBER, b"[" * 99999]


@pytest.mark.parametrize("body", BODIES, ids=[repr(body[:20]) for body in BODIES])
def test_a_body_that_is_no_json_object_is_refused(client, body):
    answer = client.post("/search", content=body, headers=JSON)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("the body is")


def test_a_parameter_given_twice_is_refused(client):
    answer = client.get("/search?query=a&k=1&k=2")
    assert (answer.status_code, answer.json()["error"]) == (422, "k is given twice")


def test_a_large_body_is_refused_whether_or_not_it_says_its_length(open_client):
    client = open_client(limits=ServerLimits(max_body=1000))
    told = client.post("/search", content=b"x" * 1001, headers=JSON)
    streamed = client.post("/search", content=(b"x" * 100 for _ in range(20)), headers=JSON)
    assert told.status_code == streamed.status_code == 413
    assert told.json()["error"] == streamed.json()["error"]
    assert "larger than the 1,000 bytes" in told.json()["error"]


def test_too_many_queries_are_refused(open_client):
    client = open_client(limits=ServerLimits(max_batch=2))
    answer = client.post("/search", json={"query": ["a", "b", "c"]})
    assert (answer.status_code, answer.json()["error_type"]) == (413, "Validation")


def test_unknown_paths_and_methods(client):
    assert client.get("/nothing").status_code == 404
    answer = client.post("/indexes")
    assert answer.status_code == 405
    assert "allowed: " in answer.json()["error"]


def test_documents_by_id(client):
    document = client.get("/documents/doc-3").json()
    assert document["metadata"]["year"] == 2003
    assert document["span"] == [0, document["length"]]
    part = client.get("/documents/doc-3", params={"start": 6, "stop": 11}).json()
    assert part["text"] == document["text"][6:11]
    assert part["span"] == [6, 11]
    beyond = client.get("/documents/doc-3", params={"start": 10**6}).json()
    assert (beyond["text"], beyond["span"][0]) == ("", document["length"])
    missing = client.get("/documents/doc-3000")
    assert (missing.status_code, missing.json()["error"]) == (
        404,
        "index 'words': no document has the id 'doc-3000'",
    )
    assert client.get("/documents/doc-3", params={"start": -1}).status_code == 422
    assert (
        client.get("/documents/doc-3", params={"page": 1})
        .json()["error"]
        .startswith("this request has no field 'page'; known are index, start, stop")
    )


def test_ids_may_hold_anything(open_client, tmp_path):
    ids = ["a/b c", "ä?#&=", "12", "null", "a//b"]
    build_index(
        [{"_id": each, "text": f"text of {each}"} for each in ids],
        tmp_path / "odd",
        model=FakeEmbedder(),
    )
    client = open_client({"odd": tmp_path / "odd"})
    from urllib.parse import quote

    for each in ids:
        assert client.get(f"/documents/{quote(each, safe='')}").json()["text"] == f"text of {each}"


def test_several_indexes_by_name(open_client, folder, tmp_path):
    few = [
        {**document, "text": f"word1 {document['text']}"}  # else they are copies of others
        for document in make_documents(5, first=500)
    ]
    build_index(few, tmp_path / "few", model=FakeEmbedder())
    client = open_client({"words": folder, "few": tmp_path / "few"})
    listed = client.get("/indexes").json()
    assert [(index["name"], index["documents"]) for index in listed["indexes"]] == [
        ("words", 120),
        ("few", 5),
    ]
    hits = client.post("/search", json={"query": "word1", "index": "few", "k": 9}).json()["hits"]
    assert {hit["id"] for hit in hits} <= {f"doc-{i}" for i in range(500, 505)}
    assert client.get("/documents/doc-500", params={"index": "few"}).status_code == 200
    both = client.post(
        "/search", json={"query": "word1", "indexes": ["words", "few"], "k": 40, "facets": ["year"]}
    )
    assert {(hit["index"], hit["id"] >= "doc-5") for hit in both.json()["hits"]} >= {
        ("words", False),
        ("few", True),
    }
    assert sum(value["count"] for value in both.json()["facets"]["year"]) == 125
    with Retriever.load(
        {"words": folder, "few": tmp_path / "few"}, model=FakeEmbedder()
    ) as several:
        assert [(hit["index"], hit["id"], hit["score"]) for hit in both.json()["hits"]] == [
            (hit.index, hit.id, hit.score) for hit in several.search("word1", 41)[:40]
        ]
    asked = {"query": "word1", "indexes": '["words", "few"]', "k": "40", "facets": '["year"]'}
    assert client.get("/search", params=asked).json() == both.json()
    for wrong, status in (
        ({"indexes": ["words", "nobody"]}, 404), ({"indexes": []}, 422), ({"indexes": "few"}, 422),
        ({"indexes": ["few"], "index": "few"}, 422),
    ):  # fmt: skip
        assert client.post("/search", json={"query": "word1", **wrong}).status_code == status, wrong
    unnamed = client.post("/search", json={"query": "word1"})
    assert (unnamed.status_code, "name one of 'words', 'few'" in unnamed.json()["error"]) == (
        422,
        True,
    )


def test_a_new_version_is_followed(open_client, tmp_path):
    build_index(make_documents(10), tmp_path / "growing", model=FakeEmbedder())
    client = open_client({"growing": tmp_path / "growing"})
    one_change.upsert(
        [{"_id": "new", "text": "entirely fresh"}], tmp_path / "growing", model=FakeEmbedder()
    )
    wait_for(lambda: client.get("/documents/new").status_code == 200)
    one_change.delete(tmp_path / "growing", ["new"])
    wait_for(lambda: client.get("/documents/new").status_code == 404)


@pytest.fixture
def two_models(monkeypatch):
    """Two models, of which a server loads the one that an index was made with."""
    models = {each.fingerprint: each for each in (CountingEmbedder(), CountingEmbedder(seed="b"))}
    loaded = lambda places, description, **options: models[description["fingerprint"]]
    monkeypatch.setattr("aveyb_retrieval.server.indexes.load_recorded", loaded)
    return tuple(models.values())


def test_a_writer_of_a_model_that_the_server_has_left_is_closed(tmp_path, two_models):
    first, second = two_models
    build_index(make_documents(10), tmp_path / "a", model=first)
    indexes = Indexes.open({"a": tmp_path / "a"})
    before = indexes.writer("a")
    assert indexes.writer("a") is before
    build_index(make_documents(10), tmp_path / "a", model=second, overwrite=True)
    indexes.follow()
    with pytest.raises(IndexFormatError, match="made by the model"):
        before.count()  # it is open: its thread may be at work
    assert indexes.writer("a") is not before
    with pytest.raises(AveyBError, match="was closed"):
        before.count()
    indexes.close()


def test_a_server_moves_to_the_index_of_another_model_without_a_failed_request(
    tmp_path, two_models
):
    first, second = two_models
    for name in ("old", "b"):
        build_index(make_documents(10), tmp_path / name, model=first)
    (tmp_path / "a").symlink_to("old")
    indexes = Indexes.open({name: tmp_path / name for name in ("a", "b")})
    with TestClient(create_app(indexes), raise_server_exceptions=False) as client:
        statuses = Counter[int]()
        stop = threading.Event()

        def ask():
            while not stop.is_set():
                for name in ("a", "b"):
                    statuses[
                        client.post(
                            "/search", json={"query": "word1 word2", "index": name}
                        ).status_code
                    ] += 1

        asking = threading.Thread(target=ask)
        asking.start()
        build_index(None, tmp_path / "new", from_index=tmp_path / "old", model=second)
        (tmp_path / "link").symlink_to("new")
        (tmp_path / "link").replace(tmp_path / "a")
        build_index(make_documents(10), tmp_path / "b", model=second, overwrite=True)
        wait_for(lambda: client.get("/indexes").json()["model"] == "fake-b")
        stop.set()
        asking.join()
        assert set(statuses) == {200}
        hits = client.post(
            "/search", json={"query": "word1", "index": "b", "mode": "dense"}
        ).json()["hits"]
        with Retriever.load(tmp_path / "b", model=second) as expected:
            assert [hit["id"] for hit in hits] == [
                hit.id for hit in expected.search("word1", mode="dense")
            ]


def test_the_model_that_was_left_is_let_go(tmp_path, two_models):
    first, second = two_models
    build_index(make_documents(10), tmp_path / "a", model=first)
    indexes = Indexes.open({"a": tmp_path / "a"})
    old = weakref.ref(indexes.model)
    indexes.retrievers["a"].search("word1")
    build_index(make_documents(10), tmp_path / "a", model=second, overwrite=True)
    indexes.follow()
    gc.collect()
    assert old() is None and indexes.model.fingerprint == second.fingerprint
    indexes.close()


def test_a_version_that_cannot_be_opened_leaves_the_old_one(open_client, tmp_path):
    path = tmp_path / "broken"
    build_index(make_documents(10), path, model=FakeEmbedder())
    client = open_client({"broken": path})
    good = (path / "current").read_text()
    (path / "current").write_text("v000099")
    failing = 'aveyb_index_follow_failing{index="broken"} '
    wait_for(lambda: f"{failing}1.0" in client.get("/metrics").text)
    assert client.post("/search", json={"query": "word1"}).status_code == 200
    (path / "current").write_text(good)
    wait_for(lambda: f"{failing}0.0" in client.get("/metrics").text)


def wait_for(condition, seconds: float = 20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.05)


def test_one_model_must_fit_all_indexes(folder, tmp_path):
    from aveyb_retrieval.server.indexes import Indexes, named_paths

    build_index(make_documents(5), tmp_path / "other", model=FakeEmbedder(seed="b"))
    with pytest.raises(IndexFormatError, match="made by the model fake-b"):
        Indexes.open({"other": tmp_path / "other"}, model=CountingEmbedder())
    with pytest.raises(ConfigError, match="NAME=DIR"):
        named_paths([str(folder), str(folder)])
    assert named_paths([str(folder), f"b={folder}"]) == {"words": folder, "b": folder}
