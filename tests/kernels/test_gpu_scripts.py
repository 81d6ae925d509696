"""benchmarks/gpu at toy sizes on a CPU: each part measures, and what fails in one is a row."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
MODULES = ("run", "models", "operations", "measure")
SETTINGS = (
    "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCHINDUCTOR_COMPILE_THREADS",
)  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `run`, whose settings and whose modules are gone afterwards."""
    for name in SETTINGS:
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    import run

    yield run
    for name in MODULES:
        sys.modules.pop(name, None)


def rows(run: Any, folder: Path, function: str, group: str, seconds: float) -> list[dict[str, Any]]:
    until = time.time() - run.BEGIN + seconds
    run.work(run.Context("cpu", True, "part", until, folder), function, group)
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("function", "group"), [("operations.check", "9"), ("models.check", "released")]
)
def test_checks_are_right(run: Any, tmp_path: Path, function: str, group: str) -> None:
    found = rows(run, tmp_path, function, group, 60)
    assert found
    assert all(row["ok"] for row in found), found
    assert all(row["error"] <= 2e-2 for row in found if "error" in row)


@pytest.mark.parametrize(
    ("function", "group"), [("operations.timing", "kernels"), ("models.encode", "launches")]
)
def test_what_there_is_no_time_for_is_said(
    run: Any, tmp_path: Path, function: str, group: str
) -> None:
    found = rows(run, tmp_path, function, group, 4)
    assert all(row.get("note", "no time") == "no time" for row in found), found
    assert any(row.get("torch_ms", row.get("ms", 0)) > 0 for row in found)


def test_parts_name_functions_that_exist(run: Any) -> None:
    import models
    import operations

    for _, function, groups, _ in (*run.PARTS, *run.COMPILED_PARTS):
        module, name = function.split(".")
        assert callable(getattr({"models": models, "operations": operations}[module], name))
        assert groups


@pytest.mark.slow
def test_the_compiled_encoder_is_right_and_the_same_alone(run: Any, tmp_path: Path) -> None:
    right, alone = rows(run, tmp_path, "models.check_compiled", "released", 300)
    assert right["ok"]
    assert alone["error"] <= 2e-2  # to the bit is what a GPU has to show


def test_an_error_is_a_row(run: Any, tmp_path: Path) -> None:
    context = run.Context("cpu", True, "part", time.time() - run.BEGIN + 60, tmp_path)
    assert not context.attempt("fails", lambda: {}["nothing"])
    assert context.attempt("runs", lambda: {"ok": True, "error": 0.0})
    assert "part: 1 right, 1 wrong" in run.summary(tmp_path)
