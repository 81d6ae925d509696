"""What a check of a kernel needs: errors against a wider computation, repetition under load, and its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from common import Row

# Largest relative error (norm of the difference over norm) of an output or gradient against float64.
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
PRESETS: dict[str, dict[str, Any]] = {
    "released": {"normalization": "l1", "activation": "none", "bias": False},
    "paper": {"normalization": "sum", "activation": "relu", "bias": True},
}
Outputs = dict[str, torch.Tensor]
REPETITIONS = 50


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """|got - wanted| / |wanted|, NaN counting as infinite."""
    error = float((got.double().cpu() - wanted.double().cpu()).norm() / wanted.double().norm().cpu().clamp_min(1e-30))
    return error if error == error else float("inf")


def equal(got: Outputs, other: Outputs) -> bool:
    """Whether all tensors agree bit for bit."""
    return all(torch.equal(got[k], other[k]) for k in got)


class Load:
    """Products on a stream of their own, queued before a check, so that its programs share the device."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._a = torch.randn(4096, 4096, device=device).bfloat16() if self._stream else None

    def repeat(self, run: Callable[[], Outputs], first: Outputs) -> bool:
        """Whether `REPETITIONS` further runs under load give the bits of the first."""
        for repetition in range(REPETITIONS):
            if self._stream is not None and repetition % 5 == 0:
                with torch.cuda.stream(self._stream):
                    for _ in range(10):
                        torch.mm(self._a, self._a)
            if not equal(first, run()):
                return False
        return True


def verdict(error: float, bound: float, deterministic: bool) -> Row:
    """The columns of a row that decide."""
    return {"error": error, "bound": bound, "deterministic": deterministic, "ok": error <= bound and deterministic}


def line(name: str, error: float, bound: float, deterministic: bool) -> Row:
    """One row."""
    return {"check": name} | verdict(error, bound, deterministic)
