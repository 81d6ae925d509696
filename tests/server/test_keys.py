"""Keys with rights and filters: no route tells of a document that a key may not see."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from aveyb_retrieval import ConfigError, build_index
from aveyb_retrieval.cli.serve import main
from aveyb_retrieval.server.access_log import AccessLog
from aveyb_retrieval.server.keys import KeyFile, read_key_file
from aveyb_retrieval.server.limits import ServerLimits
from aveyb_retrieval.server.openapi import describe
from tests.indexes.fake import FakeEmbedder

KEY, ALL = "k-legal-0123456789", "k-board-0123456789"
ENTRY = {"name": "legal", "key": KEY, "filter": {"team": "legal"}, "rights": ["search", "read"]}
BOARD = {"name": "board", "key": ALL, "rights": ["search", "read", "write", "admin"]}
SHOWN = [
    {"_id": f"lease-{i}", "text": f"# Lease {i}\n\nThe tenant gives notice {i}.", "team": "legal"}
    for i in range(4)
]
HIDDEN = [
    {
        "_id": "pay",
        "title": "Salaries",
        "text": "# Salaries\n\nThe zygomorphic bonus is 9,000.",
        "team": "board",
        "bonus": 9,
    },
    {"_id": "copy", "text": SHOWN[0]["text"], "team": "board", "bonus": 1},
]
SECRETS = ("zygomorphic", "bonus", "Salaries", '"board"', '"copy"')
PATHS = describe(ServerLimits())["paths"]
ASKED = [
    (path, method)
    for path, methods in PATHS.items()
    for method in methods
    if method in ("get", "post")
]
# What somebody tries who guesses at the documents that are hidden.
TRIES = {
    "query": ["zygomorphik", "notice", "Salaries"],
    "filter": [
        {"bonus": 9},
        {"$or": [{"team": "board"}, {"_id": "pay"}]},
        {"$not": {"team": "legal"}},
        {"bonuss": 9},
    ],
    "facets": [["team"], ["bonus"], ["title"]],
    "ids": [["pay", "lease-1"]],
    "boost": [{"bonus": 0.5}, {"bonuss": 0.5}],
    "indexes": [["words"]],
    "mode": ["lexical", "dense"],
    "unit": ["passage"],
    "rerank": ["maxsim"],
    "facets_of": ["found"],
    "min_score": [0.2],
    "operators": [True],
    "fold": [True, False],
    "answer": ['It says "The zygomorphic bonus is 9,000" and "the tenant gives notice 2".'],
    "pattern": ["zygo[a-z]+|Lease", "."],
    "offset": [1],
    "heading": ["Salaries"],
    "start": [3],
    "under": ["p", "lease", "nothing/"],
}
NEEDED = {
    "query": "zygomorphic notice",
    "answer": TRIES["answer"][0],
    "pattern": "bonus|notice",
    "start": 0,
    "stop": 5,
    "page": 1,
}
# A version is one of all documents, and a cursor is of a version.
VOLATILE = ("version", "next")


def write_keys(path, *entries):
    path.write_text(json.dumps({"keys": entries}))
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An index with hidden documents, and the same without them."""
    top = tmp_path_factory.mktemp("keys")
    for name, documents in {"with": [*SHOWN, *HIDDEN], "without": SHOWN}.items():
        build_index([dict(each) for each in documents], top / name / "words", model=FakeEmbedder())
    return [top / name / "words" for name in ("with", "without")]


@pytest.fixture
def clients(open_client, folders, tmp_path):
    keys = KeyFile(write_keys(tmp_path / "keys.json", ENTRY, BOARD))
    made = [open_client({"words": folder}, keys=keys, originals=True) for folder in folders]
    for each in made:
        each.headers["Authorization"] = f"Bearer {KEY}"
    return made


def steady(found):
    if isinstance(found, dict):
        return {name: steady(each) for name, each in found.items() if name not in VOLATILE}
    if not isinstance(found, list):
        return found
    return sorted((steady(each) for each in found), key=json.dumps)


def told(answer):
    is_json = answer.headers["content-type"].startswith("application/json")
    return answer.status_code, steady(answer.json()) if is_json else answer.text


def tries(path, method):
    """Requests of a route, generated from what it declares."""
    operation = PATHS[path][method]
    if method == "post":
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        fields = list(schema.get("properties", ()))
    else:
        fields = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    least = {name: NEEDED[name] for name in fields if name in NEEDED}
    yield least
    if "operators" in fields:
        for query in (
            "zygo*",
            "zygomorphik~",
            "bonus",
            '"zygomorphic bonus"',
            "+zygomorphic notice",
            "notice -bonus",
        ):
            yield {**least, "query": query, "operators": True}
    for name in fields:
        for value in TRIES.get(name, ()):
            yield {**least, name: value}


@pytest.mark.parametrize(("path", "method"), ASKED, ids=str)
def test_a_route_answers_as_if_hidden_documents_were_not_there(clients, path, method):
    places = ("pay", "copy", "nothing", "lease-1") if "{" in path else ("",)
    for place in places:
        for fields in tries(path, method):
            asked = path.format(id=place, name=place)
            if method == "post":
                both = [client.post(asked, json=fields) for client in clients]
            else:
                params = {n: v if isinstance(v, str) else json.dumps(v) for n, v in fields.items()}
                both = [client.get(asked, params=params) for client in clients]
            assert told(both[0]) == told(both[1]), (asked, fields)
            sent = json.dumps([asked, fields])
            if path != "/openapi.json":
                assert [
                    word for word in SECRETS if word in both[0].text and word.strip('"') not in sent
                ] == []


@pytest.mark.parametrize(
    "path", [path for path, method in ASKED if "{" in path and method == "get"]
)
def test_a_hidden_document_is_named_as_one_that_is_not_there(clients, path):
    """Status, body and its length are those of an id that never was; the owner of all documents is
    told of it.
    """
    for fields in (
        {},
        {"start": 0, "stop": 5, "page": 1},
        {"heading": "Salaries"},
        {"max_tokens": 9},
    ):
        hidden, missing = (
            clients[0].get(path.format(id=name, name=name), params=fields)
            for name in ("pay", "nix")
        )
        assert (hidden.status_code, hidden.text.replace("pay", "nix")) == (
            missing.status_code,
            missing.text,
        )
        assert hidden.headers.get("content-length") == missing.headers.get("content-length")
    clients[0].headers["Authorization"] = f"Bearer {ALL}"
    assert clients[0].get("/documents/pay").status_code == 200
    assert clients[0].get("/indexes").json()["indexes"][0]["documents"] == len(SHOWN + HIDDEN)


@pytest.mark.slow
def test_no_time_tells_a_hidden_document(clients):
    """Of 1,000 pairs of calls, the hidden document takes longer in about half."""

    def seconds(name):
        began = time.perf_counter()
        clients[0].get(f"/documents/{name}")
        return time.perf_counter() - began

    for _ in range(20):
        seconds("pay"), seconds("nix")
    longer = sum(
        seconds("pay") > seconds("nix") if number % 2 else not seconds("nix") > seconds("pay")
        for number in range(1000)
    )
    assert 420 < longer < 580  # five standard deviations of a fair coin


def test_rights_expiry_and_several_keys(open_client, folders, tmp_path):
    keys = write_keys(
        tmp_path / "keys.json",
        {"name": "hr", "key": ["k-hr-new-0123456789", "k-hr-old-0123456789"], "rights": ["search"]},
        {"name": "gone", "key": "k-gone-0123456789", "expires": "2020-01-01"},
        ENTRY,
        BOARD,
    )
    client = open_client({"words": folders[0]}, keys=KeyFile(keys))

    def status(key, method="GET", path="/search?query=a", **options):
        return client.request(
            method, path, headers={"Authorization": f"Bearer {key}"}, **options
        ).status_code

    assert [
        status(key)
        for key in ("k-hr-new-0123456789", "k-hr-old-0123456789", KEY, "k-gone-0123456789", "x")
    ] == [
        200,
        200,
        200,
        401,
        401,
    ]
    assert client.get("/search?query=a").status_code == 401
    for path in ("/documents/pay", "/originals/pay", "/outline", "/outline/pay", "/metrics"):
        assert status("k-hr-new-0123456789", path=path) == 403, path
    assert status("k-hr-new-0123456789", "POST", "/grep", json={"pattern": "a"}) == 403
    assert status(KEY, "PUT", "/documents", json={"text": "a"}) == 403
    assert (status(KEY, path="/metrics"), status(ALL, path="/metrics")) == (403, 200)
    assert status(ALL, "POST", "/v1/embeddings", json={"input": "a"}) == 200


def test_the_file_is_read_again_when_it_changes_and_kept_where_it_is_wrong(
    open_client, folders, tmp_path
):
    path = write_keys(tmp_path / "keys.json", ENTRY)
    client = open_client({"words": folders[0]}, keys=KeyFile(path))

    def status(key):
        return client.get("/indexes", headers={"Authorization": f"Bearer {key}"}).status_code

    assert (status(KEY), status(ALL)) == (200, 401)
    write_keys(path, BOARD)
    assert (status(KEY), status(ALL)) == (401, 200)
    path.write_text("{")
    assert (status(KEY), status(ALL)) == (401, 200)
    path.unlink()
    assert status(ALL) == 200


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "a", "key": "short"}, "at least 16 characters"),
        ({"name": "a", "key": []}, "at least 16 characters"),
        ({"name": "", "key": KEY}, "a name of its own"),
        ({"name": "a"}, "at least 16"),
        ({"name": "legal", "key": ALL}, "a name of its own"),
        ({"name": "a", "key": KEY}, "has the same key"),
        ({"name": "a", "key": ALL, "rights": ["fly"]}, "rights"),
        ({"name": "a", "key": ALL, "filter": {"a": {"$near": 1}}}, "$near"),
        (
            {"name": "a", "key": ALL, "filter": {"a": 1}, "rights": ["write"]},
            "search and read only",
        ),
        ({"name": "a", "key": ALL, "expires": "soon"}, "soon"),
        ({"name": "a", "key": ALL, "colour": 1}, "colour"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_entry_is_refused_in_one_line(tmp_path, entry, words):
    path = write_keys(tmp_path / "keys.json", ENTRY, entry)
    with pytest.raises(ConfigError) as error:
        read_key_file(path)
    assert (
        words in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)
    )
    done = CliRunner().invoke(main, [str(tmp_path / "none"), "--keys", str(path)])
    assert (done.exit_code, words in done.stderr) == (2, True)


def test_the_log_says_who_asked_for_what(open_client, folders, tmp_path):
    keys = KeyFile(write_keys(tmp_path / "keys.json", ENTRY))
    for questions in (False, True):
        log = tmp_path / f"{questions}.jsonl"
        client = open_client(
            {"words": folders[0]}, keys=keys, log=AccessLog(str(log), questions=questions)
        )
        client.post(
            "/search",
            json={"query": ["notice", "rent"]},
            headers={"Authorization": f"Bearer {KEY}"},
        )
        client.get("/documents/pay")
        log.rename(tmp_path / "old.jsonl")  # as logrotate does
        client.get("/health")
        lines = [json.loads(line) for line in (tmp_path / "old.jsonl").read_text().splitlines()]
        assert [(line["key"], line["method"], line["path"], line["status"]) for line in lines] == [
            ("legal", "POST", "/search", 200),
            ("testclient", "GET", "/documents/pay", 401),
        ]
        assert (lines[0]["questions"] == ["notice", "rent"]) is questions
        assert len(lines[0]["questions"]) == 2 and KEY not in log.read_text() + str(lines)
        assert json.loads(log.read_text())["path"] == "/health"
