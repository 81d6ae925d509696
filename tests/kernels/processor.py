"""Ask about the processor what the code asks, so that tests skip exactly what cannot run on it."""

from __future__ import annotations

import pytest
import torch

from aveyb_retrieval.kernels import cpu


@torch.no_grad()
def takes_packed(dtype: torch.dtype) -> bool:
    """Whether inputs of `dtype` can meet packed weights on this processor with this torch."""
    return cpu.usable(torch.empty(1, 1, dtype=dtype))


def needs_packed(dtype: torch.dtype) -> pytest.MarkDecorator:
    """Skip a test where `cpu.usable` refuses inputs of `dtype`."""
    name = str(dtype).removeprefix("torch.")
    reason = f"no packed {name} weights here: this processor or this torch lacks oneDNN's {name} products"
    return pytest.mark.skipif(not takes_packed(dtype), reason=reason)
