"""What a connection may owe, and for how long; by whose address it is counted."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import httpx2

from tests.attacks.test_server import connect, post_head, seconds_until_closed
from tests.server.conftest import running

if TYPE_CHECKING:
    import socket

BODY = b'{"query": "index", "k": 1}'
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def receive(connection: socket.socket) -> bytes:
    """What comes within the time of a test, until the length that the head says is there."""
    connection.settimeout(30)
    received = connection.recv(1 << 16)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(1 << 16)
    return head + body


def test_a_client_has_the_time_of_a_head_only_while_it_owes_one(handbook):
    with running(handbook, "--head-timeout", "1") as server, connect(server.url) as connection:
        connection.sendall(post_head(len(BODY)))
        time.sleep(2.5)  # its head has arrived, so this is the time of a request
        connection.sendall(BODY)
        assert receive(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(HEALTH)
        assert receive(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(HEALTH[:9])  # with part of a head, uvicorn would wait for ever
        assert 0.5 < seconds_until_closed(connection) < 25


def test_requests_that_come_together_are_all_answered(handbook):
    with running(handbook, "--head-timeout", "2") as server, connect(server.url) as connection:
        connection.sendall(HEALTH * 20)
        connection.settimeout(30)
        received = b""
        while received.count(b'{"status":"ok"}') < 20:
            received += connection.recv(1 << 16)
        assert received.count(b"HTTP/1.1 200") == 20


def test_who_asks_is_told_by_a_trusted_proxy_only(handbook, tmp_path):
    headers = {"X-Forwarded-For": "203.0.113.7"}
    for options, client in (((), "127.0.0.1"), (("--trust-proxy", "127.0.0.1"), "203.0.113.7")):
        log = tmp_path / f"log{len(options)}"
        # the one address has more connections than are read, but those of a proxy all are
        limits = ("--max-connections-each", "1") if options else ()
        with running(handbook, "--access-log", log, *options, *limits) as server:
            idle = [connect(server.url) for _ in range(3)]
            answer = httpx2.get(f"{server.url}/health", headers=headers, timeout=30)
            assert answer.status_code == 200
            for connection in idle:
                connection.close()
        assert json.loads(log.read_text().splitlines()[-1])["key"] == client
