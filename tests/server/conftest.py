"""Servers to ask: in this process over a fake model, and running ones over the embedded model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import portalocker
import pytest
from starlette.testclient import TestClient

from aveyb_retrieval import build_index
from aveyb_retrieval.server.app import create_app
from aveyb_retrieval.server.indexes import Indexes
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

ROOT = Path(__file__).parents[2]
LONGEST = 5_000  # characters of a page


class CountingEmbedder(FakeEmbedder):
    """The fake model of the index tests, which also counts tokens: a word is one."""

    def count_tokens(self, texts: Sequence[str], *, prompt: str) -> list[int]:
        return [len(text.split()) for text in texts]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 120 documents, made by the fake model."""
    path = tmp_path_factory.mktemp("served") / "words"
    build_index(make_documents(120), path, model=FakeEmbedder())
    return path


@pytest.fixture
def model() -> CountingEmbedder:
    return CountingEmbedder()


Open = Callable[..., TestClient]


@pytest.fixture
def open_client(folder: Path, model: CountingEmbedder) -> Iterator[Open]:
    """Makes a client of an application in this process: `open_client({name: folder},
    limits=...)`.
    """
    with ExitStack() as stack:

        def make(paths: dict[str, Path] | None = None, **options: Any) -> TestClient:
            indexes = Indexes.open(paths or {"words": folder}, model=model)
            app = create_app(indexes, **options)
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield make


@pytest.fixture
def client(open_client: Open) -> TestClient:
    return open_client()


@dataclass(frozen=True)
class Running:
    """A server in a process of its own."""

    url: str
    process: subprocess.Popen[str]


@contextmanager
def running(*arguments: str | Path) -> Iterator[Running]:
    """Run `aveyb-serve` until the end of the block."""
    command = [
        sys.executable,
        "-m",
        "aveyb_retrieval.cli.serve",
        *map(str, arguments),
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("http://"):
            break
    else:
        pytest.fail(f"{command} ended: {''.join(said)}")
    try:
        yield Running(said[-1].strip().rstrip("/"), process)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=60)
        process.stderr.close()


def pages_of_this_project() -> list[dict[str, Any]]:
    """The documentation of this project: real text for the model and the page."""
    paths = [
        *sorted(ROOT.glob("docs/*.md")),
        *sorted(ROOT.glob("*.md")),
        *sorted(ROOT.glob("recipes/*/README.md")),
    ]
    documents = []
    for path in paths:
        text = path.read_text(encoding="utf-8")[:LONGEST]
        folder = str(path.parent.relative_to(ROOT))
        documents.append(
            {
                "_id": str(path.relative_to(ROOT)),
                "title": text.partition("\n")[0].lstrip("# "),
                "text": text,
                "folder": "root" if folder == "." else folder,
                "kilobytes": round(len(text) / 1024),
            }
        )
    return documents


@pytest.fixture(scope="session")
def handbook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the documentation, made by the embedded model: once for all processes that tests
    run in.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with portalocker.Lock(folder / "handbook.lock", timeout=300):
        if not (folder / "handbook").exists():
            build_index(pages_of_this_project(), folder / "handbook")
    return folder / "handbook"


@pytest.fixture(scope="session")
def server(handbook: Path) -> Iterator[Running]:
    """A running server of that index."""
    with running(handbook) as started:
        yield started
