"""An S3 server on this machine, moto as a stand-in, and a proxy before it that counts, delays,
fails and cuts.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import logging
import random
import re
import socketserver
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECRET = "never-printed-0123456789"


@dataclass
class Weather:
    """What the proxy does to requests, and what it saw of them.

    Attributes:
        delay: Seconds before each.
        fails, cuts: Shares of requests that are answered 503, and of answers whose bodies end
            early.
        forgets: Whether lists are empty.
        ignores: Whether conditions of writes are taken away.
        hook: Called with the number of each request since it was set.
        keeps: Whether ranges are cut from objects that are kept here: moto reads an object whole
            for each range of it.
        requests, bytes: How many there were, with bodies of so many bytes in both directions.
        log: Their methods and paths.
        failure: What is answered instead of 503: a status and a body.
    """

    delay: float = 0.0
    fails: float = 0.0
    cuts: float = 0.0
    forgets: bool = False
    ignores: bool = False
    keeps: bool = False
    hook: Callable[[int], None] | None = None
    requests: int = 0
    bytes: int = 0
    log: list[str] = field(default_factory=list)
    failure: tuple[int, bytes] = (503, b"")
    kept: dict[str, bytes] = field(default_factory=dict)
    random: random.Random = field(default_factory=lambda: random.Random(0))
    lock: threading.Lock = field(default_factory=threading.Lock)
    writes: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        """Begin to count anew, under a clear sky."""
        self.delay = self.fails = self.cuts = 0.0
        self.forgets = self.ignores = False
        self.hook = None
        self.failure = (503, b"")
        self.requests = self.bytes = 0
        self.log = []


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    weather: Weather
    port: int

    def log_message(self, *arguments: Any) -> None: ...

    def forward(self) -> None:
        weather, body = self.weather, self._body()
        with weather.lock:
            weather.requests += 1
            weather.log.append(f"{self.command} {self.path}")
            number = weather.requests
            dice = weather.random.random(), weather.random.random()
        if weather.hook is not None:
            weather.hook(number)
        if weather.delay:
            time.sleep(weather.delay)
        if dice[0] < weather.fails:
            self._answer(weather.failure[0], [], weather.failure[1])
            return
        asked = (
            re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            if weather.keeps
            else None
        )
        if asked is not None:
            self._give_range(int(asked[1]), int(asked[2]) + 1)
            return
        dropped = {"transfer-encoding", "connection", "content-length", "host"}
        dropped |= (
            {"if-match", "if-none-match"} if weather.ignores and self.command == "PUT" else set()
        )
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in dropped
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        # moto looks at a write's condition, then writes: of two at once, both could hold
        alone = weather.writes if self.command == "PUT" else contextlib.nullcontext()
        with alone, contextlib.closing(connection):
            sent = body if body or self.command in ("PUT", "POST") else None
            connection.request(self.command, self.path, body=sent, headers=headers)
            answer = connection.getresponse()
            data = answer.read()
        if weather.forgets and "list-type" in self.path:
            data = (
                data[: data.index(b"<Contents>")] + b"</ListBucketResult>"
                if b"<Contents>" in data
                else data
            )
        with weather.lock:
            weather.bytes += len(data) + len(body)
        self._answer(answer.status, answer.getheaders(), data, cut=dice[1] < weather.cuts)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

    def _answer(
        self, status: int, headers: list[tuple[str, str]], data: bytes, *, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in (
                "transfer-encoding",
                "connection",
                "content-length",
                "server",
                "date",
            ):
                self.send_header(name, value)
        length = (
            dict(headers).get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        )
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True

    def _give_range(self, start: int, stop: int) -> None:
        with self.weather.lock:
            if self.path not in self.weather.kept:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                with contextlib.closing(connection):
                    headers = {
                        name: value
                        for name, value in self.headers.items()
                        if name.lower() not in ("range", "host")
                    }
                    connection.request("GET", self.path, headers=headers)
                    self.weather.kept[self.path] = connection.getresponse().read()
            kept = self.weather.kept[self.path]
            data = kept[start:stop]
            self.weather.bytes += len(data)
        about = {
            "Content-Range": f"bytes {start}-{start + len(data) - 1}/{len(kept)}",
            "ETag": '"kept"',
        }
        about["Last-Modified"] = "Fri, 27 Nov 2026 00:00:00 GMT"
        self._answer(206, list(about.items()), data)

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        out = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            out += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return out


class _Threads(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads, request_queue_size = True, 64

    def handle_error(self, request: Any, address: Any) -> None:
        """Say nothing of clients that are gone."""


@contextlib.contextmanager
def store_server(bucket: str = "shelf") -> Iterator[tuple[Weather, dict[str, str]]]:
    """Run the server; gives the weather before it, and the variables that say where it is."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    weather = Weather()
    front = _Threads(
        ("127.0.0.1", 0), type("Handler", (_Handler,), {"weather": weather, "port": port})
    )
    thread = threading.Thread(target=front.serve_forever, daemon=True)
    thread.start()
    secrets = {
        "aws_access_key_id": "AKIAEXAMPLE",
        "aws_secret_access_key": SECRET,
        "region_name": "us-east-1",
    }
    boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **secrets).create_bucket(
        Bucket=bucket
    )
    try:
        yield (
            weather,
            {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{front.server_address[1]}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
                "AWS_SECRET_ACCESS_KEY": SECRET,
            },
        )
    finally:
        front.shutdown()
        front.server_close()
        thread.join()
        server.stop()
