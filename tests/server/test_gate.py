"""Keys, hosts, headers, counters, overload and time."""

from __future__ import annotations

import threading

import pytest

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.server.addresses import LOOPBACK
from aveyb_retrieval.server.keys import Keys, read_keys
from aveyb_retrieval.server.limits import ServerLimits
from aveyb_retrieval.server.origins import Origins
from tests.server.test_search import wait_for

CLOSED = ["/search?query=a", "/documents/doc-1", "/indexes", "/v1/models", "/metrics", "/nothing"]
OPEN = ["/", "/page/style.css", "/page/page.js", "/favicon.ico", "/health"]


def test_a_key_opens_everything_but_the_page_needs_none(open_client, tmp_path):
    (tmp_path / "keys").write_text("# two keys\nfirst-key\n\nsecond-key\n")
    client = open_client(keys=Keys(read_keys(tmp_path / "keys")))
    for path in CLOSED:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "first-key"}):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
    for key in ("first-key", "second-key"):
        headers = {"Authorization": f"Bearer {key}"}
        assert client.get("/search?query=a", headers=headers).status_code == 200
    for path in OPEN:
        assert client.get(path).status_code == 200, path
    error = client.get("/v1/models").json()["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")


def test_a_header_that_is_no_text_is_a_wrong_key():
    keys = Keys(["key"])
    assert keys.which("bearer key") is keys.entries[0]
    for header in ("", "Bearer", "Bearer ", "Basic key", "Bearer k\xe9y", "Bearer keys"):
        assert keys.which(header) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((text, "key") for text in ("", "# none\n", "two words\n", "schlüssel\n")),
        (None, "cannot be read"),
    ],
)
def test_files_of_keys_that_are_none(tmp_path, content, message):
    if content is not None:
        (tmp_path / "keys").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_keys(tmp_path / "keys")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("evil.org", 421),
        ("127.0.0.1.evil.org", 421),
    ],
)
def test_a_server_on_this_machine_answers_to_its_own_names_only(open_client, host, status):
    client = open_client(origins=Origins(LOOPBACK))
    assert client.get("/indexes", headers={"Host": host}).status_code == status


def test_every_answer_has_safe_headers(client):
    for path in (*OPEN, *CLOSED):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert headers["cache-control"] == (
            "no-cache" if path in OPEN and path != "/health" else "no-store"
        )


def test_files_of_the_page_are_not_sent_twice(client):
    first = client.get("/page/style.css")
    again = client.get("/page/style.css", headers={"If-None-Match": first.headers["etag"]})
    assert (first.headers["content-type"], again.status_code, again.content) == (
        "text/css; charset=utf-8",
        304,
        b"",
    )


def test_requests_are_counted_by_route_and_status(client):
    client.get("/search", params={"query": "word1"})
    client.get("/search", params={"query": "word1", "k": "0"})
    client.get("/no/such/path")
    text = client.get("/metrics").text
    assert 'aveyb_requests_total{route="search",status="200"} 1.0' in text
    assert 'aveyb_requests_total{route="search",status="422"} 1.0' in text
    assert 'aveyb_requests_total{route="none",status="404"} 1.0' in text
    assert 'aveyb_request_seconds_count{route="search"} 2.0' in text
    assert "aveyb_query_batch_size_count" in text
    assert 'aveyb_index_documents{index="words",version="v000001"} 120.0' in text
    assert "process_resident_memory_bytes" in text


class Slow:
    """Holds the model until it is let go."""

    def __init__(self, model):
        self.gate, self.entered = threading.Event(), threading.Semaphore(0)
        encode = model.encode_queries

        def held(queries):
            self.entered.release()
            assert self.gate.wait(30)
            return encode(queries)

        model.encode_queries = held


def ask_in_background(client, count):
    answers = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(client.post("/search", json={"query": "word1"}))
        )
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    return threads, answers


def test_too_many_at_once_are_told_to_come_back(open_client, model):
    slow = Slow(model)
    client = open_client(limits=ServerLimits(threads=1, max_waiting=2))
    threads, answers = ask_in_background(client, 8)
    try:
        wait_for(lambda: len(answers) == 5)  # one runs, two wait
        assert {answer.status_code for answer in answers} == {429}
        assert all(answer.headers["retry-after"] == "1" for answer in answers)
        assert answers[0].json()["error_type"] == "Overloaded"
    finally:
        slow.gate.set()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5


def test_what_takes_too_long_is_given_up_and_keeps_its_place_until_it_ends(open_client, model):
    slow = Slow(model)
    client = open_client(limits=ServerLimits(threads=1, max_waiting=1, timeout=0.3))
    threads, answers = ask_in_background(client, 2)
    try:
        for thread in threads:
            thread.join()
        # one never had its turn
        assert sorted(answer.status_code for answer in answers) == [429, 503]
        assert (
            "took longer than the 0.3 s"
            in next(a for a in answers if a.status_code == 503).json()["error"]
        )
    finally:
        slow.gate.set()
    wait_for(lambda: client.post("/search", json={"query": "word1"}).status_code == 200)


def test_a_bug_is_answered_without_its_traceback(open_client, model):
    def broken(queries):
        raise KeyError("secret")

    model.encode_queries = broken
    answer = open_client().post("/search", json={"query": "word1"})
    assert (answer.status_code, "secret" in answer.text) == (500, False)


@pytest.mark.parametrize(
    "bad", [{"max_k": 0}, {"timeout": 0.0}, {"timeout": float("nan")}, {"max_waiting": -1}], ids=str
)
def test_limits_are_checked(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        ServerLimits(**bad)
