"""What the package exports, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import aveyb_retrieval

PUBLIC = [
    "AveyBConfig",
    "AveyBForMaskedLM",
    "AveyBModel",
    "Embedder",
    "Hit",
    "Passage",
    "Retriever",
    "add_documents",
    "build_index",
    "compact_index",
    "delete_documents",
    "hits_to_prompt",
    "tune_index",
    "upsert_documents",
    "verify_index",
    "AveyBError",
    "BackendError",
    "ConfigError",
    "IndexFormatError",
    "IndexLockedError",
    "InputError",
    "ModelError",
    "OptionalDependencyError",
    "__version__",
]
HEAVY = ("torch", "transformers", "sentence_transformers", "faiss", "numpy", "datasets", "tiktoken")


def test_exactly_these_names_are_public() -> None:
    assert sorted(aveyb_retrieval.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        value = getattr(aveyb_retrieval, name)
        assert name == "__version__" or value.__module__.startswith("aveyb_retrieval.")
        assert name in dir(aveyb_retrieval)


def test_importing_the_package_imports_nothing_heavy_and_takes_under_a_fifth_of_a_second() -> None:
    code = (
        "import sys, time; start = time.process_time(); import aveyb_retrieval; took = time.process_time() - start\n"
        f"print(took, *[name for name in {HEAVY} if name in sys.modules])"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(3)
    ]
    assert all(len(run) == 1 for run in runs), runs
    assert min(float(run[0]) for run in runs) < 0.2


def test_commands_show_their_help_without_importing_torch() -> None:
    for command in ("index", "eval", "train"):
        code = (
            "import sys; from click.testing import CliRunner\n"
            f"from aveyb_retrieval.cli.{command} import main\n"
            "result = CliRunner().invoke(main, ['--help']); assert result.exit_code == 0, result.output\n"
            "assert 'torch' not in sys.modules and 'faiss' not in sys.modules"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
