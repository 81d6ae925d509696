"""The examples of each framework run without a network and show what they found."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest

from aveyb_retrieval import build_index

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("langchain", "langchain_core"),
        ("llama_index", "llama_index.core"),
        ("haystack", "haystack"),
    ],
)
def test_the_rag_example_answers(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)  # LlamaIndex brings its own
    pytest.importorskip(module, reason=f"{module} is not installed: pip install '.[integrations]'")
    for proxy in ("HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")  # nobody is there
    monkeypatch.setattr(sys, "argv", [f"rag_{name}.py"])
    runpy.run_path(str(ROOT / "examples" / f"rag_{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "The tenant may end the lease with three months' notice." in said
    assert "how long is the notice period of the lease?" in said


class _Agent(BaseHTTPRequestHandler):
    """A language model's server that calls the first tool it is given, else answers in the form
    that DSPy asks for.
    """

    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        message: dict[str, Any] = {"role": "assistant", "content": "Three months [1]."}
        if "tools" not in body:
            message["content"] = "[[ ## answer ## ]]\nThree months [1].\n\n[[ ## completed ## ]]"
        elif body["messages"][-1]["role"] != "tool":
            call = {
                "name": body["tools"][0]["function"]["name"],
                "arguments": json.dumps({"query": "notice period"}),
            }
            message = {
                **message,
                "content": None,
                "tool_calls": [{"id": "1", "type": "function", "function": call}],
            }
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("name", ["dspy", "pydantic_ai"])
def test_an_index_is_asked_by_the_model_of(name: str, tmp_path: Path) -> None:
    if find_spec(name) is None:  # importing them takes seconds
        pytest.skip(f"{name} is not installed: pip install dspy 'pydantic-ai-slim[openai]'")
    documents = [
        {
            "_id": "lease",
            "title": "Lease",
            "text": "The tenant may end it with three months' notice.",
        },
        {"_id": "pump", "title": "Pump", "text": "Close the valve before opening the filter."},
    ]
    build_index(documents, tmp_path / "index")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Agent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [
        sys.executable,
        f"examples/rag_{name}.py",
        str(tmp_path / "index"),
        "how long is the notice period?",
    ]
    command += ["--url", f"http://127.0.0.1:{server.server_port}/v1", "--model", "local"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DSPY_CACHEDIR": str(tmp_path),
        "NO_PROXY": "127.0.0.1",
    }
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
        )
    finally:
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Three months [1].\n")
    assert "[1] Lease (lease, characters 0-48)" in json.dumps(_Agent.asked[-1]["messages"])


def test_importing_the_package_loads_no_framework() -> None:
    code = (
        "import sys, aveyb_retrieval; from aveyb_retrieval import Retriever, build_index; "
        "names = ('langchain_core', 'llama_index', 'haystack', 'mcp', 'starlette', 'pydantic'); "
        "print([n for n in names if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
