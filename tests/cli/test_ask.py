"""`aveyb-index ask` against a server that stands for a language model."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from click.testing import CliRunner, Result

from aveyb_retrieval import build_index
from aveyb_retrieval.cli.index import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

QUESTION = "How can the tenant end the lease?"
FOUND = 'The lease says "may end the lease with three months\' notice" [1].'


class _Model(BaseHTTPRequestHandler):
    """Answers with what a test gives it, and notes what it is asked."""

    asked: ClassVar[list[dict[str, Any]]] = []
    status: ClassVar[int] = 200
    body: ClassVar[bytes] = b""
    headers_sent: ClassVar[dict[str, str]] = {}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Authorization")
        self.asked.append({**body, "path": self.path, "key": key})
        self.send_response(self.status)
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("asked") / "ix"
    documents = [
        {
            "_id": "lease.eml",
            "title": "Lease of the yard",
            "text": "The tenant may end the lease with three months' notice, in writing.",
            "date": "2024-05-20T09:00:00+00:00",
        },
        {
            "_id": "pump.md",
            "title": "Pump",
            "text": "Pumps are oiled in May.",
            "published": "12 March 2023",
            "modified": "2024-06-01",
        },
    ]
    build_index(documents, root)
    return root


@pytest.fixture
def ask(url: str, index: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Ask with a server that gives an answer, or a body of another form."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    _Model.asked.clear()

    def run(
        answer: str | bytes,
        *options: str,
        status: int = 200,
        server: str = url,
        headers: dict[str, str] | None = None,
    ) -> Result:
        message = {"choices": [{"index": 0, "message": {"role": "assistant", "content": answer}}]}
        _Model.body = answer if isinstance(answer, bytes) else json.dumps(message).encode()
        _Model.status, _Model.headers_sent = status, headers or {}
        arguments = ["ask", str(index), QUESTION, "--llm", server, "--llm-model", "local"]
        return CliRunner().invoke(main, [*arguments, *options])

    return run


def test_an_answer_is_printed_with_file_page_and_date(
    ask: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    result = ask(FOUND)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{FOUND}\n\n[1] Lease of the yard, lease.eml, 2024-05-20\n"
    (asked,) = _Model.asked
    assert (asked["path"], asked["model"]) == ("/v1/chat/completions", "local")
    assert asked["key"] == "Bearer sesame"
    passages = asked["messages"][-1]["content"]
    assert "three months' notice, in writing" in passages and passages.endswith(QUESTION)


def test_without_a_key_none_is_sent_and_uncited_sources_are_all_named(
    ask: Callable[..., Result],
) -> None:
    result = ask("I do not know.")
    assert result.exit_code == 0 and _Model.asked[0]["key"] is None
    assert result.stdout.splitlines()[2:] == [
        "[1] Lease of the yard, lease.eml, 2024-05-20",
        "[2] Pump, pump.md, 12 March 2023",
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            'It says "may end the lease with six months\' notice" [1].',
            'altered in lease.eml: "may end the lease with six months\' notice"; stored: "may end'
            " the lease with three months' notice\"",
        ),
        (
            'It says "the landlord pays for all the repairs of the roof" [1].',
            'absent: "the landlord pays for all the repairs of the roof"',
        ),
        (f"{FOUND} See [7].", "[7] is none of the passages that the model was given"),
        (f"{FOUND} See [2, 7].", "[7] is none of the passages that the model was given"),
        (f"{FOUND} See [1\u20133].", "[3] is none of the passages that the model was given"),
        (f"{FOUND} See [3-2].", "[3] is none of the passages that the model was given"),
    ],
)
def test_what_is_altered_or_cited_of_nowhere_ends_with_exit_code_1(
    answer: str, said: str, ask: Callable[..., Result]
) -> None:
    result = ask(answer)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == said


@pytest.mark.parametrize("marks", ["[1, 2]", "[1-2]", "[1; 2]", "[1][2]"])
def test_several_passages_in_one_mark_are_all_cited(marks: str, ask: Callable[..., Result]) -> None:
    result = ask(f"Both say so {marks}, as `row[9]` does.", "--json")
    body = json.loads(result.stdout)
    assert [source["is_cited"] for source in body["sources"]] == [True, True]
    assert (body["unknown"], result.exit_code) == ([], 0)


def test_a_passage_that_did_not_fit_into_the_prompt_is_no_source(
    ask: Callable[..., Result],
) -> None:
    result = ask("May, I guess [2].", "--max-tokens", "40")
    assert "Pumps are oiled" not in _Model.asked[0]["messages"][-1]["content"]
    assert result.exit_code == 1
    assert result.stdout.splitlines()[2:] == [
        "[1] Lease of the yard, lease.eml, 2024-05-20",
        "[2] is none of the passages that the model was given",
    ]


def test_json_has_the_answer_its_sources_and_its_quotations(ask: Callable[..., Result]) -> None:
    result = ask(FOUND, "--json", "-k", "1")
    body = json.loads(result.stdout)
    assert (body["answer"], body["holds"], body["unknown"]) == (FOUND, True, [])
    assert [source["id"] for source in body["sources"]] == ["lease.eml"]
    assert [check["verdict"] for check in body["quotations"]] == ["found"]


def test_signs_that_steer_a_terminal_are_written_out(ask: Callable[..., Result]) -> None:
    assert ask("a \x1b[2J b\nc").stdout.startswith("a \\x1b[2J b\nc\n")


@pytest.mark.parametrize(
    ("answer", "options", "told"),
    [
        (b"<html>", {}, "answers with something else than a chat completion"),
        (b'{"choices": []}', {}, "answers with something else than a chat completion"),
        (b'{"choices": [{"message": {"content": null}}]}', {}, "answers with something else"),
        (
            b'{"error": {"message": "no such\\nmodel"}}',
            {"status": 404},
            "status 404: no such model",
        ),
        (b"", {"status": 302, "headers": {"Location": "http://127.0.0.1:9/"}}, "status 302"),
        (b"", {"server": "http://127.0.0.1:9/v1"}, "no server answers ("),
        (b"", {"server": "localhost:8080"}, "--llm 'localhost:8080': write the address"),
        (b"", {"server": "file:///etc/passwd"}, "write the address of a server"),
    ],
)
def test_a_server_that_fails_is_one_line(
    answer: bytes, options: dict[str, Any], told: str, ask: Callable[..., Result]
) -> None:
    result = ask(answer, **options)
    assert result.exit_code == 2 and result.stdout == ""
    assert told in result.stderr and result.stderr.count("\n") == 1


def test_a_search_that_finds_nothing_asks_nobody(ask: Callable[..., Result]) -> None:
    result = ask(FOUND, "--filter", '{"date": "1900"}')
    assert (result.exit_code, result.stderr) == (0, "nothing found\n")
    assert not _Model.asked
