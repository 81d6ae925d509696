"""A server in a process of its own: the clients that people use, and a stop that loses
no request.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import pytest
from click.testing import CliRunner

from aveyb_retrieval import Embedder, Retriever
from aveyb_retrieval.cli.serve import main
from aveyb_retrieval.server.app import listen
from tests.server.conftest import ROOT, pages_of_this_project, running
from tests.server.test_search import wait_for

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def embedder():
    return Embedder.load()


def test_the_official_openai_client(server, embedder):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none needed", max_retries=0)
    texts = ["The tenant may end it with three months' notice.", "Close the valve."]
    expected = np.stack(
        [encoded.vector for encoded in embedder.encode_documents(("", text) for text in texts)]
    )
    answer = client.embeddings.create(model="aveyb-base-en-v2", input=texts)  # it asks for base64
    np.testing.assert_allclose([item.embedding for item in answer.data], expected, atol=1e-5)
    assert answer.usage.prompt_tokens == sum(embedder.count_tokens(texts, prompt="document"))
    plain = client.embeddings.create(
        model="aveyb-base-en-v2:query", input="notice period", encoding_format="float"
    )
    np.testing.assert_allclose(
        plain.data[0].embedding, embedder.encode_queries(["notice period"])[0], atol=1e-5
    )
    assert plain.usage.prompt_tokens == embedder.count_tokens(["notice period"], prompt="query")[0]
    assert [model.id for model in client.models.list()] == [
        "aveyb-base-en-v2",
        "aveyb-base-en-v2:query",
    ]
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.embeddings.create(model="text-embedding-3-small", input="a")
    with pytest.raises(openai.UnprocessableEntityError, match="cannot be shortened"):
        client.embeddings.create(model="aveyb-base-en-v2", input="a", dimensions=64)


def test_search_gives_what_the_library_gives(server, handbook, embedder):
    with Retriever.load(handbook, model=embedder) as retriever:
        expected = retriever.search("which filters are there?", k=5)
    answer = httpx2.post(
        f"{server.url}/search", json={"query": "which filters are there?", "k": 5}, timeout=60
    ).json()
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in expected]
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx(
        [hit.score for hit in expected], abs=1e-5
    )


def test_a_body_that_is_too_large_is_answered_before_it_is_read(server):
    answer = httpx2.post(
        f"{server.url}/search", content=b"x" * (20 << 20), headers=JSON, timeout=60
    )
    assert answer.status_code == 413
    chunks = (b"x" * (1 << 20) for _ in range(20))
    assert (
        httpx2.post(f"{server.url}/search", content=chunks, headers=JSON, timeout=60).status_code
        == 413
    )


def test_a_server_survives_what_is_no_request(server):
    host, port = server.url.removeprefix("http://").split(":")
    for nonsense in (
        b"\x16\x03\x01\x02",
        b"GET\r\n\r\n",
        b"POST /search HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
        b"",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(nonsense)
    assert httpx2.get(f"{server.url}/health", timeout=10).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_stopping_server_answers_what_it_has_begun(handbook, number):
    # with the queries, a second of work
    texts = [document["text"][:2000] for document in pages_of_this_project()[:5]]
    with running(handbook, "--timeout", "300") as server, ThreadPoolExecutor(8) as pool:
        httpx2.get(f"{server.url}/health", timeout=10)
        sent = threading.Barrier(9)

        def ask(path, fields):
            sent.wait()
            return httpx2.post(f"{server.url}{path}", json=fields, timeout=120)

        futures = [pool.submit(ask, "/v1/embeddings", {"input": texts}) for _ in range(2)]
        futures += [
            pool.submit(ask, "/search", {"query": [f"query {i}" for i in range(20)]})
            for _ in range(6)
        ]
        sent.wait()
        until_running(server.url, 8)
        server.process.send_signal(number)
        assert [future.result().status_code for future in futures] == [200] * 8
        assert server.process.wait(timeout=60) == 0
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{server.url}/health", timeout=10)


def until_running(url, count):
    """Wait until so many requests are running beside the one that asks."""
    end = time.monotonic() + 30
    while (
        f"aveyb_running_requests {count + 1}.0" not in httpx2.get(f"{url}/metrics", timeout=30).text
    ):
        assert time.monotonic() < end, "they were answered before they were counted"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-folder"], "no index here"),
        (["INDEX", "--host", "0.0.0.0"], "give --api-key-file, or --no-key"),
        (["INDEX", "--host", "203.0.113.7", "--no-key"], "203.0.113.7:8080: cannot listen there"),
        (["INDEX", "--api-key-file", "no-such-file"], "cannot be read as a file of keys"),
        (["INDEX", "--max-k", "0"], "--max-k 0: must be a whole number of at least 1"),
        (["INDEX", "INDEX"], "write NAME=DIR"),
        (["postgresql://localhost/db/x"], "an address, but an index directory is needed"),
        (["s3://[::1/x"], "s3://[::1/x: not an address"),
    ],
    ids=str,
)
def test_what_cannot_be_served_ends_with_a_message(
    handbook, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    if "--host" not in arguments:
        arguments = [*arguments, "--port", "0"]
    result = CliRunner().invoke(main, [str(handbook) if a == "INDEX" else a for a in arguments])
    assert (result.exit_code, message in result.output) == (2, True), result.output
    assert not result.output.strip().endswith(".")


def test_connections_send_at_once_what_is_written():
    """A small answer must not wait for the client's delayed confirmation of its head: 40 ms on
    Linux.
    """
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian package `nginx-light`)")
def test_behind_nginx_as_documented(handbook, tmp_path):
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- nginx -->\n```text\n(.*?)```", page, re.DOTALL)
    with running(
        handbook, "--allow-host", "search.example.org", "--trust-proxy", "127.0.0.1"
    ) as server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        block = block.replace("http://127.0.0.1:8080", server.url).replace(
            "listen 8443;", f"listen 127.0.0.1:{port};"
        )
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/log; events {{}}\nhttp {{"
            f" access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path"
            f" {tmp_path}/proxy;\n{block} }}\n"
        )
        command = [
            NGINX,
            "-p",
            str(tmp_path),
            "-c",
            str(tmp_path / "nginx.conf"),
            "-e",
            str(tmp_path / "log"),
        ]
        nginx = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
            with httpx2.Client(
                base_url=f"http://127.0.0.1:{port}", headers={"Host": "search.example.org"}
            ) as client:
                ours = {"Origin": "https://search.example.org", "Sec-Fetch-Site": "same-origin"}
                found = client.post("/search", json={"query": "index"}, headers=ours, timeout=60)
                assert (found.status_code, len(found.json()["hits"])) == (200, 10)
                other = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
                assert (
                    client.post("/search", json={"query": "index"}, headers=other).status_code
                    == 403
                )
                assert client.get("/health", headers={"Host": "evil.example"}).status_code == 421
        finally:
            nginx.terminate()
            nginx.wait(timeout=30)


def test_coheres_client(server):
    cohere = pytest.importorskip("cohere")
    texts = ["The valve is open.", "Notice period: 3 months"]
    for make in (cohere.Client, cohere.ClientV2):
        client = make(api_key="none needed", base_url=server.url)
        ranked = client.rerank(
            model="aveyb-base-en-v2",
            query="how long is the notice period?",
            documents=texts,
            top_n=1,
        )
        assert [result.index for result in ranked.results] == [1]
