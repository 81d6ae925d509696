"""Muon: momentum orthogonalized by Newton-Schulz, for the matrices of layers."""

from __future__ import annotations

import math
from typing import Any

import torch

from aveyb_retrieval.training.trainer import StableAdamW


class Muon(StableAdamW):
    """Momentum orthogonalized by Newton-Schulz for groups with `orthogonal`, StableAdamW for all others.

    Jordan et al., 2024: an update of a matrix is its momentum with all singular values near 1, found by five steps of
    a quintic polynomial; scaled by `0.2 sqrt(longer side)`, its size is that of Adam's (Liu et al., 2025), so one
    learning rate serves both. `torch.optim.Muon` multiplies in bfloat16, which takes 30 times as long on processors
    without it; here that is `dtype`.
    """

    dtype = torch.float32

    _MOMENTUM = 0.95
    _COEFFICIENTS = (3.4445, -4.7750, 2.0315)
    _STEPS = 5
    _SCALE = 0.2

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        if not group.get("orthogonal"):
            super()._update(parameter, group)
            return
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(gradient, 1 - self._MOMENTUM)
        direction = self._orthogonal(gradient.lerp(state["momentum"], self._MOMENTUM))  # Nesterov's
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"] * self._SCALE * math.sqrt(max(parameter.shape)))

    def _orthogonal(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return `[M, N]` with the singular vectors of `matrix` and singular values between 0.7 and 1.2, about."""
        a, b, c = self._COEFFICIENTS
        x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
        x = (x / x.norm().clamp_min(1e-7)).to(self.dtype)
        for _ in range(self._STEPS):
            gram = x @ x.T
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return (x.T if matrix.shape[0] > matrix.shape[1] else x).to(matrix.dtype)
