"""Muon: momentum orthogonalized by Newton-Schulz, for the matrices of layers; and StableAdamW for
the rest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class StableAdamW(torch.optim.Optimizer):
    """AdamW whose step is bounded tensor by tensor (Wortsman et al., 2023, algorithm 2).

    Each tensor's learning rate is divided by `max(1, RMS(g^2 / v))`: where the second moment lags
    behind a sudden gradient the step shrinks, and no global gradient clipping is needed. Moments
    are debiased as in AdamW.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the closure's loss, if one
        is given.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step, (beta1, beta2), eps = state["step"].item(), group["betas"], group["eps"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(gradient, 1 - beta1)
        square.lerp_(gradient.square(), 1 - beta2)
        unbiased = square / (1 - beta2**step)
        ratio = (gradient.square() / unbiased.clamp_min(eps**2)).mean().sqrt().item()
        rate = group["lr"] / max(1.0, ratio)
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.addcdiv_(mean / (1 - beta1**step), unbiased.sqrt() + eps, value=-rate)


class Muon(StableAdamW):
    """Momentum orthogonalized by Newton-Schulz for groups with `orthogonal`, StableAdamW for all
    others.

    Jordan et al., 2024: an update of a matrix is its momentum with all singular values near 1,
    found by five steps of a quintic polynomial; scaled by `0.2 sqrt(longer side)`, its size is that
    of Adam's (Liu et al., 2025), so one learning rate serves both. `torch.optim.Muon` multiplies in
    bfloat16, which takes 30 times as long on processors without it; here that is `dtype`.
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
        parameter.add_(
            direction, alpha=-group["lr"] * self._SCALE * math.sqrt(max(parameter.shape))
        )

    def _orthogonal(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return `[M, N]` with the singular vectors of `matrix` and singular values between 0.7 and
        1.2, about.
        """
        a, b, c = self._COEFFICIENTS
        x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
        x = (x / x.norm().clamp_min(1e-7)).to(self.dtype)
        for _ in range(self._STEPS):
            gram = x @ x.T
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return (x.T if matrix.shape[0] > matrix.shape[1] else x).to(matrix.dtype)
