"""What an attacker tried against the server, over HTTP: each is refused, bounded, or leaves others
their share.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from aveyb_retrieval import build_index
from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.server.limits import ServerLimits
from aveyb_retrieval.server.refusals import log_shortly
from tests.indexes.fake import FakeEmbedder
from tests.server.conftest import running
from tests.server.test_search import wait_for

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def long_documents(tmp_path_factory):
    """Ten documents of 46 KB."""
    path = tmp_path_factory.mktemp("long") / "long"
    documents = [{"_id": f"d{i}", "text": f"word{i} " + "valve pump " * 4200} for i in range(10)]
    build_index(documents, path, model=FakeEmbedder())
    return path


# --- one request ---------------------------------------------------------------------------------


def test_a_small_request_for_a_huge_answer_is_refused(open_client, long_documents):
    client = open_client({"long": long_documents}, limits=ServerLimits(max_answer=1 << 20))
    fields = {"query": ["valve"] * 100, "k": 10, "text": True, "mode": "lexical"}
    answer = client.post("/search", json=fields)
    assert (answer.status_code, "1,048,576 bytes" in answer.json()["error"]) == (413, True)
    assert client.post("/search", json={**fields, "query": "valve"}).status_code == 200
    part = client.get("/documents/d1", params={"stop": 10}).json()
    assert part["length"] > 46_000


def test_a_document_larger_than_an_answer_is_read_in_parts(open_client, long_documents):
    client = open_client({"long": long_documents}, limits=ServerLimits(max_answer=10_000))
    assert client.get("/documents/d1").status_code == 413
    assert client.get("/documents/d1", params={"stop": 5000}).status_code == 200
    embedded = client.post("/v1/embeddings", json={"input": ["valve"] * 100})
    assert (
        embedded.status_code,
        "larger than the 10,000" in embedded.json()["error"]["message"],
    ) == (413, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"passages": 10**9}, "passages=1000000000: must be a whole number from 1 to 10"),
        ({"context": 10**9}, "context=1000000000: must be a whole number from 0 to 5"),
        ({"k": 10**4000}, "must be a whole number from 1 to 100"),
        ({"query": ["a"] * 1000, "k": 100}, "at most 10,240 hits at once"),
        ({"query": "v" * 8193}, "query: 8,193 characters; at most 8,192 are allowed"),
        ({"query": ["a", "v" * 8193]}, "query 2 of 2: 8,193 characters"),
        ({"filter": {"tag": {"$around": "v" * 1_000_000}}}, "$around"),
        ({"filter": "v" * 1_000_000}, "must be an object, such as {"),
        ({"v" * 1_000_000: 1}, "a search has no option"),
        ({"rerank": "/etc/passwd"}, "must be 'maxsim'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_out_of_bounds_is_refused_in_few_words(client, fields, message):
    answer = client.post("/search", json={"query": "word1", **fields})
    assert answer.status_code in (413, 422)
    assert message in answer.json()["error"]
    assert len(answer.content) < 2000


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"input": "v" * 101, "model": "fake-a:query"}),
        ("/v1/embeddings", {"input": "v" * 1001}),
        ("/v1/rerank", {"query": "v" * 101, "documents": ["a"]}),
        ("/v1/rerank", {"query": "v", "documents": ["v" * 501]}),
    ],
    ids=str,
)
def test_no_text_is_too_long(open_client, path, fields):
    client = open_client(limits=ServerLimits(max_query=100, max_text=1000, max_rerank_text=500))
    assert client.post(path, json=fields).status_code == 413


def test_a_path_never_leaves_with_an_error(open_client, folder, monkeypatch):
    def broken(*arguments, **options):
        raise IndexFormatError(f"{folder}: store unreadable (parser stack overflow)")

    client = open_client()
    monkeypatch.setattr("aveyb_retrieval.indexes.search.retriever.Retriever.search", broken)
    answer = client.post("/search", json={"query": "word1"})
    assert (answer.status_code, str(folder) in answer.text) == (503, False)
    assert "log" in answer.json()["error"]


def test_the_folder_of_a_model_is_not_told(open_client, model):
    model.model_name = "/secret/models/fake-a"
    client = open_client()
    for path in ("/indexes", "/v1/models"):
        assert "secret" not in client.get(path).text, path


def nested(depth):
    return '{"$not": ' * depth + '{"year": {"$gte": 2000}}' + "}" * depth


@pytest.mark.parametrize(
    ("where", "status"),
    [
        (nested(18), 200),
        (nested(35), 422),
        (nested(20_000), 422),
        ('{"$or": [' + '{"year": 2001},' * 899 + '{"year": 2002}]}', 200),
    ],
    ids=["18 $not", "35 $not", "20,000 $not", "$or of 900"],
)
def test_a_deep_or_wide_filter_is_answered_or_refused(client, where, status):
    answer = client.post(
        "/search", content='{"query": "word1", "filter": ' + where + "}", headers=JSON
    )
    assert (answer.status_code, "verify" in answer.text) == (status, False)


# --- the log -------------------------------------------------------------------------------------


def test_a_client_that_leaves_while_it_sends_is_no_bug_of_ours(server):
    for _ in range(5):
        with connect(server.url) as connection:
            connection.sendall(post_head(900) + b"{")
    gone = 'aveyb_requests_total{route="search",status="499"} '
    wait_for(lambda: gone in httpx2.get(f"{server.url}/metrics", timeout=10).text)


def test_the_log_repeats_little_of_what_was_sent(open_client, folder, monkeypatch, caplog):
    def broken(*arguments, **options):
        raise IndexFormatError("v" * 1_000_000)

    client = open_client()
    monkeypatch.setattr("aveyb_retrieval.indexes.search.retriever.Retriever.search", broken)
    with caplog.at_level(logging.ERROR, "aveyb_retrieval.server"):
        client.post("/search", json={"query": "word1"})
    assert 0 < sum(len(record.getMessage()) for record in caplog.records) < 3000


def test_a_warning_of_the_index_is_bounded_too(capsys):
    logger = logging.getLogger("aveyb_retrieval")
    log_shortly()
    try:
        logging.getLogger("aveyb_retrieval.indexes").warning(
            "filter %s: no document matches", "v" * 200_000
        )
    finally:
        logger.removeHandler(logger.handlers[-1])
    assert 100 < len(capsys.readouterr().err) <= 4001


# --- bodies, connections, readers that do not read -----------------------------------------------


def connect(url, source="127.0.0.1"):
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0))


def answer_of(connection, request):
    """What comes back within a second."""
    connection.settimeout(1)
    try:
        connection.sendall(request)
        return connection.recv(1024)
    except OSError:
        return b""


def post_head(length):
    return (
        "POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def test_unfinished_bodies_are_bounded_together(handbook):
    with running(handbook, "--max-held", "100000") as server:
        slow = connect(server.url)
        slow.sendall(post_head(90_030) + b" " * 90_000)
        body = b" " * 20_000 + b'{"query": "index"}'

        def status():
            return httpx2.post(
                f"{server.url}/search", content=body, headers=JSON, timeout=30
            ).status_code

        wait_for(lambda: status() == 429)
        slow.close()
        wait_for(lambda: status() == 200)  # all is given back


def seconds_until_closed(connection, trickle=b""):
    began = time.monotonic()
    connection.settimeout(0.2)
    while time.monotonic() - began < 30:
        try:
            if trickle:
                connection.sendall(trickle)
            if connection.recv(1024) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began


def test_connections_that_say_nothing_are_closed_and_stop_nobody(handbook):
    with running(handbook, "--head-timeout", "1", "--max-connections-each", "50") as server:
        silent = [connect(server.url, "127.0.0.2") for _ in range(120)]
        assert httpx2.get(f"{server.url}/health", timeout=5).status_code == 200
        half = connect(server.url)
        half.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        dripping = connect(server.url)
        dripping.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Drip: ")
        with ThreadPoolExecutor(2) as pool:
            for seconds in pool.map(seconds_until_closed, (half, dripping), (b"", b"v")):
                assert 0.5 < seconds < 10
        for connection in silent:
            assert seconds_until_closed(connection) < 10
            connection.close()


def test_who_opens_more_connections_than_others_makes_room_for_them(handbook):
    with running(
        handbook, "--head-timeout", "60", "--max-connections", "20", "--max-connections-each", "5"
    ) as server:
        silent = [connect(server.url, "127.0.0.2") for _ in range(40)]
        health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(3):
            polite = connect(server.url)
            polite.sendall(health)
            assert polite.recv(1024).startswith(b"HTTP/1.1 200")
        with connect(server.url, "127.0.0.2") as own:  # beyond its share: not read, or closed
            assert answer_of(own, health) == b""
        for connection in silent:
            connection.close()


def test_a_body_with_two_lengths_is_refused(server):
    body = b'{"query": "index"}'
    head = post_head(len(body))[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
    with connect(server.url) as connection:
        connection.settimeout(10)
        connection.sendall(
            head + b"%x\r\n%b\r\n0\r\n\r\nGET /health HTTP/1.1\r\n\r\n" % (len(body), body)
        )
        received = b"".join(iter(lambda: connection.recv(4096), b""))  # until the server closes it
    assert received.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1") == 1


def test_large_bodies_of_one_address_are_read_slowly(handbook):
    with running(handbook, "--max-rate", "1000000") as server:
        with connect(server.url, "127.0.0.2") as greedy:
            began = time.monotonic()
            greedy.settimeout(60)
            greedy.sendall(post_head(1_500_000) + b" " * 1_500_000)
            assert greedy.recv(1024).startswith(b"HTTP/1.1 422")
            assert time.monotonic() - began > 1
        began = time.monotonic()
        answer = httpx2.post(f"{server.url}/search", json={"query": "index"}, timeout=30)
        assert (answer.status_code, time.monotonic() - began < 2) == (200, True)


def test_who_does_not_read_an_answer_is_dropped(handbook):
    with running(handbook, "--write-timeout", "1") as server:
        connection = connect(server.url)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"query": ["index"] * 60, "k": 34, "text": True}).encode()
        connection.sendall(post_head(len(body)) + body)

        def running_requests():
            text = httpx2.get(f"{server.url}/metrics", timeout=10).text
            return float(re.search(r"^aveyb_running_requests (\S+)$", text, re.MULTILINE)[1])

        wait_for(lambda: running_requests() == 2)
        wait_for(lambda: running_requests() == 1, seconds=60)  # the one that asks
        connection.close()


# --- one client that floods ----------------------------------------------------------------------


def test_long_requests_come_in_turns(open_client, model):
    """A request for many queries does not hold a thread until it ends."""
    sizes = []
    encode = model.encode_queries
    model.encode_queries = lambda queries: sizes.append(len(queries)) or encode(queries)
    client = open_client()
    answer = client.post("/search", json={"query": ["word1"] * 100, "k": 2})
    assert (answer.status_code, len(answer.json()["results"])) == (200, 100)
    assert max(sizes) <= 8


def test_work_ends_with_its_time(open_client, model):
    """Of queries whose request nobody waits for, no more are encoded."""
    encoded, release = [], threading.Event()
    encode = model.encode_queries

    def held(queries):
        encoded.extend(queries)
        release.wait()
        return encode(queries)

    model.encode_queries = held
    client = open_client(limits=ServerLimits(timeout=0.5, threads=1))
    assert client.post("/search", json={"query": ["word1"] * 400, "k": 2}).status_code == 503
    count = len(encoded)
    release.set()
    for _ in range(3):  # by the thread that was held
        wait_for(lambda: client.post("/search", json={"query": "word2", "k": 2}).status_code == 200)
    assert encoded.count("word1") == count > 0
