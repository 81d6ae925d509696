"""The examples of each framework run without a network and show what they found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "module"), [("langchain", "langchain_core"), ("llama_index", "llama_index.core"), ("haystack", "haystack")]
)
def test_the_rag_example_answers(name: str, module: str) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed: pip install '.[integrations]'")
    inherited = dict(os.environ)
    inherited.pop("TIKTOKEN_CACHE_DIR", None)  # LlamaIndex brings its own
    closed = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, f"examples/rag_{name}.py"],
        cwd=ROOT,
        env={**inherited, **closed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "The tenant may end the lease with three months' notice." in done.stdout
    assert "how long is the notice period of the lease?" in done.stdout


def test_importing_the_package_loads_no_framework() -> None:
    code = (
        "import sys, aveyb_retrieval; from aveyb_retrieval import Retriever, build_index; "
        "names = ('langchain_core', 'llama_index', 'haystack', 'mcp', 'starlette', 'pydantic'); "
        "print([n for n in names if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
