"""Optimizers and learning-rate schedules: AdamW and cosine decay as in the paper, StableAdamW, and a trapezoid."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.settings import OPTIMIZERS, SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn


def parameter_groups(model: nn.Module, weight_decay: float, embedding_rate: float = 1.0) -> list[dict[str, Any]]:
    """Group the parameters: weight decay on matrices only, none on biases, norms and scalars.

    A group's `rate` is its multiple of the learning rate: `embedding_rate` for token embeddings, else 1. Adam's step is
    of the learning rate's size whatever the entries' is, and those of an embedding may be 20 times those of a matrix.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)} if embedding_rate != 1 else ()
    matrices = [p for p in trained if p.dim() >= 2]
    groups = [
        {"params": [p for p in matrices if id(p) not in tables], "weight_decay": weight_decay, "rate": 1.0},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0, "rate": 1.0},
        {"params": [p for p in matrices if id(p) in tables], "weight_decay": weight_decay, "rate": embedding_rate},
    ]
    return groups if tables else groups[:2]


def build_optimizer(
    model: nn.Module,
    name: str,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    embedding_rate: float = 1.0,
) -> torch.optim.Optimizer:
    """Build one of `OPTIMIZERS` over `parameter_groups`; whoever changes `lr` later multiplies it by a group's `rate`.

    Raises:
        ConfigError: unknown name.
    """
    groups = parameter_groups(model, weight_decay, embedding_rate)
    for group in groups:
        group["lr"] = lr * group["rate"]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps)
    if name == "stable_adamw":
        return StableAdamW(groups, lr=lr, betas=betas, eps=eps)
    raise ConfigError(f"optimizer is {name!r}; choose one of {', '.join(OPTIMIZERS)}")


def learning_rate_factor(name: str, steps: int, warmup: float, floor: float = 0.0) -> Callable[[int], float]:
    """Return a function from a step to its factor of the peak learning rate; what falls, falls to `floor`.

    The factor rises linearly over the first `warmup` share of the steps. `trapezoidal` then stays at the peak and falls
    as `1 - sqrt` over the last tenth (Warner et al., 2024, appendix). After the warm-up these are the schedules of
    `transformers.get_scheduler`; those start the warm-up at 0, so that a run's first step would change nothing.

    Raises:
        ConfigError: unknown name, or a share outside 0 to 1.
    """
    if not 0 <= floor <= 1:
        raise ConfigError(f"floor is {floor}; it is a share of the peak learning rate, from 0 to 1")
    if name not in SCHEDULES:
        raise ConfigError(f"schedule is {name!r}; choose one of {', '.join(SCHEDULES)}")
    if not 0 <= warmup < 1:
        raise ConfigError(f"warmup is {warmup}; it is a share of the steps, at least 0 and below 1")
    rising = round(warmup * steps)

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        done = min(1.0, (step - rising) / max(1, steps - rising))
        return floor + (1 - floor) * shape(done)

    def shape(done: float) -> float:
        if name == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        if name == "linear":
            return 1 - done
        if name == "trapezoidal":
            return 1.0 if done < 0.9 else 1 - math.sqrt((done - 0.9) / 0.1)
        return 1.0

    return factor


class StableAdamW(torch.optim.Optimizer):
    """AdamW whose step is bounded tensor by tensor (Wortsman et al., 2023, algorithm 2).

    Each tensor's learning rate is divided by `max(1, RMS(g^2 / v))`: where the second moment lags behind a sudden
    gradient the step shrinks, and no global gradient clipping is needed. Moments are debiased as in AdamW.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        """Take the arguments of `torch.optim.AdamW`."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return the closure's loss, if one is given."""
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
    """Momentum orthogonalized by Newton-Schulz for groups with `orthogonal`, StableAdamW for all others.

    Jordan et al., 2024: an update of a matrix is its momentum with all singular values near 1, found by five steps of
    a quintic polynomial; scaled by `0.2 sqrt(longer side)`, its size is that of Adam's (Liu et al., 2025), so one
    learning rate serves both. `torch.optim.Muon` multiplies in bfloat16, which takes 30 times as long on processors
    without it.
    """

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
        x = x / x.norm().clamp_min(1e-7)
        for _ in range(self._STEPS):
            gram = x @ x.T
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.T if matrix.shape[0] > matrix.shape[1] else x
