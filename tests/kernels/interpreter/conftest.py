"""Kernels on the CPU: Triton's interpreter, with every freshly allocated buffer filled with NaN.

TRITON_INTERPRET is read when a kernel is defined, so these tests have a process of their own
(`tests/kernels/test_interpreter.py` starts it) and say so when collected without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        reason = "runs in its own process with TRITON_INTERPRET=1, through tests/kernels/test_interpreter.py"
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` fills with NaN (integers: their largest value), so that what a kernel leaves unwritten shows."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert bool(torch.empty(1).isnan())
    yield
    torch.use_deterministic_algorithms(False)
