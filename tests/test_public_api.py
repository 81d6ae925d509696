"""What the package exports, and what importing it costs."""

from __future__ import annotations

import doctest
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aveyb_retrieval

PUBLIC = [
    "AveyBConfig",
    "AveyBForMaskedLM",
    "AveyBForQuestionAnswering",
    "AveyBForSequenceClassification",
    "AveyBForTokenClassification",
    "AveyBModel",
    "AveyConfig",
    "AveyForCausalLM",
    "Batch",
    "Box",
    "CopyReport",
    "Document",
    "Embedder",
    "EncodedDocument",
    "Contents",
    "Excerpt",
    "FileOrigin",
    "FunnelAveyBConfig",
    "FunnelAveyBModel",
    "Hit",
    "Index",
    "Match",
    "Notice",
    "Passage",
    "PassageSize",
    "PublishReport",
    "QuoteCheck",
    "ReferenceAveyB",
    "Report",
    "Result",
    "Retriever",
    "SearchEvent",
    "Section",
    "SyncPlan",
    "VectorBatch",
    "Verdict",
    "build_index",
    "build_on_ray",
    "copy_index",
    "hits_to_prompt",
    "model_path",
    "source_to_prompt",
    "plan_sync",
    "publish_index",
    "sync_index",
    "unpublish_documents",
    "verify_index",
    "AveyBError",
    "BackendError",
    "ConfigError",
    "DiskError",
    "EngineError",
    "IndexFormatError",
    "IndexLockedError",
    "InputError",
    "ModelError",
    "OptionalDependencyError",
    "__version__",
]
SIGNATURES = Path(__file__).parent / "data" / "public_api.txt"
HEAVY = (
    "torch",
    "transformers",
    "sentence_transformers",
    "faiss",
    "numpy",
    "datasets",
    "tiktoken",
    "ray",
    "lance",
    "pyarrow",
)


def test_exactly_these_names_are_public() -> None:
    of_torch = [name for name in PUBLIC if "Avey" in name and name != "AveyBError"]
    assert sorted([*aveyb_retrieval.__all__, *of_torch]) == sorted(PUBLIC)
    for name in PUBLIC:
        value = getattr(aveyb_retrieval, name)
        assert name == "__version__" or value.__module__.startswith("aveyb_retrieval.")
        assert name in dir(aveyb_retrieval)


def signatures() -> str:
    """What users call, with every parameter: functions, and the public methods of the classes they
    hold.
    """
    lines = []
    for name in sorted(PUBLIC):
        value = getattr(aveyb_retrieval, name)
        if inspect.isfunction(value):
            lines.append(f"{name}{inspect.signature(value)}")
        elif inspect.isclass(value) and not issubclass(value, Exception) and "Avey" not in name:
            lines.append(f"{name}{inspect.signature(value)}")
            methods = inspect.getmembers(
                value, lambda m: inspect.isfunction(m) or inspect.ismethod(m)
            )
            lines += [
                f"{name}.{m}{inspect.signature(f)}" for m, f in methods if not m.startswith("_")
            ]
    text = re.sub(r"ForwardRef\(('[^']+')\)", r"\1", "\n".join(lines))
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", text) + "\n"


def test_signatures_are_those_that_were_agreed() -> None:
    """A change of the public API changes this file too: python -c "import tests.test_public_api as
    t; t.write()".
    """
    assert signatures() == SIGNATURES.read_text(encoding="utf-8")


def test_what_public_functions_return_is_public() -> None:
    returned = {
        name
        for type_ in re.findall(r" -> (.+)", signatures())
        for name in re.findall(r"[A-Z]\w+", type_)
    }
    typing_names = {"Any", "AsyncIterator", "Iterator", "None", "Path", "Scalar", "Self", "Table"}
    assert returned - set(PUBLIC) == typing_names


EXAMPLES = {
    name: doctest.DocTestFinder(recurse=False).find(getattr(aveyb_retrieval, name), name)[0]
    for name in PUBLIC
    if ">>>" in str(getattr(aveyb_retrieval, name).__doc__)
}


def test_the_main_names_have_an_example() -> None:
    main = {
        "Embedder",
        "Index",
        "Retriever",
        "hits_to_prompt",
        "plan_sync",
        "sync_index",
        "verify_index",
    }
    assert set(EXAMPLES) >= main | {
        name for name in PUBLIC if name.endswith(("_documents", "_metadata"))
    } - {"unpublish_documents"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What examples find where they run: an index and a folder of files."""
    root = tmp_path_factory.mktemp("examples")
    corpus = [
        {
            "_id": "lease",
            "title": "Lease",
            "text": "A tenant must give three months' notice.",
            "year": 2026,
        },
        {
            "_id": "pump",
            "title": "Pump",
            "text": "The pump is closed while the filter is cleaned.",
            "year": 2019,
        },
    ]
    aveyb_retrieval.build_index(corpus, root / "handbook")
    (root / "letters").mkdir()
    (root / "letters" / "lease.txt").write_text("The lease ends in May.")
    return root


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_public_names_run(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    EXAMPLES[name].globs.update({public: getattr(aveyb_retrieval, public) for public in PUBLIC})
    shown: list[str] = []
    doctest.DocTestRunner().run(EXAMPLES[name], out=shown.append)
    assert not shown, "".join(shown)


def write() -> None:
    SIGNATURES.write_text(signatures(), encoding="utf-8")


def test_importing_the_package_imports_nothing_heavy_and_takes_under_a_fifth_of_a_second() -> None:
    code = (
        "import sys, time; start = time.process_time(); import aveyb_retrieval; took ="
        f" time.process_time() - start\nprint(took, *[name for name in {HEAVY} if name in"
        " sys.modules])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(3)
    ]
    assert all(len(run) == 1 for run in runs), runs
    assert min(float(run[0]) for run in runs) < 0.2


def test_commands_show_their_help_without_importing_torch() -> None:
    code = (
        "import importlib, sys; from click.testing import CliRunner\nfor command in sys.argv[1:]:\n"
        "    main = importlib.import_module(f'aveyb_retrieval.cli.{command}').main\n    result ="
        " CliRunner().invoke(main, ['--help']); assert result.exit_code == 0, result.output\n   "
        " assert 'torch' not in sys.modules and 'faiss' not in sys.modules, command"
    )
    command = [sys.executable, "-c", code, "index", "serve", "eval", "train"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_type_checkers_and_the_reference_know_every_name() -> None:
    stub = Path(aveyb_retrieval.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    known = {*re.findall(r"import \w+ as (\w+)", stub), *re.findall(r"^    (\w+) as", stub, re.M)}
    assert {*PUBLIC} - {"__version__"} == known
    pages = (Path(__file__).parents[1] / "docs").glob("*.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    documented = {*re.findall(r"auto\w+:: aveyb_retrieval\.(\w+)$", text, re.M)}
    errors = {name for name in PUBLIC if name.endswith("Error")}  # a module of their own
    assert {*PUBLIC} - {"__version__"} - errors <= documented


def test_importing_everything_loads_nothing_heavy() -> None:
    code = "from aveyb_retrieval import *; import sys; Retriever; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*done.stdout.split()} & {"torch", "transformers", "sentence_transformers", "ray"}


def test_a_search_loads_no_reader_of_files() -> None:
    code = "from aveyb_retrieval import Retriever; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "aveyb_retrieval.documents.readers.kinds" not in done.stdout.split()
