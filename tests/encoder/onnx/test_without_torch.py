"""Searching with a model that has an ONNX form needs no torch, and what needs it names the extra."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import aveyb_retrieval
from tests.encoder.onnx.forms import save_model

if TYPE_CHECKING:
    from pathlib import Path

BLOCKED = ("torch", "transformers", "sentence_transformers", "huggingface_hub", "tokenizers", "onnx")
BLOCK = f"import sys\nfor name in {BLOCKED}:\n    sys.modules[name] = None\n"
SEARCH = """
from aveyb_retrieval import Embedder, Retriever, build_index, add_documents
rows = [{"_id": "a", "text": "the contract ends"}, {"_id": "b", "text": "a filter housing"}]
root, model = sys.argv[1:]
build_index(rows, root, model=model, precision="auto", token_vectors="int8")
add_documents([{"_id": "c", "text": "filters " * 50}], root, precision="auto")
with Retriever.load(root) as retriever:
    assert [hit.id for hit in retriever.search("filter housing", 1)] == ["b"]
    assert retriever.search("filter", 2, mode="dense", unit="passage")
    try:
        retriever.search("filter", 2, rerank="maxsim")
    except ImportError as error:
        print(error)
"""
NEEDS = """
import aveyb_retrieval
from aveyb_retrieval import Embedder
from aveyb_retrieval.encoder.loading import load_encoder
from aveyb_retrieval.encoder.onnx.export import export_onnx  # noqa
"""


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


def test_an_index_is_built_changed_and_searched(folder: Path, tmp_path: Path) -> None:
    done = run(SEARCH, tmp_path / "index", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "torch is needed for rerank='maxsim' and is not installed: pip install 'aveyb-retrieval[torch]'\n"
    )


def test_the_command_line_searches(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "the contract ends"}\n')
    code = "from aveyb_retrieval.cli.index import main\nmain(sys.argv[1:])"
    built = run(code, "build", tmp_path / "corpus.jsonl", "-o", tmp_path / "index", "--model", folder)
    assert built.returncode == 0, built.stderr
    found = run(code, "search", tmp_path / "index", "contract")
    assert found.returncode == 0, found.stderr
    assert "the contract ends" in found.stdout


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("from aveyb_retrieval import AveyBModel", "torch is needed for AveyBModel"),
        ("from aveyb_retrieval import AveyBConfig", "transformers is needed for AveyBConfig"),
        (
            "from aveyb_retrieval import Embedder; Embedder.load(sys.argv[1], precision='bfloat16')",
            "torch is needed for precision 'bfloat16'",
        ),
        ("from aveyb_retrieval import Embedder; Embedder.load(sys.argv[1], device='cuda')", "torch is needed for dev"),
        (
            "from aveyb_retrieval import Embedder; Embedder.load('owner/name')",
            "huggingface-hub is needed",
        ),
        (
            "from aveyb_retrieval.encoder.loading import load_encoder; load_encoder('minilm')",
            "is needed for",
        ),
    ],
)
def test_what_needs_it_names_the_extra(code: str, said: str, folder: Path) -> None:
    wrapped = f"try:\n    {code}\nexcept aveyb_retrieval.AveyBError as error:\n    print(error)"
    done = run(f"import aveyb_retrieval\n{wrapped}", folder)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert said in line and "pip install 'aveyb-retrieval[" in line


def test_every_public_name_is_there_or_names_its_extra() -> None:
    code = (
        "import aveyb_retrieval\n"
        "for name in aveyb_retrieval.__all__:\n"
        "    try:\n        getattr(aveyb_retrieval, name)\n"
        "    except aveyb_retrieval.OptionalDependencyError:\n        print(name)\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    expected = [name for name in aveyb_retrieval.__all__ if name.startswith("Avey") and name != "AveyBError"]
    assert done.stdout.split() == expected
