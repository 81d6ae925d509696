"""Kernels on the CPU: Triton's interpreter, with every freshly allocated buffer filled with NaN.

`tests/kernels/test_interpreter.py` starts these tests in a process of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import ReduceOps

from aveyb_retrieval.kernels.triton import tiles

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` fills with NaN (integers: their largest value), so that what a kernel leaves
    unwritten shows.
    """
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert bool(torch.empty(1).isnan())
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def fast_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter reduces by any function but Triton's own one element after another: let NumPy
    do ours.
    """
    reduce = ReduceOps.apply_impl

    def by_numpy(self, values):  # type: ignore[no-untyped-def]
        if self.combine_fn is tiles.larger:
            return self.min_max(values[0], val_reduce_op=np.max)
        return reduce(self, values)

    monkeypatch.setattr(ReduceOps, "apply_impl", by_numpy)
