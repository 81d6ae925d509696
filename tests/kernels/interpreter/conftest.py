"""Kernels on the CPU: Triton's interpreter, with every freshly allocated buffer filled with NaN.

`tests/kernels/test_interpreter.py` starts these tests in a process of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` fills with NaN (integers: their largest value), so that what a kernel leaves unwritten shows."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert bool(torch.empty(1).isnan())
    yield
    torch.use_deterministic_algorithms(False)
