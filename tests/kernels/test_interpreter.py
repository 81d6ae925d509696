"""Starts the interpreter suite: Triton reads TRITON_INTERPRET when a kernel is defined, so it needs
its own process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parent / "interpreter"


@pytest.mark.slow
def test_kernels_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    root = SUITE.parents[2]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", str(SUITE), "-q", "-p", "no:cacheprovider"],
        env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=900,
    )
    print(run.stdout[-2000:])
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
