"""The one rule that chooses an implementation."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from aveyb_retrieval.errors import BackendError
from aveyb_retrieval.kernels import dispatch
from aveyb_retrieval.kernels.mixing import dynamic_mix
from tests.refusals import Refusal, refusals

SPLIT = torch.randn(1, 4, 8)


def test_the_cpu_takes_torch() -> None:
    assert not dispatch.use_triton("auto", SPLIT, operation="x")
    assert not dispatch.use_triton("torch", SPLIT, operation="x")


@pytest.mark.parametrize(
    ("is_installed", "splits", "reason"),
    [
        (False, SPLIT, r"dynamic_mix: Triton is not installed .*pip install .*\[gpu\]"),
        (True, SPLIT, "on cpu, kernels run on CUDA devices"),
        (True, SPLIT.double(), r"not torch\.float64"),
    ],
    ids=["not installed", "cpu", "float64"],
)
def test_an_order_that_cannot_be_carried_out_says_why(
    monkeypatch: pytest.MonkeyPatch, is_installed: bool, splits: torch.Tensor, reason: str
) -> None:
    monkeypatch.setattr(dispatch, "_INTERPRETING", False)
    monkeypatch.setattr(dispatch, "_TRITON_INSTALLED", is_installed)
    with pytest.raises(BackendError, match=reason):
        dynamic_mix(splits, splits, normalization="l1", eps=1e-12, backend="triton")


def test_a_limit_of_the_kernel_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_TRITON_INSTALLED", True)
    monkeypatch.setattr(dispatch, "_INTERPRETING", True)
    long = torch.randn(1, 257, 4)
    with pytest.raises(BackendError, match="at most 256 tokens, not 257"):
        dynamic_mix(long, long, normalization="l1", eps=1e-12, backend="triton")
    assert dispatch.use_triton("triton", SPLIT, operation="x")
    assert not dispatch.use_triton("auto", SPLIT, operation="x", limit="too large")


@refusals(
    {
        BackendError: {
            "unknown backend 'cuda'": lambda: dispatch.use_triton("cuda", SPLIT, operation="x"),
            "unknown backend": lambda: dispatch.force_backend("fast").__enter__(),
        },
    }
)
def test_unknown_names_are_refused(refused: Refusal) -> None:
    refused()


def test_forcing_changes_only_auto_and_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_TRITON_INSTALLED", True)
    monkeypatch.setattr(dispatch, "_INTERPRETING", True)
    with dispatch.force_backend("triton"):
        assert dispatch.use_triton("auto", SPLIT, operation="x")
        assert not dispatch.use_triton("torch", SPLIT, operation="x")
    assert not dispatch.use_triton("auto", SPLIT, operation="x")


def test_forcing_reaches_no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_TRITON_INSTALLED", True)
    monkeypatch.setattr(dispatch, "_INTERPRETING", True)
    with ThreadPoolExecutor(1) as pool, dispatch.force_backend("triton"):
        other = pool.submit(dispatch.use_triton, "auto", SPLIT, operation="x")
        assert dispatch.forced_backend() == "triton"
        assert not other.result()
        assert pool.submit(dispatch.forced_backend).result() is None
    assert dispatch.forced_backend() is None


def test_every_operation_imports_and_runs_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None  # as if it were not installed\n"
        "import importlib, pkgutil, torch, aveyb_retrieval.kernels as kernels\n"
        "for module in pkgutil.iter_modules(kernels.__path__):\n"
        "    module.ispkg or importlib.import_module('aveyb_retrieval.kernels.' + module.name)\n"
        "from aveyb_retrieval.kernels.mixing import dynamic_mix\n"
        "x = torch.ones(1, 2, 4)\n"
        "assert torch.allclose(dynamic_mix(x, x, normalization='l1', eps=0.0), x)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
