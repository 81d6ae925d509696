"""Which browsers' pages may ask: by Host, Origin, Sec-Fetch-Site and Content-Type."""

from __future__ import annotations

import pytest

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.server.addresses import LOOPBACK
from aveyb_retrieval.server.keys import Keys
from aveyb_retrieval.server.origins import Origins

APP = "https://app.example.org"
FIELDS = {"query": "word1"}
NAVIGATES = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}


@pytest.fixture
def client(open_client):
    return open_client(origins=Origins((*LOOPBACK, "testserver"), [APP]))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # a program
        ({"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}, 200),
        # behind a proxy with TLS
        ({"Origin": "https://testserver", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://testserver"}, 200),  # an older browser
        ({"Origin": APP, "Sec-Fetch-Site": "cross-site"}, 200),
        ({"Origin": "http://testserver:3000"}, 403),
        ({"Origin": "http://testserver:3000", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "null", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
    ids=str,
)
def test_pages_of_other_origins_do_not_ask(client, headers, status):
    assert client.post("/search", json=FIELDS, headers=headers).status_code == status
    assert client.get("/search", params=FIELDS, headers=headers).status_code == status


def test_other_sites_may_link_to_the_page_and_to_nothing_else(client):
    assert client.get("/", headers=NAVIGATES).status_code == 200
    assert client.get("/search", params=FIELDS, headers=NAVIGATES).status_code == 403
    assert client.get("/documents/doc-1", headers=NAVIGATES).status_code == 403
    refused = client.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})
    assert (refused.status_code, "--cors-origin" in refused.json()["error"]) == (403, True)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
def test_a_body_must_say_that_it_is_json(client, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.post("/search", content=b'{"query": "word1"}', headers=headers)
    assert (answer.status_code, "Content-Type: application/json" in answer.json()["error"]) == (
        415,
        True,
    )
    said = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert client.post("/search", content=b'{"query": "word1"}', headers=said).status_code == 200


def test_preflights_and_answers_name_the_origin_that_is_allowed(open_client):
    client = open_client(origins=Origins(None, [APP]), keys=Keys(["key"]))
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    preflight = client.options(
        "/search", headers={"Origin": APP, "Sec-Fetch-Site": "cross-site", **asks}
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == APP
    assert preflight.headers["access-control-allow-headers"] == "Authorization, Content-Type"
    assert preflight.headers["vary"] == "Origin"
    refused = client.post("/search", json=FIELDS, headers={"Origin": APP})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, APP)
    answer = client.post(
        "/search", json=FIELDS, headers={"Origin": APP, "Authorization": "Bearer key"}
    )
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, APP)
    other = client.options("/search", headers={"Origin": "https://evil.example", **asks})
    assert (other.status_code, "access-control-allow-origin" in other.headers) == (403, False)
    # or a cache would give one origin's answer to another
    assert client.get("/health").headers["vary"] == "Origin"


def test_without_the_option_there_are_no_such_headers(open_client):
    answer = open_client().post("/search", json=FIELDS)
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "origin", ["*", "app.example.org", "https://app.example.org/", "null", "ftp://a.b", "http://["]
)
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(ConfigError, match="not an origin"):
        Origins(None, [origin])
